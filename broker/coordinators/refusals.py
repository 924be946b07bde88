"""What a coordinator refuses because it would take too much memory: counted, and told now and then. Whoever is kept out
is told to come back, and does, so somebody else has to know.
"""

import logging
from typing import Final

from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

SILENCE_MS: Final = 60_000
"""The next line comes after this time at the earliest."""


class Refusals:
    """Those of one coordinator; `count` is that since the start."""

    def __init__(self, coordinator: str, clock: Clock) -> None:
        self.count = 0
        self._coordinator = coordinator
        self._clock = clock
        self._silent_until_ms = 0
        self._told = 0

    def refusal(self, reason: str) -> ApiError:
        """One more: COORDINATOR_NOT_AVAILABLE."""
        self.count += 1
        now_ms = self._clock.monotonic_ms()
        if self._told == 0 or now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + SILENCE_MS
            logger.warning("%s: %s; %d refused for that", self._coordinator, reason, self.count - self._told)
            self._told = self.count
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)
