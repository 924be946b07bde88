"""kafka-python clients of the cluster under test: made by a test, closed after it."""

import secrets
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"kafka-python-{secrets.token_hex(6)}"


@pytest.fixture
def make_producer(cluster: Any) -> Iterator[Callable[..., KafkaProducer]]:
    producers: list[KafkaProducer] = []

    def make(**settings: Any) -> KafkaProducer:
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)
        producers.append(producer)
        return producer

    yield make
    for producer in producers:
        producer.close(timeout=5)


@pytest.fixture
def make_consumer(cluster: Any) -> Iterator[Callable[..., KafkaConsumer]]:
    """Consumers that start at the beginning and commit only on request, plus what the caller gives."""
    consumers: list[KafkaConsumer] = []

    def make(*topics: str, **settings: Any) -> KafkaConsumer:
        base = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = KafkaConsumer(*topics, bootstrap_servers=cluster.bootstrap_servers, **{**base, **settings})
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close(timeout_ms=5000)


@pytest.fixture
def admin(cluster: Any) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def produce(make_producer: Callable[..., KafkaProducer]) -> Callable[..., list[Any]]:
    """Send values to partition 0 and return their metadata in order; any failed delivery raises."""

    def send(topic: str, values: list[bytes | None], **settings: Any) -> list[Any]:
        producer = make_producer(**settings)
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(timeout=30)
        return [future.get(timeout=30) for future in futures]

    return send


@pytest.fixture
def take() -> Callable[..., list[Any]]:
    """Take `count` records from a consumer, or fail with what had arrived."""

    def poll(consumer: KafkaConsumer, count: int, silent_polls_allowed: int = 60) -> list[Any]:
        records: list[Any] = []
        silent_polls = 0
        while len(records) < count and silent_polls < silent_polls_allowed:
            batch = consumer.poll(timeout_ms=500, max_records=count - len(records))
            silent_polls = 0 if batch else silent_polls + 1
            for part in batch.values():
                records.extend(part)
        assert len(records) == count, [record.value for record in records]
        return records

    return poll
