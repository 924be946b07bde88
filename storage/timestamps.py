"""Search for an offset by timestamp: captured on the event loop, run in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import CorruptFile, StorageError, refusal
from barnabas.storage.files import Buffer, read_file
from barnabas.storage.offset_index import OffsetIndex, OffsetIndexCache
from barnabas.storage.segment import Segment, has_timestamp, load_time_index, read_largest_timestamp
from barnabas.storage.segment_reader import Read, file_headers, index_path
from barnabas.wire.record_batch import NO_TIMESTAMP, CorruptBatch, RecordBatchHeader
from barnabas.wire.record_timestamps import find_timestamp, offset_of_max_timestamp


@dataclass(frozen=True, slots=True)
class TimestampAndOffset:
    """A record found by time: its timestamp in ms, its offset, and the epoch of the leader that wrote it (-1:
    unknown).
    """

    timestamp: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _SegmentCapture:
    """The state of one segment for a search.

    `max_timestamp` is None if it has not been read yet. `start` is a position to start the search at, -1 to look it up
    in the index files.
    """

    file: LogFile
    base_offset: int
    size: int
    max_timestamp: int | None
    start: int


def _capture(segment: Segment) -> _SegmentCapture:
    known = segment.max_timestamp if segment.max_timestamp >= -1 else None
    return _SegmentCapture(segment.file, segment.base_offset, segment.size, known, -1)


class TimestampLookup:
    """A search by timestamp in a log, in its state at the creation of this object. `segments` are those that may
    contain records from `log_start_offset` on, oldest first.

    `first_at_or_after` or `largest` may be called, once, from any thread. Blocking.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        indexes: OffsetIndexCache,
        log_start_offset: int,
        segments: Iterable[Segment],
    ) -> None:
        self._cache = cache
        self._indexes = indexes
        self._log_start_offset = log_start_offset
        self._segments = [_capture(segment) for segment in segments]
        self._held = [segment.file for segment in self._segments]
        for file in self._held:
            cache.hold(file)

    def first_at_or_after(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record at or after `timestamp`.

        Raises:
            StorageError: the disk failed, or its content is no batch.
        """
        try:
            for segment in self._segments:
                found = self._search(segment, timestamp)
                if found is not None:
                    return found
            return None
        except OSError as error:
            raise refusal("searching by timestamp", error) from error
        finally:
            self._release()

    def largest(self) -> TimestampAndOffset | None:
        """The first record with the log's largest timestamp (KIP-734); None for an empty log. Raises as
        `first_at_or_after`.
        """
        try:
            best, best_timestamp = None, NO_TIMESTAMP - 1  # without any timestamp, the first record is found
            for segment in self._segments:
                timestamp = self._largest_timestamp(segment)
                if timestamp > best_timestamp:
                    best, best_timestamp = segment, timestamp
            return None if best is None else self._search(best, best_timestamp, largest=True)
        except OSError as error:
            raise refusal("searching for the largest timestamp", error) from error
        finally:
            self._release()

    def _largest_timestamp(self, segment: _SegmentCapture) -> int:
        if segment.max_timestamp is not None:
            return segment.max_timestamp
        descriptor = self._cache.open_privately(segment.file)
        try:
            files, read = self._cache.files, self._reader(descriptor)
            return read_largest_timestamp(files, read, segment.file, segment.base_offset, segment.size)[0]
        finally:
            self._cache.files.close(descriptor)

    def _search(self, segment: _SegmentCapture, timestamp: int, *, largest: bool = False) -> TimestampAndOffset | None:
        if segment.max_timestamp is not None and segment.max_timestamp < timestamp:
            return None
        descriptor = self._cache.open_privately(segment.file)
        try:
            read = self._reader(descriptor)
            for header in file_headers(read, segment.file, self._start(segment, timestamp, read), segment.size):
                if header.max_timestamp < timestamp or header.last_offset < self._log_start_offset:
                    continue
                found = self._in_batch(header, timestamp, read, largest=largest)
                if found is not None:
                    return found
            return None
        except CorruptBatch as error:
            raise StorageError(f"{segment.file.path}: {error}") from None
        finally:
            self._cache.files.close(descriptor)

    def _start(self, segment: _SegmentCapture, timestamp: int, read: Read) -> int:
        """A position before which no record qualifies: the time index yields an offset, the offset index a batch."""
        if segment.start >= 0:
            return segment.start
        files, file = self._cache.files, segment.file
        entry = load_time_index(files, read, file, segment.base_offset, segment.size).lookup(timestamp)
        index = self._indexes.get(file)
        if index is None:
            try:
                data = read_file(files, index_path(file.path))
                index = OffsetIndex.from_bytes(segment.base_offset, data, segment.size)
            except (FileNotFoundError, CorruptFile):
                return 0
        _, position = index.lookup(entry[1])
        return position if has_timestamp(entry, read, file, position, segment.size) else 0

    def _in_batch(
        self, header: RecordBatchHeader, timestamp: int, read: Read, *, largest: bool
    ) -> TimestampAndOffset | None:
        data = read(header.size_in_bytes, header.position)
        header = header._replace(position=0)
        if largest:
            offset = offset_of_max_timestamp(data, header)
            return None if offset is None else TimestampAndOffset(timestamp, offset, header.partition_leader_epoch)
        found = find_timestamp(data, header, timestamp, self._log_start_offset)
        return found and TimestampAndOffset(found.timestamp, found.offset, header.partition_leader_epoch)

    def _reader(self, descriptor: int) -> Read:
        files = self._cache.files

        def read(size: int, position: int) -> Buffer:
            return files.pread(descriptor, size, position)

        return read

    def _release(self) -> None:
        held, self._held = self._held, []
        for file in held:
            self._cache.release(file)

    def __del__(self) -> None:
        self._release()
