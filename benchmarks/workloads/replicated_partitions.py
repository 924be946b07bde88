"""Three brokers with thousands of partitions, three replicas of each: at rest, made, restarted, and led again when a
broker dies."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

from benchmarks.clients import TIMEOUT_S, acknowledgements_ms, create_topics
from benchmarks.clusters import Cluster
from benchmarks.leaders import Leaders, WithoutLeader
from benchmarks.model import Figure, Figures, Goal, Scale, Workload, at_most, no_more_than
from benchmarks.processes import CpuUse, cpu_seconds, put_aside, resident_mib
from benchmarks.spread import percentile
from benchmarks.system import System
from benchmarks.workloads.replicated import PARTITIONS, RECORD_BYTES, TOPIC_CONFIG

TOPIC_PARTITIONS = 1_000
REPLICAS = 3
REST_S = 30.0
"""The time for which idle brokers are watched, after as long a pause."""


def idle(system: System, scale: Scale) -> Figures:
    """W20: what partitions cost that nobody writes to or reads."""
    more, records, rest_s = scale.of(3_000, 300), scale.of(20_000, 1_000), scale.of(REST_S, 3.0)
    with _running(system.cluster()) as cluster, Leaders() as leaders:
        create_topics(cluster, PARTITIONS, "warm-up", "measured", replicas=REPLICAS, config=TOPIC_CONFIG)
        _latencies(cluster, "warm-up", records)
        few = _latencies(cluster, "measured", records)
        _create(cluster, leaders, more)
        time.sleep(rest_s)
        _latencies(cluster, "warm-up", records // 4)
        many = _latencies(cluster, "measured", records)
        yield Figure("p50 with 3 partitions", percentile(few, 50), "ms")
        yield Figure(f"p50 with {more:,} more", percentile(many, 50), "ms")
        yield Figure("p50 with more / with 3", percentile(many, 50) / percentile(few, 50), "x", (no_more_than(1.3),))
        yield Figure("p99 with 3 partitions", percentile(few, 99), "ms")
        yield Figure(f"p99 with {more:,} more", percentile(many, 99), "ms")
        time.sleep(rest_s)
        before = {pid: cpu_seconds(pid) for pid in cluster.pids}
        started_s = time.monotonic()
        time.sleep(rest_s)
        elapsed_s = time.monotonic() - started_s
        busiest = max(cpu_seconds(pid) - before_s for pid, before_s in before.items()) / elapsed_s
        yield Figure("idle: the busiest broker, of a core", 100 * busiest, "%", (no_more_than(3),))
        yield Figure("resident memory", sum(map(resident_mib, cluster.pids)), "MiB")


def broker_dies(system: System, scale: Scale) -> Figures:
    """W21: from the end of a killed broker's session until others lead, in the metadata of all that are left."""
    for count in scale.of((1_000, 5_000), (100, 300)):
        with _running(system.beside_zookeeper()) as cluster, Leaders() as leaders:
            _create(cluster, leaders, count)
            for whose, goals in (("broker", (at_most(1.0),)), ("controller", (at_most(1.0),))):
                with _zookeeper_of(cluster) as zookeeper:
                    controller = json.loads(zookeeper.get("/controller")[0])["brokerid"]
                    chosen = controller if whose == "controller" else controller % len(cluster.brokers) + 1
                    yield _led_again(
                        cluster, leaders, zookeeper, chosen, f"{count:,} partitions, {whose}", count, goals
                    )
                cluster.brokers[chosen - 1].start()
                leaders.wait_in_sync(cluster.addresses, count, REPLICAS)


