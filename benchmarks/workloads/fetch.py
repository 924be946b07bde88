"""Reading a topic from its start."""

from benchmarks.clients import LiveProducer, create_topics
from benchmarks.floor import fetch_floor
from benchmarks.java_tools import consume_together, fill
from benchmarks.model import GIB, MIB, Figure, Figures, Scale, Workload, at_least, at_most
from benchmarks.processes import CpuUse, drop_page_cache, resident
from benchmarks.spread import percentile
from benchmarks.systems import System


def catch_up(system: System, scale: Scale) -> Figures:
    """W4: consumers that are far behind, and a producer that must not notice."""
    size = scale.of(4 * GIB, 128 * MIB)
    with system.running() as server:
        create_topics(server, 1, "measured", "live")
        records = fill(server, "measured", size)
        consume_together(server, "measured", records // 5, 1)
        for consumers in (1, 4):
            for cache in ("hot", "cold"):
                name = f"{consumers} consumer{'s' if consumers > 1 else ''}, {cache}"
                if cache == "cold":
                    drop_page_cache(server.log_dir)
                with CpuUse(server) as cpu:
                    throughput = consume_together(server, "measured", records, consumers)
                yield Figure(f"{name}: throughput", throughput, "MiB/s", (at_least(1.0),))
                yield cpu.per_gib(name, consumers * size, at_most(0.6))
        drop_page_cache(server.log_dir)
        with LiveProducer(server, "live") as live:
            consume_together(server, "measured", records, 1)
        yield Figure("live produce p99 during a cold read", percentile(live.latencies_ms, 99), "ms", (at_most(1.0),))
        yield resident(server)


CATCH_UP = Workload("W4", "catch-up fetch of 1 KiB records, hot and cold page cache", catch_up, fetch_floor)
