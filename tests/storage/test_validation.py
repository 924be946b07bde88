"""The batches that a leader refuses and changes: Kafka's codes in Kafka's order; a changed batch is still right."""

import struct
import tracemalloc
from collections.abc import Callable

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.storage import validation
from barnabas.storage.config import LogConfig
from barnabas.storage.validation import (
    REBUILT_RECORDS_MAX,
    RECORD_BYTES_MAX,
    RECORDS_MAX,
    AppendOrigin,
    RecordErrors,
    ValidationResult,
    needs_record_validation,
    parse_produced_batch,
    validate_batch,
)
from barnabas.wire.compression import CompressionType, compress
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import TimestampType, crc_is_valid, parse_header
from barnabas.wire.records import Record, assemble_batch, build_batch, iter_records

NOW = 1_700_000_000_000
HOUR = 3_600_000
COMPACT = frozenset({"compact"})


def some_records(count: int = 10, timestamp: int = NOW) -> list[Record]:
    return [Record(i, timestamp - i, b"k%d" % i, b"v" * 50, (("h", b"1"),)) for i in range(count)]


def append(batch: bytes, produce_version: int = 13, **options: object) -> ValidationResult:
    """Validate as the leader of `t-0` does; keyword arguments are the topic's settings."""
    origin = options.pop("origin", AppendOrigin.CLIENT)
    assert isinstance(origin, AppendOrigin)
    data = bytearray(batch)
    header = parse_produced_batch(data, produce_version)
    config = LogConfig(**options)  # type: ignore[arg-type]
    return validate_batch(memoryview(data), header, config, NOW, origin=origin, topic_partition="t-0")


def refusal(batch: bytes, **options: object) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        append(batch, **options)  # type: ignore[arg-type]
    assert raised.value.message
    return raised.value.error


def changed(batch: bytearray, form: str, position: int, value: int) -> bytearray:
    """The batch with one header field replaced, and a CRC that agrees."""
    batch = bytearray(batch)
    struct.pack_into(form, batch, position, value)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return batch


def check_result(result: ValidationResult, records: list[Record]) -> None:
    """The batch is whole and right, and holds the records."""
    assert result.header == parse_header(result.batch)
    assert len(result.batch) == result.header.size_in_bytes
    assert crc_is_valid(result.batch, result.header)
    assert result.max_timestamp == result.header.max_timestamp
    found = [(r.offset, r.key, r.value, r.headers) for r in iter_records(result.batch, result.header)]
    assert found == [(i, r.key, r.value, r.headers) for i, r in enumerate(records)]


@pytest.mark.parametrize("codec", CompressionType)
def test_an_ordinary_batch_passes_untouched(codec: CompressionType) -> None:
    batch = build_batch(some_records(), compression=codec, producer_id=5, producer_epoch=0, base_sequence=0)
    result = append(batch)
    assert bytes(result.batch) == batch
    assert not result.rewritten
    assert result.log_append_time_ms == -1
    check_result(result, some_records())


def test_the_records_of_an_ordinary_batch_are_not_opened() -> None:
    nonsense = assemble_batch(parse_header(build_batch(some_records())), b"\xff" * 40)
    assert bytes(append(nonsense).batch) == nonsense
    assert refusal(nonsense, validate_records=True) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [0, 5, 11, 12, 16, 17, 40, 60, 61, 100])
def test_there_must_be_a_whole_batch(size: int) -> None:
    assert refusal(build_batch(some_records())[:size]) is ErrorCode.INVALID_RECORD


def test_there_must_be_one_batch() -> None:
    batch = build_batch(some_records())
    assert refusal(batch + batch) is ErrorCode.INVALID_RECORD
    for tail in (batch[:-1], b"x", batch[:12], bytes(batch[:16])):
        result = append(batch + tail)
        assert bytes(result.batch) == batch
    assert refusal(batch + bytes(20)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "error"),
    [
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (255, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_batches_without_magic_2_are_refused(magic: int, error: ErrorCode) -> None:
    batch = build_batch(some_records())
    batch[16] = magic
    assert refusal(batch) is error


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13])
def test_lengths_that_cannot_be(length: int) -> None:
    batch = build_batch(some_records())
    struct.pack_into(">i", batch, 8, length)
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE


def test_a_batch_without_room_for_its_header() -> None:
    batch = build_batch(some_records())
    struct.pack_into(">i", batch, 8, 48)
    assert refusal(batch) is ErrorCode.CORRUPT_MESSAGE
    struct.pack_into(">i", batch, 8, 2**31 - 1)
    assert refusal(batch) is ErrorCode.INVALID_RECORD


def test_zstd_needs_produce_7() -> None:
    batch = build_batch(some_records(), compression=CompressionType.ZSTD)
    assert refusal(batch, produce_version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert append(batch, produce_version=7)
    assert append(build_batch(some_records(), compression=CompressionType.LZ4), produce_version=3)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    assert refusal(changed(build_batch(some_records()), ">h", 21, codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    ("form", "position", "value"),
    [
        (">q", 0, 1),
        (">q", 0, -1),
        (">i", 57, 9),
        (">i", 57, 11),
        (">i", 57, 0),
        (">i", 57, -10),
        (">i", 23, 8),
        (">i", 23, -1),
        (">i", 23, -(2**31)),
        (">h", 21, 0x20),
        (">q", 43, 77),
    ],
    ids=lambda value: str(value),
)
def test_headers_that_clients_may_not_write(form: str, position: int, value: int) -> None:
    assert refusal(changed(build_batch(some_records()), form, position, value)) is ErrorCode.INVALID_RECORD


def test_leader_epochs_of_clients_do_not_matter() -> None:
    for epoch in (-1, 0, 5, -100):
        assert append(build_batch(some_records(), partition_leader_epoch=epoch))


def test_every_bit_under_the_crc_counts() -> None:
    batch = build_batch(some_records(2))
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        assert refusal(damaged) is ErrorCode.CORRUPT_MESSAGE


def test_the_first_failure_picks_the_code() -> None:
    batch = build_batch(some_records())
    wrong = bytearray(batch)
    wrong[-1] ^= 1
    assert refusal(changed(batch, ">q", 0, 1), max_message_bytes=10) is ErrorCode.INVALID_RECORD
    assert refusal(wrong, max_message_bytes=10, segment_bytes=10) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(wrong, segment_bytes=10) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(changed(batch, ">i", 57, 9), segment_bytes=10) is ErrorCode.INVALID_RECORD
    assert refusal(batch, segment_bytes=10) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_sizes_are_those_of_the_batch() -> None:
    batch = build_batch(some_records())
    assert append(batch, max_message_bytes=len(batch), segment_bytes=len(batch))
    assert append(batch + batch[:50], max_message_bytes=len(batch), segment_bytes=len(batch))
    assert refusal(batch, max_message_bytes=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(batch, segment_bytes=len(batch) - 1) is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("codec", CompressionType)
def test_compacted_topics_need_keys(codec: CompressionType) -> None:
    records = [record._replace(key=None) if record.offset in (1, 4) else record for record in some_records()]
    with pytest.raises(RecordErrors) as raised:
        append(build_batch(records, compression=codec), cleanup_policy=COMPACT)
    assert raised.value.error is ErrorCode.INVALID_RECORD
    message = "A compacted topic takes no record without a key (t-0)."
    assert raised.value.record_errors == [(1, message), (4, message)]
    assert "2 record errors" in raised.value.message
    check_result(append(build_batch(some_records(), compression=codec), cleanup_policy=COMPACT), some_records())


@pytest.mark.parametrize("late", [1, HOUR])
def test_the_future_is_limited_by_default(late: int) -> None:
    records = some_records()
    records[3] = records[3]._replace(timestamp=NOW + HOUR + late)
    with pytest.raises(RecordErrors) as raised:
        append(build_batch(records))
    assert raised.value.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [3]
    assert str(NOW + HOUR) in raised.value.record_errors[0][1]
    records[3] = records[3]._replace(timestamp=NOW + HOUR)
    check_result(append(build_batch(records)), records)


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("is_set", [False, True])
def test_a_future_record_behind_an_old_header_is_named(codec: CompressionType, *, is_set: bool) -> None:
    """The timestamps of an old batch are read anyway."""
    records = [Record(0, NOW - 100 * HOUR, None, None), Record(1, NOW + HOUR + 1, None, None)]
    batch = changed(build_batch(records, compression=codec), ">q", 35, NOW - 100 * HOUR)
    with pytest.raises(RecordErrors) as raised:
        append(batch, **({"compression_type": codec} if is_set else {}))
    assert raised.value.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [1]


def test_the_past_is_not_limited_by_default() -> None:
    for timestamp in (0, 1, NOW - 1000 * HOUR):
        records = [Record(0, timestamp, None, None)]
        check_result(append(build_batch(records)), records)


def test_the_past_can_be_limited() -> None:
    records = [Record(0, NOW, None, None), Record(1, NOW - HOUR - 1, None, None), Record(2, NOW - HOUR, None, None)]
    with pytest.raises(RecordErrors) as raised:
        append(build_batch(records), message_timestamp_before_max_ms=HOUR)
    assert raised.value.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [1]


def test_a_header_with_a_future_timestamp_is_corrected() -> None:
    """The largest timestamp is that of the records."""
    batch = changed(build_batch(some_records()), ">q", 35, NOW + 2 * HOUR)
    result = append(batch)
    check_result(result, some_records())
    assert result.max_timestamp == NOW


def test_a_max_timestamp_before_the_first_is_corrected() -> None:
    result = append(changed(build_batch(some_records()), ">q", 35, NOW - 5))
    check_result(result, some_records())
    assert result.max_timestamp == NOW


@pytest.mark.parametrize("claimed", [2000, 9000])
@pytest.mark.parametrize("codec", CompressionType)
def test_the_largest_of_unusual_timestamps_is_computed(codec: CompressionType, claimed: int) -> None:
    """None of them is near the present."""
    records = [Record(i, timestamp, None, b"v") for i, timestamp in enumerate([1000, 5000, 2000])]
    result = append(changed(build_batch(records, compression=codec), ">q", 35, claimed))
    check_result(result, records)
    assert result.max_timestamp == 5000
    assert not result.rewritten


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("claimed", [NOW - 1, NOW + 1])
def test_the_largest_timestamp_of_a_lone_record_is_its_own(codec: CompressionType, claimed: int) -> None:
    records = [Record(0, NOW, b"k", b"v" * 50)]
    result = append(changed(build_batch(records, compression=codec), ">q", 35, claimed))
    check_result(result, records)
    assert result.max_timestamp == NOW


def test_records_without_timestamp() -> None:
    records = [Record(i, -1, None, b"v") for i in range(3)]
    for options in ({}, {"validate_records": True}, {"message_timestamp_before_max_ms": 1}):
        result = append(build_batch(records), **options)
        check_result(result, records)
        assert result.max_timestamp == -1


def test_timestamps_are_named_before_keys() -> None:
    records = [Record(0, NOW, None, None), Record(1, NOW + 2 * HOUR, b"k", None), Record(2, NOW + 2 * HOUR, None, None)]
    with pytest.raises(RecordErrors) as raised:
        append(build_batch(records), cleanup_policy=COMPACT)
    assert raised.value.error is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [0, 1, 2]
    assert ["compacted" in message for _, message in raised.value.record_errors] == [True, False, True]


def test_not_all_errors_are_listed() -> None:
    records = [Record(i, NOW, None, None) for i in range(validation.MAX_RECORD_ERRORS + 5)]
    with pytest.raises(RecordErrors) as raised:
        append(build_batch(records), cleanup_policy=COMPACT)
    assert len(raised.value.record_errors) == validation.MAX_RECORD_ERRORS
    assert "1005 record errors" in raised.value.message


@pytest.mark.parametrize("codec", CompressionType)
def test_append_time_is_stamped_in_place(codec: CompressionType) -> None:
    records = [record._replace(timestamp=NOW + 100 * HOUR) for record in some_records()]
    batch = build_batch(records, compression=codec)
    result = append(batch, message_timestamp_type="LogAppendTime")
    check_result(result, records)
    assert not result.rewritten
    assert result.log_append_time_ms == result.max_timestamp == NOW
    assert {record.timestamp for record in iter_records(result.batch, result.header)} == {NOW}
    assert bytes(result.batch[61:]) == batch[61:]


def test_a_producer_may_not_claim_append_time_on_such_a_topic() -> None:
    batch = build_batch(some_records(), timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=NOW)
    with pytest.raises(RecordErrors) as raised:
        append(batch, message_timestamp_type="LogAppendTime")
    assert raised.value.error is ErrorCode.INVALID_TIMESTAMP
    assert len(raised.value.record_errors) == 10


def test_a_claimed_append_time_becomes_a_create_time() -> None:
    """The timestamp has to be acceptable."""

    def claiming(timestamp: int) -> bytearray:
        return build_batch(some_records(), timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=timestamp)

    result = append(claiming(NOW))
    check_result(result, some_records())
    assert result.header.timestamp_type is TimestampType.CREATE_TIME
    assert result.max_timestamp == NOW
    assert refusal(claiming(NOW + 2 * HOUR)) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(claiming(-1)) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("source", CompressionType)
@pytest.mark.parametrize("target", CompressionType)
def test_recompression(source: CompressionType, target: CompressionType) -> None:
    batch = build_batch(
        some_records(),
        compression=source,
        producer_id=7,
        producer_epoch=2,
        base_sequence=30,
        transactional=True,
    )
    for options in ({}, {"message_timestamp_type": "LogAppendTime"}):
        result = append(batch, compression_type=target, **options)
        check_result(result, some_records())
        assert result.rewritten is (source is not target)
        header = result.header
        assert header.compression_type is target
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 30)
        assert header.is_transactional
        assert header.timestamp_type is (TimestampType.LOG_APPEND_TIME if options else TimestampType.CREATE_TIME)


@pytest.mark.parametrize(
    ("codec", "setting", "low", "high"),
    [
        (CompressionType.GZIP, "compression_gzip_level", 1, 9),
        (CompressionType.LZ4, "compression_lz4_level", 9, 17),
        (CompressionType.ZSTD, "compression_zstd_level", -50, 19),
    ],
)
def test_the_topics_level_is_used(codec: CompressionType, setting: str, low: int, high: int) -> None:
    text = "".join(f"line {i * i} of {i}\n" for i in range(4000)).encode()
    batch = build_batch([Record(0, NOW, None, text)])
    sizes = [len(append(batch, compression_type=codec, **{setting: level}).batch) for level in (low, high)]
    assert sizes[1] < sizes[0]


def test_a_batch_may_be_too_large_only_after_recompression() -> None:
    batch = build_batch([Record(0, NOW, None, bytes(5000))], compression=CompressionType.GZIP)
    assert append(batch, max_message_bytes=200)
    error = refusal(batch, max_message_bytes=200, compression_type=CompressionType.NONE)
    assert error is ErrorCode.MESSAGE_TOO_LARGE
    error = refusal(batch, segment_bytes=200, compression_type=CompressionType.NONE)
    assert error is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("codec", CompressionType)
def test_offsets_inside_are_put_right(codec: CompressionType) -> None:
    records = some_records(3)
    payload = bytearray(build_batch(records)[61:])
    wrong = bytearray(build_batch([record._replace(offset=7 * record.offset) for record in records])[61:])
    assert payload != wrong
    header = parse_header(build_batch(records, producer_id=9, producer_epoch=1, base_sequence=4))
    batch = assemble_batch(header._replace(attributes=codec), compress(codec, wrong))
    result = append(batch, validate_records=True)
    check_result(result, records)
    assert result.rewritten
    assert result.header.base_sequence == 4
    assert result.header.compression_type is codec


@pytest.mark.parametrize("codec", CompressionType)
def test_offsets_inside_are_stored_where_records_are_not_opened(codec: CompressionType) -> None:
    """Readers receive them as they are: 0, 0 and 9 in a batch of the offsets 0 to 2."""
    records = some_records(3, NOW - 10)
    pieces = [build_batch([records[0]])[61:], build_batch([records[0]])[61:]]
    far = build_batch([records[0], records[0]._replace(offset=9)])[61:]
    wrong = b"".join([*pieces, far[len(pieces[0]) :]])
    header = parse_header(build_batch(records))
    batch = assemble_batch(header._replace(attributes=codec, max_timestamp=NOW - 10), compress(codec, wrong))
    result = append(batch)
    assert bytes(result.batch) == bytes(batch)
    assert not result.rewritten
    assert [record.offset for record in iter_records(result.batch, result.header)] == [0, 0, 9]
    assert result.header.last_offset_delta == 2


@pytest.mark.parametrize("codec", CompressionType)
def test_timestamp_deltas_count_only_where_records_are_opened(codec: CompressionType) -> None:
    """The second record has a timestamp of tomorrow, which the header does not contain."""
    tomorrow = NOW + 24 * HOUR
    records = [Record(0, NOW, b"k", b"v"), Record(1, tomorrow, b"k", b"v")]
    batch = changed(build_batch(records, compression=codec), ">q", 35, NOW)
    result = append(batch)
    assert bytes(result.batch) == bytes(batch)
    assert [record.timestamp for record in iter_records(result.batch, result.header)] == [NOW, tomorrow]
    assert result.max_timestamp == NOW
    assert refusal(batch, validate_records=True) is ErrorCode.INVALID_TIMESTAMP
    opened = append(batch, validate_records=True, message_timestamp_after_max_ms=48 * HOUR)
    assert opened.max_timestamp == opened.header.max_timestamp == tomorrow


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("count", [9, 11])
def test_counts_that_lie(codec: CompressionType, count: int) -> None:
    header = parse_header(build_batch(some_records()))
    payload = compress(codec, build_batch(some_records(count))[61:])
    assert (
        refusal(assemble_batch(header._replace(attributes=codec), payload), validate_records=True)
        is ErrorCode.INVALID_RECORD
    )


@pytest.mark.parametrize("codec", [codec for codec in CompressionType if codec])
def test_a_batch_that_cannot_be_decompressed_is_refused(codec: CompressionType) -> None:
    header = parse_header(build_batch(some_records()))._replace(attributes=codec)
    for payload in (b"", b"nonsense" * 10, compress(codec, b"a" * 500)[:-9]):
        batch = assemble_batch(header, payload)
        assert refusal(batch, cleanup_policy=COMPACT) is ErrorCode.INVALID_RECORD
        assert refusal(batch, compression_type=CompressionType.NONE) is ErrorCode.INVALID_RECORD


def test_the_brokers_own_batches_are_trusted_but_for_the_crc() -> None:
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.COMMIT, 1), producer_id=5, producer_epoch=1, timestamp_ms=NOW
    )
    assert refusal(marker) is ErrorCode.INVALID_RECORD
    result = append(marker, origin=AppendOrigin.COORDINATOR, compression_type=CompressionType.GZIP)
    assert bytes(result.batch) == marker
    keyless = build_batch([Record(0, NOW, None, b"v")])
    assert append(keyless, origin=AppendOrigin.COORDINATOR, cleanup_policy=COMPACT)
    keyless[-1] ^= 1
    assert refusal(keyless, origin=AppendOrigin.COORDINATOR) is ErrorCode.CORRUPT_MESSAGE


