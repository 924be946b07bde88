"""Writing and reading back: compressed, and in transactions."""

from benchmarks.clients import create_topics
from benchmarks.java_tools import LARGE_BATCHES, consume, produce
from benchmarks.model import MIB, Figure, Figures, Scale, Workload, at_least
from benchmarks.processes import CpuUse, resident
from benchmarks.system import KFAKE, PEERS, System

CODECS_BY_NAME = ("zstd", "lz4", "snappy", "gzip")
COMMITTED = {"isolation.level": "read_committed"}
TRANSACTION = ("--transactional-id", "benchmark", "--transaction-duration-ms", "100")


def codecs(system: System, scale: Scale) -> Figures:
    """W9: batches that the producer compressed (the topic keeps them as they are); MiB before compression."""
    records, size = scale.of(1_000_000, 60_000), 1024
    with system.running() as server:
        create_topics(server, 1, *CODECS_BY_NAME, *(f"warm-up-{codec}" for codec in CODECS_BY_NAME))
        for codec in CODECS_BY_NAME:
            properties = {**LARGE_BATCHES, "compression.type": codec}
            produce(server, f"warm-up-{codec}", records // 4, size, properties)
            consume(server, f"warm-up-{codec}", records // 4)
            with CpuUse(server) as cpu:
                produced = produce(server, codec, records, size, properties)
            mib_per_second = produced.records_per_second * size / MIB
            yield Figure(f"{codec} produce: throughput", mib_per_second, "MiB/s", (at_least(1.1),))
            yield cpu.per_gib(f"{codec} produce", records * size)
            with CpuUse(server) as cpu:
                throughput = consume(server, codec, records)
            yield Figure(f"{codec} fetch: throughput", throughput, "MiB/s", (at_least(1.1),))
            yield cpu.per_gib(f"{codec} fetch", records * size)
        yield resident(server)


def transactions(system: System, scale: Scale) -> Figures:
    """W11: a transaction every 100 ms, and a consumer of committed records only."""
    records, size = scale.of(2_000_000, 100_000), 1024
    with system.running() as server:
        create_topics(server, 1, "warm-up", "measured")
        produce(server, "warm-up", records // 5, size, {}, arguments=TRANSACTION)
        consume(server, "warm-up", records // 5, COMMITTED)
        with CpuUse(server) as cpu:
            produced = produce(server, "measured", records, size, {}, arguments=TRANSACTION)
        mib_per_second = produced.records_per_second * size / MIB
        yield Figure("produce: throughput", mib_per_second, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("produce", records * size)
        with CpuUse(server) as cpu:
            throughput = consume(server, "measured", records, COMMITTED)
        yield Figure("read_committed consume: throughput", throughput, "MiB/s", (at_least(1.0),))
        yield cpu.per_gib("read_committed consume", records * size)
        yield resident(server)


CODECS = Workload("W9", "compressed by the producer: produce and fetch, 1 KiB", codecs, peers=(KFAKE,))
TRANSACTIONS = Workload("W11", "transactions of 100 ms, 1 KiB", transactions, peers=PEERS)
