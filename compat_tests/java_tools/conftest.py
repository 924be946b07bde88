"""Kafka's Java tools of two releases, aimed at the cluster under test."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.spark_examples.java import JavaMissing, find_java
from compat_tests.java_tools.kafka_tools import Tools
from tests.support.required import tool_missing
from tools.foreign.kafka import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION
from tools.jvm.shared import SharedJvm
from tools.waiting import PATIENCE_S, wait_until


@pytest.fixture(scope="session", params=[ORACLE_VERSION, pytest.param(ZOOKEEPER_ERA_VERSION, marks=pytest.mark.full)])
def version(request: pytest.FixtureRequest) -> str:
    """The release whose tools a test runs: both ask the same, so one of them is enough for the gate."""
    return str(request.param)


@pytest.fixture(scope="session")
def jvm(version: str) -> Iterator[SharedJvm]:
    try:
        find_java()
    except JavaMissing as missing:
        tool_missing(missing)
    with SharedJvm(version) as shared:
        yield shared


@pytest.fixture(scope="session")
def tools(version: str, jvm: SharedJvm, cluster: Any) -> Tools:
    return Tools(version, jvm, cluster.bootstrap_servers)


@pytest.fixture(scope="session")
def tools_for(version: str, jvm: SharedJvm) -> Callable[[Any], Tools]:
    """The tools aimed at another cluster than the shared one."""
    return lambda other: Tools(version, jvm, other.bootstrap_servers)


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"java-{secrets.token_hex(6)}"


@pytest.fixture
def produce(cluster: Any) -> Callable[..., None]:
    """Produce values with librdkafka, where a test needs partitions and timestamps of its own choice."""
    from confluent_kafka import Producer

    def send(topic: str, values: list[Any], *, config: dict[str, Any] | None = None, **arguments: Any) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **(config or {})})
        for value in values:
            producer.produce(topic, value=value, **arguments)
        assert producer.flush(PATIENCE_S) == 0

    return send


@pytest.fixture
def member(cluster: Any) -> Iterator[Callable[..., Any]]:
    """A live consumer in a group, with all its partitions assigned."""
    from confluent_kafka import Consumer

    consumers = []

    def join(group: str, topic: str, partitions: int = 1) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "client.id": "member",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumers.append(consumer)
        consumer.subscribe([topic])

        def is_assigned() -> bool:
            consumer.poll(0.2)
            return len(consumer.assignment()) == partitions

        wait_until(is_assigned, lambda: f"{consumer.assignment()} of {topic} assigned")
        return consumer

    yield join
    for consumer in consumers:
        consumer.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.java)