def test_when_records_are_opened() -> None:
    header = parse_header(build_batch(some_records()))
    opened: list[Callable[[], bool]] = [
        lambda: needs_record_validation(header, LogConfig(validate_records=True), NOW),
        lambda: needs_record_validation(header, LogConfig(cleanup_policy=COMPACT), NOW),
        lambda: needs_record_validation(header, LogConfig(message_timestamp_type="LogAppendTime"), NOW),
        lambda: needs_record_validation(header, LogConfig(compression_type=CompressionType.GZIP), NOW),
        lambda: needs_record_validation(header, LogConfig(message_timestamp_before_max_ms=HOUR), NOW),
        lambda: needs_record_validation(header, LogConfig(), NOW - HOUR - 1),
    ]
    assert all(check() for check in opened)
    assert not needs_record_validation(header, LogConfig(), NOW)
    assert not needs_record_validation(header, LogConfig(compression_type=CompressionType.NONE), NOW)


CONFIGS = [
    LogConfig(),
    LogConfig(validate_records=True),
    LogConfig(cleanup_policy=COMPACT),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type=CompressionType.LZ4),
    LogConfig(compression_type=CompressionType.NONE, message_timestamp_before_max_ms=HOUR),
]


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(st.sampled_from(CompressionType), st.sampled_from(CONFIGS), st.data())
def test_damaged_batches_are_refused_or_right(codec: CompressionType, config: LogConfig, data: st.DataObject) -> None:
    batch = build_batch(some_records(), compression=codec)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    batch = batch[: data.draw(st.integers(len(batch) - 3, len(batch)))]
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    try:
        result = validate_batch(batch, parse_produced_batch(batch, 13), config, NOW)
    except ApiError:
        return
    assert result.header == parse_header(result.batch)
    assert crc_is_valid(result.batch, result.header)
    assert result.header.record_count == result.header.last_offset_delta + 1
    if needs_record_validation(parse_header(batch), config, NOW):
        assert [r.offset for r in iter_records(result.batch, result.header)] == list(range(result.header.record_count))


