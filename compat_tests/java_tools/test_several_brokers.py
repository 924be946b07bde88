"""Administrators' tools in a cluster of several brokers: kafka-leader-election, kafka-reassign-partitions, kafka-topics
where replicas are missing, kafka-configs of one broker and of all."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from barnabas.broker.server import Broker as Server
from barnabas.testing.brokers.cluster import Cluster
from compat_tests.java_tools.kafka_tools import Tools
from compat_tests.java_tools.test_configs import shown
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def several() -> Iterator[Cluster]:
    """Brokers 0 to 3; 0 is the controller, and no test stops it. Nobody elects preferred leaders unasked."""
    with Cluster(brokers=4, auto_leader_rebalance_enable=False) as cluster:
        yield cluster


@pytest.fixture
def admin(tools_for: Any, several: Cluster) -> Tools:
    tools: Tools = tools_for(several)
    return tools


@pytest.fixture
def assigned(admin: Tools, several: Cluster, topic_name: str) -> Any:
    """Make a topic whose partitions are on these brokers each; returns its name."""

    def make(*assignments: list[int]) -> str:
        by_hand = ",".join(":".join(map(str, replicas)) for replicas in assignments)
        admin.run("kafka-topics", "--create", "--topic", topic_name, "--replica-assignment", by_hand)
        several.wait_heard()
        return topic_name

    return make


@pytest.fixture
def produce_to(several: Cluster) -> Any:
    """Produce values to partition 0 of a topic."""

    def send(topic: str, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": several.bootstrap_servers, "acks": 1})
        for value in values:
            producer.produce(topic, value, partition=0)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    return send


def comes_to_be(look: Callable[[], Any], expected: Any) -> bool:
    """Brokers hear of a change of configs, as in Kafka, after the tool has its answer."""
    return wait_until(lambda: bool(look() == expected), lambda: f"{expected!r} instead of {look()!r}")


# --- kafka-leader-election


def test_preferred_leaders_are_elected(admin: Tools, several: Cluster, assigned: Any, tmp_path: Path) -> None:
    topic = assigned([2, 3], [3, 2])
    several.brokers[2].stop()
    assert several.leader(topic) == 3
    one = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    refused = admin.run("kafka-leader-election", *one, status=1)
    assert "PreferredLeaderNotAvailableException" in refused.out + refused.err
    several.brokers[2].start()
    assert several.leader(topic) == 3

    elected = admin.run("kafka-leader-election", *one)

    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in elected.out
    several.wait_heard()
    assert several.leader(topic) == 2
    again = admin.run("kafka-leader-election", *one)
    assert f"Valid replica already elected for partitions {topic}-0" in again.out
    listed = tmp_path / "partitions.json"
    listed.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 1}, {"topic": topic, "partition": 9}]}))
    unknown = admin.run("kafka-leader-election", *one[:2], "--path-to-json-file", listed, status=1)
    assert "UnknownTopicOrPartitionException" in unknown.out + unknown.err
    assert f"Valid replica already elected for partitions {topic}-1" in unknown.out
    admin.run("kafka-leader-election", *one[:2], "--all-topic-partitions")


def test_a_leader_from_outside_the_isr_is_elected(admin: Tools, several: Cluster, assigned: Any) -> None:
    topic = assigned([1, 3])
    several.brokers[3].kill()
    several.brokers[1].kill()
    several.brokers[3].start()
    one = ("--topic", topic, "--partition", "0")
    refused = admin.run("kafka-leader-election", "--election-type", "preferred", *one, status=1)
    assert "PreferredLeaderNotAvailableException" in refused.out + refused.err

    elected = admin.run("kafka-leader-election", "--election-type", "unclean", *one)

    assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in elected.out
    several.wait_heard()
    assert several.leader(topic) == 3
    several.brokers[1].start()
    assert several.leader(topic) == 3
    assert "Valid replica" in admin.run("kafka-leader-election", "--election-type", "unclean", *one).out


# --- kafka-reassign-partitions


class Writer:
    """A thread that writes numbers to both partitions of a topic, with acks=all, as long as it runs; `acknowledged` are
    those that it was told to be written."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.acknowledged: set[int] = set()
        self.failures: list[Any] = []
        self._servers, self._topic = bootstrap_servers, topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )
        number = 0
        while not self._ends.is_set():
            number += 1

            def told(error: Any, _message: Any, number: int = number) -> None:
                if error is None:
                    self.acknowledged.add(number)
                else:
                    self.failures.append(error)

            producer.produce(self._topic, b"%d" % number, partition=number % 2, on_delivery=told)
            producer.poll(0.002)
        assert producer.flush(PATIENCE_S) == 0


