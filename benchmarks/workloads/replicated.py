"""Three brokers, three replicas of everything, and producers that wait for all in-sync ones."""

import os
import time
from collections.abc import Mapping

from benchmarks.clients import TIMEOUT_S, OneByOne, acknowledgements_ms, create_topics
from benchmarks.clusters import Cluster
from benchmarks.java_tools import LARGE_BATCHES, produce
from benchmarks.leaders import Leaders
from benchmarks.model import GIB, MIB, Figure, Figures, Goal, Scale, Workload, at_least, at_most, no_more_than
from benchmarks.processes import CpuUse, resident_mib
from benchmarks.spread import percentile
from benchmarks.system import System

PARTITIONS = 3
RECORD_BYTES = 1024
TOPIC_CONFIG = {"min.insync.replicas": "2"}
IDEMPOTENT_BATCHES = {**LARGE_BATCHES, "acks": "all", "enable.idempotence": "true"}


def large_batches(system: System, scale: Scale) -> Figures:
    """W16: what three brokers take of one producer, with every record in three logs."""
    goals = {"throughput": at_least(1.5), "CPU": at_most(0.4), "memory": at_most(0.1)}
    yield from _produced(system, scale.of(2_000_000, 100_000), IDEMPOTENT_BATCHES, goals)


def defaults(system: System, scale: Scale) -> Figures:
    """W17: the same of a producer that sets nothing."""
    goals = {"throughput": at_least(2), "CPU": at_most(0.35)}
    yield from _produced(system, scale.of(1_000_000, 50_000), {}, goals)


def _produced(system: System, records: int, settings: Mapping[str, str], goals: Mapping[str, Goal]) -> Figures:
    with system.cluster() as cluster:
        _create_topics(cluster, "warm-up", "measured")
        produce(cluster, "warm-up", records, RECORD_BYTES, settings)
        with CpuUse(*cluster.brokers) as cpu:
            produced = produce(cluster, "measured", records, RECORD_BYTES, settings)
        yield Figure("throughput", produced.mib_per_second, "MiB/s", (goals["throughput"],))
        yield cpu.per_gib("", records * RECORD_BYTES, goals["CPU"])
        yield Figure("p50 of acknowledgements", produced.p50_ms, "ms")
        yield Figure("p99 of acknowledgements", produced.p99_ms, "ms")
        memory = (goals["memory"],) if "memory" in goals else ()
        yield Figure("resident memory", sum(map(resident_mib, cluster.pids)), "MiB", memory)


def one_at_a_time(system: System, scale: Scale) -> Figures:
    """W18: from a record's send to its acknowledgement, the next one only after that."""
    records = scale.of(20_000, 1_000)
    with system.cluster() as cluster:
        _create_topics(cluster, "warm-up", "measured")
        for acks in ("1", "all"):
            acknowledgements_ms(cluster, "warm-up", PARTITIONS, records // 2, RECORD_BYTES, acks)
        of_leader = acknowledgements_ms(cluster, "measured", PARTITIONS, records, RECORD_BYTES, "1")
        with CpuUse(*cluster.brokers) as cpu:
            of_all = acknowledgements_ms(cluster, "measured", PARTITIONS, records, RECORD_BYTES, "all")
        yield Figure("acks=all: p50", percentile(of_all, 50), "ms", (at_most(0.7),))
        yield Figure("acks=all: p99", percentile(of_all, 99), "ms", (at_most(0.5),))
        yield Figure("acks=all: p99.9", percentile(of_all, 99.9), "ms")
        yield Figure("acks=1: p50", percentile(of_leader, 50), "ms")
        yield Figure("acks=1: p99", percentile(of_leader, 99), "ms")
        more_ms = percentile(of_all, 50) - percentile(of_leader, 50)
        yield Figure("p50 of acks=all beyond that of acks=1", more_ms, "ms", (no_more_than(0.2),))
        yield cpu.per_requests("acks=all", records)


def catching_up(system: System, scale: Scale) -> Figures:
    """W19: W18 while a broker fetches what it has missed."""
    records, size = scale.of(20_000, 1_000), scale.of(4 * GIB, 128 * MIB)
    with system.cluster() as cluster, Leaders() as leaders:
        _create_topics(cluster, "warm-up", "measured", "missed")
        acknowledgements_ms(cluster, "warm-up", PARTITIONS, records, RECORD_BYTES, "all")
        number, broker = len(cluster.brokers), cluster.brokers[-1]
        broker.stop(TIMEOUT_S)
        produce(cluster, "missed", size // RECORD_BYTES, RECORD_BYTES, IDEMPOTENT_BATCHES)
        os.sync()  # what the kernel still has to bring to the disk is not the follower's
        quiet = acknowledgements_ms(cluster, "measured", PARTITIONS, records, RECORD_BYTES, "all")
        others = cluster.addresses[:-1]
        with (
            OneByOne(cluster, "measured", PARTITIONS, RECORD_BYTES) as one_by_one,
            CpuUse(*cluster.brokers[:-1]) as cpu,
        ):
            broker.start()
            leaders.wait_for(others, lambda told: number in told.brokers, "the broker is back")
            started_s = time.monotonic()
            ended_s = leaders.wait_in_sync(others, 3 * PARTITIONS, len(cluster.brokers))
            found = one_by_one.latencies_ms(started_s, ended_s)
        yield Figure("quiet: p50", percentile(quiet, 50), "ms")
        yield Figure("quiet: p99", percentile(quiet, 99), "ms")
        yield Figure("catching up: p50", percentile(found, 50), "ms")
        yield Figure("catching up: p99", percentile(found, 99), "ms", (at_most(1.0),))
        yield Figure("p99 catching up / quiet", percentile(found, 99) / percentile(quiet, 99), "x", (no_more_than(3),))
        yield Figure("time to catch up", ended_s - started_s, "s")
        yield cpu.per_gib("the two others", size)


def _create_topics(cluster: Cluster, *names: str) -> None:
    create_topics(cluster, PARTITIONS, *names, replicas=len(cluster.brokers), config=TOPIC_CONFIG)


LARGE = Workload(
    "W16",
    "three brokers, RF 3, acks=all, idempotent: produce 1 KiB, 3 partitions, batch.size=131072, linger.ms=5",
    large_batches,
)
DEFAULTS = Workload("W17", "the same with every default of the Java client", defaults)
ONE_AT_A_TIME = Workload("W18", "the same, one record at a time", one_at_a_time)
CATCHING_UP = Workload("W19", "the same while a broker that missed 4 GiB catches up", catching_up)