@pytest.mark.slow
def test_a_batch_may_not_have_far_more_records_than_bytes() -> None:
    tiny = build_batch([Record(i, NOW, None, b"") for i in range(RECORDS_MAX)], compression=CompressionType.ZSTD)
    assert append(tiny, validate_records=True).header.record_count == RECORDS_MAX
    more = build_batch([Record(i, NOW, None, b"") for i in range(RECORDS_MAX + 1)], compression=CompressionType.ZSTD)
    assert refusal(more) is ErrorCode.INVALID_RECORD
    assert append(build_batch([Record(i, NOW, None, b"") for i in range(RECORDS_MAX + 1)]))


def test_a_decompressed_record_has_a_limit() -> None:
    """It is relative to the size of its batch."""

    def bomb(size: int) -> bytes:
        return build_batch([Record(0, NOW, None, bytes(size))], compression=CompressionType.GZIP)

    assert append(bomb(RECORD_BYTES_MAX + 1))
    assert append(bomb(RECORD_BYTES_MAX - 100), validate_records=True)
    assert refusal(bomb(RECORD_BYTES_MAX + 1), validate_records=True) is ErrorCode.INVALID_RECORD


@pytest.mark.slow
def test_only_so_many_records_are_written_again_one_by_one() -> None:
    def with_gaps(count: int) -> bytearray:
        records = [Record(2 * i, NOW, None, b"") for i in range(count)]
        return changed(build_batch(records), ">i", 23, count - 1)

    assert append(with_gaps(REBUILT_RECORDS_MAX), validate_records=True).rewritten
    assert refusal(with_gaps(REBUILT_RECORDS_MAX + 1), validate_records=True) is ErrorCode.INVALID_RECORD


@pytest.mark.slow
def test_recompression_does_not_hold_what_it_decompresses() -> None:
    batch = build_batch([Record(i, NOW, None, bytes(1 << 20)) for i in range(50)], compression=CompressionType.GZIP)
    tracemalloc.start()
    for target in (CompressionType.ZSTD, CompressionType.LZ4):
        assert append(batch, compression_type=target).rewritten
    for target in (CompressionType.SNAPPY, CompressionType.NONE):
        assert refusal(batch, compression_type=target, max_message_bytes=300_000) is ErrorCode.MESSAGE_TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
