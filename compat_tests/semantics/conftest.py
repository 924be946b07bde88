"""Connections to the cluster under test."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.semantics.client import Connection, topic_metadata, wait_until


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
def topic(make_topic: Callable[..., str], connection: Connection) -> str:
    """A fresh topic of one partition whose leader is known."""
    name = make_topic()
    wait_until(lambda: topic_metadata(connection, name).error_code == 0)
    return name


@pytest.fixture
def ready_topic(make_topic: Callable[..., str], connection: Connection) -> Callable[..., str]:
    """Create a topic and wait until the broker serves every partition of it."""

    def make(**arguments: Any) -> str:
        name = make_topic(**arguments)

        def served() -> bool:
            description = topic_metadata(connection, name)
            return description.error_code == 0 and all(part.error_code == 0 for part in description.partitions)

        wait_until(served)
        return name

    return make


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"semantics-{secrets.token_hex(6)}"
