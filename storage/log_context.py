"""What the logs of one log directory (an entry of `log.dirs`) share: the disk, caches, clock and settings that they are
handed, and what they hand over to the log manager."""

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
    """Files that were renamed to `.deleted` and are to be unlinked when `due_ms` (monotonic) has come; unless the log
    that they were of is deleted meanwhile, by its `health`: then they go with its directory, and their paths may be
    those of another log.
    """

    due_ms: int
    health: LogHealth
    segments: list[LogFile]
    others: list[str]


@dataclass(slots=True)
class LogContext:
    """What all logs of one log directory share; the log manager makes it.

    Attributes:
        cache: open descriptors of `.log` files, of all log directories; `cache.files` is the disk.
        indexes: offset indexes of sealed segments, of all log directories.
        clock: for segment ages, delayed deletions and expiry.
        reads_cached: whether reads that never wait for the disk work there (`Files.reads_cached`).
        producer_id_expiration_ms: `producer.id.expiration.ms`, as it is now.
        random_below: draws the jitter of `segment.jitter.ms`: a number from 0 to below its argument.
        segment_bytes_min: what a segment has to hold before another one is begun, whatever the log's settings say: more
            than a byte only while there are very many (`LogManager.bound_segments`).
        doomed: files that the logs have given up, for the log manager to unlink (`delete_due_files`).
        names: the syncs of the log directory itself, in which the logs' directories have their names.
        flush_numbers: a number for each flush, so that no two write a file of the same temporary name.
        on_failure: told once per log, with its directory, why it went offline.
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
        """How many ms earlier than segment.ms a new segment is rolled."""
        limit = min(config.segment_jitter_ms, config.segment_ms)
        return self.random_below(limit) if limit > 0 else 0
