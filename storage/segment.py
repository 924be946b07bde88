"""One segment of a log: a run of batches in a `.log` file, and its indexes.

A segment file consists only of record batches of magic 2, in ascending order of offsets. All files of a segment are
named after its base offset, in twenty digits:

================================ ===========================================================================
name                             content
================================ ===========================================================================
00000000000000000000.log         the batches
00000000000000000000.index       `offset_index.OffsetIndex`
00000000000000000000.timeindex   `time_index.TimeIndex`
00000000000000000000.txnindex    `txn_index.TransactionIndex`; only if a transaction was aborted in it
00000000000000000000.snapshot    `producer_snapshot.encode_snapshot`: state of the producers at that offset
================================ ===========================================================================

Source: org.apache.kafka.storage.internals.log.LogSegment, LogFileUtils.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import CorruptFile, CorruptLog, StorageError
from barnabas.storage.files import Buffer, Files, cut_back, read_file, unlink_if_exists, write_file, write_fully
from barnabas.storage.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.segment_reader import OFFSET_INDEX_SUFFIX as OFFSET_INDEX_SUFFIX
from barnabas.storage.segment_reader import SEARCH_CHUNK, IndexMismatch, Read, file_headers, index_path
from barnabas.storage.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from barnabas.storage.time_index import NO_TIMESTAMP, TimeIndex
from barnabas.storage.txn_index import (
    UNREADABLE,
    AbortedTransaction,
    TransactionIndex,
    TransactionIndexNote,
    collect_aborted,
    encode_entry,
)
from barnabas.wire.record_batch import HEADER_SIZE, CorruptBatch, parse_header

logger = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
NOT_READ: Final = -2
"""A timestamp that has not been read since the start."""


def file_name(offset: int, suffix: str) -> str:
    """The name of a file of this offset."""
    return f"{offset:020d}{suffix}"


class Segment:
    """One segment. A sealed one costs a few integers; the indexes are in memory only while it is active.

    `max_timestamp` and `max_timestamp_offset` are the largest timestamp of its batches and the last offset of the first
    batch that has it. `first_timestamp` is the largest timestamp of its first batch. Both are read on first use.

    Ownership: the event loop.
    """

    __slots__ = (
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "file",
        "first_timestamp",
        "has_txn_index",
        "jitter_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "size",
        "time_index",
        "txn_index",
        "txn_index_note",
        "warm_from",
    )

    def __init__(self, base_offset: int, file: LogFile, size: int, created_ms: int, jitter_ms: int = 0) -> None:
        self.base_offset = base_offset
        self.file = file
        self.size = size
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.warm_from = size
        """This process has written the bytes from here on, so that they are most likely in the page cache."""
        self.bytes_since_index = 0
        self.has_txn_index = False
        self.first_timestamp = NOT_READ
        self.max_timestamp = NOT_READ
        self.max_timestamp_offset = base_offset
        self.offset_index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None
        self.txn_index: bytearray | None = None
        """The content of the transaction index file, after it was first read; every read_committed fetch needs it."""
        self.txn_index_note: TransactionIndexNote | None = None
        """The note of a sealed segment's transaction index, after the file was read for it."""

    def __repr__(self) -> str:
        return f"<Segment {self.file.path} of {self.size} bytes>"

    @classmethod
    def create(cls, cache: DescriptorCache, directory: str, base_offset: int, now_ms: int, jitter_ms: int) -> Segment:
        """Create an empty segment, ready for appends. Blocking, but only for creating a file."""
        file = cache.create(f"{directory}/{file_name(base_offset, LOG_SUFFIX)}")
        segment = cls(base_offset, file, 0, now_ms, jitter_ms)
        segment.reset_indexes()
        return segment

    def path(self, suffix: str) -> str:
        """The path of the segment's file with this suffix."""
        stem, _, renamed = self.file.path.rpartition(LOG_SUFFIX)
        return stem + suffix + renamed

    # --- appending

    def load(self, cache: DescriptorCache, index_interval_bytes: int) -> None:
        """Load the indexes into memory, for appends; rebuild missing or wrong ones. Blocking."""
        if self.offset_index is not None:
            return
        if not self.size:
            self.reset_indexes()
            return
        files = cache.files
        read = _reader(cache, self.file)
        try:
            offset_index = OffsetIndex.from_bytes(
                self.base_offset, read_file(files, self.path(OFFSET_INDEX_SUFFIX)), self.size
            )
            time_index = TimeIndex.from_bytes(self.base_offset, read_file(files, self.path(TIME_INDEX_SUFFIX)))
            if not len(time_index):
                raise CorruptFile("the time index of a segment with batches is empty")
            if len(offset_index) and not _leads_to_a_batch(offset_index, read):
                raise CorruptFile("the last entry of the offset index leads to another batch")
            # Not for a segment too small to have entries: a start would have to open each of a thousand logs.
            if len(offset_index) and not _is_largest(time_index.last_entry, offset_index, read, self.file, self.size):
                raise CorruptFile("the last entry of the time index is not the largest timestamp")
            self.max_timestamp, self.max_timestamp_offset = time_index.last_entry
            self.offset_index, self.time_index = offset_index, time_index  # both or none: a read may be refused
        except (FileNotFoundError, CorruptFile) as error:
            logger.warning("building the indexes of %s anew: %s", self.file.path, error)
            self.rebuild_indexes(read, index_interval_bytes)

    def rebuild_indexes(self, read: Read, index_interval_bytes: int) -> None:
        """Rebuild offset and time index from the batches' headers, as appends would have built them. Blocking."""
        self.reset_indexes()
        try:
            for header in file_headers(read, self.file, 0, self.size):
                self.add_batch(
                    header.last_offset,
                    header.max_timestamp,
                    header.position,
                    header.size_in_bytes,
                    index_interval_bytes,
                )
        except OSError:
            self.unload()  # a partial index would count as complete
            raise

    def reset_indexes(self) -> None:
        """Reset to empty indexes, before the segment's batches are added from the first on."""
        self.offset_index, self.time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.bytes_since_index = 0

    def add_batch(
        self, last_offset: int, max_timestamp: int, position: int, size: int, index_interval_bytes: int
    ) -> None:
        """Add a batch at `position` to the timestamps and, if an entry is due, to the indexes."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.bytes_since_index > index_interval_bytes:
            assert self.offset_index is not None
            assert self.time_index is not None
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size

    def should_roll(
        self, size: int, max_timestamp: int, last_offset: int, config: LogConfig, now_ms: int, bytes_min: int = 1
    ) -> bool:
        """Whether a batch has to go into a new segment: this one is full or too old, and has at least `bytes_min`, or
        it cannot express the batch's offset.
        """
        if last_offset - self.base_offset > _MAX_RELATIVE_OFFSET:
            return True
        if self.size < bytes_min:
            return False
        if self.size + size > config.segment_bytes:
            return True
        first = self.first_timestamp
        waited_ms = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited_ms > config.segment_age_max_ms - self.jitter_ms:
            return True
        assert self.offset_index is not None
        assert self.time_index is not None
        limit = config.segment_index_bytes
        return (
            len(self.offset_index.positions) >= limit // OFFSET_ENTRY_SIZE
            or len(self.time_index.timestamps) >= limit // TIME_ENTRY_SIZE - 1
        )

    # --- read on first use

    def read_first_timestamp(self, cache: DescriptorCache) -> int:
        """The largest timestamp of the first batch, -1 if there is none. Blocking the first time."""
        if self.first_timestamp == NOT_READ:
            header = _reader(cache, self.file)(HEADER_SIZE, 0) if self.size >= HEADER_SIZE else b""
            self.first_timestamp = parse_header(header).max_timestamp if header else NO_TIMESTAMP
        return self.first_timestamp

    def read_max_timestamp(self, cache: DescriptorCache) -> int:
        """The largest timestamp of all batches, -1 if none has one. Blocking the first time."""
        if self.max_timestamp == NOT_READ:
            self.max_timestamp, self.max_timestamp_offset = read_largest_timestamp(
                cache.files, _reader(cache, self.file), self.file, self.base_offset, self.size
            )
        return self.max_timestamp

    def largest_timestamp(self, cache: DescriptorCache) -> int:
        """The timestamp that retention compares: the largest one, or the file's modification time if no batch has one.
        Blocking the first time.
        """
        timestamp = self.read_max_timestamp(cache)
        return timestamp if timestamp >= 0 else cache.files.stat(self.file.path).modified_ms

    def read_txn_index(self, files: Files) -> TransactionIndex:
        """The aborted transactions whose markers are in this segment. Blocking.

        Raises:
            StorageError: the file is damaged, so that aborted records could not be distinguished from committed ones.
        """
        if not self.has_txn_index:
            return TransactionIndex()
        path = self.path(TXN_INDEX_SUFFIX)
        try:
            return TransactionIndex.from_bytes(self.base_offset, read_file(files, path))
        except (OSError, CorruptFile) as error:
            raise StorageError(f"reading {path} failed: {error}") from error

    def aborted_transactions(
        self, files: Files, start_offset: int, upper_offset: int
    ) -> tuple[list[AbortedTransaction], bool]:
        """Aborted transactions that overlap [start_offset, upper_offset), and whether later segments cannot contain
        more of them. Blocking the first time.

        Raises:
            StorageError: as `read_txn_index`.
        """
        if self.txn_index is None:
            self.txn_index = bytearray(self.read_txn_index(files).to_bytes())
        return collect_aborted(self.txn_index, start_offset, upper_offset)

    def note_txn_index(
        self, files: Files, known: TransactionIndexNote | None, *, is_sealed: bool
    ) -> TransactionIndexNote:
        """The note of the transaction index for the next start; `known` is the note that the last start found.
        Blocking, any thread.
        """
        if self.txn_index_note is not None:
            return self.txn_index_note
        try:
            note = TransactionIndexNote.of(read_file(files, self.path(TXN_INDEX_SUFFIX)))
        except OSError:
            return known or UNREADABLE
        if is_sealed:
            self.txn_index_note = note
        return note

    def append_aborted(self, files: Files, aborted: AbortedTransaction) -> int:
        """Add an entry to the transaction index, or, with an OSError, leave the index unchanged; returns the entry's
        position. Page cache only.
        """
        path, entry = self.path(TXN_INDEX_SUFFIX), encode_entry(aborted)
        descriptor = files.open(path, create=True, truncate=not self.has_txn_index)
        try:
            position = files.stat(path).size
            try:
                write_fully(files, descriptor, entry, position)
            except OSError:
                cut_back(files, descriptor, position)
                raise
        finally:
            files.close(descriptor)
        if self.txn_index is not None:
            self.txn_index += entry
        elif not self.has_txn_index:
            self.txn_index = bytearray(entry)
        self.has_txn_index = True
        return position

    def forget_aborted(self, files: Files, position: int) -> None:
        """Remove the last entry, at `position`, from the transaction index. Page cache only."""
        descriptor = files.open(self.path(TXN_INDEX_SUFFIX))
        try:
            files.truncate(descriptor, position)
        finally:
            files.close(descriptor)
        if self.txn_index is not None:
            del self.txn_index[position:]

    # --- truncating

    def cut_at(self, files: Files, descriptor: int, offset: int, index_interval_bytes: int) -> tuple[Segment, int]:
        """Truncate the file before the first batch that reaches to `offset` or beyond; returns the new segment, loaded
        for appends, and its end offset. That is the end of its last batch, even if `offset` is higher: batches in
        between were compacted away, or never existed, which is unknown, so they are fetched again. `descriptor` is of
        this segment's file. Blocking, any thread: this object does not change; the event loop replaces it.
        """

        def read(size: int, position: int) -> Buffer:
            return files.pread(descriptor, size, position)

        end, keep_offset = self.size, self.base_offset
        for header in file_headers(read, self.file, 0, self.size):
            if header.last_offset >= offset:
                end = header.position
                break
            keep_offset = header.next_offset
        end_offset = min(offset, keep_offset)
        files.truncate(descriptor, end)
        files.sync(descriptor)
        cut = Segment(self.base_offset, self.file, end, self.created_ms, self.jitter_ms)
        cut.warm_from = min(self.warm_from, end)
        cut.has_txn_index = self.has_txn_index
        if self.has_txn_index:
            index = self.read_txn_index(files)
            index.truncate_to(offset)
            write_file(files, self.path(TXN_INDEX_SUFFIX), index.to_bytes(), sync=True)
        cut.rebuild_indexes(read, index_interval_bytes)
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            unlink_if_exists(files, self.path(suffix))  # outdated; written when the segment is sealed
        return cut, end_offset

    # --- sealing

    def write_indexes(self, files: Files) -> None:
        """Write the index files, with the largest timestamp as the last time index entry. Page cache only."""
        if self.offset_index is None or self.time_index is None:
            return
        self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
        write_file(files, self.path(OFFSET_INDEX_SUFFIX), self.offset_index.to_bytes())
        write_file(files, self.path(TIME_INDEX_SUFFIX), self.time_index.to_bytes())

    def unload(self) -> OffsetIndex | None:
        """Drop the indexes from memory; returns the offset index, for a cache."""
        index, self.offset_index, self.time_index = self.offset_index, None, None
        return index


def _leads_to_a_batch(index: OffsetIndex, read: Read) -> bool:
    """Whether the last entry is right: for an index of another segment, or one that is off by one, it is wrong."""
    try:
        header = parse_header(read(HEADER_SIZE, index.positions[-1]))
    except CorruptBatch:
        return False
    return header.last_offset == index.base_offset + index.relative_offsets[-1]


def _reader(cache: DescriptorCache, file: LogFile) -> Read:
    """A blocking reader through the cache, for the event loop."""

    def read(size: int, position: int) -> Buffer:
        return cache.files.pread(cache.descriptor(file), size, position)

    return read


def load_time_index(files: Files, read: Read, file: LogFile, base_offset: int, size: int) -> TimeIndex:
    """A sealed segment's time index, rebuilt from the batches if the file is missing or wrong. Blocking; any thread if
    `read` is that thread's.
    """
    if not size:
        return TimeIndex(base_offset)
    stem, _, renamed = file.path.rpartition(LOG_SUFFIX)
    try:
        index = TimeIndex.from_bytes(base_offset, read_file(files, stem + TIME_INDEX_SUFFIX + renamed))
        if len(index):
            return index
    except (FileNotFoundError, CorruptFile):
        pass
    return _build_time_index(read, file, base_offset, size)


def read_largest_timestamp(files: Files, read: Read, file: LogFile, base_offset: int, size: int) -> tuple[int, int]:
    """The largest timestamp of a sealed segment, and the last offset of the first batch that has it; (-1, base offset)
    if no batch has one. Blocking, as `load_time_index`.
    """
    found = load_time_index(files, read, file, base_offset, size).last_entry
    try:
        offset_index = OffsetIndex.from_bytes(base_offset, read_file(files, index_path(file.path)), size)
    except (FileNotFoundError, CorruptFile):
        offset_index = OffsetIndex(base_offset)
    if not size or _is_largest(found, offset_index, read, file, size):
        return found
    return _build_time_index(read, file, base_offset, size).last_entry


def has_timestamp(entry: tuple[int, int], read: Read, file: LogFile, start: int, size: int) -> bool:
    """Whether a batch at or after the position `start` contains the offset of a time index entry, and has its timestamp
    as the largest. The entry's offset may be that of any record of the batch: Kafka did not always take the last one.
    Blocking, any thread if `read` is that thread's.
    """
    timestamp, offset = entry
    with suppress(IndexMismatch, CorruptLog):  # a damaged log is reported when it is read
        for header in file_headers(read, file, start, size, chunk_size=SEARCH_CHUNK):
            if header.last_offset >= offset:
                return header.base_offset <= offset and header.max_timestamp == timestamp
    return False


def _is_largest(entry: tuple[int, int], offset_index: OffsetIndex, read: Read, file: LogFile, size: int) -> bool:
    """Whether the last entry of a time index is right, judged by two places: its batch, and the end of the segment,
    which mostly has the latest timestamps. An index that lost its last entries is wrong there.
    """
    timestamp, offset = entry
    end = offset_index.positions[-1] if len(offset_index) else 0
    is_found = False
    try:
        for header in file_headers(read, file, end, size):
            if header.max_timestamp > timestamp:
                return False
            if header.base_offset <= offset <= header.last_offset:
                is_found = header.max_timestamp == timestamp
    except (IndexMismatch, CorruptLog):
        return False
    return is_found or has_timestamp(entry, read, file, offset_index.lookup(offset)[1], size)


def _build_time_index(read: Read, file: LogFile, base_offset: int, size: int) -> TimeIndex:
    index = TimeIndex(base_offset)
    for header in file_headers(read, file, 0, size):
        index.append(header.max_timestamp, header.last_offset)
    return index
