"""The records inside a batch (magic 2): read and build.

A record is, behind its own length as a varint:

=============== ======== ====================================================
field           type     meaning
=============== ======== ====================================================
attributes      int8     unused
timestamp_delta varlong  to the batch's base timestamp
offset_delta    varint   to the batch's base offset
key             varint n n bytes; negative n is null
value           varint n n bytes; negative n is null
headers         varint n n times: name (varint length, UTF-8), value like above
=============== ======== ====================================================

`record_bodies.py` finds the records; their content is checked here, as what a peer wrote may hold anything.

Source: Kafka `DefaultRecord`, `MemoryRecordsBuilder` (KIP-98).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from barnabas.wire.compression import compress
from barnabas.wire.crc import crc32c
from barnabas.wire.record_batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    HEADER_STRUCT,
    LOG_OVERHEAD,
    MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    CompressionType,
    CorruptBatch,
    ReadBuffer,
    RecordBatchHeader,
    TimestampType,
)
from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES, RECORD_BYTES_MAX, iter_bodies, payload
from barnabas.wire.varint import VarintTooLong, encode_varint, read_varint, read_varlong

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_INT32_MAX: Final = 2**31 - 1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_CRC_START: Final = 21
_UINT32: Final = struct.Struct(">I")


class Record(NamedTuple):
    """One record.

    `timestamp` is in ms. `sequence` is -1 without an idempotent producer and is ignored when a batch is built. Header
    names that are not UTF-8 keep their bytes as lone surrogates, so that they survive being written again.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = NO_SEQUENCE


# A named tuple's own constructor is a Python function around this one.
_new: Final = tuple.__new__


def iter_records(
    buffer: ReadBuffer,
    header: RecordBatchHeader,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    max_record_bytes: int = RECORD_BYTES_MAX,
) -> Iterator[Record]:
    """Read the records of the batch; compressed ones only as far as the caller iterates.

    Offsets are those in the records, even if they lie outside the batch: only the structure is checked. Memory: up to
    three times the largest record, which `max_record_bytes` bounds.

    Raises:
        CorruptBatch: the records contradict the header; raised when the iteration reaches the error.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    base_sequence = header.base_sequence
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    sequence = NO_SEQUENCE
    for data, position, end in iter_bodies(buffer, header, max_decompressed_bytes, max_record_bytes=max_record_bytes):
        try:
            timestamp_delta, position = read_varlong(data, position + 1)
            offset_delta, position = read_varint(data, position)
            size, position = read_varint(data, position)
            key = None
            if size >= 0:
                key = data[position : position + size]
                position += size
            size, position = read_varint(data, position)
            value = None
            if size >= 0:
                value = data[position : position + size]
                position += size
            headers: Headers = ()
            if data[position]:
                headers, position = _read_headers(data, position, end)
            else:
                position += 1
        except (IndexError, VarintTooLong) as error:
            raise CorruptBatch(f"record structure is invalid: {error}") from None
        if position != end:
            raise CorruptBatch("record is longer or shorter than its fields")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise CorruptBatch(f"record timestamp {timestamp} does not fit into 64 bits")
        if base_sequence >= 0:
            sequence = (base_sequence + offset_delta) & _INT32_MAX
        yield _new(Record, (base_offset + offset_delta, timestamp, key, value, headers, sequence))


def read_records(buffer: ReadBuffer, header: RecordBatchHeader) -> list[Record]:
    """All records of the batch at once, in less than half the time of `iter_records`; without sequences.

    For readers of a broker's responses: the whole batch is decompressed in memory, up to
    DEFAULT_MAX_DECOMPRESSED_BYTES.

    Raises:
        CorruptBatch: as `iter_records`.
    """
    data = b"".join(payload(buffer, header, DEFAULT_MAX_DECOMPRESSED_BYTES))
    try:
        records = _short_records(data, header)
    except IndexError:
        records = None
    if records is None:
        records = list(iter_records(buffer, header._replace(base_sequence=NO_SEQUENCE)))
    return records


def _short_records(data: bytes, header: RecordBatchHeader) -> list[Record] | None:
    """The records if no number takes more than two bytes and none has headers; None otherwise, or if they are corrupt.

    Numbers are read inline: a call would take as long as the rest of the record. `high` collects all second bytes, to
    detect at the end whether a number had more bytes; everything read after it is invalid then.
    """
    if header.attributes & TIMESTAMP_TYPE_MASK or not 0 <= header.base_timestamp < _INT64_MAX >> 1:
        return None
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    records: list[Record] = []
    position = high = 0
    for _ in range(header.record_count):
        size = data[position]
        position += 1
        if size > 0x7F:
            high |= data[position]
            size += (data[position] << 7) - 0x80
            position += 1
        end = position + (size >> 1)
        timestamp = data[position + 1]
        position += 2
        if timestamp > 0x7F:
            high |= data[position]
            timestamp += (data[position] << 7) - 0x80
            position += 1
        offset = data[position]
        position += 1
        if offset > 0x7F:
            high |= data[position]
            offset += (data[position] << 7) - 0x80
            position += 1
        key = value = None
        number = data[position]
        position += 1
        if number > 0x7F:
            high |= data[position]
            number += (data[position] << 7) - 0x80
            position += 1
        if not number & 1:
            key = data[position : position + (number >> 1)]
            position += number >> 1
        number = data[position]
        position += 1
        if number > 0x7F:
            high |= data[position]
            number += (data[position] << 7) - 0x80
            position += 1
        if not number & 1:
            value = data[position : position + (number >> 1)]
            position += number >> 1
        if data[position] or position + 1 != end or size & 1:
            return None
        position = end
        timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1))
        records.append(
            _new(Record, (base_offset + ((offset >> 1) ^ -(offset & 1)), timestamp, key, value, (), NO_SEQUENCE))
        )
    return records if position == len(data) and high < 0x80 else None


def iter_checked(
    buffer: ReadBuffer, header: RecordBatchHeader, *, max_record_bytes: int = RECORD_BYTES_MAX
) -> Iterator[tuple[int, int, bool]]:
    """Check every record as `iter_records` does, without copying keys and values: (offset, timestamp, has a key).

    For validation of batches, which does not use the content.

    Raises:
        CorruptBatch: as `iter_records`.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    for data, position, end in iter_bodies(
        buffer, header, DEFAULT_MAX_DECOMPRESSED_BYTES, max_record_bytes=max_record_bytes
    ):
        try:
            timestamp_delta, position = read_varlong(data, position + 1)
            offset_delta, position = read_varint(data, position)
            key_size, position = read_varint(data, position)
            if key_size > 0:
                position += key_size
            value_size, position = read_varint(data, position)
            if value_size > 0:
                position += value_size
            if data[position]:
                _, position = _read_headers(data, position, end)
            else:
                position += 1
        except (IndexError, VarintTooLong) as error:
            raise CorruptBatch(f"record structure is invalid: {error}") from None
        if position != end:
            raise CorruptBatch("record is longer or shorter than its fields")
        timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            raise CorruptBatch(f"record timestamp {timestamp} does not fit into 64 bits")
        yield base_offset + offset_delta, timestamp, key_size >= 0


