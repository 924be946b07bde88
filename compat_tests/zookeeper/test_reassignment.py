"""Four processes on a real ZooKeeper: partitions that are written move from one to another while the controller is
killed, and Kafka's own tools see to it that all is where it should be."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compat_tests.zookeeper.conftest import SESSION_TIMEOUT_MS, KafkaClasses
from compat_tests.zookeeper.test_cluster import PARTITIONS, PATIENCE_MS, Writer, read_all
from compat_tests.zookeeper.waiting import eventually
from tools.barnabas_process import BarnabasProcess
from tools.kafka_runtime import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.java, pytest.mark.slow]

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


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
        yield found


class Reassign:
    """Runs kafka-reassign-partitions on topic t."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers = servers
        self._path = folder / "plan.json"

    def plan(self, *targets: list[int]) -> None:
        partitions = [{"topic": "t", "partition": index, "replicas": each} for index, each in enumerate(targets)]
        self._path.write_text(json.dumps({"version": 1, "partitions": partitions}))

    def __call__(self, action: str, version: str = ORACLE_VERSION) -> str:
        options = ["--bootstrap-server", self._servers, action]
        done = kafka_runtime(version).tool(TOOL, [*options, "--reassignment-json-file", str(self._path)])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_partitions_move_while_they_are_written_and_the_controller_dies(
    brokers: dict[int, BarnabasProcess], tmp_path: Path
) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    servers = ",".join(broker.bootstrap_servers for broker in brokers.values())
    admin = AdminClient({"bootstrap.servers": servers, "socket.timeout.ms": PATIENCE_MS})
    assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    admin.create_topics([NewTopic("t", PARTITIONS, replica_assignment=assignment)])["t"].result(30)
    reassign = Reassign(servers, tmp_path)

    def are_on(*targets: list[int]) -> bool:
        try:
            found = admin.list_topics("t", timeout=3).topics["t"].partitions
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
        assert "Successfully started partition reassignments" in reassign("--execute")
        controller = admin.list_topics(timeout=10).controller_id
        brokers[controller].kill()
        eventually(lambda: are_on(*targets))
        brokers[controller].start()
        writer.goes_on()
        assert all(f"Reassignment of partition t-{index} is completed." in reassign("--verify") for index in range(3))
        targets = ([1, 2, 4], [2, 4, 1], [4, 1, 2])
        reassign.plan(*targets)
        assert "Successfully started" in reassign("--execute", ZOOKEEPER_ERA_VERSION)
        eventually(lambda: are_on(*targets))
        assert "t-2 is completed." in reassign("--verify", ZOOKEEPER_ERA_VERSION)
        writer.goes_on()
    assert writer.failures == []
    found = read_all(servers)
    assert set(found) >= writer.acknowledged, "lost"
    assert len(found) == len(set(found)), "written twice"


def test_kafkas_own_code_asks_by_the_znode(
    zookeeper: ZooKeeperServer, kafka: KafkaClasses, brokers: dict[int, BarnabasProcess], chroot: str
) -> None:
    """`KafkaZkClient.createPartitionReassignment` of 3.9.1."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": brokers[1].bootstrap_servers})
    admin.create_topics([NewTopic("u", 1, replica_assignment=[[1, 2]])])["u"].result(30)
    classes = KafkaClasses(kafka.jvm, zookeeper.address + chroot)
    try:
        targets = classes.java.java.util.HashMap()
        targets.put(classes.partition("u", 0), classes.seq(*map(classes.java.java.lang.Integer.valueOf, (3, 4))))
        classes.zk.createPartitionReassignment(classes.java.scala.jdk.javaapi.CollectionConverters.asScala(targets))
        eventually(lambda: not classes.zk.reassignPartitionsInProgress())
        eventually(lambda: admin.list_topics("u", timeout=10).topics["u"].partitions[0].replicas == [3, 4])
    finally:
        classes.zk.close()