def read_all(bootstrap_servers: str, topic: str) -> list[int]:
    """The numbers in both partitions, up to their ends."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    found: list[int] = []
    ends = 0
    while ends < 2:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"{len(found)} records, and no end"
        if message.error() is None:
            found.append(int(message.value() or b""))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends += 1
    consumer.close()
    return found


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """Write the file that says where partitions of a topic shall be; returns its path."""

    def write(topic: str, *replicas: list[int]) -> Path:
        partitions = [
            {"topic": topic, "partition": partition, "replicas": each, "log_dirs": ["any"] * len(each)}
            for partition, each in enumerate(replicas)
        ]
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return path

    return write


def reassign(admin: Tools, action: str, path: Path, *options: object, status: int = 0) -> str:
    done = admin.run("kafka-reassign-partitions", action, "--reassignment-json-file", path, *options, status=status)
    return done.out + done.err


def replicas(cluster: Cluster, topic: str) -> list[list[int]]:
    """Of each partition, as the controller's broker tells clients."""
    return replicas_at(cluster.brokers[cluster.controller()].server, topic)


def replicas_at(server: Server, topic: str) -> list[list[int]]:
    told = server.metadata.topic(topic)
    assert told is not None
    return [list(told.partitions[index].replicas) for index in sorted(told.partitions)]


def wait_replicas(cluster: Cluster, topic: str, *expected: list[int]) -> None:
    """A reassignment is answered when it is decided, as by Kafka; brokers are told then."""
    server = cluster.brokers[cluster.controller()].server
    wait_until(lambda: replicas_at(server, topic) == list(expected))


def wait_reassigned(admin: Tools, cluster: Cluster, topic: str, path: Path) -> None:
    """Ask until the tool says that all is done. It asks the controller what is under way, and any broker where the
    replicas are: one that was not told yet still names those of before."""
    done = [
        f"Reassignment of partition {topic}-{index} is completed." for index in range(len(replicas(cluster, topic)))
    ]

    def is_done() -> bool:
        said = reassign(admin, "--verify", path)
        return all(line in said for line in done)

    wait_until(is_done, lambda: reassign(admin, "--verify", path))
    cluster.wait_heard()


def test_partitions_move_while_they_are_written(admin: Tools, several: Cluster, assigned: Any, plan: Any) -> None:
    topic = assigned([1, 2], [2, 1])
    with Writer(several.bootstrap_servers, topic) as writer:
        for targets in ([3, 0], [0, 3]), ([2, 3], [3]), ([1, 2, 3], [2, 3, 1]):
            path = plan(topic, *targets)
            assert "Successfully started partition reassignments" in reassign(admin, "--execute", path)
            wait_reassigned(admin, several, topic, path)
            assert replicas(several, topic) == list(targets)
            before = len(writer.acknowledged)
            wait_until(lambda before=before: len(writer.acknowledged) > before)
    assert "No partition reassignments found." in admin.run("kafka-reassign-partitions", "--list").out
    assert writer.failures == []
    found = read_all(several.bootstrap_servers, topic)
    assert set(found) >= writer.acknowledged, "lost"
    assert len(found) == len(set(found)), "written twice"
    for broker in several.brokers:
        hosted = {index for index in (0, 1) if broker.server.replicas.partition(topic, index) is not None}
        on_disk = {
            int(path.name.rpartition("-")[2]) for path in (several.data_dir / str(broker.number)).glob(f"{topic}-[01]")
        }
        assert hosted == on_disk == (set() if broker.number == 0 else {0, 1})