def _read_headers(data: bytes, position: int, end: int) -> tuple[Headers, int]:
    """Read the header array of a record that ends at `end`: (headers, position behind them)."""
    count, position = read_varint(data, position)
    # A header has at least two bytes; checked before the loop, because the count may be two thousand million.
    if not 0 <= count <= (end - position) // 2:
        raise CorruptBatch(f"record claims {count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise CorruptBatch("record header has no name")
        name = data[position : position + size].decode("utf-8", "surrogateescape")
        position += size
        size, position = read_varint(data, position)
        if size < 0:
            headers.append((name, None))
            continue
        headers.append((name, data[position : position + size]))
        position += size
        if position > end:
            raise CorruptBatch("record header runs past the record's end")
    return tuple(headers), position


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    compression: CompressionType = CompressionType.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time_ms: int = NO_TIMESTAMP,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """Build one batch. Records keep their offsets, which must be ascending and not below `base_offset`.

    Args:
        records: may be empty (a producer's last batch after compaction); `last_offset` is needed then.
        last_offset: the batch's last offset if its last record is gone (compaction); else the last record's.
        log_append_time_ms: the max timestamp if `timestamp_type` is LOG_APPEND_TIME, or if there are no records.

    Raises:
        ValueError: no records and no last offset, or an offset or timestamp that does not fit the format.
    """
    parts: list[bytes] = []
    base_timestamp = delete_horizon_ms
    max_timestamp = log_append_time_ms
    count = 0
    last_delta = -1
    for record in records:
        if base_timestamp is None:
            base_timestamp = record.timestamp
        if record.timestamp > max_timestamp or count == 0:
            max_timestamp = record.timestamp
        delta = record.offset - base_offset
        if not last_delta < delta <= _INT32_MAX:
            raise ValueError(f"record offset {record.offset} follows {base_offset + last_delta}")
        last_delta = delta
        _encode_record(parts, record, delta, record.timestamp - base_timestamp)
        count += 1
    if last_offset is not None:
        last_delta = max(last_delta, last_offset - base_offset)
    if last_delta < 0:
        raise ValueError("a batch without records needs a last offset")
    attributes = (
        compression
        | (TIMESTAMP_TYPE_MASK if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_MASK if transactional else 0)
        | (CONTROL_MASK if control else 0)
        | (DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0)
    )
    payload = b"".join(parts)
    if compression is not CompressionType.NONE and count:
        payload = compress(compression, payload, compression_level)
    return assemble_batch(
        RecordBatchHeader(
            position=0,
            base_offset=base_offset,
            batch_length=0,
            partition_leader_epoch=partition_leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_delta,
            base_timestamp=NO_TIMESTAMP if base_timestamp is None else base_timestamp,
            max_timestamp=log_append_time_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=count,
        ),
        payload,
    )


def assemble_batch(header: RecordBatchHeader, payload: ReadBuffer) -> bytearray:
    """Write `header` in front of `payload` with the length and CRC that follow from it.

    Raises:
        ValueError: a field does not fit its type.
    """
    batch = bytearray(HEADER_SIZE)
    length = HEADER_SIZE - LOG_OVERHEAD + len(payload)
    try:
        HEADER_STRUCT.pack_into(batch, 0, *header._replace(batch_length=length, crc=0)[1:])
    except struct.error as error:
        raise ValueError(f"batch header cannot be written: {error}") from None
    batch += payload
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def _encode_record(parts: list[bytes], record: Record, offset_delta: int, timestamp_delta: int) -> None:
    """Append the record's bytes to `parts`."""
    _, _, key, value, headers, _ = record
    body = [b"\x00", encode_varint(timestamp_delta), encode_varint(offset_delta)]
    _encode_nullable(body, key)
    _encode_nullable(body, value)
    body.append(encode_varint(len(headers)))
    for name, header_value in headers:
        _encode_nullable(body, name.encode("utf-8", "surrogateescape"))
        _encode_nullable(body, header_value)
    encoded = b"".join(body)
    parts.append(encode_varint(len(encoded)))
    parts.append(encoded)


_NULL: Final = encode_varint(-1)


def _encode_nullable(body: list[bytes], data: bytes | None) -> None:
    if data is None:
        body.append(_NULL)
    else:
        body.append(encode_varint(len(data)))
        body.append(data)
