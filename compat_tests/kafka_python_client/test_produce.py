"""Producing with kafka-python."""

from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import MessageSizeTooLargeError


def reader(make_consumer: Any, topic: str, partitions: int = 1) -> Any:
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
    return consumer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"acks": 0, "enable_idempotence": False},
        {"acks": 1, "enable_idempotence": False},
        {"acks": "all", "linger_ms": 20},
    ],
    ids=["defaults", "acks=0", "acks=1", "acks=all"],
)
def test_everything_sent_is_stored_in_order(
    settings: Any, topic: str, produce: Any, make_consumer: Any, take: Any
) -> None:
    values = [b"value-%d" % number for number in range(150)]
    produce(topic, values, **settings)
    assert [record.value for record in take(reader(make_consumer, topic), 150)] == values


def test_keys_values_headers_and_timestamps_come_back_as_sent(
    topic: str, make_producer: Any, make_consumer: Any, take: Any
) -> None:
    producer = make_producer()
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("ünicode", b"\x00\xff")]
    producer.send(topic, b"value", key=b"key", headers=headers, partition=0, timestamp_ms=1_700_000_000_123).get(30)
    producer.send(topic, b"no key", partition=0).get(30)
    producer.send(topic, None, key=b"tombstone", partition=0).get(30)
    producer.send(topic, b"", key=b"", partition=0).get(30)
    records = take(reader(make_consumer, topic), 4)
    assert [(record.key, record.value) for record in records] == [
        (b"key", b"value"),
        (None, b"no key"),
        (b"tombstone", None),
        (b"", b""),
    ]
    assert list(records[0].headers) == headers
    assert (records[0].timestamp, records[0].timestamp_type) == (1_700_000_000_123, 0)
    assert list(records[1].headers) == []


def test_metadata_of_sent_records(topic: str, produce: Any) -> None:
    sent = produce(topic, [b"x"] * 30)
    assert [metadata.offset for metadata in sent] == list(range(30))
    assert {(metadata.topic, metadata.partition) for metadata in sent} == {(topic, 0)}


def test_a_too_large_batch_is_refused_and_the_producer_goes_on(make_topic: Any, make_producer: Any) -> None:
    topic = make_topic(configs={"max.message.bytes": "2000"})
    producer = make_producer(enable_idempotence=False)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, b"x" * 4000, partition=0).get(30)
    assert producer.send(topic, b"x" * 500, partition=0).get(30).offset == 0


def test_log_append_time_is_the_brokers(make_topic: Any, make_producer: Any, make_consumer: Any, take: Any) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})
    sent = make_producer(compression_type="gzip").send(topic, b"x", partition=0, timestamp_ms=1000).get(30)
    (record,) = take(reader(make_consumer, topic), 1)
    assert record.timestamp_type == 1
    assert record.timestamp == sent.timestamp > 1_700_000_000_000


def test_an_unknown_topic_is_created_by_producing(
    group: str, make_producer: Any, make_consumer: Any, take: Any
) -> None:
    topic = f"auto-{group}"
    sent = make_producer().send(topic, b"first").get(30)
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, sent.partition)])
    assert [record.value for record in take(consumer, 1)] == [b"first"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_wins_over_the_producers(
    codec: str, make_topic: Any, produce: Any, make_consumer: Any, take: Any
) -> None:
    topic = make_topic(configs={"compression.type": codec})
    values = [b"value-%d" % number * 20 for number in range(50)]
    produce(topic, values)
    produce(topic, values, compression_type="gzip")
    assert [record.value for record in take(reader(make_consumer, topic), 100)] == values * 2