def test_a_reassignment_is_listed_and_cancelled(admin: Tools, several: Cluster, assigned: Any, plan: Any) -> None:
    topic = assigned([1, 2])
    several.cut(1, 3)  # so that 3 gets nothing
    try:
        path = plan(topic, [3, 2])
        reassign(admin, "--execute", path)
        listed = admin.run("kafka-reassign-partitions", "--list").out
        assert f"{topic}-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
        assert "is still in progress" in reassign(admin, "--verify", path)
        assert "Cannot execute because there is an existing partition assignment" in reassign(
            admin, "--execute", plan(topic, [0, 2]), status=1
        )
        assert "Successfully started" in reassign(admin, "--execute", plan(topic, [3, 1]), "--additional")
        wait_replicas(several, topic, [3, 1, 2])
        cancelled = reassign(admin, "--cancel", plan(topic, [3, 1]))
        assert f"Successfully cancelled partition reassignment for: {topic}-0" in cancelled
    finally:
        several.heal()
    several.wait_in_sync()
    assert sorted(replicas(several, topic)[0]) == [1, 2]
    assert "None of the specified partition reassignments are active." in reassign(admin, "--cancel", path)
    refused = reassign(admin, "--execute", plan(topic, [1, 77]), status=1)
    assert "InvalidReplicaAssignment" in refused or "Unknown broker id 77" in refused


THROTTLE = 2_000_000
MEASURED_S = 10
WINDOWS_MAX = 3


def size_of(cluster: Cluster, broker: int, topic: str) -> int:
    hosted = cluster.brokers[broker].server.replicas.partition(topic, 0)
    return 0 if hosted is None else hosted.log.size_in_bytes


def rate_to(cluster: Cluster, broker: int, topic: str) -> float:
    """How many bytes a second come to a replica, in a span of time."""
    begun, before = time.monotonic(), size_of(cluster, broker, topic)
    time.sleep(MEASURED_S)  # Real time: what is measured is a span of it
    return (size_of(cluster, broker, topic) - before) / (time.monotonic() - begun)


def check_rate(several: Cluster, topic: str) -> None:
    """Within 10 %. A machine that is busy makes a window slower, and nothing makes up for that: the next one counts
    then. None is faster."""
    rates: list[float] = []
    while not any(rate >= 0.9 * THROTTLE for rate in rates) and len(rates) < WINDOWS_MAX:
        rates.append(rate_to(several, 2, topic))
    assert 0.9 * THROTTLE <= max(rates) <= 1.1 * THROTTLE, rates


