"""Waiting for what a broker does by itself, and a producer and a consumer to see that it serves."""

import time
from typing import Any

from tools.waiting import PATIENCE_S


def topic_of(admin: Any, name: str, partitions: int = 1) -> Any:
    """The metadata of a topic once all its partitions have leaders, or None."""
    topic = admin.list_topics(timeout=PATIENCE_S).topics.get(name)
    if topic is None or len(topic.partitions) != partitions:
        return None
    return topic if all(partition.leader == 1 for partition in topic.partitions.values()) else None


def produce(bootstrap_servers: str, topic: str, value: str, partition: int = 0) -> int:
    """Produce one record; returns its offset."""
    from confluent_kafka import Producer

    offsets: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "delivery.timeout.ms": 20_000})
    producer.produce(topic, value, partition=partition, on_delivery=lambda *answer: offsets.append(answer))
    producer.flush(PATIENCE_S)
    ((error, message),) = offsets
    assert error is None, error
    offset: int = message.offset()
    return offset


def consume(bootstrap_servers: str, topic: str, group: str, count: int) -> list[str]:
    """Join a group, read records, and commit what was read."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values
