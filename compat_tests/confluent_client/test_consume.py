"""Consuming with librdkafka, without the help of a group."""

import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from tools.waiting import PATIENCE_S, wait_until

START_MS = 1_700_000_000_000
"""Timestamp of the record at offset 0; each later record is one second younger."""


@pytest.fixture
def filled_topic(topic: str, make_producer: Any) -> str:
    """One partition with offsets 0..99, each value its offset, in batches of up to 40 records."""
    producer = make_producer({"batch.num.messages": 40, "linger.ms": 50})
    for offset in range(100):
        producer.produce(topic, b"%d" % offset, partition=0, timestamp=START_MS + 1000 * offset)
    assert producer.flush(PATIENCE_S) == 0
    return topic


def test_seek_lands_in_the_middle_of_a_batch(filled_topic: str, group: str, make_consumer: Any, consume: Any) -> None:
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(filled_topic, 0, 57)])
    assert [int(message.value()) for message in consume(consumer, 5)] == [57, 58, 59, 60, 61]
    consumer.seek(TopicPartition(filled_topic, 0, 3))
    assert [message.offset() for message in consume(consumer, 4)] == [3, 4, 5, 6]
    assert consumer.position([TopicPartition(filled_topic, 0)])[0].offset == 7


def test_logical_offsets(filled_topic: str, group: str, make_consumer: Any, make_producer: Any, consume: Any) -> None:
    consumer = make_consumer(group, {"enable.partition.eof": True})
    consumer.assign([TopicPartition(filled_topic, 0, OFFSET_BEGINNING)])
    assert consume(consumer, 1)[0].offset() == 0
    consumer.assign([TopicPartition(filled_topic, 0, OFFSET_END)])
    at_end = consumer.poll(PATIENCE_S)  # so that it knows where that is before there is more
    assert at_end is not None
    assert at_end.error() is not None, "a record from before the end"
    assert at_end.error().code() == KafkaError._PARTITION_EOF
    producer = make_producer()
    producer.produce(filled_topic, b"100", partition=0)
    producer.flush(PATIENCE_S)
    assert consume(consumer, 1)[0].offset() == 100


