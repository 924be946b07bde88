"""The records inside a batch (magic 2): read, build, and look up by time.

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

Everything read here was written by a peer, and a batch whose header and CRC are right may still hold anything: every
length is checked against the bytes that are there before it is used, and decompression stops at a limit.

Source: Kafka `DefaultRecord`, `MemoryRecordsBuilder`, `EndTransactionMarker`, `ControlRecordType` (KIP-98).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from barnabas.wire.compression import compress, iter_decompressed
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
from barnabas.wire.varint import VarintTooLong, encode_varint, read_varint, read_varlong

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_INT32_MAX: Final = 2**31 - 1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_VARINT_MAX_BYTES: Final = 5
_HEAD_BYTES: Final = 16
"""The maximum number of bytes of a record's attributes, timestamp delta and offset delta."""
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
    max_record_bytes: int = _INT32_MAX,
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
    for data, position, end in _iter_bodies(buffer, header, max_decompressed_bytes, max_record_bytes=max_record_bytes):
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
    data = b"".join(_payload(buffer, header, DEFAULT_MAX_DECOMPRESSED_BYTES))
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
    buffer: ReadBuffer, header: RecordBatchHeader, *, max_record_bytes: int = _INT32_MAX
) -> Iterator[tuple[int, int, bool]]:
    """Check every record as `iter_records` does, without copying keys and values: (offset, timestamp, has a key).

    For validation of batches, which does not use the content.

    Raises:
        CorruptBatch: as `iter_records`.
    """
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    for data, position, end in _iter_bodies(
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


def _iter_bodies(
    buffer: ReadBuffer,
    header: RecordBatchHeader,
    max_decompressed_bytes: int,
    *,
    max_record_bytes: int = _INT32_MAX,
    heads_only: bool = False,
) -> Iterator[tuple[bytes, int, int]]:
    """Find the records: (bytes, start and end of the record's body in them).

    The bytes are a window over the decompressed stream that moves when a record does not fit, so that memory is bounded
    by a chunk or the largest record, not by the batch. With `heads_only` a large record is not collected: its bytes may
    end after the first _HEAD_BYTES.
    """
    chunks = _payload(buffer, header, max_decompressed_bytes)
    data = b""
    position = size = 0
    for _ in range(header.record_count):
        if size - position < _VARINT_MAX_BYTES:
            data = _extend(data, position, _VARINT_MAX_BYTES, chunks)
            position, size = 0, len(data)
        try:
            length, position = read_varint(data, position)
        except IndexError:
            raise CorruptBatch("batch ends before its last record") from None
        except VarintTooLong as error:
            raise CorruptBatch(str(error)) from None
        if length <= 0:
            raise CorruptBatch(f"record has a length of {length} bytes")
        if length > max_record_bytes:
            raise CorruptBatch(f"record of {length} bytes where at most {max_record_bytes} are allowed")
        if length > size - position:
            wanted = min(length, _HEAD_BYTES) if heads_only else length
            data = _extend(data, position, wanted, chunks)
            position, size = 0, len(data)
            if wanted > size:
                raise CorruptBatch(f"record of {length} bytes where {size} are left in the batch")
        yield data, position, position + length
        position += length
        if position > size:
            data = _skip(position - size, chunks)
            position, size = 0, len(data)
    if position < size or any(map(len, chunks)):
        raise CorruptBatch(f"bytes follow the {header.record_count} records that the batch header counts")


def _payload(
    buffer: ReadBuffer, header: RecordBatchHeader, max_decompressed_bytes: int
) -> Iterator[bytes | bytearray | memoryview]:
    """Check the header's claims about the records and return their bytes, decompressed chunk by chunk."""
    if header.record_count < 0:
        raise CorruptBatch(f"batch counts {header.record_count} records")
    if header.end_position > len(buffer):
        raise CorruptBatch(f"batch of {header.size_in_bytes} bytes is truncated")
    view = memoryview(buffer)[header.position + HEADER_SIZE : header.end_position]
    # An emptied batch (compaction keeps a producer's last one) has nothing to decompress, whatever its codec bits say.
    if header.record_count == 0 and not view:
        return iter(())
    compression_type = header.compression_type
    if compression_type is CompressionType.NONE:
        return iter((view,))
    return iter_decompressed(compression_type, view, max_decompressed_bytes)


def _extend(data: bytes, position: int, wanted: int, chunks: Iterator[bytes | bytearray | memoryview]) -> bytes:
    """Return the rest of `data` extended by as many chunks as needed for `wanted` bytes, or all chunks."""
    parts: list[bytes | bytearray | memoryview] = [data[position:]]
    have = len(data) - position
    while have < wanted:
        chunk = next(chunks, None)
        if chunk is None:
            break
        parts.append(chunk)
        have += len(chunk)
    return b"".join(parts)


def _skip(count: int, chunks: Iterator[bytes | bytearray | memoryview]) -> bytes:
    """Skip `count` bytes; returns the bytes behind them in the chunk in which they end."""
    for chunk in chunks:
        if count <= len(chunk):
            return bytes(memoryview(chunk)[count:])
        count -= len(chunk)
    raise CorruptBatch("batch ends inside a record")


def as_long(value: int) -> int:
    """The number as a Java long, which keeps the lowest 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


class TimestampOffset(NamedTuple):
    """A record found by time: its own timestamp in ms, and its offset."""

    timestamp: int
    offset: int


def iter_timestamps(
    buffer: ReadBuffer, header: RecordBatchHeader, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[TimestampOffset]:
    """Read only timestamps and offsets, as far as the caller iterates; keys and values are skipped.

    A batch may have been stored without checking its records: timestamps wrap around as in Java.

    Raises:
        CorruptBatch: as `iter_records`.
    """
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    for data, position, end in _iter_bodies(buffer, header, max_decompressed_bytes, heads_only=True):
        try:
            timestamp_delta, position = read_varlong(data, position + 1)
            offset_delta, position = read_varint(data, position)
        except (IndexError, VarintTooLong) as error:
            raise CorruptBatch(f"record structure is invalid: {error}") from None
        if position > end:
            raise CorruptBatch("record is shorter than its fields")
        timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
        if not _INT64_MIN <= timestamp <= _INT64_MAX:
            timestamp = as_long(timestamp)
        yield TimestampOffset(timestamp, header.base_offset + offset_delta)


def find_timestamp(
    buffer: ReadBuffer, header: RecordBatchHeader, timestamp: int, start_offset: int = 0
) -> TimestampOffset | None:
    """Find the first record at or after `timestamp` (ms) whose offset is at least `start_offset`.

    Raises:
        CorruptBatch: as `iter_records`.

    Source: `FileRecords.searchForTimestamp`.
    """
    if header.max_timestamp < timestamp:
        return None
    for found in iter_timestamps(buffer, header):
        if found.timestamp >= timestamp and found.offset >= start_offset:
            return found
    return None


def offset_of_max_timestamp(buffer: ReadBuffer, header: RecordBatchHeader) -> int | None:
    """Find the first record that has the batch's max timestamp; None if none has.

    Raises:
        CorruptBatch: as `iter_records`.

    Source: `RecordBatch.offsetOfMaxTimestamp` (KIP-734).
    """
    for found in iter_timestamps(buffer, header):
        if found.timestamp == header.max_timestamp:
            return found.offset
    return None


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


class ControlRecordType(IntEnum):
    """The type of a control record; types of other versions and of KRaft are UNKNOWN."""

    ABORT = 0
    COMMIT = 1
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    """The outcome of a transaction, as its coordinator writes it into every partition of the transaction."""

    control_type: ControlRecordType
    coordinator_epoch: int


_CONTROL_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytearray:
    """Build the control batch that ends a transaction: one record, without a sequence."""
    key = _CONTROL_KEY.pack(0, marker.control_type)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        (Record(base_offset, timestamp_ms, key, value),),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
        partition_leader_epoch=partition_leader_epoch,
    )


def control_record_type(record: Record) -> ControlRecordType:
    """The type in a control record's key.

    Raises:
        CorruptBatch: the key is too short or has a negative version.
    """
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptBatch("control record has no complete key")
    version, number = _CONTROL_KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(f"control record key has version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def parse_end_txn_marker(record: Record) -> EndTxnMarker | None:
    """Read a control record that ends a transaction; None if it is of another type.

    Raises:
        CorruptBatch: key or value are too short or have a negative version.
    """
    control_type = control_record_type(record)
    if control_type is ControlRecordType.UNKNOWN:
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptBatch("end of transaction marker has no complete value")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"end of transaction marker has version {version}")
    return EndTxnMarker(control_type, coordinator_epoch)
