"""Three processes on a real ZooKeeper: what is acknowledged by all in-sync replicas outlives each of them, and all."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from compat_tests.zookeeper.conftest import SESSION_TIMEOUT_MS
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess
from tools.processes.settled import wait_settled
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]

CHROOT = "/clusters/three"
IDS = (1, 2, 3)
PARTITIONS = 3
PATIENCE_MS = 3000
"""How long clients wait for an answer of a broker that stands still."""


@pytest.fixture
def brokers(zookeeper: ZooKeeperServer) -> Iterator[dict[int, BarnabasProcess]]:
    with ExitStack() as running:
        found = {}
        for node_id in IDS:
            settings = {
                "zookeeper.connect": zookeeper.address + CHROOT,
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "node.id": str(node_id),
                "min.insync.replicas": "2",
                "offsets.topic.num.partitions": "2",
            }
            found[node_id] = running.enter_context(BarnabasProcess(settings))
        wait_heard(found)
        yield found


def wait_heard(brokers: Mapping[int, BarnabasProcess], *topics: str) -> None:
    """Return when the brokers that run have heard what was decided, and are in sync."""
    wait_settled([broker.bootstrap_servers for broker in brokers.values() if broker.is_running], topics)


class Writer:
    """A thread that produces numbers with acks=all as long as it runs. `acknowledged` are those that it was told to be
    written, `failures` what it was told instead.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.acknowledged: set[int] = set()
        self.failures: list[Any] = []
        self._servers = bootstrap_servers
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "socket.timeout.ms": PATIENCE_MS,
            }
        )
        number = 0
        while not self._ends.is_set():
            number += 1
            producer.produce(
                "t",
                str(number),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _message, number=number: self._told(number, error),
            )
            producer.poll(0.002)
        assert producer.flush(PATIENCE_S) == 0

    def _told(self, number: int, error: Any) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failures.append(error)

    def goes_on(self) -> None:
        """Wait until each partition has taken a few more."""
        wanted = {partition: self._count(partition) + 20 for partition in range(PARTITIONS)}
        wait_until(lambda: all(self._count(partition) >= count for partition, count in wanted.items()))

    def _count(self, partition: int) -> int:
        return sum(number % PARTITIONS == partition for number in list(self.acknowledged))


def read_all(bootstrap_servers: str) -> list[int]:
    """Every number of the topic, as often as it is there."""
    from confluent_kafka import Consumer, KafkaError

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe(["t"])
    found: list[int] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(at_end) < PARTITIONS:
        assert time.monotonic() < deadline, f"read {len(found)} records, and the ends of {at_end}"
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(int(message.value() or b""))
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition() or 0)
    consumer.close()
    return found


def test_acknowledged_records_outlive_kills_and_expired_sessions(brokers: dict[int, BarnabasProcess]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": servers, "socket.timeout.ms": PATIENCE_MS})
    admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE_S)
    wait_heard(brokers, "t")

    def topic() -> Any:
        return admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions

    def leader() -> BarnabasProcess:
        return brokers[topic()[0].leader]

    with Writer(servers) as writer:
        writer.goes_on()
        for _ in range(2):
            victim = leader()
            victim.kill()
            victim.start()
            writer.goes_on()
            wait_heard(brokers)
        victim = leader()
        victim.stop()
        writer.goes_on()
        victim.start()
        wait_heard(brokers)

        dead = topic()[0].leader
        victim = brokers[dead]
        children.pause(victim.pid)
        try:
            wait_until(lambda: topic()[0].leader not in (-1, dead))
            writer.goes_on()
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        wait_heard(brokers)
        assert "has expired" in victim.log_text()

        for broker in brokers.values():
            broker.kill()
        starts = [threading.Thread(target=broker.start) for broker in brokers.values()]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        writer.goes_on()
        wait_heard(brokers)
    assert writer.failures == []
    found = read_all(servers)
    assert set(found) >= writer.acknowledged, "lost"
    assert len(found) == len(set(found)), "written twice"
