"""The time index of a segment: from a timestamp to an offset before which all records are earlier."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Buffer
from barnabas.storage.offset_index import ascending

_ENTRY: Final = struct.Struct(">qi")
ENTRY_SIZE: Final = _ENTRY.size
NO_TIMESTAMP: Final = -1


class TimeIndex:
    """The entries of one `.timeindex` file in memory.

    The file is a row of entries, big-endian, sorted by both fields:

    ======== ===== ================================================================================
    offset   bytes meaning
    ======== ===== ================================================================================
    0        8     largest timestamp (ms) of all records up to that offset
    8        4     last offset of the batch that has it, relative to the segment's base offset
    ======== ===== ================================================================================

    An entry is added together with one of the offset index, if the largest timestamp has grown since the last; when a
    segment is rolled or closed its largest timestamp becomes the last entry, so that retention need not read the
    segment. There is no checksum: users of an entry check that its batch has its timestamp.

    Source: org.apache.kafka.storage.internals.log.TimeIndex.
    """

    __slots__ = ("base_offset", "relative_offsets", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.relative_offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) if there is none."""
        if not self.timestamps:
            return NO_TIMESTAMP, self.base_offset
        return self.timestamps[-1], self.base_offset + self.relative_offsets[-1]

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if the timestamp is later than the last one's."""
        last = self.timestamps[-1] if self.timestamps else NO_TIMESTAMP
        if timestamp > last:
            self.timestamps.append(timestamp)
            self.relative_offsets.append(offset - self.base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry (timestamp, offset) that is not later than `timestamp`; (-1, base offset) if there is none. No
        record up to that offset is later, and only records of its batch may be as late.
        """
        slot = bisect_right(self.timestamps, timestamp) - 1
        if slot < 0:
            return NO_TIMESTAMP, self.base_offset
        return self.timestamps[slot], self.base_offset + self.relative_offsets[slot]

    def truncate_to(self, offset: int) -> None:
        """Remove entries at or beyond `offset`."""
        count = bisect_left(self.relative_offsets, offset - self.base_offset)
        del self.timestamps[count:], self.relative_offsets[count:]

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return b"".join(map(_ENTRY.pack, self.timestamps, self.relative_offsets))

    @classmethod
    def from_bytes(cls, base_offset: int, data: Buffer) -> TimeIndex:
        """Read a file's content.

        Raises:
            CorruptFile: not a row of ascending entries.
        """
        if len(data) % ENTRY_SIZE:
            raise CorruptFile(f"{len(data)} bytes are no whole number of time index entries")
        index = cls(base_offset)
        for timestamp, relative_offset in _ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.relative_offsets.append(relative_offset)
        if not (ascending(index.timestamps) and ascending(index.relative_offsets)):
            raise CorruptFile("time index entries are not ascending")
        if index.timestamps and (index.timestamps[0] < 0 or index.relative_offsets[0] < 0):
            raise CorruptFile("time index entries are negative")
        return index
