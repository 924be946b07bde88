"""The 61 byte header of a record batch (magic 2): view, check, patch in place.

Everything a broker does with an ordinary produced batch happens here, per batch and never per record.

====================== ====== ===== =============================================================
field                  offset bytes meaning
====================== ====== ===== =============================================================
base_offset            0      8     offset of the first record; assigned by the broker
batch_length           8      4     bytes that follow this field
partition_leader_epoch 12     4     epoch of the leader that appended; assigned by the broker
magic                  16     1     2
crc                    17     4     CRC-32C (unsigned) of everything from byte 21 to the end
attributes             21     2     bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
last_offset_delta      23     4     offset of the last record (or of one compacted away) - base_offset
base_timestamp         27     8     ms; the records' timestamps are deltas to it
max_timestamp          35     8     ms; the append time when bit 3 is set
producer_id            43     8     -1: not idempotent
producer_epoch         51     2     -1: none
base_sequence          53     4     -1: none
record_count           57     4     records in the batch
====================== ====== ===== =============================================================

All integers are big-endian and, except the CRC, signed. What the broker assigns lies outside the CRC.

Source: Kafka `DefaultRecordBatch` (KIP-98), `DefaultRecordBatch.deleteHorizonMs` (KIP-534).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from barnabas.wire.crc import crc32c
from barnabas.wire.primitives import new_tuple

ReadBuffer: TypeAlias = bytes | bytearray | memoryview
WriteBuffer: TypeAlias = bytearray | memoryview

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""The number of bytes before those that `batch_length` counts."""
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_PARTITION_LEADER_EPOCH: Final = -1

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
DELETE_HORIZON_MASK: Final = 0x40
_ASSIGNED_MASK: Final = 0x7F

_CRC_START: Final = 21
_MAGIC_POSITION: Final = 16
_MINIMUM_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
# The smallest length of any format (a v0 message without key and value): below it the bytes are not a log at all.
_MINIMUM_LEGACY_LENGTH: Final = 14
_INT32_MAX: Final = 2**31 - 1

HEADER_STRUCT: Final = struct.Struct(">qiibIhiqqqhii")
_unpack_header = HEADER_STRUCT.unpack_from
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")


class CorruptBatch(Exception):
    """The bytes are not a record batch, or its records are not what the header says."""


class UnsupportedMagic(CorruptBatch):
    """A message of an older or unknown format.

    Args:
        magic: the value of the magic byte.
    """

    def __init__(self, magic: int) -> None:
        super().__init__(f"record batch has magic {magic}, only {MAGIC} is supported")
        self.magic = magic


class CompressionType(IntEnum):
    """Codec of a batch's records: bits 0-2 of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """The source of the records' timestamps: bit 3 of the attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class RecordBatchHeader(NamedTuple):
    """One decoded header; `position` is the batch's position in its buffer.

    Immutable: the functions that write into the buffer do not change a header that was read before. A tuple because
    creating one costs a third of a slotted object, and this happens for every produced batch.
    """

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        """The size of the batch including its header."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def end_position(self) -> int:
        """The position of the next batch in the buffer."""
        return self.position + LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps from 2^31-1 to 0. -1 if the batch has no sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _INT32_MAX

    @property
    def codec(self) -> int:
        """The codec bits, including unknown values."""
        return self.attributes & CODEC_MASK

    @property
    def compression_type(self) -> CompressionType:
        """The codec; raises `CorruptBatch` for an unassigned number."""
        try:
            return CompressionType(self.attributes & CODEC_MASK)
        except ValueError:
            raise CorruptBatch(f"unknown compression type {self.attributes & CODEC_MASK}") from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the cleaner may drop tombstones and markers (KIP-534); stored in place of the base
        timestamp.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None


def parse_header(buffer: ReadBuffer, position: int = 0) -> RecordBatchHeader:
    """Read the header at `position`. Only the header's 61 bytes need to be present, not the whole batch.

    Raises:
        UnsupportedMagic: magic is not 2.
        CorruptBatch: fewer than 61 bytes, or a length that cannot hold a header.
    """
    try:
        fields = _unpack_header(buffer, position)
    except struct.error:
        raise _too_short(buffer, position) from None
    if fields[3] != MAGIC:
        raise UnsupportedMagic(fields[3])
    if fields[1] < _MINIMUM_LENGTH:
        raise CorruptBatch(f"batch length {fields[1]} is less than the minimum of {_MINIMUM_LENGTH}")
    return new_tuple(RecordBatchHeader, (position, *fields))


def _too_short(buffer: ReadBuffer, position: int) -> CorruptBatch:
    """The error for fewer bytes than a header has: an old message may be that short."""
    remaining = len(buffer) - position
    if remaining > _MAGIC_POSITION and buffer[position + _MAGIC_POSITION] != MAGIC:
        return UnsupportedMagic(int.from_bytes(buffer[position + _MAGIC_POSITION : position + 17], signed=True))
    return CorruptBatch(f"{remaining} bytes are too few for a record batch header")


def iter_headers(buffer: ReadBuffer, position: int = 0) -> Iterator[RecordBatchHeader]:
    """Read the headers of all whole batches from `position` on; a truncated last batch is left out.

    Raises:
        UnsupportedMagic: a batch of another format.
        CorruptBatch: a length that is impossible for a batch.
    """
    size = len(buffer)
    while size - position >= LOG_OVERHEAD:
        length = _INT32.unpack_from(buffer, position + 8)[0]
        if length < _MINIMUM_LEGACY_LENGTH:
            raise CorruptBatch(f"batch length {length} at position {position} is less than any batch has")
        end = position + LOG_OVERHEAD + length
        if end > size:
            return
        yield parse_header(buffer, position)
        position = end


def compute_crc(buffer: ReadBuffer, header: RecordBatchHeader) -> int:
    """The CRC-32C of the batch's current bytes."""
    start = header.position + _CRC_START
    crc: int = crc32c(memoryview(buffer)[start : header.end_position])
    return crc


def crc_is_valid(buffer: ReadBuffer, header: RecordBatchHeader) -> bool:
    """Whether the batch is whole and its bytes match its CRC."""
    start = header.position
    end = start + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        return False
    crc: int = crc32c(memoryview(buffer)[start + _CRC_START : end])
    return crc == header.crc


def patch(buffer: WriteBuffer, position: int, base_offset: int, partition_leader_epoch: int) -> None:
    """Write the fields that the leader assigns. They are outside the CRC, so nothing else changes."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, partition_leader_epoch)


def set_max_timestamp(
    buffer: WriteBuffer, header: RecordBatchHeader, timestamp_type: TimestampType, max_timestamp: int
) -> RecordBatchHeader:
    """Write timestamp type and max timestamp and recompute the CRC; does nothing if both are unchanged.

    Unassigned attribute bits are cleared too, as in Kafka.

    Returns:
        The new header.

    Source: `DefaultRecordBatch.setMaxTimestamp`.
    """
    if timestamp_type is header.timestamp_type and max_timestamp == header.max_timestamp:
        return header
    attributes = header.attributes & _ASSIGNED_MASK & ~TIMESTAMP_TYPE_MASK
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        attributes |= TIMESTAMP_TYPE_MASK
    _ATTRIBUTES.pack_into(buffer, header.position + 21, attributes)
    _INT64.pack_into(buffer, header.position + 35, max_timestamp)
    crc = compute_crc(buffer, header)
    _UINT32.pack_into(buffer, header.position + 17, crc)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)
