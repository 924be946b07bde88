"""librdkafka's transactional producer through confluent-kafka."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tools.waiting import PATIENCE_S, wait_until


@pytest.fixture
def transactional(cluster: Any, transactional_id: str) -> Callable[..., Producer]:
    """An initialised producer of the test's transactional id."""

    def make(**config: Any) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": transactional_id,
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        producer.init_transactions(PATIENCE_S)
        return producer

    return make


@pytest.fixture
def reader(cluster: Any) -> Iterator[Callable[..., Consumer]]:
    consumers: list[Consumer] = []

    def make(group: str, isolation: str = "read_committed") -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close()


def values_to_end(consumer: Consumer, topic: str) -> list[bytes]:
    """All values of partition 0 from its start to the end that the consumer's isolation level sees."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            return values
        values.append(message.value() or b"")
    raise AssertionError("the end of the partition was not reached")


def test_committed_and_aborted(transactional: Any, reader: Any, topic: str, group: str) -> None:
    producer = transactional()
    for number in range(5):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, f"{number}-{each}".encode())
        if number % 2:
            assert producer.flush(PATIENCE_S) == 0  # what is still in the queue would never be sent
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = [f"{number}-{each}".encode() for number in (0, 2, 4) for each in range(10)]
    # Markers follow the commit.
    wait_until(lambda: values_to_end(reader(group), topic) == committed)
    assert len(values_to_end(reader(group, "read_uncommitted"), topic)) == 50


def test_a_newer_producer_fences_the_older(transactional: Any, reader: Any, topic: str, group: str) -> None:
    older = transactional()
    older.begin_transaction()
    older.produce(topic, b"lost")
    assert older.flush(PATIENCE_S) == 0
    newer = transactional()
    with pytest.raises(KafkaException) as fenced:
        older.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].fatal()
    newer.begin_transaction()
    newer.produce(topic, b"kept")
    newer.commit_transaction(PATIENCE_S)
    wait_until(lambda: values_to_end(reader(group), topic) == [b"kept"])


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_read_process_write(
    transactional: Any, reader: Any, make_topic: Any, group: str, cluster: Any, compression: str
) -> None:
    source, target = make_topic(), make_topic()
    plain = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(100):
        plain.produce(source, str(number).encode())
    assert plain.flush(PATIENCE_S) == 0
    producer = transactional(compression_type=compression)
    consumer = reader(group)
    consumer.subscribe([source])
    done = 0
    attempts = 0
    while done < 100:
        messages = [message for message in consumer.consume(10, 1) if not message.error()]
        if not messages:
            continue
        attempts += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, b"<" + (message.value() or b"") + b">")
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_S)
        if attempts in (2, 5):
            producer.abort_transaction(PATIENCE_S)
            for partition in consumer.committed(consumer.assignment(), PATIENCE_S):
                consumer.seek(TopicPartition(partition.topic, partition.partition, max(partition.offset, 0)))
            continue
        producer.commit_transaction(PATIENCE_S)
        done += len(messages)
    expected = [f"<{number}>".encode() for number in range(100)]
    wait_until(lambda: values_to_end(reader(group + "-check"), target) == expected)
    (committed,) = reader(group).committed([TopicPartition(source, 0)], PATIENCE_S)
    assert committed.offset == 100