def test_watermarks(filled_topic: str, topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    assert consumer.get_watermark_offsets(TopicPartition(filled_topic, 0), timeout=PATIENCE_S) == (0, 100)


def test_offsets_for_times(filled_topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    wanted = {
        START_MS - 5: 0,
        START_MS: 0,
        START_MS + 1: 1,
        START_MS + 41_000: 41,
        START_MS + 99_000: 99,
        START_MS + 99_001: OFFSET_END,
    }
    for timestamp, offset in wanted.items():
        (found,) = consumer.offsets_for_times([TopicPartition(filled_topic, 0, timestamp)], timeout=PATIENCE_S)
        assert (timestamp, found.offset) == (timestamp, offset)


def test_pause_and_resume(make_topic: Any, group: str, make_consumer: Any, produce: Any, consume: Any) -> None:
    topic = make_topic(partitions=2)
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    consumer.pause([TopicPartition(topic, 0)])
    produce(topic, [b"paused"] * 3, partition=0)
    produce(topic, [b"open"] * 3, partition=1)
    assert [message.value() for message in consume(consumer, 3)] == [b"open"] * 3
    assert consumer.poll(0.5) is None
    consumer.resume([TopicPartition(topic, 0)])
    assert [message.value() for message in consume(consumer, 3)] == [b"paused"] * 3


def test_an_offset_out_of_range_resets_or_fails(
    filled_topic: str, group: str, make_consumer: Any, consume: Any
) -> None:
    resetting = make_consumer(group)
    resetting.assign([TopicPartition(filled_topic, 0, 5000)])
    assert consume(resetting, 1)[0].offset() == 0
    failing = make_consumer(group, {"auto.offset.reset": "error"})
    failing.assign([TopicPartition(filled_topic, 0, 5000)])
    message = failing.poll(PATIENCE_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET


def test_end_of_partition_is_reported(filled_topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group, {"enable.partition.eof": True})
    consumer.assign([TopicPartition(filled_topic, 0, 98)])
    outcomes = []
    while len(outcomes) < 3:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        outcomes.append(message.error().code() if message.error() else message.offset())
    assert outcomes == [98, 99, KafkaError._PARTITION_EOF]


def test_a_waiting_consumer_gets_a_record_at_once(
    topic: str, group: str, make_consumer: Any, make_producer: Any, consume: Any
) -> None:
    consumer = make_consumer(group, {"fetch.wait.max.ms": 300_000, "socket.timeout.ms": 300_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    producer = make_producer({"linger.ms": 0})
    producer.produce(topic, b"warm up", partition=0)
    producer.flush(PATIENCE_S)
    consume(consumer, 1)
    assert consumer.poll(1.0) is None  # the next fetch is waiting at the broker now
    producer.produce(topic, b"wake", partition=0)
    assert consume(consumer, 1)[0].value() == b"wake"


def test_small_fetch_limits_still_make_progress(
    topic: str, group: str, make_consumer: Any, produce: Any, consume: Any
) -> None:
    values = [bytes([number]) * 10_000 for number in range(20)]
    produce(topic, values)
    consumer = make_consumer(
        group, {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consume(consumer, 20)] == values


def test_an_unknown_topic_is_an_error_without_auto_creation(group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    consumer.subscribe([f"absent-{group}"])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_an_unknown_topic_is_created_by_consuming_it(
    group: str, make_consumer: Any, produce: Any, consume: Any
) -> None:
    topic = f"auto-{group}"
    consumer = make_consumer(group, {"allow.auto.create.topics": True, "topic.metadata.refresh.interval.ms": 500})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + PATIENCE_S
    while topic not in consumer.list_topics(timeout=PATIENCE_S).topics:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    produce(topic, [b"hello"])
    assert consume(consumer, 1)[0].value() == b"hello"


@pytest.mark.parametrize("has_patterns", [False, True], ids=["names", "patterns"])
@pytest.mark.parametrize("is_allowed", [False, True], ids=["forbidden", "allowed"])
def test_a_subscription_to_what_is_there_and_what_is_not(
    topic: str, group: str, make_consumer: Any, is_allowed: bool, has_patterns: bool
) -> None:
    """librdkafka's own test 0109 tries the same. For patterns a client asks for all topics, and such a request creates
    none."""
    absent = f"absent-{group}"
    settings = {"enable.partition.eof": True, "topic.metadata.refresh.interval.ms": 500}
    consumer = make_consumer(group, {**settings, "allow.auto.create.topics": is_allowed})
    consumer.subscribe([absent, *([f"^{topic}", f"^{absent}"] if has_patterns else [topic])])
    told: dict[str, int] = {}
    is_at_end = False
    while not is_at_end:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is not None
        is_at_end = message.error().code() == KafkaError._PARTITION_EOF and message.topic() == topic
        if message.error().code() != KafkaError._PARTITION_EOF:
            told[message.topic()] = message.error().code()
    is_created = is_allowed and not has_patterns
    if is_created:  # unknown for a moment
        told.pop(absent, None)
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    names = [*([] if is_created else [absent]), *([f"^{absent}"] if has_patterns else [])]
    assert told == dict.fromkeys(names, unknown)

    def is_there() -> bool:
        return absent in consumer.list_topics(timeout=PATIENCE_S).topics

    if is_created:  # by the request that the client has sent: it may reach the end of the other topic sooner
        wait_until(is_there)
    assert is_there() == is_created


def test_watermarks_of_an_unknown_partition_are_an_error(topic: str, group: str, make_consumer: Any) -> None:
    consumer = make_consumer(group)
    with pytest.raises(KafkaException) as raised:
        consumer.get_watermark_offsets(TopicPartition(topic, 7), timeout=PATIENCE_S)
    assert raised.value.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
