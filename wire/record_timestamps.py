"""The timestamps and offsets of the records in a batch, read without keys and values: a record is looked up by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.wire.record_batch import TIMESTAMP_TYPE_MASK, CorruptBatch, ReadBuffer, RecordBatchHeader
from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES, iter_bodies, payload
from barnabas.wire.varint import VarintTooLong, read_varint, read_varlong

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


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
        CorruptBatch: the records contradict the header; raised when the iteration reaches the error.
    """
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_MASK else None
    for data, position, end in iter_bodies(buffer, header, max_decompressed_bytes, heads_only=True):
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


_JOINED_BYTES_MAX: Final = 1024 * 1024
"""Decompressed records of up to so many bytes are read as one piece, which is faster; most batches are smaller."""


def largest_timestamp(buffer: ReadBuffer, header: RecordBatchHeader) -> int:
    """The largest timestamp of the records of a batch with CreateTime, in ms. Some 0.4 us per record, if they are not
    compressed.

    Raises:
        CorruptBatch: as `iter_timestamps`.
    """
    records = _joined(payload(buffer, header, DEFAULT_MAX_DECOMPRESSED_BYTES))
    if records is not None:
        try:
            largest = header.base_timestamp + _largest_delta(records, header.record_count)
        except (IndexError, VarintTooLong) as error:
            raise CorruptBatch(f"record structure is invalid: {error}") from None
        if largest <= _INT64_MAX:
            return largest
    return max((found.timestamp for found in iter_timestamps(buffer, header)), default=header.max_timestamp)


def _joined(chunks: Iterator[bytes | bytearray | memoryview]) -> bytes | None:
    """The chunks as one piece; None if that is too large."""
    first = next(chunks, b"")
    parts = [first]
    size = len(first)
    for chunk in chunks:
        size += len(chunk)
        if size > _JOINED_BYTES_MAX:
            return None
        parts.append(chunk)
    return b"".join(parts)


def _largest_delta(records: bytes, count: int) -> int:
    """The largest timestamp delta. Lengths of one and two bytes, and deltas of one, are read in place, not by calls."""
    position = 0
    largest = _INT64_MIN
    for _ in range(count):
        byte = records[position]
        if byte < 0x80:
            length = byte >> 1
            position += 1
        elif (high := records[position + 1]) < 0x80:
            length = (byte & 0x7F | high << 7) >> 1
            position += 2
        else:
            length, position = read_varint(records, position)
        byte = records[position + 1]
        delta = (byte >> 1) ^ -(byte & 1) if byte < 0x80 else read_varlong(records, position + 1)[0]
        if delta > largest:
            largest = delta
        position += length
    if position != len(records):
        raise CorruptBatch(f"the {count} records end at {position}, and the batch at {len(records)}")
    return largest


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
