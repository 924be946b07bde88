"""How much a coordinator may remember: whoever would have it remember more is refused. (Kafka counts nothing, and
remembers until its heap is full.)

Who is refused is told to come back, and does; so refusals are counted for /metrics, and told in the log now and then,
or nobody else would know of them.
"""

import logging
from collections.abc import Callable
from typing import Final

from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

SILENCE_MS: Final = 60_000
"""The next line comes after this time at the earliest."""


class MemoryBudget:
    """How many bytes the shards of one coordinator may hold, about; owned by the event loop.

    `bytes_max` is for what anybody may add; a check may allow some more. `held_bytes()` sums up what all shards hold,
    which takes time: what was left of the budget the last time is enough for many an event, and then nobody counts.
    """

    def __init__(self, entities: str, bytes_max: int, held_bytes: Callable[[], int], clock: Clock) -> None:
        self.bytes_max = bytes_max
        self.refused_count = 0
        """How often somebody was refused since the start."""
        self._entities = entities
        self._held_bytes = held_bytes
        self._clock = clock
        self._left_bytes = 0
        self._silent_until_ms = 0
        self._told_count = 0

    def sum_up_again(self) -> None:
        """Other shards count from now on: let the next event sum up what they hold."""
        self._left_bytes = 0

    def check(self, added_bytes: int, bytes_max: int, reason: str) -> None:
        """Refuse to add so much if all would be more than `bytes_max` then. What adds nothing is always let in.

        Errors: ApiError COORDINATOR_NOT_AVAILABLE, with the reason.
        """
        if added_bytes <= 0:
            return
        self._left_bytes -= added_bytes
        if self._left_bytes >= 0:
            return
        wanted = self._held_bytes() + added_bytes
        self._left_bytes = self.bytes_max - wanted
        if wanted > bytes_max:
            raise self.refusal(reason)

    def refusal(self, reason: str) -> ApiError:
        """Count somebody who is refused; the error to raise, COORDINATOR_NOT_AVAILABLE, with the reason."""
        self.refused_count += 1
        now_ms = self._clock.monotonic_ms()
        if self._told_count == 0 or now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + SILENCE_MS
            count = self.refused_count - self._told_count
            logger.warning("%s: %s; %d refused for that", self._entities, reason, count)
            self._told_count = self.refused_count
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
