"""A log as files in one directory: write batches behind each other, roll, read, cut, remove, bring to the disk.

What the batches mean (whose they are, whether they are right and may be read) is `log.PartitionLog`'s, which this
class is the lower half of. The files of the directory `TOPIC-PARTITION` are described in `segment`;
`leader-epoch-checkpoint` and `partition.metadata` in `checkpoints`.

Source: org.apache.kafka.storage.internals.log.LocalLog, LogSegments.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator
from contextlib import contextmanager

from barnabas.storage.checkpoints import (
    PARTITION_METADATA_FILE,
    decode_partition_metadata,
    encode_partition_metadata,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptFile, LogDeleted, StorageError
from barnabas.storage.files import (
    Buffer,
    Files,
    LogFile,
    StateUnknown,
    cut_back,
    is_passing,
    read_file,
    refusal,
    replace_file,
    unlink_if_exists,
    write_fully,
)
from barnabas.storage.flush import FlushTask
from barnabas.storage.log_context import DoomedFiles, LogContext
from barnabas.storage.log_reader import LogReader
from barnabas.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
)
from barnabas.storage.segment_reader import ColdRead
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

logger = logging.getLogger(__name__)


class LocalLog:
    """The segments of one log, the last of which is active, and how far they are on the disk.

    Ownership: the event loop. What may run in a thread is captured in an object of its own: `ColdRead`, `FlushTask`,
    `TimestampLookup`.

    Raises:
        StorageError (KAFKA_STORAGE_ERROR): from every method that touches the disk, once the log has failed. That is
        final (see `fail`).
    """

    __slots__ = (
        "_failure",
        "_flushing",
        "_lacks_hints",
        "_last_flush_ms",
        "_names_dirty",
        "_number",
        "_reader",
        "_segments",
        "_topic_id",
        "_unsynced_files",
        "_unsynced_seal",
        "config",
        "context",
        "directory",
        "log_end_offset",
        "partition",
        "recovery_point",
        "topic",
    )

    def __init__(
        self,
        context: LogContext,
        topic: str,
        partition: int,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_end_offset: int,
        recovery_point: int,
    ) -> None:
        self.context = context
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.config = config
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self._segments = segments
        self._reader = LogReader(context, segments)
        self._topic_id: TopicId | None = None
        self._failure: StorageError | None = None
        self._flushing: FlushTask | None = None
        self._lacks_hints = False
        """There was no room for what the next start would have believed."""
        self._last_flush_ms = context.clock.now_ms()
        self._number = 0
        """Under which `context.names` has the log's directory, while the disk does not know it."""
        self._names_dirty = False
        self._unsynced_files: list[str] = []
        self._unsynced_seal: int | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(self._segments)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size for segment in self._segments)

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config

    # --- whose log it is

    @property
    def topic_id(self) -> TopicId:
        """From `partition.metadata`; ZERO_TOPIC_ID if there is none. Blocking the first time."""
        if self._topic_id is None:
            try:
                data = read_file(self.context.cache.files, f"{self.directory}/{PARTITION_METADATA_FILE}")
                # A crash right after the file was created may leave it empty, or zeros: then it says nothing.
                self._topic_id = decode_partition_metadata(data) if any(data) else ZERO_TOPIC_ID
            except FileNotFoundError:
                self._topic_id = ZERO_TOPIC_ID
            except CorruptFile as error:
                raise StorageError(f"{self.directory}: {error}") from None
            except OSError as error:
                raise refusal(f"reading the topic id of {self.directory}", error) from error
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Note the topic's id, durably with the next flush.

        Raises:
            ApiError: INCONSISTENT_TOPIC_ID, if the log belongs to another topic of the same name.
        """
        known = self.topic_id
        if known == topic_id:
            return
        if known != ZERO_TOPIC_ID:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} belongs to another topic named {self.topic}"
            )
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        replace_file(self.context.cache.files, path, encode_partition_metadata(topic_id), sync=False)
        self._topic_id = TopicId(bytes(topic_id))
        self._unsynced_files.append(path)
        self._names_dirty = True

    # --- failure

    @property
    def failure(self) -> StorageError | None:
        """Why the log is offline, LogDeleted if it was deleted; None while it works."""
        return self._failure

    @property
    def is_deleted(self) -> bool:
        """Whether the log was deleted. Whoever has waited with it in hand sees nothing but errors that say so."""
        return isinstance(self._failure, LogDeleted)

    def fail(self, error: StorageError) -> None:
        """Take the log offline: nothing is acknowledged, read or retried any more until a restart finds out what is
        on the disk.
        """
        if self._failure is None:
            self._failure = error
            logger.error("%s-%d is offline: %s", self.topic, self.partition, error.message)
            self.context.on_failure(self, error)

    def check(self) -> None:
        """Raises StorageError if the log is offline, LogDeleted if it was deleted."""
        if self._failure is not None:
            raise (LogDeleted if self.is_deleted else StorageError)(self._failure.message)

    def _refused(self, what: str, error: OSError) -> StorageError:
        """The disk refused with nothing changed yet. What passes may be tried again, anything else takes the log
        offline.
        """
        failure = refusal(what, error)
        if failure.passes:
            logger.error("%s-%d: %s", self.topic, self.partition, failure.message)
        else:
            self.fail(failure)
        return failure

    @contextmanager
    def _refusing_if(self, what: str) -> Iterator[None]:
        """As `_refused`, around what leaves nothing behind that counts."""
        try:
            yield
        except OSError as error:
            raise self._refused(what, error) from error

    @contextmanager
    def _failing_if(self, what: str) -> Iterator[None]:
        """Take the log offline if the disk refuses in the middle of `what`: then nobody knows what is there."""
        try:
            yield
        except OSError as error:
            failure = StorageError(f"{what} failed: {error}")
            self.fail(failure)
            raise failure from error

    # --- writing

    def _write(self, segment: Segment, batch: Buffer, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Write a batch behind the last one of the active segment, whose indexes are loaded."""
        size = len(batch)
        position = segment.size
        descriptor = segment.file.descriptor
        if descriptor < 0:
            descriptor = self._open_for_append(segment)
        segment.file.recently_used = True
        try:
            if self.context.cache.files.pwrite(descriptor, batch, position) != size:
                write_fully(self.context.cache.files, descriptor, batch, position)
        except OSError as error:
            raise self._roll_back(segment, descriptor, error) from error
        segment.size = position + size
        segment.add_batch(last_offset, max_timestamp, position, size, self.config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        self._reader.add_batch(base_offset, position)

    def _open_for_append(self, segment: Segment) -> int:
        try:
            return self.context.cache.descriptor(segment.file)
        except OSError as error:
            raise self._refused(f"opening {segment.file.path}", error) from error

    def _roll_back(self, segment: Segment, descriptor: int, error: OSError) -> StorageError:
        """Cut what a failed write left behind; if even that fails, nobody knows what is in the file."""
        what = f"appending to {segment.file.path}"
        try:
            cut_back(self.context.cache.files, descriptor, segment.size)
        except OSError as second:
            return self._refused(f"{what} failed ({error}), and then", second)
        return self._refused(what, error)

    def _load_indexes(self, segment: Segment) -> None:
        """Prepare the active segment for the first write since the start. Blocking, small files."""
        try:
            segment.read_first_timestamp(self.context.cache)
            segment.load(self.context.cache, self.config.index_interval_bytes)  # last: now it counts as prepared
        except OSError as error:
            raise self._refused(f"reading {segment.file.path}", error) from error
        self.context.indexes.drop(segment.file)

    def _start_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Seal the active segment and start another one. Its indexes go to files; the disk gets them with the next
        flush.
        """
        old = self._segments[-1]
        try:
            old.write_indexes(self.context.cache.files)
            segment = self._create_segment(base_offset, now_ms)
        except OSError as error:
            raise self._refused(f"rolling {self.directory} at offset {base_offset}", error) from error
        index = old.unload()
        if index is not None:
            self.context.indexes.put(old.file, index)
        self._unsynced_files += [old.path(OFFSET_INDEX_SUFFIX), old.path(TIME_INDEX_SUFFIX)]
        if self._unsynced_seal is None:
            self._unsynced_seal = old.base_offset
        self._segments.append(segment)
        self._reader.forget_recent()
        self._names_dirty = True
        return segment

    def _create_segment(self, base_offset: int, now_ms: int) -> Segment:
        return Segment.create(self.context.cache, self.directory, base_offset, now_ms, self.context.jitter(self.config))

    # --- reading

    def has_all_of(self, read: ColdRead) -> bool:
        """Whether what a read finds is still what the log holds: it is of this log, and since it was planned no batches
        were deleted, compacted or truncated. Otherwise `aborted_transactions` may know nothing of what was read.
        """
        return self._reader.has_all_of(read)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that overlap [start_offset, upper_offset). Blocking the
        first time, if some segment has any.
        """
        self.check()
        found = []
        for segment in self._segments[self._reader.slot(start_offset) :]:
            if segment.has_txn_index:
                entries, complete = segment.aborted_transactions(self.context.cache.files, start_offset, upper_offset)
                found += entries
                if complete:
                    break
        return [(entry.producer_id, entry.first_offset) for entry in found]

    # --- removing

    def _doom(self, segments: list[Segment], snapshots: Container[int] = ()) -> tuple[int, StorageError | None]:
        """Rename the files of segments that are no longer part of the log, and have them unlinked later; with them
        those of the `snapshots` that belong to them. How many of the segments went, and why not all of them.
        """
        logs: list[LogFile] = []
        others: list[str] = []
        failure = None
        try:
            for segment in segments:
                self._rename_doomed(segment, snapshots, others)
                logs.append(segment.file)
        except OSError as error:
            failure = self._refused(f"deleting segments of {self.directory}", error)
        due_ms = self.context.clock.monotonic_ms() + self.config.file_delete_delay_ms
        self.context.doomed.append(DoomedFiles(due_ms, logs, others))
        return len(logs), failure

    def _rename_doomed(self, segment: Segment, snapshots: Container[int], renamed: list[str]) -> None:
        """One segment's files; where there is no room for the new name of its log, nothing has changed."""
        cache, files = self.context.cache, self.context.cache.files
        paths = [segment.path(suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        if segment.has_txn_index:
            paths.append(segment.path(TXN_INDEX_SUFFIX))
        if segment.base_offset in snapshots:
            paths.append(segment.path(SNAPSHOT_SUFFIX))
        cache.close(segment.file)
        suffix = _unused_suffix(files, segment.file.path)
        files.rename(segment.file.path, segment.file.path + suffix)
        self.context.indexes.drop(segment.file)
        segment.file.path += suffix
        for path in paths:
            if files.exists(path):
                self._rename_or_unlink(path, path + suffix)
                renamed.append(path + suffix)

    def _rename_or_unlink(self, path: str, name: str) -> None:
        """Readers under way do without an index; a later segment of the same name must not find it."""
        files = self.context.cache.files
        try:
            files.rename(path, name)
        except OSError as error:
            if not is_passing(error):
                raise
            try:
                unlink_if_exists(files, path)
            except OSError as second:
                raise StateUnknown(second.errno, str(second), path) from second

    def _doom_all(self, segments: list[Segment], snapshots: Container[int] = ()) -> None:
        """As `_doom`, for who has changed other things already: if not all of them go, the log is offline."""
        _, failure = self._doom(segments, snapshots)
        if failure is not None:
            self.fail(failure)
            raise failure

    def _swap_in(self, new: Segment, slot: int, count: int) -> None:
        """Put a segment whose files are there as `.swap` in the place of `count` others, which are doomed already."""
        files = self.context.cache.files
        with self._failing_if(f"swapping cleaned segments of {self.directory}"):
            # The log first: while it waits, the start removes what is there of the indexes.
            for path in [new.path(suffix) for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES)]:
                if files.exists(path):
                    files.rename(path, path.removesuffix(SWAP_SUFFIX))
        new.file.path = new.file.path.removesuffix(SWAP_SUFFIX)
        self._segments[slot : slot + count] = [new]
        self._reader.forget_all()
        self._names_dirty = True

    # --- truncating

    def _truncate_segments(self, offset: int) -> None:
        """Remove all batches that reach to `offset`, which is in the log, or beyond; on the disk too."""
        slot = self._reader.slot(offset)
        doomed = self._segments[slot + 1 :]
        self._doom_all(doomed[::-1])  # the last one first, so that a crash in between leaves no gap
        del self._segments[slot + 1 :]
        segment = self._segments[-1]
        with self._failing_if(f"truncating {segment.file.path}"):
            if doomed:
                # First of all: a later segment that came back would hold the end of another history.
                self.context.cache.files.sync_directory(self.directory)
            end_offset = segment.truncate_to(self.context.cache, offset, self.config.index_interval_bytes)
        self.context.indexes.drop(segment.file)
        self._reader.forget_all()
        self.log_end_offset = end_offset
        self._limit_flushed()
        self._names_dirty = True

    def _start_anew(self, offset: int) -> None:
        """Remove all segments and go on at `offset`."""
        self._doom_all(list(self._segments))
        with self._failing_if(f"starting {self.directory} anew"):
            self._segments[:] = [self._create_segment(offset, self.context.clock.now_ms())]
        self._reader.forget_all()
        self.log_end_offset = self.recovery_point = offset
        if self._flushing is not None:
            self._flushing.end_offset = 0
        self._names_dirty = True

    def _limit_flushed(self) -> None:
        """After a truncation, neither the recovery point nor a flush under way covers what will be appended next."""
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        if self._flushing is not None:
            self._flushing.end_offset = min(self._flushing.end_offset, self.log_end_offset)

    # --- flushing

    def mark_new(self) -> None:
        """The log was just created: the next flush is due, and takes its first file with it."""
        self._unsynced_files.append(self._segments[-1].file.path)
        self._number, self._names_dirty = self.context.names.note_name(), True

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether there are names that the disk does not know, or flush.ms has passed since the last flush and there
        is something to flush.
        """
        return self._names_dirty or (
            self.recovery_point < self.log_end_offset and now_ms - self._last_flush_ms >= self.config.flush_ms
        )

    def _prepare_flush(self, leader_epochs: tuple[str, bytes] | None) -> FlushTask | None:
        """Capture a flush of everything up to the log's end, and of a new content for the epochs' file.

        Segments below the recovery point are on the disk already. The active segment's index files are hints that are
        not worth a write; those of sealed segments are among the files that wait for a sync.
        """
        has_data = self.recovery_point < self.log_end_offset
        if not (has_data or leader_epochs or self._names_dirty or self._unsynced_files):
            return None
        segments, others = [], self._unsynced_files
        if has_data:
            for segment in self._segments[self._reader.slot(self.recovery_point) :]:
                segments.append(segment.file)
                self.context.cache.hold(segment.file)
                if segment.has_txn_index:
                    others.append(segment.path(TXN_INDEX_SUFFIX))
            known = {file.path for file in segments}
            others = [path for path in others if path not in known]  # a new log's first file may have records already
        self._flushing = FlushTask(
            self.context.cache, self.directory, self.log_end_offset, segments, others,
            self._names_dirty or leader_epochs is not None, self.context.names, self._number, leader_epochs,
            unsynced_seal=self._unsynced_seal,
        )  # fmt: skip
        self._unsynced_files = []
        self._unsynced_seal = None
        self._number, self._names_dirty = 0, False
        return self._flushing

    @property
    def is_on_disk(self) -> bool:
        """Whether everything that was written is, so that a start need not look."""
        return self._failure is None and not self._lacks_hints and self.recovery_point == self.log_end_offset

    @property
    def recovery_point_to_write(self) -> int:
        """The recovery point, but not beyond a sealed segment whose index files may not be on the disk: what lies
        before it is not looked at by the next start.
        """
        seals = [self._unsynced_seal, self._flushing.unsynced_seal if self._flushing else None]
        return min([self.recovery_point, *(seal for seal in seals if seal is not None)])

    def complete_flush(self, task: FlushTask) -> None:
        """Take in the outcome of a flush that has run; a failed one takes the log offline, unless its directory was
        moved away under it, or it may be repeated.
        """
        self._flushing = None
        has_stayed = task.directory == self.directory
        if task.may_be_repeated or (task.moved and has_stayed and task.error is None):
            self._unsynced_files += task.others
            self._unsynced_seal = self._unsynced_seal if task.unsynced_seal is None else task.unsynced_seal
            self._number = self._number or task.number
            self._names_dirty = True
            return
        if task.error is not None:
            if has_stayed:
                self.fail(task.error)
            return
        self._last_flush_ms = self.context.clock.now_ms()
        self.recovery_point = max(self.recovery_point, task.end_offset)

    # --- closing, moving away

    def close_files(self) -> None:
        """Give up all descriptors; nothing is written."""
        for segment in self._segments:
            self.context.cache.close(segment.file)
            self.context.indexes.drop(segment.file)

    def move_to(self, directory: str) -> None:
        """Rename the log's directory, since the log is deleted; reads and flushes under way find their files again.
        From here on nothing that befalls the log is a failure. Blocking.
        """
        if self._flushing is not None:
            self._flushing.note_move()
        self.context.cache.files.rename(self.directory, directory)
        for segment in self._segments:
            segment.file.path = directory + segment.file.path[len(self.directory) :]
        self._unsynced_files = []
        self._failure = LogDeleted(f"{self.directory} was deleted")
        self.directory = directory


def _unused_suffix(files: Files, path: str) -> str:
    """`.deleted`, or where a file of that name still waits to be unlinked (compaction replaces a segment of the same
    name again and again), `.1.deleted` and so on.
    """
    suffix, number = DELETED_SUFFIX, 0
    while files.exists(path + suffix):
        number += 1
        suffix = f".{number}{DELETED_SUFFIX}"
    return suffix
