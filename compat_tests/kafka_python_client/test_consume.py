"""Consuming with kafka-python, without the help of a group."""

import time
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

from compat_tests.emptied_topic import EMPTY, END, QUICK_COMPACTION, make_emptied_topic
from tools.waiting import PATIENCE_S, wait_until

START_MS = 1_700_000_000_000
"""Timestamp of the record at offset 0; each later record is one second younger."""


@pytest.fixture
def partition(topic: str, make_producer: Any) -> TopicPartition:
    """Offsets 0..99 in few compressed batches; each value is its offset."""
    producer = make_producer(linger_ms=20, compression_type="zstd")
    for offset in range(100):
        producer.send(topic, b"%d" % offset, partition=0, timestamp_ms=START_MS + 1000 * offset)
    producer.flush(timeout=PATIENCE_S)
    return TopicPartition(topic, 0)


def test_seek_lands_in_the_middle_of_a_batch(partition: TopicPartition, make_consumer: Any, take: Any) -> None:
    consumer = make_consumer()
    consumer.assign([partition])
    consumer.seek(partition, 57)
    assert [int(record.value) for record in take(consumer, 3)] == [57, 58, 59]
    consumer.seek(partition, 3)
    assert [record.offset for record in take(consumer, 2)] == [3, 4]
    assert consumer.position(partition) == 5
    consumer.seek_to_end(partition)
    assert consumer.position(partition) == 100
    consumer.seek_to_beginning(partition)
    assert [record.offset for record in take(consumer, 1)] == [0]
    assert consumer.highwater(partition) == 100


def test_watermarks_and_times(partition: TopicPartition, make_consumer: Any) -> None:
    consumer = make_consumer()
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}
    for timestamp, offset in {
        START_MS - 5: 0,
        START_MS: 0,
        START_MS + 1: 1,
        START_MS + 41_000: 41,
        START_MS + 99_000: 99,
    }.items():
        found = consumer.offsets_for_times({partition: timestamp})[partition]
        assert (found.offset, found.timestamp) == (offset, START_MS + 1000 * offset)
    assert consumer.offsets_for_times({partition: START_MS + 99_001}) == {partition: None}


def test_pause_and_resume(make_topic: Any, make_producer: Any, make_consumer: Any, take: Any) -> None:
    topic = make_topic(partitions=2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    consumer = make_consumer()
    consumer.assign(partitions)
    consumer.pause(partitions[0])
    producer = make_producer()
    for number in (0, 1):
        producer.send(topic, b"%d" % number, partition=number).get(30)
    assert [record.value for record in take(consumer, 1)] == [b"1"]
    assert consumer.poll(timeout_ms=500) == {}
    consumer.resume(partitions[0])
    assert [record.value for record in take(consumer, 1)] == [b"0"]


def test_an_offset_out_of_range_resets_or_fails(partition: TopicPartition, make_consumer: Any, take: Any) -> None:
    resetting = make_consumer()
    resetting.assign([partition])
    resetting.seek(partition, 5000)
    assert [record.offset for record in take(resetting, 1)] == [0]
    failing = make_consumer(auto_offset_reset="none")
    failing.assign([partition])
    failing.seek(partition, 5000)
    with pytest.raises(OffsetOutOfRangeError):
        take(failing, 1)


def test_a_waiting_consumer_gets_a_record_at_once(
    topic: str, make_producer: Any, make_consumer: Any, take: Any
) -> None:
    consumer = make_consumer(
        fetch_max_wait_ms=3_600_000, request_timeout_ms=4_000_000, connections_max_idle_ms=5_000_000
    )
    consumer.assign([TopicPartition(topic, 0)])
    producer = make_producer()
    producer.send(topic, b"warm up", partition=0).get(30)
    take(consumer, 1)
    assert consumer.poll(timeout_ms=1000) == {}  # the next fetch is waiting at the broker now
    producer.send(topic, b"wake", partition=0).get(30)
    assert [record.value for record in take(consumer, 1)] == [b"wake"]


def test_small_fetch_limits_still_make_progress(topic: str, produce: Any, make_consumer: Any, take: Any) -> None:
    values = [bytes([number]) * 10_000 for number in range(20)]
    produce(topic, values)
    consumer = make_consumer(fetch_max_bytes=1000, max_partition_fetch_bytes=1000)
    consumer.assign([TopicPartition(topic, 0)])
    assert [record.value for record in take(consumer, 20)] == values


@pytest.mark.parametrize("sessions", [True, False], ids=["fetch sessions", "no fetch sessions"])
def test_many_partitions_with_and_without_fetch_sessions(
    sessions: bool, make_topic: Any, make_producer: Any, make_consumer: Any, take: Any
) -> None:
    topic = make_topic(partitions=12)
    consumer = make_consumer(enable_incremental_fetch_sessions=sessions)
    consumer.assign([TopicPartition(topic, number) for number in range(12)])
    consumer.poll(timeout_ms=200)
    producer = make_producer()
    for round_number in range(3):
        for number in range(12):
            producer.send(topic, b"%d-%d" % (round_number, number), partition=number)
        producer.flush(timeout=PATIENCE_S)
        values = {record.value for record in take(consumer, 12)}
        assert values == {b"%d-%d" % (round_number, number) for number in range(12)}


def test_an_unknown_topic_is_created_by_subscribing(
    admin: Any, group: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    topic = f"auto-{group}"
    consumer = make_consumer(topic, group_id=group, metadata_max_age_ms=500)
    deadline = time.monotonic() + PATIENCE_S
    while topic not in admin.list_topics():
        assert time.monotonic() < deadline
    produce(topic, [b"hello"])
    assert [record.value for record in take(consumer, 1)] == [b"hello"]


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_the_emptied_tail_of_a_compacted_log_is_passed(start_cluster: Any, take: Any, isolation_level: str) -> None:
    """From the beginning, and from an offset whose record is gone: the position reaches the end, where more comes."""
    own = start_cluster(QUICK_COMPACTION)
    partition = TopicPartition(make_emptied_topic(own), 0)
    with (
        closing(KafkaConsumer(bootstrap_servers=own.bootstrap_servers, isolation_level=isolation_level)) as consumer,
        closing(KafkaProducer(bootstrap_servers=own.bootstrap_servers)) as producer,
    ):
        consumer.assign([partition])
        assert consumer.end_offsets([partition]) == {partition: END}
        consumer.seek_to_beginning(partition)
        assert [record.value for record in take(consumer, 1)] == [b"kept"]
        for offset in EMPTY:
            consumer.seek(partition, offset)
            wait_until(lambda: not consumer.poll() and consumer.position(partition) == END)
        for start in (0, *EMPTY):
            consumer.seek(partition, start)
            end = producer.send(partition.topic, b"%d" % start, key=b"k", partition=0).get(PATIENCE_S).offset
            values = [record.value for record in take(consumer, (start == 0) + end - END + 1)]
            assert values[-1] == b"%d" % start