def _led_again(
    cluster: Cluster,
    leaders: Leaders,
    zookeeper: KazooClient,
    chosen: int,
    name: str,
    count: int,
    goals: tuple[Goal, ...],
) -> Figure:
    ended: list[float] = []
    assert zookeeper.exists(f"/brokers/ids/{chosen}", watch=lambda _: ended.append(time.monotonic()))
    victim = cluster.brokers[chosen - 1]
    victim.kill()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not ended:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the session of broker {chosen} does not end")
        time.sleep(0.005)
    others = [address for number, address in enumerate(cluster.addresses, 1) if number != chosen]
    led_s = leaders.wait_until_led(others, count, {chosen})
    return Figure(f"{name} killed: until all are led", led_s - ended[0], "s", goals)


@contextmanager
def _zookeeper_of(cluster: Cluster) -> Iterator[KazooClient]:
    assert cluster.zookeeper is not None
    client = KazooClient(cluster.zookeeper.address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def made_and_restarted(system: System, scale: Scale) -> Figures:
    """W22: partitions are made, and all brokers restarted one after the other."""
    count = scale.of(3_000, 300)
    with _running(system.cluster()) as cluster, Leaders() as leaders:
        create_topics(cluster, PARTITIONS, "warm-up", replicas=REPLICAS, config=TOPIC_CONFIG)
        with CpuUse(*cluster.brokers) as cpu:
            yield Figure("time to create", _create(cluster, leaders, count), "s", (at_most(0.5),))
        yield cpu.in_all("create")
        leaders.wait_in_sync(cluster.addresses, count, REPLICAS)
        living = _Living(cluster)
        started_s = time.monotonic()
        with WithoutLeader(cluster.addresses, count, living.ids) as without:
            for number, broker in enumerate(cluster.brokers, 1):
                broker.stop(TIMEOUT_S)
                broker.start()
                living.is_new(number)
                leaders.wait_in_sync(cluster.addresses, count, REPLICAS)
        if not without.looks:
            raise RuntimeError("no broker told who leads")
        yield Figure("rolling restart", time.monotonic() - started_s, "s", (at_most(0.5),))
        yield Figure("longest time of a partition without a leader", without.longest_s, "s", (no_more_than(1.0),))
        yield Figure("resident memory", sum(map(resident_mib, cluster.pids)), "MiB")


class _Living:
    """The brokers that have a process; a broker that is stopping has it until it has ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pids = dict(enumerate(cluster.pids, 1))

    def is_new(self, number: int) -> None:
        """A broker was started again."""
        self._pids[number] = self._cluster.brokers[number - 1].pid

    def ids(self) -> set[int]:
        return {number for number, pid in self._pids.items() if Path(f"/proc/{pid}").exists()}


@contextmanager
def _running(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose many files stay until the end of the program."""
    with cluster:
        yield cluster
        for broker in cluster.brokers:
            broker.kill()
            put_aside(broker.log_dir)


def _create(cluster: Cluster, leaders: Leaders, count: int) -> float:
    """Make topics of at most TOPIC_PARTITIONS; seconds until every broker knows who leads them."""
    there = leaders.told_by(cluster.addresses[0])
    before = len(there.partitions) if there is not None else 0
    started_s = time.monotonic()
    left = count
    while left > 0:
        partitions = min(left, TOPIC_PARTITIONS)
        create_topics(cluster, partitions, f"many-{left}", timeout_s=TIMEOUT_S, replicas=REPLICAS, config=TOPIC_CONFIG)
        left -= partitions
    return leaders.wait_until_led(cluster.addresses, before + count) - started_s


def _latencies(cluster: Cluster, topic: str, records: int) -> list[float]:
    return acknowledgements_ms(cluster, topic, PARTITIONS, records, RECORD_BYTES, "all")


IDLE = Workload("W20", "the same with 3,000 more partitions that are idle", idle)
BROKER_DIES = Workload(
    "W21",
    "1,000 and 5,000 partitions, RF 3, ZooKeeper (Kafka 3.9.1): a broker is killed, the controller is",
    broker_dies,
)
MADE_AND_RESTARTED = Workload(
    "W22", "three brokers: create 3,000 partitions, RF 3; restart one after the other", made_and_restarted
)
