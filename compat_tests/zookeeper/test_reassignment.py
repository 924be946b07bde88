"""Four processes on a real ZooKeeper: partitions that are written move from one to another while the controller is
killed, and Kafka's own tools see to it that all is where it should be."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.reassignments import reassignments, unthrottle
from compat_tests.zookeeper.conftest import SESSION_TIMEOUT_MS, KafkaClasses
from compat_tests.zookeeper.test_cluster import PARTITIONS, PATIENCE_MS, Writer, read_all, wait_heard
from tools.foreign.kafka import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
T = TypeVar("T")

BALLAST_RECORDS = 100
BALLAST_BYTES = 10_000
"""Of each of them, and so many are in each partition."""
THROTTLE = 10_000
"""With which a partition is under way for a hundred seconds, and more while it is written."""


@pytest.fixture
def chroot(request: pytest.FixtureRequest) -> str:
    """A cluster for each test: brokers with empty directories are no new ones where topics are theirs already."""
    return f"/clusters/{request.node.originalname}"


@pytest.fixture
def brokers(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[dict[int, BarnabasProcess]]:
    with ExitStack() as running:
        found = {}
        for node_id in (1, 2, 3, 4):
            settings = {
                "zookeeper.connect": zookeeper.address + chroot,
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "node.id": str(node_id),
                "min.insync.replicas": "2",
                "offsets.topic.num.partitions": "2",
                "replica.fetch.max.bytes": "10000",
            }
            found[node_id] = running.enter_context(BarnabasProcess(settings))
        wait_heard(found)
        yield found


class Reassign:
    """Runs kafka-reassign-partitions on topic t."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers = servers
        self._path = folder / "plan.json"

    def plan(self, *targets: list[int]) -> None:
        partitions = [{"topic": "t", "partition": index, "replicas": each} for index, each in enumerate(targets)]
        self._path.write_text(json.dumps({"version": 1, "partitions": partitions}))

    def __call__(self, action: str, *more: str, version: str = ORACLE_VERSION) -> str:
        options = ["--bootstrap-server", self._servers, action, *more]
        done = kafka_runtime(version).tool(TOOL, [*options, "--reassignment-json-file", str(self._path)])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def asked(servers: str, ask: Callable[[KafkaClient], Awaitable[T]]) -> T:
    async def work() -> T:
        async with KafkaClient(servers) as client:
            return await ask(client)

    return asyncio.run(work())


async def under_way(client: KafkaClient) -> tuple[int, set[tuple[str, int]]]:
    """The controller, and the partitions that it reports as being reassigned."""
    found = await reassignments(client)
    return client.controller_id, set(found)


def fill(servers: str) -> set[int]:
    """Put the ballast into topic t: numbers that nobody else writes, each in a batch of its own."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "acks": "all", "batch.num.messages": 1})
    numbers = range(-BALLAST_RECORDS * PARTITIONS, 0)
    for number in numbers:
        producer.produce("t", f"{number:<{BALLAST_BYTES}}", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return set(numbers)


@pytest.mark.full
def test_partitions_move_under_load_and_a_controllers_death(
    brokers: dict[int, BarnabasProcess], tmp_path: Path
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": servers, "socket.timeout.ms": PATIENCE_MS})
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    admin.create_topics([NewTopic("t", PARTITIONS, replica_assignment=assignment)])["t"].result(PATIENCE_S)
    wait_heard(brokers, "t")
    reassign = Reassign(servers, tmp_path)
    ballast = fill(servers)
    all_partitions = {("t", index) for index in range(PARTITIONS)}

    def are_on(*targets: list[int]) -> bool:
        try:
            found = admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions
        except KafkaException:  # the broker that was asked is the dead one
            return False
        return len(found) == PARTITIONS and all(
            found[index].replicas == each and sorted(found[index].isrs) == sorted(each)
            for index, each in enumerate(targets)
        )

    with Writer(servers) as writer:
        writer.goes_on()
        targets = ([4, 2, 3], [4, 3, 2], [4, 2, 3])
        reassign.plan(*targets)
        assert "Successfully started partition reassignments" in reassign("--execute", "--throttle", str(THROTTLE))
        writer.goes_on()
        assert asked(servers, under_way) == (1, all_partitions), "who was there first, and is to lose its replicas"
        brokers[1].kill()
        controller, found = asked(servers, under_way)
        assert controller != 1
        assert found == all_partitions
        assert asked(servers, unthrottle)
        wait_until(lambda: are_on(*targets))
        brokers[1].start()
        wait_heard(brokers)
        writer.goes_on()
        verified = reassign("--verify")
        assert all(f"Reassignment of partition t-{index} is completed." in verified for index in range(PARTITIONS))
        targets = ([1, 2, 4], [2, 4, 1], [4, 1, 2])
        reassign.plan(*targets)
        assert "Successfully started" in reassign("--execute", version=ZOOKEEPER_ERA_VERSION)
        wait_until(lambda: are_on(*targets))
        assert "t-2 is completed." in reassign("--verify", version=ZOOKEEPER_ERA_VERSION)
        writer.goes_on()
    assert writer.failures == []
    read = read_all(servers)
    assert set(read) >= writer.acknowledged | ballast, "lost"
    assert len(read) == len(set(read)), "written twice"


def test_kafkas_own_code_asks_by_the_znode(
    zookeeper: ZooKeeperServer, kafka: KafkaClasses, brokers: dict[int, BarnabasProcess], chroot: str
) -> None:
    """`KafkaZkClient.createPartitionReassignment` of 3.9.1."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": brokers[1].bootstrap_servers})
    admin.create_topics([NewTopic("u", 1, replica_assignment=[[1, 2]])])["u"].result(PATIENCE_S)
    classes = KafkaClasses(kafka.jvm, zookeeper.address + chroot)
    try:
        targets = classes.java.java.util.HashMap()
        targets.put(classes.partition("u", 0), classes.seq(*map(classes.java.java.lang.Integer.valueOf, (3, 4))))
        classes.zk.createPartitionReassignment(classes.java.scala.jdk.javaapi.CollectionConverters.asScala(targets))
        wait_until(lambda: not classes.zk.reassignPartitionsInProgress())
        wait_until(lambda: admin.list_topics("u", timeout=PATIENCE_S).topics["u"].partitions[0].replicas == [3, 4])
    finally:
        classes.zk.close()
