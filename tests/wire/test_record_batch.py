"""The header of a record batch: layout, bounds, CRC and what is written in place."""

import struct

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.wire.record_batch import (
    HEADER_SIZE,
    CompressionType,
    CorruptBatch,
    RecordBatchHeader,
    TimestampType,
    UnsupportedMagic,
    compute_crc,
    crc_is_valid,
    iter_headers,
    parse_header,
    patch,
    set_max_timestamp,
)
from barnabas.wire.records import Record, build_batch


def a_batch(count: int = 3, **options: object) -> bytearray:
    records = [Record(index, 1000 + index, b"key", b"value") for index in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]


def test_every_field_stands_where_kafka_has_it() -> None:
    batch = bytearray(HEADER_SIZE)
    fields = (-7, 49, 3, 2, 0xFFFFFFFF, 0x14, 41, 1000, 2000, 4000, 5, 6, 42)
    struct.pack_into(">qiibIhiqqqhii", batch, 0, *fields)
    header = parse_header(batch)
    assert tuple(header) == (0, *fields)
    assert header.size_in_bytes == 61
    assert (header.last_offset, header.next_offset) == (34, 35)
    assert header.compression_type is CompressionType.ZSTD
    assert header.is_transactional
    assert not header.is_control
    assert header.has_producer_id
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.delete_horizon_ms is None


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (10, 5, 15), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 10, 7), (-1, 4, -1)],
)
def test_sequences_wrap(base: int, delta: int, last: int) -> None:
    header = parse_header(a_batch())._replace(base_sequence=base, last_offset_delta=delta)
    assert header.last_sequence == last


def test_attribute_bits() -> None:
    header = parse_header(a_batch())
    assert header._replace(attributes=0x08).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header._replace(attributes=0x20).is_control
    assert header._replace(attributes=0x40, base_timestamp=77).delete_horizon_ms == 77
    assert header._replace(attributes=0x07).codec == 7
    with pytest.raises(CorruptBatch):
        _ = header._replace(attributes=0x07).compression_type


def test_a_header_can_be_read_from_anywhere_in_a_buffer() -> None:
    batch = a_batch()
    header = parse_header(memoryview(b"x" * 5 + batch), 5)
    assert header.position == 5
    assert header.end_position == 5 + len(batch)
    assert crc_is_valid(b"x" * 5 + batch, header)


@pytest.mark.parametrize("size", [0, 11, 12, 16, 60])
def test_too_few_bytes(size: int) -> None:
    with pytest.raises(CorruptBatch):
        parse_header(a_batch()[:size])


@pytest.mark.parametrize("magic", [0, 1, 3, -1, 127])
def test_other_formats_are_named(magic: int) -> None:
    batch = a_batch()
    batch[16] = magic & 0xFF
    for data in (batch, batch[:30]):
        with pytest.raises(UnsupportedMagic) as raised:
            parse_header(data)
        assert raised.value.magic == magic


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 14, 48])
def test_impossible_lengths(length: int) -> None:
    batch = a_batch()
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptBatch):
        parse_header(batch)
    with pytest.raises(CorruptBatch):
        list(iter_headers(batch))


def test_iteration_yields_whole_batches_only() -> None:
    first, second = a_batch(1), a_batch(2)
    both = first + second
    for cut in (0, 1, 12, 61, len(second) - 1):
        assert [header.position for header in iter_headers(both + second[:cut])] == [0, len(first)]
    assert [header.record_count for header in iter_headers(both)] == [1, 2]
    assert list(iter_headers(b"")) == []


def test_crc_covers_everything_from_the_attributes_on() -> None:
    batch = a_batch()
    header = parse_header(batch)
    assert header.crc == crc32c.crc32c(bytes(batch[21:])) == compute_crc(batch, header)
    for position in range(len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1
        if position < 8 or 12 <= position < 16:
            assert crc_is_valid(damaged, parse_header(damaged)), "offset and leader epoch lie outside the CRC"
        elif position >= 17:
            assert not crc_is_valid(damaged, parse_header(damaged))


def test_a_truncated_batch_has_no_valid_crc() -> None:
    batch = a_batch()
    header = parse_header(batch)
    assert not crc_is_valid(batch[:-1], header)


def test_patching_changes_offset_and_epoch_only() -> None:
    batch = a_batch() + a_batch()
    position = len(batch) // 2
    before = bytes(batch)
    patch(memoryview(batch), position, 2**40, 9)
    header = parse_header(batch, position)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 9)
    assert crc_is_valid(batch, header)
    assert batch[:position] == before[:position]
    assert batch[position + 8 : position + 12] == before[position + 8 : position + 12]
    assert batch[position + 16 :] == before[position + 16 :]


def test_append_time_is_stamped_with_a_new_crc() -> None:
    batch = a_batch(compression=CompressionType.LZ4, transactional=True)
    old = parse_header(batch)
    new = set_max_timestamp(memoryview(batch), old, TimestampType.LOG_APPEND_TIME, 5000)
    assert new == parse_header(batch)
    assert crc_is_valid(batch, new)
    assert new.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert new.max_timestamp == 5000
    assert new.is_transactional
    assert new.compression_type is CompressionType.LZ4


def test_nothing_is_written_when_nothing_changes() -> None:
    batch = bytes(a_batch())
    header = parse_header(batch)
    assert set_max_timestamp(memoryview(batch), header, TimestampType.CREATE_TIME, header.max_timestamp) is header


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_never_escape(data: bytes) -> None:
    try:
        headers = list(iter_headers(data))
    except CorruptBatch:
        return
    for header in headers:
        assert isinstance(header, RecordBatchHeader)
        crc_is_valid(data, header)
