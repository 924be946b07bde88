"""Produce: what is refused and how, sequence numbers, answers at each version."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from barnabas.wire import codec, headers
from barnabas.wire.compression import CompressionType
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.record_batch import TimestampType
from compat_tests.semantics.client import (
    Connection,
    batch_of,
    fetch_partition,
    new_producer_id,
    produce_batch,
    produce_request,
    records_of,
    topic_metadata,
)

MakeTopic = Callable[..., str]
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def resealed(batch: bytearray) -> bytearray:
    """The batch with a checksum that fits what was done to it."""
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_is_served(ready_topic: MakeTopic, connection: Connection, version: int) -> None:
    topic: Any = ready_topic()
    if version >= 13:
        topic = topic_metadata(connection, topic).topic_id
    for number in range(3):
        answer = produce_batch(connection, topic, batch_of([b"x"]), version=version)
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, number, -1)
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert answer.error_message is None
        assert answer.record_errors == []


def test_the_answer_names_every_topic_and_partition_asked_for(ready_topic: MakeTopic, connection: Connection) -> None:
    first, second = ready_topic(partitions=2), ready_topic()
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=first,
                partition_data=[
                    PartitionProduceData(index=1, records=batch_of([b"a", b"b"])),
                    PartitionProduceData(index=0, records=batch_of([b"c"])),
                    PartitionProduceData(index=7, records=batch_of([b"d"])),
                ],
            ),
            TopicProduceData(name=second, partition_data=[PartitionProduceData(index=0, records=batch_of([b"e"]))]),
        ],
    )
    response = connection.ask(request, 9)
    answers = {
        (topic.name, partition.index): (partition.error_code, partition.base_offset)
        for topic in response.responses
        for partition in topic.partition_responses
    }
    assert answers == {(first, 0): (0, 0), (first, 1): (0, 0), (first, 7): (3, -1), (second, 0): (0, 0)}


def test_offsets_continue_over_batches(topic: str, connection: Connection) -> None:
    bases = [produce_batch(connection, topic, batch_of([b"x"] * size)).base_offset for size in (1, 5, 2, 1)]
    assert bases == [0, 1, 6, 8]


def test_the_leader_epoch_that_a_client_wrote_is_replaced(topic: str, connection: Connection) -> None:
    for number, epoch in enumerate((-1, 0, 7777)):
        assert produce_batch(connection, topic, batch_of([b"x"], partition_leader_epoch=epoch)).base_offset == number
    stored = bytes(fetch_partition(connection, topic, 0).records)
    expected = topic_metadata(connection, topic).partitions[0].leader_epoch
    size = len(stored) // 3
    assert [struct.unpack_from(">i", stored, start + 12)[0] for start in (0, size, 2 * size)] == [expected] * 3


def test_a_batch_larger_than_max_message_bytes(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"max.message.bytes": "1000"})
    fitting = batch_of([b"x" * 800])
    fitting = batch_of([b"x" * (800 + 1000 - len(fitting))])
    assert len(fitting) == 1000
    assert produce_batch(connection, topic, fitting).error_code == 0
    answer = produce_batch(connection, topic, batch_of([b"x" * 1000]))
    assert (answer.error_code, answer.base_offset) == (10, -1)
    assert produce_batch(connection, topic, batch_of([b"x"])).base_offset == 1


def test_a_batch_larger_than_a_segment(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"segment.bytes": "1048576", "max.message.bytes": "5000000"})
    assert produce_batch(connection, topic, batch_of([b"x" * 1_048_600])).error_code == 18
    assert produce_batch(connection, topic, batch_of([b"x" * 1_000_000])).error_code == 0


def test_a_wrong_checksum(topic: str, connection: Connection) -> None:
    batch = batch_of([b"x"])
    batch[-1] ^= 0xFF
    answer = produce_batch(connection, topic, batch)
    assert (answer.error_code, answer.base_offset) == (2, -1)


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [(0, ">q", 5), (23, ">i", 7), (57, ">i", 9), (57, ">i", 0), (57, ">i", -1), (23, ">i", -1), (21, ">h", 32)],
    ids=[
        "base offset not 0",
        "last offset delta too large",
        "count too large",
        "count 0",
        "count negative",
        "last offset delta negative",
        "control batch",
    ],
)
def test_headers_that_contradict_themselves(
    topic: str, connection: Connection, position: int, layout: str, value: int
) -> None:
    batch = batch_of([b"a", b"b"])
    struct.pack_into(layout, batch, position, value)
    answer = produce_batch(connection, topic, resealed(batch))
    assert (answer.error_code, answer.base_offset) == (87, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused(topic: str, connect: Callable[[], Connection], magic: int) -> None:
    batch = batch_of([b"a"])
    batch[16] = magic
    assert produce_batch(connect(), topic, batch).error_code == 87


def test_two_batches_for_one_partition_are_refused(topic: str, connection: Connection) -> None:
    assert produce_batch(connection, topic, batch_of([b"a"]) + batch_of([b"b"])).error_code == 87


def test_no_batch_at_all_is_refused(topic: str, connection: Connection) -> None:
    assert produce_batch(connection, topic, b"").error_code == 87


def test_a_client_that_claims_log_append_time(ready_topic: MakeTopic, connection: Connection) -> None:
    """The topic decides: a CreateTime topic corrects the batch, a LogAppendTime topic refuses it."""
    batch = batch_of([b"x"], timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time_ms=NOW_MS)
    topic = ready_topic()
    assert produce_batch(connection, topic, batch).error_code == 0
    stored = bytes(fetch_partition(connection, topic, 0).records)
    assert struct.unpack_from(">h", stored, 21)[0] & 8 == 0
    assert struct.unpack_from(">I", stored, 17)[0] == crc32c(stored[21:])
    append_time = ready_topic(configs={"message.timestamp.type": "LogAppendTime"})
    assert produce_batch(connection, append_time, batch).error_code == 32


def test_timestamps_out_of_bounds(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"message.timestamp.before.max.ms": str(HOUR_MS)})
    answer = produce_batch(connection, topic, batch_of([b"x"], timestamps=[NOW_MS]))
    assert (answer.error_code, answer.base_offset) == (32, -1)
    far_future = 4_000_000_000_000
    default = ready_topic()
    assert produce_batch(connection, default, batch_of([b"x"], timestamps=[far_future])).error_code == 32
    assert produce_batch(connection, default, batch_of([b"x"], timestamps=[0])).error_code == 0
    open_topic = ready_topic(configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    assert produce_batch(connection, open_topic, batch_of([b"x"], timestamps=[far_future])).error_code == 0


def test_records_without_a_key_on_a_compacted_topic(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"cleanup.policy": "compact"})
    batch = batch_of([b"a", b"b", b"c"], keys=[b"k", None, None])
    answer = produce_batch(connection, topic, batch)
    assert (answer.error_code, answer.base_offset) == (87, -1)
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert all(error.batch_index_error_message for error in answer.record_errors)
    assert answer.error_message
    older = produce_batch(connection, topic, batch, version=7)
    assert (older.error_code, older.record_errors, older.error_message) == (87, [], None)
    assert produce_batch(connection, topic, batch_of([b"a"], keys=[b"k"])).base_offset == 0


@pytest.mark.parametrize("codec_type", [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4])
def test_compressed_records_without_a_key_on_a_compacted_topic(
    ready_topic: MakeTopic, connection: Connection, codec_type: CompressionType
) -> None:
    topic = ready_topic(configs={"cleanup.policy": "compact"})
    answer = produce_batch(connection, topic, batch_of([b"a", b"b"], keys=[b"k", None], compression=codec_type))
    assert (answer.error_code, [error.batch_index for error in answer.record_errors]) == (87, [1])


def test_zstd_needs_version_7(topic: str, connection: Connection) -> None:
    batch = batch_of([b"x" * 100], compression=CompressionType.ZSTD)
    assert produce_batch(connection, topic, batch, version=6).error_code == 76
    assert produce_batch(connection, topic, batch, version=7).error_code == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_required_acks_that_do_not_exist(topic: str, connection: Connection, acks: int) -> None:
    answer = produce_batch(connection, topic, batch_of([b"x"]), acks=acks)
    assert (answer.error_code, answer.base_offset) == (21, -1)


def test_topics_that_do_not_exist(topic_name: str, topic: str, connection: Connection) -> None:
    assert produce_batch(connection, topic_name, batch_of([b"x"])).error_code == 3
    assert produce_batch(connection, topic, batch_of([b"x"]), partition=1).error_code == 3
    assert produce_batch(connection, topic, batch_of([b"x"]), partition=-1).error_code == 3
    assert produce_batch(connection, b"\x01" * 16, batch_of([b"x"]), version=13).error_code == 100
    assert produce_batch(connection, bytes(16), batch_of([b"x"]), version=13).error_code == 100


@pytest.mark.parametrize("name", ["bad/name", "x" * 250, "", ".."])
def test_topics_that_cannot_exist(connection: Connection, name: str) -> None:
    assert produce_batch(connection, name, batch_of([b"x"])).error_code in (3, 17)


def test_writing_to_an_internal_topic_is_refused(connection: Connection, group: str) -> None:
    from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
    from tools.waiting import wait_until

    def found() -> bool:
        request = FindCoordinatorRequest(coordinator_keys=[group])
        return bool(connection.ask(request, 4).coordinators[0].error_code == 0)

    wait_until(found)
    assert produce_batch(connection, "__consumer_offsets", batch_of([b"x"], keys=[b"k"])).error_code == 17


def test_min_insync_replicas_is_at_most_the_replica_count(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"min.insync.replicas": "2"})
    assert produce_batch(connection, topic, batch_of([b"x"]), acks=-1).error_code == 0


def test_log_append_time_is_answered_and_stored(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(configs={"message.timestamp.type": "LogAppendTime"})
    answer = produce_batch(connection, topic, batch_of([b"a", b"b"], compression=CompressionType.GZIP))
    assert answer.log_append_time_ms > NOW_MS
    fetched = fetch_partition(connection, topic, 0)
    batch = bytes(fetched.records)
    assert struct.unpack_from(">I", batch, 17)[0] == crc32c(batch[21:])
    assert struct.unpack_from(">h", batch, 21)[0] & 0x0F == 0x08 | CompressionType.GZIP
    assert struct.unpack_from(">q", batch, 35)[0] == answer.log_append_time_ms
    assert {record.timestamp for record in records_of(fetched)} == {answer.log_append_time_ms}


def test_producer_ids_are_never_given_twice(connection: Connection) -> None:
    producer_ids = [new_producer_id(connection) for _ in range(20)]
    assert len(set(producer_ids)) == 20


def test_a_repeated_batch_gets_the_offset_it_has_already(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)

    def send(sequence: int, count: int = 2) -> Any:
        batch = batch_of([b"x"] * count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        return produce_batch(connection, topic, batch)

    assert [send(2 * number).base_offset for number in range(6)] == [0, 2, 4, 6, 8, 10]
    assert [(send(2 * number).error_code, send(2 * number).base_offset) for number in range(1, 6)] == [
        (0, 2),
        (0, 4),
        (0, 6),
        (0, 8),
        (0, 10),
    ]
    assert send(12).base_offset == 12
    assert len(records_of(fetch_partition(connection, topic, 0))) == 14


def test_a_batch_older_than_the_last_five_is_out_of_order(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)

    def send(sequence: int, count: int = 1) -> Any:
        batch = batch_of([b"x"] * count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        return produce_batch(connection, topic, batch)

    for number in range(6):
        assert send(number).error_code == 0
    assert send(0).error_code in (45, 46)
    assert (send(5).error_code, send(5).base_offset) == (0, 5)


def test_sequences_that_are_out_of_order(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)

    def send(sequence: int, epoch: int = 0, count: int = 1) -> Any:
        batch = batch_of([b"x"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return produce_batch(connection, topic, batch)

    assert send(0, count=3).error_code == 0
    assert send(4).error_code == 45
    assert send(1).error_code == 45
    assert send(0, count=2).error_code == 45
    assert send(3).base_offset == 3
    assert send(1, epoch=1).error_code == 45
    assert send(0, epoch=1).base_offset == 4
    old = send(4, epoch=0)
    assert (old.error_code, old.base_offset) == (47, -1)
    assert send(1, epoch=1).base_offset == 5


def test_an_unknown_producer_may_start_anywhere(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)
    batch = batch_of([b"x"], producer_id=producer_id, producer_epoch=3, base_sequence=1000)
    assert produce_batch(connection, topic, batch).error_code == 0
    batch = batch_of([b"x"], producer_id=producer_id, producer_epoch=3, base_sequence=1001)
    assert produce_batch(connection, topic, batch).base_offset == 1


def test_sequences_wrap_around(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)
    last = 2**31 - 1

    def send(sequence: int, count: int) -> Any:
        batch = batch_of([b"x"] * count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        return produce_batch(connection, topic, batch)

    assert send(last - 1, 4).error_code == 0
    assert send(2, 1).base_offset == 4
    assert send(last - 1, 4).base_offset == 0


def test_a_producer_id_without_a_sequence_is_refused(topic: str, connection: Connection) -> None:
    batch = batch_of([b"x"], producer_id=new_producer_id(connection), producer_epoch=0, base_sequence=-1)
    assert produce_batch(connection, topic, batch).error_code == 87


def test_a_duplicate_among_pipelined_batches(topic: str, connection: Connection) -> None:
    producer_id = new_producer_id(connection)
    for sequence in (0, 1, 1, 2, 0):
        batch = batch_of([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        connection.send(produce_request(topic, batch), 9)
    answers = [connection.receive().responses[0].partition_responses[0] for _ in range(5)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 1), (0, 2), (0, 0)]


@pytest.mark.parametrize(
    ("topic_codec", "producer_codec", "stored"),
    [
        ("producer", CompressionType.GZIP, CompressionType.GZIP),
        ("uncompressed", CompressionType.GZIP, CompressionType.NONE),
        ("zstd", CompressionType.NONE, CompressionType.ZSTD),
        ("lz4", CompressionType.SNAPPY, CompressionType.LZ4),
        ("snappy", CompressionType.ZSTD, CompressionType.SNAPPY),
        ("gzip", CompressionType.LZ4, CompressionType.GZIP),
    ],
)
def test_the_codec_of_the_stored_batch(
    ready_topic: MakeTopic,
    connection: Connection,
    topic_codec: str,
    producer_codec: CompressionType,
    stored: CompressionType,
) -> None:
    topic = ready_topic(configs={"compression.type": topic_codec})
    producer_id = new_producer_id(connection)
    values: list[bytes | None] = [b"a" * 500, b"b" * 500]
    batch = batch_of(values, compression=producer_codec, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    assert produce_batch(connection, topic, batch).error_code == 0
    assert produce_batch(connection, topic, batch).base_offset == 0  # recompression keeps the sequence
    fetched = fetch_partition(connection, topic, 0)
    assert struct.unpack_from(">h", fetched.records, 21)[0] & 7 == stored
    assert struct.unpack_from(">qh", fetched.records, 43) == (producer_id, 0)
    assert [record.value for record in records_of(fetched)] == values


def test_a_batch_cut_short_is_refused(topic: str, connect: Callable[[], Connection]) -> None:
    whole = batch_of([b"x" * 100])
    for size in (5, 30, 61, len(whole) - 1):
        connection = connect()
        answer = produce_batch(connection, topic, bytes(whole[:size]))
        assert answer.error_code in (2, 87), size


def test_compressed_nonsense_is_refused_by_a_topic_that_opens_it(
    ready_topic: MakeTopic, connection: Connection
) -> None:
    topic = ready_topic(configs={"cleanup.policy": "compact"})
    batch = batch_of([b"a" * 100], keys=[b"k"])
    struct.pack_into(">h", batch, 21, CompressionType.LZ4)
    assert produce_batch(connection, topic, resealed(batch)).error_code != 0
    assert fetch_partition(connection, topic, 0).high_watermark == 0


def test_a_transactional_id_that_no_coordinator_knows_is_refused(topic: str, connection: Connection) -> None:
    batch = batch_of([b"x"], producer_id=4_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    request = produce_request(topic, batch)
    request.transactional_id = "unknown"
    header = headers.request_header(0, 9, 5, None)
    connection.send_frame(header + codec.encode(request, 9))
    frame = connection.receive_frame()
    assert struct.unpack_from(">i", frame) == (5,)
    assert b"\xff\xff\xff\xff\xff\xff\xff\xff" in frame  # no base offset: nothing was appended
    assert fetch_partition(connection, topic, 0).high_watermark == 0
