"""Limits the memory of a coordinator: events that would exceed the limit are refused. (Kafka has no limit, and grows
until its heap is full.)

Refused clients receive a retriable error, and retry; so refusals are counted for /metrics, and logged from time to
time, since they would be unnoticed otherwise.
"""

import logging
from collections.abc import Callable
from typing import Final

from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

SILENCE_MS: Final = 60_000
"""The minimum time between two log lines."""


class MemoryBudget:
    """The approximate limit of bytes in the shards of one coordinator; owned by the event loop.

    `bytes_max` is the limit for any client; a check may allow some more. `held_bytes()` sums up the memory of all
    shards, which takes time: the rest of the budget at the last sum suffices for many events, which then need no new
    sum.
    """

    def __init__(self, entities: str, bytes_max: int, held_bytes: Callable[[], int], clock: Clock) -> None:
        self.bytes_max = bytes_max
        self.refused_count = 0
        """The number of refusals since the start."""
        self._entities = entities
        self._held_bytes = held_bytes
        self._clock = clock
        self._left_bytes = 0
        self._silent_until_ms = 0
        self._told_count = 0

    def sum_up_again(self) -> None:
        """The set of shards has changed: let the next event sum up their memory."""
        self._left_bytes = 0

    def check(self, added_bytes: int, bytes_max: int, reason: str) -> None:
        """Refuse an addition if the total would exceed `bytes_max`. An event that adds nothing is never refused.

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
        """Count a refusal; returns the error to raise, COORDINATOR_NOT_AVAILABLE, with the reason."""
        self.refused_count += 1
        now_ms = self._clock.monotonic_ms()
        if self._told_count == 0 or now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + SILENCE_MS
            count = self.refused_count - self._told_count
            logger.warning("%s: %s; %d refused for that", self._entities, reason, count)
            self._told_count = self.refused_count
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
