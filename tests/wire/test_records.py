"""Records against four judges: Apache Kafka's own bytes, aiokafka, kafka-python, and whatever hypothesis invents."""

import contextlib
import struct
import warnings
from pathlib import Path

import crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.wire.compression import CompressionType, compress
from barnabas.wire.record_batch import HEADER_SIZE, CorruptBatch, TimestampType, crc_is_valid, parse_header
from barnabas.wire.record_timestamps import iter_timestamps
from barnabas.wire.records import Record, assemble_batch, build_batch, iter_checked, iter_records, read_records
from barnabas.wire.varint import VarintTooLong, encode_varint, read_varint, read_varlong

with warnings.catch_warnings():
    # kafka-python reads its schemas through a deprecated function when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

GOLDEN = Path(__file__).parent.parent / "storage" / "golden_batches"
BASE_TIMESTAMP = 1_700_000_000_000


def golden(name: str) -> bytes:
    """Bytes that Kafka's own classes wrote (tools/golden)."""
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text().replace("\n", ""))


def golden_records(base_offset: int = 0) -> list[Record]:
    """The records that tools/golden writes."""
    return [
        Record(
            base_offset + i,
            BASE_TIMESTAMP + i * 1000 - (i % 7) * 5000,
            None if i % 3 == 0 else b"key-%d" % i,
            None if i % 5 == 0 else b"" if i % 5 == 1 else b"value-" * i,
            () if i % 4 else (("h", b"x"), ("né", None), ("", b"")),
        )
        for i in range(50)
    ]


def records_of(batch: bytes | bytearray) -> list[Record]:
    return list(iter_records(batch, parse_header(batch)))


def without_sequence(records: list[Record]) -> list[Record]:
    return [record._replace(sequence=-1) for record in records]


def test_uncompressed_batches_equal_kafkas_bytes() -> None:
    assert build_batch(golden_records()) == golden("none")
    assert build_batch(
        golden_records(1000),
        base_offset=1000,
        producer_id=4000,
        producer_epoch=1,
        base_sequence=2147483640,
        partition_leader_epoch=7,
        transactional=True,
    ) == golden("transactional")
    assert build_batch(
        golden_records(), timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=BASE_TIMESTAMP + 99
    ) == golden("append-time")
    assert build_batch(
        [],
        base_offset=100,
        last_offset=119,
        producer_id=4000,
        producer_epoch=1,
        base_sequence=17,
        partition_leader_epoch=3,
        log_append_time_ms=BASE_TIMESTAMP,
    ) == golden("empty")


@pytest.mark.parametrize("codec", CompressionType)
def test_kafkas_batches_are_read(codec: CompressionType) -> None:
    batch = golden(codec.name.lower())
    header = parse_header(batch)
    assert crc_is_valid(batch, header)
    assert header.compression_type is codec
    assert records_of(batch) == golden_records()


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_kafkas_batches_of_many_blocks_are_read(codec: CompressionType) -> None:
    records = records_of(golden(f"large-{codec.name.lower()}"))
    assert records == [Record(i, BASE_TIMESTAMP + i, b"large", b"barnabas-" * 10_000) for i in range(4)]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_compressed_bytes_equal_kafkas_with_the_same_compressor(codec: CompressionType) -> None:
    assert build_batch(golden_records(), compression=codec) == golden(codec.name.lower())


def test_the_large_snappy_stream_is_cut_into_blocks_as_by_kafka() -> None:
    assert build_batch(records_of(golden("large-snappy")), compression=CompressionType.SNAPPY) == golden("large-snappy")


def test_sequences_follow_the_base_sequence_and_wrap() -> None:
    records = records_of(golden("transactional"))
    assert [record.sequence for record in records] == [2147483640 + i for i in range(8)] + list(range(42))
    assert without_sequence(records) == golden_records(1000)


def test_append_time_replaces_the_records_timestamps() -> None:
    assert {record.timestamp for record in records_of(golden("append-time"))} == {BASE_TIMESTAMP + 99}


def test_an_emptied_batch_has_no_records_whatever_its_codec() -> None:
    batch = golden("empty")
    assert records_of(batch) == []
    header = parse_header(batch)
    assert list(iter_records(batch, header._replace(attributes=4))) == []


@pytest.mark.parametrize("codec", CompressionType)
def test_aiokafka_writes_what_we_read(codec: CompressionType) -> None:
    builder = AiokafkaBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for record in golden_records():
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    assert records_of(batch) == golden_records()
    if codec is CompressionType.NONE:
        assert build_batch(golden_records()) == batch


@pytest.mark.parametrize("codec", CompressionType)
def test_kafka_python_writes_what_we_read(codec: CompressionType) -> None:
    builder = KafkaPythonBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for record in golden_records():
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    assert records_of(batch) == golden_records()
    if codec is CompressionType.NONE:
        assert build_batch(golden_records(), partition_leader_epoch=0) == batch


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("reader", [AiokafkaBatch, KafkaPythonBatch])
def test_clients_read_what_we_write(codec: CompressionType, reader: type) -> None:
    batch = reader(build_batch(golden_records(), compression=codec))
    assert batch.validate_crc()
    found = [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in batch
    ]
    assert found == golden_records()


