"""Producing as fast as one Java producer can."""

from benchmarks.clients import create_topics
from benchmarks.floor import produce_floor
from benchmarks.java_tools import LARGE_BATCHES, produce
from benchmarks.model import MIB, Figure, Figures, Scale, Workload, at_least, at_most
from benchmarks.processes import CpuUse, drop_page_cache, resident
from benchmarks.system import FLOOR, PEERS, System

IDEMPOTENT = {**LARGE_BATCHES, "acks": "all", "enable.idempotence": "true"}
"""Kafka's producer refuses idempotence with acks=1; with one replica acks=all waits for nothing more."""


def one_producer(system: System, scale: Scale) -> Figures:
    """W1: what a broker takes at most from one connection, and the same of an idempotent producer.

    The page cache is emptied in between: the first write to memory that a virtual machine's host has taken back costs
    ten times as much, and neither the broker nor the floor should pay that.
    """
    records, size = scale.of(2_000_000, 200_000), 1024
    with system.running() as server:
        create_topics(server, 1, "warm-up", "measured", "idempotent")
        produce(server, "warm-up", records, size, LARGE_BATCHES)
        drop_page_cache(server.log_dir)
        with CpuUse(server) as cpu:
            produced = produce(server, "measured", records, size, LARGE_BATCHES)
        yield Figure("throughput", produced.mib_per_second, "MiB/s", (at_least(1.3),))
        yield cpu.per_gib("", records * size, at_most(0.4), at_most(1.5, of=FLOOR))
        yield Figure("p99 of acknowledgements", produced.p99_ms, "ms")
        drop_page_cache(server.log_dir)
        with CpuUse(server) as cpu:
            produced = produce(server, "idempotent", records // 2, size, IDEMPOTENT)
        yield Figure("idempotent: throughput", produced.mib_per_second, "MiB/s")
        yield cpu.per_gib("idempotent", records // 2 * size)
        yield resident(server)


def defaults(system: System, scale: Scale) -> Figures:
    """W2: what an application gets that sets nothing: idempotence, acks=all, batches of 16 KiB."""
    with system.running() as server:
        create_topics(server, 1, "warm-up", "1024", "100")
        produce(server, "warm-up", scale.of(1_000_000, 40_000), 1024, {})
        for size, records in ((1024, scale.of(1_000_000, 150_000)), (100, scale.of(5_000_000, 500_000))):
            name = "1 KiB" if size == 1024 else f"{size} B"
            with CpuUse(server) as cpu:
                produced = produce(server, str(size), records, size, {})
            mib_per_second = produced.records_per_second * size / MIB
            yield Figure(f"{name}: throughput", mib_per_second, "MiB/s", (at_least(1.2),))
            yield cpu.per_gib(name, records * size, at_most(0.5))
        yield resident(server)


ONE_PRODUCER = Workload(
    "W1",
    "produce 1 KiB, one producer, batch.size=131072, linger.ms=5, acks=1",
    one_producer,
    produce_floor,
    peers=PEERS,
)
DEFAULTS = Workload("W2", "produce with every default of the Java client", defaults, peers=PEERS)
