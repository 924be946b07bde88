"""Handles unexpected exceptions in single entries of a request: such an entry gets an error, the others are served.

A request names many partitions, groups or transactional ids. An error of one of them is in its own result, as in Kafka
(`ReplicaManager.readFromLog` and `appendToLocalLog` catch every Throwable), but with an error that clients retry:
UNKNOWN_SERVER_ERROR would end a producer. There is no cost without an exception: the handlers have such a boundary for
each entry anyway.
"""

import logging
from typing import Final

from barnabas.clock import Clock
from barnabas.storage.errors import StorageError
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

_SILENCE_MS: Final = 60_000
"""The time after which the same error of the same entry is logged again: clients retry ten times a second."""
_TOLD_MAX: Final = 1_000


class UnforeseenErrors:
    """Turns exceptions into the errors of single entries, and logs them; `count` is the number of those that are no
    ApiError, since the start."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._told: dict[str, int] = {}

    def refusal(self, error: Exception, name: str, index: int = -1) -> ApiError:
        """The error of an entry: its own or, for an unexpected exception, KAFKA_STORAGE_ERROR (for a partition, with
        its `index`) or UNKNOWN_SERVER_ERROR (for anything else). Failures of a disk and unexpected exceptions are
        logged."""
        if isinstance(error, ApiError):
            if isinstance(error, StorageError):
                self._tell(error, name, index, trace=None)
            return error
        self.count += 1
        self._tell(error, name, index, trace=error)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR if index < 0 else ErrorCode.KAFKA_STORAGE_ERROR)

    def _tell(self, error: Exception, name: str, index: int, trace: Exception | None) -> None:
        if index >= 0:
            name = f"{name}-{index}"
        what = error.message if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
        line = f"a request for {name} failed: {what}"
        now_ms = self._clock.monotonic_ms()
        if self._told.get(line, now_ms) > now_ms:
            return
        if len(self._told) >= _TOLD_MAX:
            self._told.clear()
        self._told[line] = now_ms + _SILENCE_MS
        logger.error("%s", line, exc_info=trace)
