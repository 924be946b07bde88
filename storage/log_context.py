"""State that the logs of one log directory (an entry of `log.dirs`) share: disk, caches, clock and settings, and the
queue of files for the log manager to unlink.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from barnabas.clock import Clock
from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import StorageError
from barnabas.storage.flush import SharedSync
from barnabas.storage.log_health import LogHealth
from barnabas.storage.offset_index import OffsetIndexCache


@dataclass(slots=True)
class DoomedFiles:
    """Files that were renamed to `.deleted` and are unlinked once `due_ms` (monotonic) has passed, unless the log's
    `health` says that the log was deleted meanwhile: then they are removed with its directory, and their paths may
    belong to another log.
    """

    due_ms: int
    health: LogHealth
    segments: list[LogFile]
    others: list[str]


@dataclass(slots=True)
class LogContext:
    """State that all logs of one log directory share; the log manager creates it.

    Attributes:
        cache: open descriptors of `.log` files, of all log directories; `cache.files` is the disk.
        indexes: offset indexes of sealed segments, of all log directories.
        clock: for segment ages, delayed deletions and expiry.
        reads_cached: whether reads that never wait for the disk work there (`Files.reads_cached`).
        producer_id_expiration_ms: the current `producer.id.expiration.ms`.
        random_below: draws the jitter of `segment.jitter.ms`: a number from 0 to below its argument.
        segment_bytes_min: the minimum size of a segment before a new one is created, whatever the log's settings: more
            than a byte only while there are very many segments (`LogManager.bound_segments`).
        doomed: deleted files of the logs, for the log manager to unlink (`delete_due_files`).
        names: the syncs of the log directory itself, which contains the names of the logs' directories.
        flush_numbers: a number for each flush, so that no two flushes write a temporary file of the same name.
        on_failure: called once per log that goes offline, with its directory and the error.
    """

    cache: DescriptorCache
    indexes: OffsetIndexCache
    clock: Clock
    reads_cached: bool = False
    producer_id_expiration_ms: int = 86_400_000
    random_below: Callable[[int], int] = lambda _: 0
    segment_bytes_min: int = 1
    doomed: deque[DoomedFiles] = field(default_factory=deque)
    names: SharedSync = field(default_factory=SharedSync)
    flush_numbers: Iterator[int] = field(default_factory=itertools.count)
    on_failure: Callable[[str, StorageError], None] = lambda _directory, _error: None

    def jitter(self, config: LogConfig) -> int:
        """The time in ms by which a new segment is rolled before segment.ms has passed."""
        limit = min(config.segment_jitter_ms, config.segment_ms)
        return self.random_below(limit) if limit > 0 else 0
