"""Reading a topic from its start."""

import os
import statistics

from benchmarks.clients import LiveProducer, create_topics
from benchmarks.floor import fetch_floor
from benchmarks.java_tools import consume_together, fill
from benchmarks.model import GIB, MIB, Figure, Figures, Scale, Workload, at_least, at_most
from benchmarks.processes import CpuUse, disk_reads_mib, drop_page_cache, resident
from benchmarks.spread import percentile
from benchmarks.system import KFAKE, Server, System

WARM = 1_000
"""Live records before any is measured."""

COLD_READS = 3
"""A disk that stalls once for half a second decides the p99 of a single one, whoever reads."""


def catch_up(system: System, scale: Scale) -> Figures:
    """W4: consumers that are far behind, and a producer that must not notice."""
    size = scale.of(4 * GIB, 128 * MIB)
    with system.running() as server:
        create_topics(server, 1, "measured", "live")
        records = fill(server, "measured", size)
        consume_together(server, "measured", records, 1)  # warm
        os.sync()  # what the kernel still has to bring to the disk is not the reader's
        for consumers in (1, 4):
            for cache in ("hot", "cold") if system.has_files else ("hot",):
                name = f"{consumers} consumer{'s' if consumers > 1 else ''}, {cache}"
                if cache == "cold":
                    drop_page_cache(server.log_dir)
                before_mib = disk_reads_mib(server.pid)
                with CpuUse(server) as cpu:
                    throughput = consume_together(server, "measured", records, consumers).mib_per_second
                yield Figure(f"{name}: throughput", throughput, "MiB/s", (at_least(1.0),))
                yield cpu.per_gib(name, consumers * size, at_most(0.6))
                if cache == "cold":
                    yield Figure(f"{name}: from the disk", disk_reads_mib(server.pid) - before_mib, "MiB")
        if system.has_files:
            live_p99s_ms = [_live_p99_ms(server, records) for _ in range(COLD_READS)]
            name = f"live produce p99 during a cold read, median of {COLD_READS}"
            yield Figure(name, statistics.median(live_p99s_ms), "ms", (at_most(1.0),))
        yield resident(server)


def _live_p99_ms(server: Server, records: int) -> float:
    with LiveProducer(server, "live") as live:
        live.wait_for(WARM)
        drop_page_cache(server.log_dir)
        reading = consume_together(server, "measured", records, 1)
    return percentile(live.latencies_ms(reading.start_s, reading.end_s), 99)


CATCH_UP = Workload(
    "W4", "catch-up fetch of 1 KiB records, hot and cold page cache", catch_up, fetch_floor, peers=(KFAKE,)
)
