"""A log as files in one directory: write batches, roll, read, truncate, remove.

`log.PartitionLog` handles the meaning of batches (producers, validation, visibility). The files of a segment are
described in `segment`, `leader-epoch-checkpoint` and `partition.metadata` in `checkpoints`.

Source: org.apache.kafka.storage.internals.log.LocalLog, LogSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import LogFile
from barnabas.storage.durability import Durability
from barnabas.storage.errors import StateUnknown, StorageError, is_passing
from barnabas.storage.files import Buffer, Files, cut_back, unlink_if_exists, write_file, write_fully
from barnabas.storage.log_context import DoomedFiles, LogContext
from barnabas.storage.log_health import LogHealth
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
from barnabas.storage.txn_index import AbortedTransaction


class LocalLog:
    """The segments of one log, the last of which is active, in the directory `TOPIC-PARTITION`.

    `segments` is the list itself, oldest first; callers must not change it. `health` says whether the log works,
    `durability` how far it is flushed; `reader` finds batches.

    Ownership: the event loop, and the one `PartitionLog` that it belongs to.

    Raises:
        StorageError (KAFKA_STORAGE_ERROR): from every method that accesses the disk. `health` says whether the log is
            offline then.
    """

    __slots__ = ("_context", "_files", "_sealed_bytes", "directory", "durability", "health", "reader", "segments")

    def __init__(self, context: LogContext, directory: str, segments: list[Segment], *, recovery_point: int) -> None:
        self.directory = directory
        self.segments = segments
        self.health = LogHealth(directory, context.on_failure)
        self.durability = Durability(context, self.health, recovery_point)
        self.reader = LogReader(context, segments)
        self._context = context
        self._files = context.cache.files
        self._sealed_bytes = -segments[-1].size
        """`appended_bytes` without the size of the active segment, which may be from before."""

    @property
    def appended_bytes(self) -> int:
        """Bytes of batches appended since the log was opened, also those that are deleted or truncated since."""
        return self._sealed_bytes + self.segments[-1].size

    @property
    def start_offset(self) -> int:
        """The offset from which on there may be batches in files here (Kafka's localLogStartOffset). It may be below
        the log start offset, which counts for readers, until retention has removed the segments."""
        return self.segments[0].base_offset

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size for segment in self.segments)

    # --- writing

    def write(
        self,
        segment: Segment,
        batch: Buffer,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        """Append a batch to the active segment, which must be loaded (`load_active`). If the disk refuses and the log
        is not offline, nothing has changed.
        """
        size = len(batch)
        position = segment.size
        descriptor = segment.file.descriptor
        if descriptor < 0:
            descriptor = self._open_for_append(segment)
        segment.file.recently_used = True
        try:
            if self._files.pwrite(descriptor, batch, position) != size:
                write_fully(self._files, descriptor, batch, position)
        except OSError as error:
            raise self._roll_back(segment, descriptor, error) from error
        segment.size = position + size
        segment.add_batch(last_offset, max_timestamp, position, size, index_interval_bytes)
        self.reader.add_batch(base_offset, position)

    def write_marker(
        self,
        segment: Segment,
        batch: Buffer,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
        aborted: AbortedTransaction | None,
    ) -> None:
        """`write` a transaction marker and, if it aborts a transaction, the entry of the transaction index. On a full
        disk both or none are written: the transaction stays open, and its coordinator retries.
        """
        what = f"writing the transaction index of {segment.file.path}"
        position = 0
        if aborted is not None:
            with self.health.refusing_if(what):
                position = segment.append_aborted(self._files, aborted)
        try:
            self.write(segment, batch, base_offset, last_offset, max_timestamp, index_interval_bytes)
        except StorageError:
            if aborted is not None:
                with self.health.failing_if(what):
                    segment.forget_aborted(self._files, position)
            raise

    def _open_for_append(self, segment: Segment) -> int:
        with self.health.refusing_if(f"opening {segment.file.path}"):
            return self._context.cache.descriptor(segment.file)

    def _roll_back(self, segment: Segment, descriptor: int, error: OSError) -> StorageError:
        """Truncate the remains of a failed write; if that fails too, the content of the file is unknown."""
        what = f"appending to {segment.file.path}"
        try:
            cut_back(self._files, descriptor, segment.size)
        except OSError as second:
            return self.health.refused(f"{what} failed ({error}), and then", second)
        return self.health.refused(what, error)

    def load_active(self, index_interval_bytes: int) -> None:
        """Prepare the active segment for the first append since the start. Blocking, small files."""
        segment = self.segments[-1]
        with self.health.refusing_if(f"reading {segment.file.path}"):
            segment.read_first_timestamp(self._context.cache)
            segment.load(self._context.cache, index_interval_bytes)  # last: from here on the segment counts as loaded
        self._context.indexes.drop(segment.file)

    def roll(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """Seal the active segment and create a new one. Writes the index files of the old one; the next flush syncs
        them.
        """
        old = self.segments[-1]
        with self.health.refusing_if(f"rolling {self.directory} at offset {base_offset}"):
            old.write_indexes(self._files)
            segment = self._create_segment(base_offset, config, now_ms)
        index = old.unload()
        if index is not None:
            self._context.indexes.put(old.file, index)
        self.durability.note_seal(old.base_offset, old.path(OFFSET_INDEX_SUFFIX), old.path(TIME_INDEX_SUFFIX))
        self._sealed_bytes += old.size
        self.segments.append(segment)
        self.reader.forget_recent()
        return segment

    def _create_segment(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        context = self._context
        return Segment.create(context.cache, self.directory, base_offset, now_ms, context.jitter(config))

    def write_active_indexes(self, index_interval_bytes: int) -> None:
        """Write the index files of the active segment, so that the next start need not rebuild them; for an empty
        segment, write the ones that Kafka expects. Blocking.
        """
        segment = self.segments[-1]
        with self.health.refusing_if(f"closing {self.directory}"):
            if not segment.size:
                for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    # These need not survive a power cut.
                    write_file(self._files, segment.path(suffix), b"")
                return
            if segment.offset_index is None:
                self.load_active(index_interval_bytes)
            segment.write_indexes(self._files)
        # Contents, not names: a missing index is rebuilt, an outdated one would be trusted.
        self.durability.note_files(segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX))

    # --- removing

    def doom(
        self, segments: Sequence[Segment], snapshots: Container[int], delay_ms: int
    ) -> tuple[int, StorageError | None]:
        """Rename the files of segments that leave the log, and schedule them, and those of the `snapshots` that belong
        to them, for removal after `delay_ms` (`file.delete.delay.ms`). The list of segments does not change:
        `forget_oldest` follows.

        Returns:
            The number of renamed segments, in order, and the error if not all could be renamed.
        """
        logs: list[LogFile] = []
        others: list[str] = []
        failure = None
        try:
            for segment in segments:
                self._rename_doomed(segment, snapshots, others)
                logs.append(segment.file)
        except OSError as error:
            failure = self.health.refused(f"deleting segments of {self.directory}", error)
        due_ms = self._context.clock.monotonic_ms() + delay_ms
        self._context.doomed.append(DoomedFiles(due_ms, self.health, logs, others))
        return len(logs), failure

    def forget_oldest(self, count: int) -> None:
        """Remove the oldest `count` segments, whose files are renamed, from the list."""
        del self.segments[:count]
        self.reader.forget_all()

    def _rename_doomed(self, segment: Segment, snapshots: Container[int], renamed: list[str]) -> None:
        """Rename one segment's files; if the disk has no space for the new name of its log, nothing has changed."""
        cache, files = self._context.cache, self._files
        paths = [segment.path(suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        if segment.has_txn_index:
            paths.append(segment.path(TXN_INDEX_SUFFIX))
        if segment.base_offset in snapshots:
            paths.append(segment.path(SNAPSHOT_SUFFIX))
        cache.close(segment.file)
        suffix = _unused_suffix(files, segment.file.path)
        files.rename(segment.file.path, segment.file.path + suffix)
        self._context.indexes.drop(segment.file)
        segment.file.path += suffix
        for path in paths:
            if files.exists(path):
                self._rename_or_unlink(path, path + suffix)
                renamed.append(path + suffix)

    def _rename_or_unlink(self, path: str, name: str) -> None:
        """Free an index file's name, so that a later segment of that name does not find the file: rename it, or unlink
        it if the disk has no space for the new name. Reads under way then work without an index.
        """
        files = self._files
        try:
            files.rename(path, name)
        except OSError as error:
            if not is_passing(error):
                raise
            try:
                unlink_if_exists(files, path)
            except OSError as second:
                raise StateUnknown(second.errno, str(second), path) from second

    def _doom_all(self, segments: Sequence[Segment], delay_ms: int) -> None:
        """`doom` for callers that have already changed other state: if not all segments can be renamed, the log goes
        offline.
        """
        _, failure = self.doom(segments, (), delay_ms)
        if failure is not None:
            self.health.fail(failure)
            raise failure

    def swap_in(self, new: Segment, slot: int, count: int) -> None:
        """Replace `count` segments, already doomed, by a segment whose files are there as `.swap`."""
        files = self._files
        with self.health.failing_if(f"swapping cleaned segments of {self.directory}"):
            # The log file first: while it has the old name, the next start removes index files of the new name.
            for path in [new.path(suffix) for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES)]:
                if files.exists(path):
                    files.rename(path, path.removesuffix(SWAP_SUFFIX))
        new.file.path = new.file.path.removesuffix(SWAP_SUFFIX)
        self.segments[slot : slot + count] = [new]
        self.reader.forget_all()
        self.durability.note_names()

    # --- truncating

    def prepare_dooming(self, slot: int, delay_ms: int) -> Callable[[], None] | None:
        """A function that renames the files of the segments from this slot of `segments` on, for a truncation: any
        thread may call it while nothing uses the log. None if there are no such segments. The list does not change
        until `cut_to` or `start_anew_at`. The newest segment comes first, so that a crash in between leaves no gap.
        """
        doomed = self.segments[slot:][::-1]
        for segment in doomed:
            self._context.cache.close(segment.file)  # only the event loop may do this
        return partial(self._doom_all, doomed, delay_ms) if doomed else None

    def cut_to(self, slot: int, last: Segment) -> None:
        """Remove the segments from this slot on, and put `last` in the place of the first of them."""
        self._sealed_bytes += self.segments[-1].size - last.size
        self.segments[slot:] = [last]
        self._context.indexes.drop(last.file)
        self.reader.forget_all()

    def start_anew_at(self, offset: int, config: LogConfig) -> None:
        """Create a new segment at `offset`, after all others are gone."""
        with self.health.failing_if(f"starting {self.directory} anew"):
            segment = self._create_segment(offset, config, self._context.clock.now_ms())
        self._sealed_bytes += self.segments[-1].size
        self.segments[:] = [segment]
        self.reader.forget_all()

    # --- closing, moving away

    def close_files(self) -> None:
        """Close all descriptors; nothing is written."""
        for segment in self.segments:
            self._context.cache.close(segment.file)
            self._context.indexes.drop(segment.file)

    def move_to(self, directory: str) -> None:
        """Rename the directory of the log, which is deleted; reads and flushes under way find their files again.
        Blocking. Raises OSError.
        """
        self.durability.note_move()
        self._files.rename(self.directory, directory)
        for segment in self.segments:
            segment.file.path = directory + segment.file.path[len(self.directory) :]
        self.durability.note_deletion()
        self.health.note_deletion()
        self.directory = directory


def _unused_suffix(files: Files, path: str) -> str:
    """`.deleted`, or, if a file of that name still waits to be unlinked (compaction replaces a segment of the same name
    again and again), `.1.deleted` and so on.
    """
    suffix, number = DELETED_SUFFIX, 0
    while files.exists(path + suffix):
        number += 1
        suffix = f".{number}{DELETED_SUFFIX}"
    return suffix
