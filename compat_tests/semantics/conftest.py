"""Connections to the cluster under test."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.semantics.client import Connection, fetch_request, topic_metadata
from tools.waiting import wait_until


@pytest.fixture
def connect(cluster: Any) -> Iterator[Callable[[], Connection]]:
    """Open connections, closed after the test."""
    connections: list[Connection] = []

    def open_one() -> Connection:
        connection = Connection(cluster.bootstrap_servers)
        connections.append(connection)
        return connection

    yield open_one
    for connection in connections:
        connection.close()


@pytest.fixture
def connection(connect: Callable[[], Connection]) -> Connection:
    """A fresh connection."""
    return connect()


@pytest.fixture
def ready_topic(make_topic: Callable[..., str], connection: Connection) -> Callable[..., str]:
    """Create a topic and wait until the broker serves every partition of it: Kafka publishes metadata first."""

    def make(**arguments: Any) -> str:
        name = make_topic(**arguments)
        partitions = range(arguments.get("partitions", 1))

        def served() -> bool:
            if topic_metadata(connection, name).error_code != 0:
                return False
            response = connection.ask(fetch_request([(name, partition, 0) for partition in partitions]), 4)
            return all(part.error_code == 0 for topic in response.responses for part in topic.partitions)

        wait_until(served)
        return name

    return make


@pytest.fixture
def topic(ready_topic: Callable[..., str]) -> str:
    """A fresh topic of one partition, served."""
    return ready_topic()


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"semantics-{secrets.token_hex(6)}"
