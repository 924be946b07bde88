"""librdkafka clients of the cluster under test: made by a test, closed after it."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from tools.waiting import PATIENCE_S

Config = dict[str, Any]


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"confluent-{secrets.token_hex(6)}"


@pytest.fixture
def make_producer(cluster: Any) -> Iterator[Callable[..., Producer]]:
    """Producers with librdkafka's defaults plus what the caller gives."""
    producers: list[Producer] = []

    def make(config: Config | None = None) -> Producer:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **(config or {})})
        producers.append(producer)
        return producer

    yield make
    for producer in producers:
        producer.purge()
        producer.flush(5)  # Real time: what is left over is not waited for


@pytest.fixture
def make_consumer(cluster: Any) -> Iterator[Callable[..., Consumer]]:
    """Consumers that start at the beginning and commit only on request, plus what the caller gives."""
    consumers: list[Consumer] = []

    def make(group_id: str, config: Config | None = None) -> Consumer:
        base = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer({**base, **(config or {})})
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close()


@pytest.fixture
def admin(cluster: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def produce(make_producer: Callable[..., Producer]) -> Callable[..., list[Message]]:
    """Produce values and return their delivery reports in order; any failed delivery fails the test."""

    def send(topic: str, values: list[Any], *, config: Config | None = None, **arguments: Any) -> list[Message]:
        producer = make_producer(config)
        reports: list[tuple[KafkaError | None, Message]] = []
        for value in values:
            producer.produce(
                topic, value=value, on_delivery=lambda error, message: reports.append((error, message)), **arguments
            )
        assert producer.flush(PATIENCE_S) == 0
        assert [error for error, _ in reports if error is not None] == []
        return [message for _, message in reports]

    return send


@pytest.fixture
def consume() -> Callable[..., list[Message]]:
    """Take `count` messages from a consumer, or fail after the deadline with what had arrived."""

    def take(consumer: Consumer, count: int, timeout_s: float = PATIENCE_S) -> list[Message]:
        messages: list[Message] = []
        silent_polls = 0
        while len(messages) < count and silent_polls < timeout_s / 0.5:
            batch = consumer.consume(count - len(messages), timeout=0.5)
            silent_polls = 0 if batch else silent_polls + 1
            for message in batch:
                assert message.error() is None, message.error()
            messages.extend(batch)
        assert len(messages) == count, [message.value() for message in messages]
        return messages

    return take


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One Python client shows that clients see no difference when the metadata is in ZooKeeper."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.store)
