"""A thousand partitions, and thousands of connections that do nothing."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.messages import api_versions, metadata
from compat_tests.conftest import KAFKA
from compat_tests.semantics.client import Connection, wait_until
from tests.support.reference_loop import assert_within, timed, work_s
from tools.waiting import PATIENCE_S

TOPICS, PARTITIONS_EACH = 10, 100
CONNECTIONS = 2000
KIB_PER_CONNECTION = 25


@pytest.mark.slow
def test_a_thousand_partitions(start_cluster: Any, note: Callable[[str], None]) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    own = start_cluster()
    servers = {"bootstrap.servers": own.bootstrap_servers}
    topics = [f"wide-{number}-{secrets.token_hex(3)}" for number in range(TOPICS)]
    admin = AdminClient(servers)
    admin.list_topics(timeout=PATIENCE_S)

    began = time.monotonic()
    new = [NewTopic(topic, num_partitions=PARTITIONS_EACH, replication_factor=1) for topic in topics]
    for future in admin.create_topics(new, operation_timeout=30).values():
        future.result(PATIENCE_S)
    wait_until(lambda: _partition_counts(admin, topics) == [PARTITIONS_EACH] * TOPICS)
    created = time.monotonic() - began

    began = time.monotonic()
    everywhere = [(topic, partition) for topic in topics for partition in range(PARTITIONS_EACH)]
    producer = Producer({**servers, "linger.ms": 5})
    for topic, partition in everywhere:
        producer.produce(topic, b"%d" % partition, partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    written = time.monotonic() - began

    began = time.monotonic()
    consumer = Consumer({**servers, "group.id": "wide", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in everywhere])
    seen: set[tuple[str, int]] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < len(everywhere) and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None, message.error()
            assert message.value() == b"%d" % message.partition()
            seen.add((message.topic(), message.partition()))
    consumer.close()
    assert seen == set(everywhere)
    read = time.monotonic() - began

    own.kill()  # nobody needs a thousand logs closed one by one
    what = f"{TOPICS * PARTITIONS_EACH} partitions in {TOPICS} topics"
    note(f"{what}: created in {created:.1f} s, written in {written:.1f} s, read in {read:.1f} s")


@pytest.mark.full
@pytest.mark.alone
def test_a_thousand_partitions_are_created_in_seconds(start_cluster: Any) -> None:
    """Some 3 s."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    own = start_cluster()
    admin = AdminClient({"bootstrap.servers": own.bootstrap_servers})

    def create() -> None:
        topics = [f"wide-{number}-{secrets.token_hex(3)}" for number in range(TOPICS)]
        new = [NewTopic(topic, num_partitions=PARTITIONS_EACH, replication_factor=1) for topic in topics]
        for future in admin.create_topics(new, operation_timeout=30).values():
            future.result(PATIENCE_S)
        wait_until(lambda: _partition_counts(admin, topics) == [PARTITIONS_EACH] * TOPICS)

    admin.list_topics(timeout=PATIENCE_S)
    assert_within(700, work_s, timed(create), "a thousand partitions")
    own.kill()


def _partition_counts(admin: Any, topics: list[str]) -> list[int]:
    """How many partitions of each topic the broker's metadata knows."""
    known = admin.list_topics(timeout=PATIENCE_S).topics
    return [len(known[topic].partitions) if topic in known else 0 for topic in topics]


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.slow
def test_memory_of_idle_connections(start_cluster: Any, note: Callable[[str], None]) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("resident memory is read from /proc, which this system lacks")
    own = start_cluster()

    def connect() -> Connection:
        """A connection that has said what every client says at first."""
        connection = Connection(own.bootstrap_servers)
        connection.ask(api_versions.ApiVersionsRequest(), 3)
        connection.ask(metadata.MetadataRequest(topics=None), 9)
        return connection

    connections = [connect() for _ in range(20)]  # what is loaded at first use is no cost of a connection
    try:
        before = resident_kib(own.pid)
        connections += [connect() for _ in range(CONNECTIONS)]
        each = (resident_kib(own.pid) - before) / CONNECTIONS
        note(f"{each:.1f} KiB of resident memory for each of {CONNECTIONS} idle connections")
        for connection in connections[::100]:
            assert connection.ask(metadata.MetadataRequest(topics=None), 9).brokers
    finally:
        for connection in connections:
            connection.close()
    if own.target != KAFKA:  # a Java heap that was touched says nothing about connections
        assert each <= KIB_PER_CONNECTION