@pytest.mark.parametrize("is_measured", [False, pytest.param(True, marks=[pytest.mark.full, pytest.mark.alone])])
@pytest.mark.parametrize("kind", ["both", "leader", pytest.param("follower", marks=pytest.mark.full)])
def test_a_reassignment_is_throttled(
    admin: Tools, several: Cluster, assigned: Any, plan: Any, produce_to: Any, kind: str, is_measured: bool
) -> None:
    topic = assigned([1])
    produce_to(topic, [b"x" * 100_000] * (300 + WINDOWS_MAX * MEASURED_S * THROTTLE // 100_000))
    path = plan(topic, [2])
    said = reassign(admin, "--execute", path, "--throttle", THROTTLE)
    assert f"The inter-broker throttle limit was set to {THROTTLE} B/s" in said
    if kind != "both":
        other = {"leader": "follower", "follower": "leader"}[kind]
        for broker in (1, 2):
            change = ("--alter", "--entity-type", "brokers", "--entity-name", broker)
            admin.run("kafka-configs", *change, "--delete-config", f"{other}.replication.throttled.rate")
    wait_until(lambda: size_of(several, 2, topic) > 1_000_000)

    if is_measured:
        check_rate(several, topic)
    assert "is still in progress" in reassign(admin, "--verify", path)
    raised = reassign(admin, "--execute", path, "--additional", "--throttle", 1_000_000_000)
    assert "The inter-broker throttle limit was set to 1000000000 B/s" in raised
    wait_reassigned(admin, several, topic, path)

    def is_throttled(kind: str, name: object, config: str) -> bool:
        return config in admin.run("kafka-configs", "--describe", "--entity-type", kind, "--entity-name", name).out

    assert comes_to_be(lambda: is_throttled("brokers", 2, "throttled.rate"), False)
    assert comes_to_be(lambda: is_throttled("topics", topic, "throttled.replicas"), False)


# --- kafka-topics


TROUBLES = ("under-replicated", "unavailable", "under-min-isr", "at-min-isr")


def in_trouble(admin: Tools, names: list[str]) -> dict[str, set[str]]:
    """The topics among these that `kafka-topics` names for each trouble."""
    found = {}
    for trouble in TROUBLES:
        said = admin.run("kafka-topics", "--describe", f"--{trouble}-partitions").out
        found[trouble] = {name for name in names if f"Topic: {name}\t" in said}
    return found


def test_partitions_that_lack_replicas_are_named(admin: Tools, several: Cluster, topic_name: str) -> None:
    """With `min.insync.replicas` 2, and broker 3 stopped."""
    assigned_to = {"of three": "1:2:3", "of two": "3:1", "without it": "2:0", "alone": "3", "on one": "0"}
    names = {what: f"{topic_name}-{what.replace(' ', '-')}" for what in assigned_to}
    for what, replicas in assigned_to.items():
        admin.run("kafka-topics", "--create", "--topic", names[what], "--replica-assignment", replicas)
    listed = list(names.values())
    several.wait_heard()
    whole = {
        "under-replicated": set(),
        "unavailable": set(),
        "under-min-isr": {names["alone"], names["on one"]},
        "at-min-isr": {names["of two"], names["without it"]},
    }
    assert in_trouble(admin, listed) == whole

    several.brokers[3].stop()
    assert several.leader(names["of two"]) == 1
    assert in_trouble(admin, listed) == {
        "under-replicated": {names["of three"], names["of two"]},
        "unavailable": {names["alone"]},
        "under-min-isr": {names["of two"], names["alone"], names["on one"]},
        "at-min-isr": {names["of three"], names["without it"]},
    }
    described = admin.run("kafka-topics", "--describe", "--under-replicated-partitions").out
    [line] = [line for line in described.splitlines() if f"Topic: {names['of two']}\t" in line]
    assert "\tLeader: 1\tReplicas: 3,1\tIsr: 1" in line

    several.brokers[3].start()
    assert in_trouble(admin, listed) == whole
    for name in listed:
        admin.run("kafka-topics", "--delete", "--topic", name)


# --- kafka-configs


def test_configs_of_one_broker_and_of_all(admin: Tools, several: Cluster, assigned: Any) -> None:
    topic = assigned([1], [2])

    def taken() -> list[bool]:
        """Whether each partition's leader takes a record of 2,000 bytes."""
        found: list[bool] = []
        producer = Producer({"bootstrap.servers": several.bootstrap_servers, "acks": 1})
        for partition in (0, 1):
            producer.produce(
                topic, b"x" * 2_000, partition=partition, on_delivery=lambda error, _: found.append(error is None)
            )
            assert producer.flush(PATIENCE_S) == 0
        return found

    def alter(whom: tuple[object, ...], change: str, *config: object) -> None:
        admin.run("kafka-configs", "--alter", "--entity-type", "brokers", *whom, change, *config)

    def of_broker(broker: int, *options: str) -> str:
        done = admin.run("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", broker, *options)
        return next((line for line in done.lines if "message.max.bytes=" in line), "")

    def default_of_brokers() -> str:
        described = admin.run("kafka-configs", "--describe", "--entity-type", "brokers", *everybody)
        return shown(described).get("message.max.bytes", "")

    one, everybody = ("--entity-name", 1), ("--entity-default",)
    assert comes_to_be(taken, [True, True])
    alter(one, "--add-config", "message.max.bytes=1500")
    try:
        assert comes_to_be(taken, [False, True])
        alter(everybody, "--add-config", "message.max.bytes=1000")
        assert comes_to_be(taken, [False, False])
        levels = "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1000, DEFAULT_CONFIG:message.max.bytes=1048588}"
        own = f"{{DYNAMIC_BROKER_CONFIG:message.max.bytes=1500, {levels}"
        inherited = f"message.max.bytes=1000 sensitive=false synonyms={{{levels}"
        # Broker 1 refused such records before the default was changed: that it does tells nothing of it.
        own_and_default = f"message.max.bytes=1500 sensitive=false synonyms={own}"
        assert comes_to_be(lambda: of_broker(1).strip(), own_and_default)
        assert comes_to_be(lambda: of_broker(2, "--all").strip(), inherited)
        assert comes_to_be(default_of_brokers, "1000")
        alter(one, "--delete-config", "message.max.bytes")
        assert comes_to_be(lambda: of_broker(1, "--all").strip(), inherited)
    finally:
        alter(everybody, "--delete-config", "message.max.bytes")
    assert comes_to_be(taken, [True, True])
    assert comes_to_be(lambda: (of_broker(1), of_broker(2)), ("", ""))
