"""The snapshots of the producers of a log, as bytes.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager.writeSnapshot, readSnapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from barnabas.storage.errors import CorruptFile
from barnabas.storage.producer_state import NO_OFFSET, SEQUENCE_MASK, BatchMetadata, ProducerEntry
from barnabas.wire.crc import crc32c

_VERSION: Final = 1
_HEADER: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_END: Final = 6


def encode_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    """A producer snapshot, `NNNNNNNNNNNNNNNNNNNN.snapshot`: the state up to the offset in its name.

    ======== ===== ====================================================================
    offset   bytes meaning
    ======== ===== ====================================================================
    0        2     version: 1
    2        4     CRC-32C of everything from byte 6 on
    6        4     number of producers; then for each:
    +0       8     producer id
    +8       2     epoch
    +10      4     last sequence of its last batch, or -1
    +14      8     last offset of its last batch, or -1
    +22      4     last offset - first offset of that batch
    +26      8     timestamp of its last batch or marker (ms)
    +34      4     epoch of the coordinator that wrote its last marker, or -1
    +38      8     first offset of its open transaction, or -1
    ======== ===== ====================================================================

    It contains only the last batch: the loader finds the four before it in the log.

    Source: message/ProducerSnapshot.json of Kafka.
    """
    parts = []
    for entry in producers:
        last = entry.batches[-1] if entry.batches else None
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence if last else -1,
                last.last_offset if last else NO_OFFSET,
                last.offset_delta if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    body = struct.pack(">i", len(parts)) + b"".join(parts)
    return struct.pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Read a producer snapshot.

    Raises:
        CorruptFile: empty, cut off, of another version, or with a wrong CRC.
    """
    if len(data) < _HEADER.size:
        raise CorruptFile("a producer snapshot without a whole header")
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptFile(f"a producer snapshot of version {version}")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptFile(f"a producer snapshot of {len(data)} bytes cannot have {count} producers")
    if crc32c(data[_CRC_END:]) != crc:
        raise CorruptFile("a producer snapshot with a wrong CRC")
    entries = []
    for fields in _ENTRY.iter_unpack(data[_HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first = fields
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, first if first >= 0 else NO_OFFSET)
        if last_offset >= 0:
            first_sequence = last_sequence if last_sequence < 0 else (last_sequence - offset_delta) & SEQUENCE_MASK
            entry.batches.append(BatchMetadata(first_sequence, last_sequence, last_offset, offset_delta, timestamp))
        entries.append(entry)
    return entries
