"""A producer that retries what it got no answer for, while the broker is killed: every decision it made holds."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from compat_tests.conftest import create_topic
from compat_tests.semantics.client import Connection, ConnectionClosed
from compat_tests.transactions.producer import WHILE_STARTING, TransactionalProducer, committed_values, retried
from tools.waiting import wait_until

KILLS = 3
PARTITIONS = 3


class Retrying:
    """A producer's steps, each repeated over a new connection until it is answered."""

    def __init__(self, cluster: Any, transactional_id: str, protocol: int) -> None:
        self._cluster = cluster
        self.producer = TransactionalProducer(self._connect(), transactional_id, protocol)
        self.producer.transient = WHILE_STARTING
        self.step(self.init)

    def _connect(self) -> Connection:
        def connected() -> Connection | None:
            with suppress(OSError):
                return Connection(self._cluster.bootstrap_servers)
            return None

        found = wait_until(connected, "the broker comes back")
        assert found is not None
        return found

    def init(self) -> None:
        request = FindCoordinatorRequest(key_type=1, key=self.producer.transactional_id)
        retried(lambda: self.producer.connection.ask(request, 3))
        self.producer.init()

    def step(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except (OSError, ConnectionClosed):
                self.producer.connection.close()
                self.producer.connection = self._connect()


def test_decisions_hold_while_the_broker_is_killed(
    start_cluster: Callable[..., Any], transactional_id: str, protocol: int
) -> None:
    cluster = start_cluster()
    create_topic(cluster.bootstrap_servers, "t", PARTITIONS, None)
    random_numbers = random.Random(protocol)
    is_over = threading.Event()

    def kill_now_and_then() -> None:
        for kill in range(KILLS):
            time.sleep(random_numbers.uniform(0.3, 0.8))  # Real time: a kill comes at any moment of a transaction
            wait_until(lambda kill=kill: number > kill + 1 or is_over.is_set())  # type: ignore[misc]
            cluster.kill()
            cluster.start()
        is_over.set()

    client = Retrying(cluster, transactional_id, protocol)
    expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    number = 0
    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        while not is_over.is_set():
            number += 1
            is_commit = number % 3 != 0
            for partition in range(PARTITIONS):
                values = [f"{number}-{partition}-{each}".encode() for each in range(3)]
                client.step(lambda p=partition, v=values: client.producer.send("t", *v, partition=p))
                if is_commit:
                    expected[partition] += values
            client.step(client.producer.commit if is_commit else client.producer.abort)
    finally:
        is_over.set()
        killer.join()
        client.producer.connection.close()
    assert number > KILLS
    with Connection(cluster.bootstrap_servers) as connection:
        for partition in range(PARTITIONS):
            wait_until(
                lambda partition=partition: committed_values(connection, "t", partition) == expected[partition],  # type: ignore[misc]
                f"partition {partition} as it was committed",
            )