keys = st.none() | st.binary(max_size=70)
names = st.text(max_size=5)
record_fields = st.tuples(
    st.integers(0, 3), st.integers(0, 2**53), keys, keys, st.lists(st.tuples(names, keys), max_size=3).map(tuple)
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(record_fields, min_size=1, max_size=20),
    st.sampled_from(CompressionType),
    st.integers(0, 2**62),
    st.integers(-1, 2**31 - 1),
)
def test_round_trip(fields: list[tuple], codec: CompressionType, base_offset: int, sequence: int) -> None:  # type: ignore[type-arg]
    offset = base_offset - 1
    records = []
    for gap, timestamp, key, value, headers in fields:
        offset += gap + 1
        records.append(Record(offset, timestamp, key, value, headers))
    batch = build_batch(records, base_offset=base_offset, compression=codec, base_sequence=sequence)
    header = parse_header(batch)
    assert crc_is_valid(batch, header)
    assert (header.base_offset, header.last_offset) == (base_offset, offset)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert without_sequence(records_of(batch)) == records
    assert read_records(batch, header) == records
    assert [(r.timestamp, r.offset) for r in records] == list(iter_timestamps(batch, header))


def test_a_header_name_that_is_not_utf8_survives() -> None:
    batch = build_batch([Record(0, 0, None, None, (("\udcff\udcfe", b"1"),))])
    assert b"\xff\xfe" in batch
    assert build_batch(records_of(batch)) == batch


def test_batches_that_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="last offset"):
        build_batch([])
    for offsets in ((1, 1), (1, 0), (-1,), (0, 2**31)):
        with pytest.raises(ValueError, match="offset"):
            build_batch([Record(offset, 0, None, None) for offset in offsets])
    with pytest.raises(ValueError, match="cannot be written"):
        build_batch([Record(0, 2**63, None, None)])


def test_compaction_may_leave_gaps_and_a_delete_horizon() -> None:
    batch = build_batch(
        [Record(12, 500, b"k", None)], base_offset=10, last_offset=19, delete_horizon_ms=9000, producer_id=1
    )
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 19, 1)
    assert header.delete_horizon_ms == 9000
    assert records_of(batch) == [Record(12, 500, b"k", None)]


def with_payload(payload: bytes, count: int = 1, attributes: int = 0) -> bytearray:
    header = parse_header(build_batch([Record(0, 0, None, None)]))
    return assemble_batch(header._replace(record_count=count, attributes=attributes), payload)


def a_body(*parts: int | bytes) -> bytes:
    """A record from varints and bytes, with its length in front."""
    body = b"\0" + b"".join(encode_varint(part) if isinstance(part, int) else part for part in parts)
    return encode_varint(len(body)) + body


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (a_body(0, 0, -1, -1, 0), 2),
        (a_body(0, 0, -1, -1, 0), 2**31 - 1),
        (a_body(0, 0, -1, -1, 0), -1),
        (a_body(0, 0, -1, -1, 0), -(2**31)),
        (a_body(0, 0, -1, -1, 0), 0),
        (a_body(0, 0, -1, -1, 0) + b"\0", 1),
        (a_body(0, 0, -1, -1, 0)[:-1], 1),
        (a_body(0, 0, -1, -1, 0, b"x"), 1),
        (a_body(0, 0, -1, -1), 1),
        (a_body(0, 0, -1), 1),
        (a_body(0), 1),
        (a_body(), 1),
        (encode_varint(0), 1),
        (encode_varint(-1), 1),
        (encode_varint(2**31 - 1) + bytes(10), 1),
        (encode_varint(-(2**31)), 1),
        (a_body(0, 0, 2**31 - 1, -1, 0), 1),
        (a_body(0, 0, 5, b"ab", -1, 0), 1),
        (a_body(0, 0, -1, 2**31 - 1, 0), 1),
        (a_body(0, 0, -1, -1, 2**31 - 1), 1),
        (a_body(0, 0, -1, -1, -1), 1),
        (a_body(0, 0, -1, -1, 1, -1, -1), 1),
        (a_body(0, 0, -1, -1, 1, 100, -1), 1),
        (a_body(0, 0, -1, -1, 1, 0, 100), 1),
        (a_body(0, 0, -1, -1, 1, 0), 1),
        (a_body(b"\xff" * 11, 0, -1, -1, 0), 1),
        (a_body(0, b"\xff" * 6, -1, -1, 0), 1),
        (b"\xff" * 20, 1),
        (a_body(0, 0, -1, 8, 0) + a_body(0, 0, -1, -1, 0), 2),
    ],
)
def test_records_that_lie(payload: bytes, count: int) -> None:
    for codec in CompressionType:
        batch = with_payload(compress(codec, payload), count, codec)
        header = parse_header(batch)
        assert crc_is_valid(batch, header)
        with pytest.raises(CorruptBatch):
            list(iter_records(batch, header))
        with pytest.raises(CorruptBatch):
            list(iter_checked(batch, header))
        with pytest.raises(CorruptBatch):
            read_records(batch, header)


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    header = parse_header(build_batch([Record(0, 2**63 - 1, None, None)]))
    batch = assemble_batch(header, a_body(1, 0, -1, -1, 0))
    with pytest.raises(CorruptBatch):
        records_of(batch)
    with pytest.raises(CorruptBatch):
        list(iter_checked(batch, parse_header(batch)))


