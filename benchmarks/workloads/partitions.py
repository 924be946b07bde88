"""Many partitions: 1,000 that are written and read, 10,000 that are hosted."""

import time

from benchmarks.clients import TIMEOUT_S, create_topics, wait_for_leaders
from benchmarks.java_tools import consume, produce
from benchmarks.model import MIB, Figure, Figures, Scale, Workload, at_least, at_most
from benchmarks.processes import CpuUse, cpu_seconds, put_aside, resident
from benchmarks.system import System

ROUND_ROBIN = {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
WARM_UP = {**ROUND_ROBIN, "enable.idempotence": "false"}
"""The settings for writes to new partitions. In two of three runs Apache Kafka refused some of an idempotent producer's
first batches with OUT_OF_ORDER_SEQUENCE_NUMBER until they expired after two minutes."""
TOPIC_PARTITIONS = 1_000


def many_written(system: System, scale: Scale) -> Figures:
    """W6: a record for each partition in turn, and one consumer of all of them."""
    records, size = scale.of(2_000_000, 200_000), 1024
    with system.running() as server:
        create_topics(server, TOPIC_PARTITIONS, "measured")
        wait_for_leaders(server, TOPIC_PARTITIONS)
        produce(server, "measured", records // 10, size, WARM_UP)  # reading is warmed up, too
        consume(server, "measured", records // 10)
        with CpuUse(server) as cpu:
            produced = produce(server, "measured", records, size, ROUND_ROBIN)
        yield Figure("produce: throughput", produced.records_per_second * size / MIB, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("produce", records * size)
        with CpuUse(server) as cpu:
            throughput = consume(server, "measured", records)
        yield Figure("consume: throughput", throughput, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("consume", records * size)
        yield resident(server)
        server.stop(timeout_s=TIMEOUT_S)
        put_aside(server.log_dir)


def many_hosted(system: System, scale: Scale) -> Figures:
    """W7: partitions that exist."""
    topics = scale.of(10, 2)
    with system.running() as server:
        started_s = time.monotonic()
        with CpuUse(server) as cpu:
            for number in range(topics):
                create_topics(server, TOPIC_PARTITIONS, f"topic-{number}", timeout_s=TIMEOUT_S)
            wait_for_leaders(server, topics * TOPIC_PARTITIONS)
        yield Figure("time to create", time.monotonic() - started_s, "s", (at_most(1.0),))
        yield cpu.in_all("create")
        yield resident(server, "", at_most(0.25))
        started_s = time.monotonic()
        server.stop(timeout_s=TIMEOUT_S)
        stopped_s = time.monotonic()
        server.start()
        wait_for_leaders(server, topics * TOPIC_PARTITIONS)
        yield Figure("time to restart", time.monotonic() - started_s, "s", (at_most(1.0),))
        yield Figure("of it to stop", stopped_s - started_s, "s")
        yield Figure("start: broker CPU", cpu_seconds(server.pid), "s")
        server.stop(timeout_s=TIMEOUT_S)
        put_aside(server.log_dir)


MANY_WRITTEN = Workload("W6", "1,000 partitions: one producer round robin, one consumer of all, 1 KiB", many_written)
MANY_HOSTED = Workload("W7", "10,000 partitions in topics of 1,000", many_hosted)
