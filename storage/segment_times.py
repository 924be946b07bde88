"""Timestamps of segments that have not been read since the start.

Retention and compaction compare them for every log. They are captured on the event loop, read in a thread, and stored
on the loop, so that thousands of logs whose files are not in the page cache do not delay requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.files import Buffer
from barnabas.storage.segment import NOT_READ, Segment, read_largest_timestamp
from barnabas.wire.record_batch import HEADER_SIZE, parse_header


@dataclass(slots=True)
class _Wanted:
    """A segment as it was captured, and the times read for it."""

    segment: Segment
    file: LogFile
    base_offset: int
    size: int
    wants_first: bool
    wants_largest: bool
    largest: int | None = None
    """Already known, or read."""
    last_entry: tuple[int, int] | None = None
    first: int | None = None


class SegmentTimes:
    """The times of a log's segments that a caller needs.

    Created on the event loop; `read` may be called once, from any thread; then `take_in`, on the loop, in any case.

    Args:
        cache: the log's.
        first_of: segments whose first timestamp is needed.
        largest_of: segments whose largest timestamp is needed, or, if no batch has one, the file's modification time.
        is_enough: called with each of the latter in turn; True if the following ones are not needed.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        *,
        first_of: Iterable[Segment] = (),
        largest_of: Iterable[Segment] = (),
        is_enough: Callable[[int], bool] = lambda _timestamp: False,
    ) -> None:
        self.error: Exception | None = None
        """The error that ended the reading early."""
        self._cache = cache
        self._is_enough = is_enough
        self._modified_ms: dict[Segment, int] = {}
        self._wanted = [
            _Wanted(segment, segment.file, segment.base_offset, segment.size, wants_first=True, wants_largest=False)
            for segment in first_of
            if segment.first_timestamp == NOT_READ
        ]
        for segment in largest_of:
            wanted = _Wanted(
                segment, segment.file, segment.base_offset, segment.size, wants_first=False, wants_largest=True
            )
            if segment.max_timestamp >= 0:
                if is_enough(segment.max_timestamp):
                    break
                wanted.largest = segment.max_timestamp
            self._wanted.append(wanted)
        if all(wanted.largest is not None for wanted in self._wanted):
            self._wanted = []
        for wanted in self._wanted:
            cache.hold(wanted.file)

    @property
    def is_known(self) -> bool:
        """Whether the times are known without reading from the disk."""
        return not self._wanted

    def read(self) -> None:
        """Read the needed times; an error is stored in `error`. Blocking, any thread."""
        try:
            for wanted in self._wanted:
                if wanted.wants_first:
                    wanted.first = self._first(wanted)
                elif wanted.largest is None:
                    wanted.largest = self._largest(wanted)
                if wanted.largest is not None and self._is_enough(wanted.largest):
                    return
        except Exception as error:  # noqa: BLE001 - after any error of this log, the others are read
            self.error = error

    def _first(self, wanted: _Wanted) -> int:
        header = self._read(wanted.file, HEADER_SIZE, 0) if wanted.size >= HEADER_SIZE else b""
        return parse_header(header).max_timestamp if header else -1

    def _largest(self, wanted: _Wanted) -> int:
        files, file = self._cache.files, wanted.file
        if wanted.segment.max_timestamp == NOT_READ:
            wanted.last_entry = read_largest_timestamp(
                files, lambda size, at: self._read(file, size, at), file, wanted.base_offset, wanted.size
            )
            if wanted.last_entry[0] >= 0:
                return wanted.last_entry[0]
        return files.stat(file.path).modified_ms

    def _read(self, file: LogFile, size: int, position: int) -> Buffer:
        descriptor = self._cache.open_privately(file)
        try:
            return self._cache.files.pread(descriptor, size, position)
        finally:
            self._cache.files.close(descriptor)

    def take_in(self) -> None:
        """Store the times in the segments, unless these have changed or know them meanwhile."""
        for wanted in self._wanted:
            segment = wanted.segment
            self._cache.release(wanted.file)
            if segment.size != wanted.size:
                continue
            if wanted.first is not None and segment.first_timestamp == NOT_READ:
                segment.first_timestamp = wanted.first
            if wanted.last_entry is not None and segment.max_timestamp == NOT_READ:
                segment.max_timestamp, segment.max_timestamp_offset = wanted.last_entry
            if wanted.largest is not None:
                self._modified_ms[segment] = wanted.largest
        self._wanted = []

    def largest(self, segment: Segment) -> int | None:
        """A segment's largest timestamp, or its file's modification time; None if it was not read."""
        return segment.max_timestamp if segment.max_timestamp >= 0 else self._modified_ms.get(segment)
