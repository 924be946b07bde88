"""Administrators' tools where each broker is a process of its own, beside a `barnabas zookeeper`: configurations that
all brokers apply, a broker that is killed, and leaders that go back to it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from compat_tests.java_tools.kafka_tools import Tools
from compat_tests.semantics.client import wait_until
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.processes.settled import wait_settled
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

TOPIC = "letters"
NODE_IDS = (1, 2, 3)


class Processes:
    """Three brokers, each with replicas of all partitions of a topic; broker 1 leads partition 0, and so on."""

    def __init__(self, zookeeper: str) -> None:
        common = {
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": "6000",
            "auto.leader.rebalance.enable": "false",
            "auto.create.topics.enable": "false",
        }
        self.brokers = {each: BarnabasProcess({**common, "node.id": str(each)}) for each in NODE_IDS}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(each.bootstrap_servers for each in self.brokers.values())

    def wait_settled(self, *topics: str) -> None:
        """Return when the brokers that run have heard what was decided, and are in sync."""
        wait_settled([each.bootstrap_servers for each in self.brokers.values() if each.is_running], topics)

    def known_to(self, broker: int) -> dict[int, tuple[int, set[int]]]:
        """The leader and the in-sync replicas of each partition, as one broker knows them."""
        admin = AdminClient({"bootstrap.servers": self.brokers[broker].bootstrap_servers, "log_level": 0})
        found = admin.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions
        return {index: (each.leader, set(each.isrs)) for index, each in found.items()}

    def all_know(self, *leaders: int, in_sync: tuple[int, ...]) -> bool:
        expected = {index: (leader, {*in_sync}) for index, leader in enumerate(leaders)}
        return all(self.known_to(each) == expected for each in in_sync)

    def takes(self, partition: int, size: int) -> bool:
        """Whether the leader of a partition takes a record of this size."""
        found: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "acks": "all", "log_level": 0})
        producer.produce(TOPIC, b"x" * size, partition=partition, on_delivery=lambda error, _: found.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert found[0] is None or found[0].code() == KafkaError.MSG_SIZE_TOO_LARGE, found[0]
        return found[0] is None


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.ExitStack() as stack:
        found = Processes(stack.enter_context(BarnabasZooKeeper()).address)
        for each in found.brokers.values():
            stack.enter_context(each)
        found.wait_settled()
        yield found


def test_configs_elections_and_what_lacks_replicas(tools_for: Any, processes: Processes) -> None:
    admin: Tools = tools_for(processes)
    admin.run("kafka-topics", "--create", "--topic", TOPIC, "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    processes.wait_settled(TOPIC)
    assert processes.all_know(1, 2, 3, in_sync=NODE_IDS)

    def alter(*options: str, takes: bool) -> None:
        """Change configs; returns when every broker goes by them."""
        admin.run("kafka-configs", "--alter", *options)
        wait_until(lambda: all(processes.takes(each, 2_000) == takes for each in range(3)))

    of_topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    of_brokers = ("--entity-type", "brokers", "--entity-default")
    for whom, config in ((of_topic, "max.message.bytes"), (of_brokers, "message.max.bytes")):
        alter(*whom, "--add-config", f"{config}=1500", takes=False)
        alter(*whom, "--delete-config", config, takes=True)

    processes.brokers[2].kill()
    processes.wait_settled()
    assert processes.all_know(1, 3, 3, in_sync=(1, 3))
    lacking = admin.run("kafka-topics", "--describe", "--under-replicated-partitions").out
    for index, leader in enumerate((1, 3, 3)):
        assert f"Topic: {TOPIC}\tPartition: {index}\tLeader: {leader}\t" in lacking
    processes.brokers[2].start()
    processes.wait_settled()
    assert processes.all_know(1, 3, 3, in_sync=NODE_IDS)
    assert TOPIC not in admin.run("kafka-topics", "--describe", "--under-replicated-partitions").out

    elected = admin.run("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    assert f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-1" in elected.out
    processes.wait_settled()
    assert processes.all_know(1, 2, 3, in_sync=NODE_IDS)
