"""The offset index of a segment: from an offset to the byte position of a batch at or before it."""

from __future__ import annotations

import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import islice
from operator import lt
from typing import Final

from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Buffer

ENTRY_SIZE: Final = 8


class OffsetIndex:
    """The entries of one `.index` file in memory.

    The file is a row of entries, big-endian, sorted by both fields:

    ======== ===== ==================================================================
    offset   bytes meaning
    ======== ===== ==================================================================
    0        4     last offset of a batch, relative to the segment's base offset
    4        4     byte position where that batch starts
    ======== ===== ==================================================================

    An entry is added before the first batch that starts more than `index.interval.bytes` after the previous entry's
    batch; the first batch of a segment has none. The index is a hint: its users check that the batch at an entry's
    position ends with the entry's offset.

    Source: org.apache.kafka.storage.internals.log.OffsetIndex. Unlike Kafka's, the file is neither preallocated nor
    mapped.
    """

    __slots__ = ("base_offset", "positions", "relative_offsets")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.relative_offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, offset: int, position: int) -> None:
        """Add an entry; both values must exceed the last entry's."""
        self.relative_offsets.append(offset - self.base_offset)
        self.positions.append(position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The entry (offset, position) with the largest offset at or below `offset`; (-1, 0) if there is none."""
        slot = bisect_right(self.relative_offsets, offset - self.base_offset) - 1
        if slot < 0:
            return -1, 0
        return self.base_offset + self.relative_offsets[slot], self.positions[slot]

    def last_before(self, position: int, max_offset: int) -> tuple[int, int]:
        """The last entry (offset, position) at or before `position` with an offset of at most `max_offset`; (-1, 0) if
        there is none. Everything before it is below `max_offset`.
        """
        by_offset = bisect_right(self.relative_offsets, max_offset - self.base_offset)
        slot = min(by_offset, bisect_right(self.positions, position)) - 1
        if slot < 0:
            return -1, 0
        return self.base_offset + self.relative_offsets[slot], self.positions[slot]

    def truncate_to(self, offset: int) -> None:
        """Remove entries at or beyond `offset`."""
        count = bisect_left(self.relative_offsets, offset - self.base_offset)
        del self.relative_offsets[count:], self.positions[count:]

    def to_bytes(self) -> bytes:
        """The content of the file."""
        both = array("i", bytes(ENTRY_SIZE * len(self.positions)))
        both[0::2] = self.relative_offsets
        both[1::2] = self.positions
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    @classmethod
    def from_bytes(cls, base_offset: int, data: Buffer, log_size: int) -> OffsetIndex:
        """Read a file's content.

        Raises:
            CorruptFile: not a row of ascending entries that lie within a log of `log_size` bytes.
        """
        if len(data) % ENTRY_SIZE:
            raise CorruptFile(f"{len(data)} bytes are no whole number of offset index entries")
        both = array("i")
        both.frombytes(data)
        if sys.byteorder == "little":
            both.byteswap()
        index = cls(base_offset)
        index.relative_offsets, index.positions = both[0::2], both[1::2]
        if not (ascending(index.relative_offsets) and ascending(index.positions)):
            raise CorruptFile("offset index entries are not ascending")
        if index.positions and (
            index.relative_offsets[0] < 0 or index.positions[0] < 0 or index.positions[-1] >= log_size
        ):
            raise CorruptFile("offset index entries point outside the log")
        return index


def ascending(values: array[int]) -> bool:
    """Whether each value exceeds the one before it."""
    return all(map(lt, values, islice(values, 1, None)))


class OffsetIndexCache:
    """Indexes of sealed segments, least recently used ones evicted beyond a total number of entries.

    The key is the segment's log file. Thread-safe: threads add indexes that they had to read.
    """

    __slots__ = ("_entries", "_indexes", "_limit", "_lock")

    def __init__(self, entry_limit: int = 1 << 21) -> None:
        self._limit = entry_limit
        self._entries = 0
        self._indexes: OrderedDict[LogFile, OffsetIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: LogFile) -> OffsetIndex | None:
        """The index of a log file, if it is cached."""
        with self._lock:
            index = self._indexes.get(file)
            if index is not None:
                self._indexes.move_to_end(file)
            return index

    def put(self, file: LogFile, index: OffsetIndex) -> None:
        """Cache an index; evicts the least recently used ones."""
        self.drop(file)
        with self._lock:
            self._indexes[file] = index
            self._entries += len(index) + 1
            while self._entries > self._limit and len(self._indexes) > 1:
                _, oldest = self._indexes.popitem(last=False)
                self._entries -= len(oldest) + 1

    def drop(self, file: LogFile) -> None:
        """Remove the index of a segment that is gone."""
        with self._lock:
            index = self._indexes.pop(file, None)
            if index is not None:
                self._entries -= len(index) + 1
