"""Selects the log that is compacted next and its offsets; checkpoints cleaned offsets and swaps segments.

Source: org.apache.kafka.storage.internals.log.LogCleanerManager, LogToClean.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from barnabas.storage.compaction.cleaner import CleanedSegment, CleaningJob, LastRecord, SourceSegment
from barnabas.storage.compaction.offset_map import ENTRY_BYTES
from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import StorageError, refusal
from barnabas.storage.files import unlink_if_exists
from barnabas.storage.log import PartitionLog
from barnabas.storage.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.segment_removal import replace_segments
from barnabas.storage.segment_times import SegmentTimes

logger = logging.getLogger(__name__)

_MAP_BYTES_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The cleanable section of a log: no pass has read the segments in [first_dirty_offset, first_uncleanable_offset).
    `is_due` says that max.compaction.lag.ms has passed for some of it.
    """

    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of the cleanable bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether the topic's configs call for a pass."""
        return (self.is_due and self.dirty_bytes > 0) or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def times_for_cleaning(log: PartitionLog, clean_offset: int | None, now_ms: int) -> SegmentTimes:
    """The segments' timestamps that `log_to_clean` needs: to be read in a thread."""
    config, bases = log.config, [segment.base_offset for segment in log.segments]
    first_dirty = _first_dirty_offset(log, clean_offset)
    dirty_from = _segment_start(bases, first_dirty) if bases[-1] > first_dirty else bases[-1]
    dirty = [segment for segment in log.segments[:-1] if segment.base_offset >= dirty_from]
    return SegmentTimes(
        log.context.cache,
        first_of=dirty if now_ms > config.max_compaction_lag_ms else (),
        largest_of=dirty if config.min_compaction_lag_ms > 0 else (),
        is_enough=lambda timestamp: timestamp > now_ms - config.min_compaction_lag_ms,
    )


def log_to_clean(
    log: PartitionLog, clean_offset: int | None, now_ms: int, times: SegmentTimes | None = None
) -> LogToClean | None:
    """The section of a log that is dirty and may be cleaned; None if there is none. `clean_offset` is the end of the
    last pass.

    Never cleaned are the active segment, anything at or above the last stable offset, and segments with records younger
    than min.compaction.lag.ms; nor batches that are not flushed, lest a power cut loses a record after the pass removed
    its predecessor of the same key. `times` was read in a thread; without it this may read timestamps of segments the
    first time.

    Source: LogCleanerManager.cleanableOffsets, maxCompactionDelay; the last condition is our own.
    """
    segments = log.segments
    first_dirty = _first_dirty_offset(log, clean_offset)
    if len(segments) == 1 or segments[-1].base_offset <= first_dirty:
        return None
    bases = [segment.base_offset for segment in segments]
    uncleanable = _segment_start(bases, min(log.last_stable_offset, log.recovery_point, bases[-1]))
    cache, lag_ms = log.context.cache, log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for slot, segment in enumerate(segments[:-1]):
            is_dirty = bases[slot + 1] > first_dirty
            if not is_dirty:
                continue
            largest = segment.largest_timestamp(cache) if times is None else times.largest(segment)
            if largest is None or largest > now_ms - lag_ms:
                uncleanable = min(uncleanable, max(segment.base_offset, _segment_start(bases, first_dirty)))
                break
    dirty_from = _segment_start(bases, first_dirty)
    clean_bytes = sum(segment.size for segment in segments if segment.base_offset < dirty_from)
    dirty = [segment for segment in segments if dirty_from <= segment.base_offset < uncleanable]
    if not dirty:
        return None
    clean_until_ms = now_ms - log.config.max_compaction_lag_ms
    timestamps = [segment.read_first_timestamp(cache) for segment in dirty] if clean_until_ms > 0 else []
    is_due = any(0 < timestamp < clean_until_ms for timestamp in timestamps)
    return LogToClean(log, first_dirty, uncleanable, clean_bytes, sum(segment.size for segment in dirty), is_due)


def _first_dirty_offset(log: PartitionLog, clean_offset: int | None) -> int:
    if clean_offset is not None and log.log_start_offset <= clean_offset <= log.log_end_offset:
        return clean_offset
    return log.log_start_offset


def _segment_start(bases: list[int], offset: int) -> int:
    """The base offset of the segment that contains `offset`."""
    return max((base for base in bases if base <= offset), default=bases[0])


def dirtiest(candidates: Iterable[LogToClean]) -> LogToClean | None:
    """The log with the highest dirty ratio; None if no log needs a pass."""
    wanted = [candidate for candidate in candidates if candidate.is_wanted]
    return max(wanted, key=lambda candidate: candidate.dirty_ratio, default=None)


