"""kafka-python clients of the cluster under test: made by a test, closed after it."""

import gc
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.waiting import PATIENCE_S

with warnings.catch_warnings():
    # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A client that is closed while it connects (to a coordinator, say) leaves its socket to the garbage collector."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect them before another folder's test does, to which they are an error."""
    yield
    gc.collect()


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
        producer.close(timeout=5)  # Real time: what is left over is not waited for


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
        producer.flush(timeout=PATIENCE_S)
        return [future.get(timeout=PATIENCE_S) for future in futures]

    return send


@pytest.fixture
def take() -> Callable[..., list[Any]]:
    """Take `count` records from a consumer, or fail with what had arrived.

    One poll waits for all the time that is left: a poll that ends within a join may lose it (test_groups.py, Member).
    """

    def poll(consumer: KafkaConsumer, count: int, timeout_s: float = PATIENCE_S) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + timeout_s
        while len(records) < count and (left_s := deadline - time.monotonic()) > 0:
            for part in consumer.poll(timeout_ms=left_s * 1000, max_records=count - len(records)).values():
                records.extend(part)
        assert len(records) == count, [record.value for record in records]
        return records

    return poll
