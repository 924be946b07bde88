"""The timestamps and offsets of the records in a batch, read without keys and values: a record is looked up by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from barnabas.wire.record_batch import TIMESTAMP_TYPE_MASK, CorruptBatch, ReadBuffer, RecordBatchHeader
from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES, iter_bodies
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