def make_job(to_clean: LogToClean, now_ms: int, *, map_bytes: int, map_load_factor: float) -> CleaningJob:
    """Capture the input of a pass over a log. May read the producer state the first time."""
    log, config = to_clean.log, to_clean.log.config
    return CleaningJob(
        directory=log.directory,
        segments=[
            SourceSegment(segment.base_offset, segment.file.path, segment.size)
            for segment in log.segments
            if segment.base_offset < to_clean.first_uncleanable_offset
        ],
        txn_indexes=[segment.path(TXN_INDEX_SUFFIX) for segment in log.segments if segment.has_txn_index],
        first_dirty_offset=to_clean.first_dirty_offset,
        first_uncleanable_offset=to_clean.first_uncleanable_offset,
        producers={
            entry.producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for entry in log.producer_state.producers.values()
        },
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_slots=min(map_bytes, _MAP_BYTES_MAX) // ENTRY_BYTES,
        map_load_factor=map_load_factor,
        log_start_offset=log.log_start_offset,
    )


class SegmentSwap:
    """Takes one cleaned segment into its log, in three steps, so that a thread waits for the disk: `begin` (event
    loop), `sync` (any thread), `finish` (event loop).

    The `.cleaned` files are on the disk already. `begin` renames them to `.swap`. After `sync` has made that durable, a
    crash leads to the cleaned segment, and before to the old ones. A disk failure in between takes the log offline.
    """

    def __init__(self, log: PartitionLog, job: CleaningJob, cleaned: CleanedSegment) -> None:
        self._log = log
        self._files = log.context.cache.files
        self._directory = job.directory
        self._cleaned = cleaned
        self._sync_error: OSError | None = None
        replaced = set(cleaned.replaces)
        self._sources = [source for source in job.segments if source.base_offset in replaced]

    def begin(self) -> bool:
        """Rename the cleaned files to `.swap`; False if the log has changed meanwhile, or failed.

        Raises:
            StorageError: the disk is full; nothing has changed.
        """
        if self._replaced() is None:
            return False
        try:
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                path = self._path(suffix)
                if self._files.exists(path + CLEANED_SUFFIX):
                    self._files.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        except OSError as error:
            raise self._refused(error) from error
        return True

    def sync(self) -> None:
        """Make the renames of `begin` durable. Blocking; `finish` raises if it failed."""
        try:
            self._files.sync_directory(self._directory)
        except OSError as error:
            self._sync_error = error

    def finish(self) -> bool:
        """Put the cleaned segment into the log; False if the log has changed since `begin`, or failed.

        Raises:
            StorageError: as `begin` does, or the log is offline.
        """
        if self._log.directory != self._directory:
            return False
        old = self._replaced()
        if self._sync_error is not None:
            raise self._refused(self._sync_error)
        if old is None:
            self._take_back()
            return False
        cleaned = self._cleaned
        file = LogFile(self._path(LOG_SUFFIX) + SWAP_SUFFIX)
        new = Segment(cleaned.base_offset, file, cleaned.size, old[-1].created_ms)
        new.has_txn_index = cleaned.has_txn_index
        new.max_timestamp, new.max_timestamp_offset = cleaned.max_timestamp, cleaned.max_timestamp_offset
        try:
            replace_segments(self._log, old, new)
        except StorageError:
            if self._log.failure is None:
                self._take_back()
            raise
        return True

    def _refused(self, error: OSError) -> StorageError:
        """Undo the steps before a step that the disk refused, if the error is transient; else take the log offline, so
        that the next start finishes or undoes the swap. Returns the error to raise.
        """
        failure = refusal(f"swapping cleaned segments of {self._directory}", error)
        if failure.passes:
            self._take_back()
        else:
            self._log.local.health.fail(failure)
        return failure

    def _take_back(self) -> None:
        """Remove the `.swap` files. As long as a `.cleaned` file exists, a start removes the others. If removal fails,
        it is unknown which names are on the disk.
        """
        path = self._path(LOG_SUFFIX)
        try:
            if self._files.exists(path + SWAP_SUFFIX):
                self._files.rename(path + SWAP_SUFFIX, path + CLEANED_SUFFIX)
            for suffix in INDEX_SUFFIXES:
                unlink_if_exists(self._files, self._path(suffix) + SWAP_SUFFIX)
            unlink_if_exists(self._files, path + CLEANED_SUFFIX)
        except OSError as error:
            self._log.local.health.fail(StorageError(f"undoing the swap of {self._directory} failed: {error}"))

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self._cleaned.base_offset, suffix)}"

    def _replaced(self) -> list[Segment] | None:
        """The segments of the log that the cleaned one was made of; None if they have changed."""
        if self._log.failure is not None or self._log.directory != self._directory:
            return None
        found = {segment.base_offset: segment for segment in self._log.segments[:-1]}
        old = [found.get(source.base_offset) for source in self._sources]
        segments = [segment for segment in old if segment is not None]
        unchanged = [
            segment.size == source.size and segment.file.path == source.path
            for segment, source in zip(segments, self._sources, strict=False)
        ]
        return segments if segments and len(segments) == len(self._sources) and all(unchanged) else None


def describe_failure(error: StorageError | OSError) -> str:
    """The reason of the early end of a pass, for a log line."""
    return error.message if isinstance(error, StorageError) else str(error)
