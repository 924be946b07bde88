"""The transaction index of a segment: its aborted transactions, for read_committed consumers only."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Buffer
from barnabas.wire.crc import crc32c

_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_SIZE: Final = _ENTRY.size
_VERSION: Final = 0
_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_POSITION: Final = 18


class TransactionIndexNote(NamedTuple):
    """Size and checksum of an index file, to recognise it at the next start: Kafka's format has no checksum, and only
    the batches of a segment show that it should have an index.
    """

    size: int
    crc: int

    @classmethod
    def of(cls, data: Buffer) -> TransactionIndexNote:
        """The note of a file with this content."""
        return cls(len(data), crc32c(data))


UNREADABLE: Final = TransactionIndexNote(-1, 0)
"""The note of an index that should exist and could not be read, so that the next start checks the batches."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One aborted transaction of one partition; `last_offset` is the offset of its abort marker.

    `last_stable_offset` is the partition's just after the marker: a search may stop at it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The entries of one `.txnindex` file in memory, in the order of their markers. The file exists only if the
    segment has an abort marker.

    ======== ===== ========================================
    offset   bytes meaning
    ======== ===== ========================================
    0        2     version: 0
    2        8     producer id
    10       8     first offset of the transaction
    18       8     offset of its abort marker
    26       8     last stable offset after the marker
    ======== ===== ========================================

    Source: org.apache.kafka.storage.internals.log.TransactionIndex, AbortedTxn.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.entries = list(entries)

    def collect(self, start_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions that overlap [start_offset, upper_offset), and whether later segments cannot contain more of
        them.
        """
        found = []
        for entry in self.entries:
            if entry.last_offset >= start_offset and entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Remove transactions whose marker is at or beyond `offset`."""
        self.entries = [entry for entry in self.entries if entry.last_offset < offset]

    def to_bytes(self) -> bytes:
        """The content of the file."""
        return b"".join(map(encode_entry, self.entries))

    @classmethod
    def from_bytes(cls, base_offset: int, data: Buffer, end_offset: int = 1 << 63) -> TransactionIndex:
        """Read a file's content.

        Raises:
            CorruptFile: of another version, not ascending, not whole entries, or not of this segment, which ends at
                `end_offset`.
        """
        if len(data) % ENTRY_SIZE:
            raise CorruptFile(f"{len(data)} bytes are no whole number of transaction index entries")
        entries = []
        last_offset = base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION or entry.last_offset <= last_offset:
                raise CorruptFile("transaction index entries are not ascending or of an unknown version")
            if not (entry.first_offset < entry.last_offset and entry.last_stable_offset <= entry.last_offset + 1):
                raise CorruptFile("a transaction index entry contradicts itself")
            if entry.last_offset >= end_offset:
                raise CorruptFile("a transaction index entry lies behind its segment")
            last_offset = entry.last_offset
            entries.append(entry)
        return cls(entries)


def collect_aborted(data: bytearray, start_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
    """`TransactionIndex.collect` over a file's content: decodes only the relevant entries."""
    found = []
    first = bisect_left(range(len(data) // ENTRY_SIZE), start_offset, key=lambda entry: _last_offset(data, entry))
    for position in range(first * ENTRY_SIZE, len(data), ENTRY_SIZE):
        entry = AbortedTransaction(*_ENTRY.unpack_from(data, position)[1:])
        if entry.first_offset < upper_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_offset:
            return found, True
    return found, False


def _last_offset(data: bytearray, entry: int) -> int:
    (offset,) = _OFFSET.unpack_from(data, entry * ENTRY_SIZE + _LAST_OFFSET_POSITION)
    return int(offset)


def encode_entry(entry: AbortedTransaction) -> bytes:
    """One entry in the format of the file."""
    return _ENTRY.pack(_VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
