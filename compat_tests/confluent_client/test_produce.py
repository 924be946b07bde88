"""Producing with librdkafka."""

from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, TopicPartition

from tools.waiting import PATIENCE_S


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_level_stores_what_was_sent(
    acks: str, topic: str, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    values = [b"value-%d" % i for i in range(200)]
    produce(topic, values, config={"acks": acks})
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consume(consumer, 200)] == values


def test_delivery_reports_carry_consecutive_offsets(topic: str, produce: Any) -> None:
    assert [message.offset() for message in produce(topic, [b"x"] * 50)] == list(range(50))
    assert [message.offset() for message in produce(topic, [b"x"] * 50)] == list(range(50, 100))


def test_an_idempotent_producer_keeps_the_order_of_batches(
    topic: str, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    values = [str(i).encode() for i in range(500)]
    produce(topic, values, config={"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 7})
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consume(consumer, 500)] == values


def test_keys_values_headers_and_timestamps_come_back_as_sent(
    topic: str, group: str, make_producer: Any, make_consumer: Any, consume: Any
) -> None:
    producer = make_producer()
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None), ("ünicode", "wért".encode())]
    producer.produce(topic, key=b"key", value=b"value", headers=headers, timestamp=1_700_000_000_123, partition=0)
    producer.produce(topic, key=None, value=b"no key", partition=0)
    producer.produce(topic, key=b"tombstone", value=None, partition=0)
    producer.produce(topic, key=b"", value=b"", partition=0)
    producer.produce(topic, key=None, value=None, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consume(consumer, 5)
    assert [(m.key(), m.value()) for m in messages] == [
        (b"key", b"value"),
        (None, b"no key"),
        (b"tombstone", None),
        (b"", b""),
        (None, None),
    ]
    assert messages[0].headers() == headers
    assert messages[0].timestamp() == (TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert messages[1].headers() is None


def test_records_with_a_key_stay_in_one_partition(
    make_topic: Any, group: str, make_producer: Any, make_consumer: Any, consume: Any
) -> None:
    topic = make_topic(partitions=4)
    producer = make_producer()
    for number in range(80):
        producer.produce(topic, key=b"key-%d" % (number % 8), value=b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    partitions_of: dict[bytes, set[int]] = {}
    values_of: dict[bytes, list[int]] = {}
    for message in consume(consumer, 80):
        partitions_of.setdefault(message.key(), set()).add(message.partition())
        values_of.setdefault(message.key(), []).append(int(message.value()))
    assert {len(partitions) for partitions in partitions_of.values()} == {1}
    assert all(values == sorted(values) for values in values_of.values())


def test_a_too_large_message_is_refused_and_the_producer_goes_on(make_topic: Any, make_producer: Any) -> None:
    topic = make_topic(configs={"max.message.bytes": "2000"})
    producer = make_producer()
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x" * 4000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    producer.produce(topic, b"x" * 500, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors[1] is None


def test_a_batch_just_within_the_limit_is_stored(
    make_topic: Any, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    topic = make_topic(configs={"max.message.bytes": "2000"})
    produce(topic, [b"x" * (2000 - 61 - 12)], config={"enable.idempotence": True})
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consume(consumer, 1)[0].value()) == 2000 - 61 - 12


def test_a_megabyte_with_default_limits(topic: str, group: str, produce: Any, make_consumer: Any, consume: Any) -> None:
    value = bytes(range(256)) * 3900
    produce(topic, [value, value])
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() == value for message in consume(consumer, 2)] == [True, True]


def test_log_append_time_is_the_brokers_time(
    make_topic: Any, group: str, make_producer: Any, make_consumer: Any, consume: Any
) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})
    reference = make_topic()
    producer = make_producer({"compression.type": "lz4"})
    reports: list[Any] = []
    for number in range(20):
        producer.produce(topic, b"%d" % number, timestamp=1000, on_delivery=lambda _, message: reports.append(message))
    assert producer.flush(PATIENCE_S) == 0
    producer.produce(reference, b"now")
    assert producer.flush(PATIENCE_S) == 0
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(reference, 0, 0)])
    messages = consume(consumer, 21)
    (now_ms,) = [message.timestamp()[1] for message in messages if message.topic() == reference]
    appended = [message.timestamp() for message in messages if message.topic() == topic]
    assert {kind for kind, _ in appended} == {TIMESTAMP_LOG_APPEND_TIME}
    assert all(abs(timestamp - now_ms) < 60_000 for _, timestamp in appended)
    assert {message.timestamp()[0] for message in reports} == {TIMESTAMP_LOG_APPEND_TIME}


def test_an_unknown_topic_is_created_by_producing(group: str, produce: Any, make_consumer: Any, consume: Any) -> None:
    topic = f"auto-{group}"
    produce(topic, [b"first"])
    consumer = make_consumer(group)
    consumer.subscribe([topic])
    assert consume(consumer, 1)[0].value() == b"first"


def test_a_producer_can_forbid_the_creation_of_a_topic(group: str, make_producer: Any) -> None:
    producer = make_producer(
        {"allow.auto.create.topics": False, "message.timeout.ms": 4000, "topic.metadata.propagation.max.ms": 1000}
    )
    errors: list[KafkaError | None] = []
    producer.produce(f"absent-{group}", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert [error.code() for error in errors if error is not None] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_wins_over_the_producers(
    codec: str, make_topic: Any, group: str, produce: Any, make_consumer: Any, consume: Any
) -> None:
    topic = make_topic(configs={"compression.type": codec})
    values = [b"value-%d" % i * 20 for i in range(100)]
    produce(topic, values)
    produce(topic, values, config={"compression.type": "gzip"})
    consumer = make_consumer(group)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consume(consumer, 200)] == values * 2
