"""Removes records from one batch in compaction.

A batch keeps its base and last offset, sequence, epoch and codec; records keep their offsets. A batch all of whose
records are retained is kept byte for byte.

Source: org.apache.kafka.common.record.internal.MemoryRecords.filterTo, MemoryRecordsBuilder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.storage.files import Buffer
from barnabas.wire.compression import compress, decompress
from barnabas.wire.record_batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    CompressionType,
    CorruptBatch,
    RecordBatchHeader,
)
from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES
from barnabas.wire.record_timestamps import as_long
from barnabas.wire.records import assemble_batch
from barnabas.wire.varint import VarintTooLong, encode_varint, read_varint, read_varlong

_LONG_MAX: Final = 2**63 - 1
_KEPT_ATTRIBUTES: Final = CODEC_MASK | TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


class RawRecord(NamedTuple):
    """One record in the payload of its batch: at [start, end), including its length field.

    `after_timestamp` is the start of the bytes behind the timestamp; these do not depend on the batch.
    """

    start: int
    after_timestamp: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def payload_of(batch: Buffer, header: RecordBatchHeader) -> bytes:
    """The records of a batch, decompressed.

    Raises:
        CorruptBatch: they cannot be decompressed, or are larger than the broker's limit for decompression.
    """
    start = header.position + HEADER_SIZE
    view = memoryview(batch)[start : header.end_position]
    if not view or not header.record_count:
        return b""
    codec = header.compression_type
    return bytes(view) if codec is CompressionType.NONE else decompress(codec, view, DEFAULT_MAX_DECOMPRESSED_BYTES)


def iter_raw_records(payload: bytes, count: int) -> Iterator[RawRecord]:
    """The records of a payload.

    Raises:
        CorruptBatch: they contradict the header.
    """
    position, size = 0, len(payload)
    try:
        for _ in range(count):
            start = position
            length, position = read_varint(payload, position)
            end = position + length
            if length <= 0 or end > size:
                raise CorruptBatch(f"record of {length} bytes where {size - position} are left in the batch")
            timestamp_delta, after_timestamp = read_varlong(payload, position + 1)
            offset_delta, position = read_varint(payload, after_timestamp)
            length, position = read_varint(payload, position)
            key = None
            if length >= 0:
                key = payload[position : position + length]
                position += length
            length, position = read_varint(payload, position)
            if position + max(length, 0) >= end:
                raise CorruptBatch("record is shorter than its fields")
            yield RawRecord(start, after_timestamp, end, timestamp_delta, offset_delta, key, length >= 0)
            position = end
    except (IndexError, VarintTooLong) as error:
        raise CorruptBatch(f"record structure is invalid: {error}") from None
    if position != size:
        raise CorruptBatch(f"bytes follow the {count} records that the batch header counts")


def emptied_batch(header: RecordBatchHeader) -> bytearray:
    """A batch without records that keeps the header's offsets and producer."""
    attributes = header.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK)
    return assemble_batch(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def rebuilt_batch(
    header: RecordBatchHeader, payload: bytes, records: Sequence[RawRecord], delete_horizon_ms: int | None
) -> bytearray:
    """The batch with only `records` (at least one). A delete horizon replaces the base timestamp (KIP-534).

    The batch may grow: a smaller payload may compress worse, and timestamps may need more bytes. The timestamps may be
    unchecked: sums that overflow a long wrap around, as in Kafka and in every Java reader. A horizon does not: one
    beyond a long is never reached.
    """
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    if append_time is None:
        timestamps = [as_long(header.base_timestamp + record.timestamp_delta) for record in records]
    else:
        timestamps = [append_time] * len(records)
    base_timestamp = timestamps[0] if delete_horizon_ms is None else min(delete_horizon_ms, _LONG_MAX)
    parts = []
    for record, timestamp in zip(records, timestamps, strict=True):
        delta = as_long(timestamp - base_timestamp)
        if delta == record.timestamp_delta:
            parts.append(payload[record.start : record.end])
        else:
            encoded = encode_varint(delta)
            rest = payload[record.after_timestamp : record.end]
            parts += (encode_varint(1 + len(encoded) + len(rest)), b"\x00", encoded, rest)
    data = b"".join(parts)
    if header.codec:
        data = compress(header.compression_type, data)
    attributes = header.attributes & _KEPT_ATTRIBUTES
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_MASK
    return assemble_batch(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max(timestamps),
            record_count=len(records),
        ),
        data,
    )
