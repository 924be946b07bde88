"""Producers of transactions, and topics that are served."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from compat_tests.semantics.client import Connection, fetch_partition
from compat_tests.transactions.producer import CLASSIC, VERSION_2, TransactionalProducer, retried
from tools.waiting import wait_until


@pytest.fixture
def connect(cluster: Any) -> Iterator[Callable[..., Connection]]:
    """Open connections, closed after the test."""
    connections: list[Connection] = []

    def open_one(other: Any = None) -> Connection:
        connection = Connection((other or cluster).bootstrap_servers)
        connections.append(connection)
        return connection

    yield open_one
    for connection in connections:
        connection.close()


@pytest.fixture
def connection(connect: Callable[[], Connection]) -> Connection:
    return connect()


@pytest.fixture
def transactional_id() -> str:
    """A transactional id that nobody used before."""
    return f"txn-{secrets.token_hex(6)}"


@pytest.fixture
def group() -> str:
    return f"txn-group-{secrets.token_hex(6)}"


@pytest.fixture(params=[CLASSIC, VERSION_2], ids=["classic", "version 2"])
def protocol(request: Any) -> int:
    """Both protocols that clients speak."""
    return int(request.param)


@pytest.fixture
def new_producer(connect: Callable[..., Connection], transactional_id: str) -> Callable[..., TransactionalProducer]:
    """A producer of the test's transactional id, not initialised yet; `new_producer(other_id)` of another."""

    def make(given_id: str = transactional_id, *, spoken: int = CLASSIC, cluster: Any = None) -> TransactionalProducer:
        connection = connect(cluster)
        request = FindCoordinatorRequest(key_type=1, key=given_id)
        found = retried(lambda: connection.ask(request, 3))
        assert found.error_code == 0, found
        return TransactionalProducer(connection, given_id, spoken)

    return make


@pytest.fixture
def producer(new_producer: Callable[..., TransactionalProducer], protocol: int) -> TransactionalProducer:
    """An initialised producer, of either protocol."""
    each = new_producer(spoken=protocol)
    each.init()
    return each


@pytest.fixture
def ready_topic(make_topic: Callable[..., str], connection: Connection) -> Callable[..., str]:
    """Create a topic and wait until the broker serves every partition of it."""

    def make(partitions: int = 1) -> str:
        name = make_topic(partitions=partitions)
        for partition in range(partitions):

            def served(partition: int = partition) -> bool:
                return bool(fetch_partition(connection, name, 0, partition=partition).error_code == 0)

            wait_until(served)
        return name

    return make


@pytest.fixture
def topic(ready_topic: Callable[..., str]) -> str:
    return ready_topic()