def test_a_batch_that_is_not_all_there() -> None:
    batch = build_batch(golden_records())
    with pytest.raises(CorruptBatch):
        list(iter_records(batch[:-1], parse_header(batch)))


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_decompression_is_limited(codec: CompressionType) -> None:
    batch = build_batch([Record(0, 0, None, bytes(300_000))], compression=codec)
    header = parse_header(batch)
    assert len(list(iter_records(batch, header, max_decompressed_bytes=300_100))) == 1
    with pytest.raises(CorruptBatch):
        list(iter_records(batch, header, max_decompressed_bytes=299_999))


def test_unknown_codecs() -> None:
    batch = build_batch([Record(0, 0, None, None)])
    for codec in (5, 6, 7):
        with pytest.raises(CorruptBatch):
            list(iter_records(batch, parse_header(batch)._replace(attributes=codec)))


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-70, 9_000), keys, keys), min_size=1, max_size=70),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=2),
)
@pytest.mark.slow
def test_records_read_at_once_equal_records_read_singly(
    fields: list[tuple[int, bytes | None, bytes | None]], damages: list[tuple[int, int]]
) -> None:
    """Without headers, so that the quick way is taken, and with numbers on both sides of its limit."""
    records = [Record(offset, 9_000 + time, key, value) for offset, (time, key, value) in enumerate(fields)]
    batch = build_batch(records, last_offset=len(fields) + 10_000)
    for position, byte in damages:
        batch[HEADER_SIZE + position % (len(batch) - HEADER_SIZE)] = byte
    header = parse_header(batch)
    try:
        expected = list(iter_records(batch, header))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            read_records(batch, header)
    else:
        assert read_records(batch, header) == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Record(0, 1, b"k", b"v"), Record(8_191, 1, b"k", b"v")),
        (Record(0, 1, b"k", b"v"), Record(8_192, 1, b"k", b"v")),
        (Record(0, 10_000, None, b""), Record(1, 10_000 - 8_192, None, b"")),
        (Record(0, 10_000, None, b""), Record(1, 10_000 - 8_193, None, b"")),
        (Record(0, 1, bytes(8_191), None), Record(1, 1, bytes(8_192), None)),
        (Record(0, 1, None, bytes(8_180)), Record(1, 1, None, bytes(2**20))),
    ],
)
def test_numbers_of_two_bytes_and_of_three_are_read_at_once(first: Record, second: Record) -> None:
    batch = build_batch([first, second])
    assert read_records(batch, parse_header(batch)) == [first, second]


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(CompressionType), st.data())
@pytest.mark.slow
def test_damaged_batches_never_escape(codec: CompressionType, data: st.DataObject) -> None:
    batch = bytearray(golden(codec.name.lower()))
    for _ in range(data.draw(st.integers(1, 5))):
        batch[data.draw(st.integers(16, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    with contextlib.suppress(CorruptBatch):
        list(iter_timestamps(batch, parse_header(batch), max_decompressed_bytes=1 << 20))
    try:
        header = parse_header(batch)
        records = list(iter_records(batch, header))
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            list(iter_checked(batch, parse_header(batch)))
        return
    assert read_records(batch, header) == without_sequence(records)
    assert all(-(2**63) <= record.timestamp < 2**63 for record in records)
    assert list(iter_checked(batch, header)) == [
        (each.offset, each.timestamp, each.key is not None) for each in records
    ]


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert len(encoded) <= 5
    assert read_varint(b"x" + encoded, 1) == (value, 1 + len(encoded)) == read_varlong(b"x" + encoded, 1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs(value: int) -> None:
    encoded = encode_varint(value)
    assert len(encoded) <= 10
    assert read_varlong(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-64, "7f"),
        (64, "8001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_the_bytes_of_varints(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded


def test_varints_end_and_have_an_end() -> None:
    with pytest.raises(VarintTooLong):
        read_varint(b"\xff" * 5 + b"\0", 0)
    with pytest.raises(VarintTooLong):
        read_varlong(b"\xff" * 10 + b"\0", 0)
    for read in (read_varint, read_varlong):
        with pytest.raises(IndexError):
            read(b"\xff", 0)
    assert read_varint(b"\xff\xff\xff\xff\x7f", 0) == (-(2**31), 5), "bits beyond 32 are dropped"


def test_a_batch_that_ends_inside_a_large_record() -> None:
    body = encode_varint(1 << 20) + b"\0\0\0" + bytes(1000)
    batch = build_batch([Record(0, 0, None, b"")])
    header = parse_header(batch)
    broken = assemble_batch(header._replace(attributes=1), compress(CompressionType.GZIP, body))
    for read in (iter_timestamps, iter_records):
        with pytest.raises(CorruptBatch):
            list(read(broken, parse_header(broken)))
