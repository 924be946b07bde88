"""Records are found by time, without reading or holding more than that takes."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.compression import CompressionType, compress
from barnabas.wire.record_batch import CorruptBatch, parse_header
from barnabas.wire.record_timestamps import find_timestamp, iter_timestamps, largest_timestamp, offset_of_max_timestamp
from barnabas.wire.records import Record, assemble_batch, build_batch
from barnabas.wire.varint import encode_varint


@pytest.mark.parametrize("codec", CompressionType)
def test_finding_a_record_by_time(codec: CompressionType) -> None:
    times = [100, 300, 200, 300, 50]
    batch = build_batch(
        [Record(10 + i, time, None, b"v") for i, time in enumerate(times)], base_offset=10, compression=codec
    )
    header = parse_header(batch)
    assert find_timestamp(batch, header, 0) == (100, 10)
    assert find_timestamp(batch, header, 101) == (300, 11)
    assert find_timestamp(batch, header, 101, start_offset=12) == (200, 12)
    assert find_timestamp(batch, header, 300, start_offset=12) == (300, 13)
    assert find_timestamp(batch, header, 300, start_offset=14) is None
    assert find_timestamp(batch, header, 301) is None
    assert offset_of_max_timestamp(batch, header) == 11
    assert offset_of_max_timestamp(batch, header._replace(max_timestamp=1)) is None


def test_looking_up_a_time_reads_no_further_than_it_must() -> None:
    payload = b"".join(build_batch([Record(0, 0, None, bytes(1000))])[61:] for _ in range(2000))
    good = compress(CompressionType.GZIP, payload)
    header = parse_header(build_batch([Record(0, 7, None, None)]))._replace(attributes=1, record_count=2000)
    batch = assemble_batch(header, good[:-8] + bytes(8))
    header = parse_header(batch)
    assert find_timestamp(batch, header, 0) == (7, 0)
    with pytest.raises(CorruptBatch):
        list(iter_timestamps(batch, header))


def test_a_timestamp_beyond_64_bits_wraps_around_as_in_java() -> None:
    """Its batch was stored without a look at the records; a response could not carry it."""
    header = parse_header(build_batch([Record(0, 2**63 - 1, None, None)]))
    batch = assemble_batch(header, encode_varint(6) + b"\0" + b"".join(map(encode_varint, (1, 0, -1, -1, 0))))
    (found,) = iter_timestamps(batch, parse_header(batch))
    assert found.timestamp == -(2**63)
    assert find_timestamp(batch, parse_header(batch), 0) is None


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_timestamps_are_read_without_holding_large_records(codec: CompressionType) -> None:
    records = [Record(i, 1000 + i, None, bytes(8 << 20)) for i in range(3)]
    batch = build_batch([*records, Record(3, 1003, b"k", b"v")], compression=codec)
    header = parse_header(batch)
    tracemalloc.start()
    found = [(each.timestamp, each.offset) for each in iter_timestamps(batch, header)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [(1000, 0), (1001, 1), (1002, 2), (1003, 3)]
    assert peak < 4 << 20
    with pytest.raises(CorruptBatch):
        list(iter_timestamps(batch, header._replace(record_count=5)))


RECORD = st.tuples(st.integers(0, 2**45), st.sampled_from([0, 1, 50, 60, 200, 8_100, 9_000, 70_000]))


@given(st.lists(RECORD, min_size=1, max_size=20), st.sampled_from(CompressionType))
def test_the_largest_timestamp_is_found(records: list[tuple[int, int]], codec: CompressionType) -> None:
    """Of records whose lengths and deltas take from one byte to several."""
    batch = build_batch(
        [Record(i, timestamp, None, bytes(size)) for i, (timestamp, size) in enumerate(records)], compression=codec
    )
    header = parse_header(batch)._replace(max_timestamp=-1)
    assert largest_timestamp(batch, header) == max(timestamp for timestamp, _ in records)


@given(st.binary(max_size=60), st.integers(1, 5))
def test_the_largest_timestamp_of_any_bytes(payload: bytes, count: int) -> None:
    """It is a number, or the batch is refused."""
    header = parse_header(build_batch([Record(0, 2**62, None, None)]))._replace(record_count=count)
    batch = assemble_batch(header, payload)
    try:
        found = largest_timestamp(batch, parse_header(batch))
    except CorruptBatch:
        return
    assert -(2**63) <= found < 2**63
