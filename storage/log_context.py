"""What the logs of one directory share, and what they hand over to the log manager."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.clock import Clock
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.files import DescriptorCache, LogFile
from barnabas.storage.flush import SharedSync
from barnabas.storage.offset_index import OffsetIndexCache

if TYPE_CHECKING:
    from barnabas.storage.local_log import LocalLog


@dataclass(slots=True)
class DoomedFiles:
    """Files that were renamed to `.deleted` and are to be unlinked when `due_ms` (monotonic) has come."""

    due_ms: int
    segments: list[LogFile]
    others: list[str]


@dataclass(slots=True)
class LogContext:
    """What all logs of one directory share.

    `reads_cached`: whether reads that never wait for the disk work there. `random_below(n)` draws the jitter of
    segment.jitter.ms. `doomed` collects files for the log manager to unlink. `names` are those of
    the logs. `on_failure` is told once per log.
    """

    cache: DescriptorCache
    indexes: OffsetIndexCache
    clock: Clock
    reads_cached: bool = False
    producer_id_expiration_ms: int = 86_400_000
    random_below: Callable[[int], int] = lambda _: 0
    doomed: deque[DoomedFiles] = field(default_factory=deque)
    names: SharedSync = field(default_factory=SharedSync)
    on_failure: Callable[[LocalLog, StorageError], None] = lambda _log, _error: None

    def jitter(self, config: LogConfig) -> int:
        """How many ms earlier than segment.ms a new segment is rolled."""
        limit = min(config.segment_jitter_ms, config.segment_ms)
        return self.random_below(limit) if limit > 0 else 0
