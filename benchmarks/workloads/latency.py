"""The latency of records end to end, and of a client beside 10,000 idle connections."""

import contextlib

from barnabas.wire.messages.api_versions import ApiVersionsRequest
from benchmarks.clients import LiveProducer, at_rate_ms, create_topics, one_by_one_ms
from benchmarks.java_tools import end_to_end_average_ms
from benchmarks.model import Figure, Figures, Scale, Workload, at_most, no_more_than
from benchmarks.processes import CpuUse, live_heap_mib, raise_descriptor_limit, resident, resident_mib
from benchmarks.spread import percentile
from benchmarks.system import KFAKE, PEERS, System
from tools.attack.hostile import connect, frame, receive

BILLION_A_DAY = 11_574
"""Records a second."""


def end_to_end(system: System, scale: Scale) -> Figures:
    """W5: from a producer's send to a consumer's receipt."""
    records, size = scale.of(20_000, 2_000), 1000
    with system.running() as server:
        create_topics(server, 1, "warm-up", "alone", "e2e", "steady")
        one_by_one_ms(server, "warm-up", records // 2, size)
        with CpuUse(server) as cpu:
            found = one_by_one_ms(server, "alone", records, size)
        yield from _percentiles("one at a time", found)
        yield cpu.per_requests("one at a time", records)
        average_ms = end_to_end_average_ms(server, "e2e", records // 2, size)
        yield Figure("one at a time: mean by kafka-e2e-latency", average_ms, "ms")
        at_rate_ms(server, "steady", BILLION_A_DAY, scale.of(20, 2), size)
        seconds = scale.of(300, 8)
        with CpuUse(server) as cpu:
            found = at_rate_ms(server, "steady", BILLION_A_DAY, seconds, size)
        yield from _percentiles(f"{BILLION_A_DAY:,}/s", found)
        yield cpu.per_gib(f"{BILLION_A_DAY:,}/s", BILLION_A_DAY * seconds * size)
        yield resident(server)


def _percentiles(name: str, found: list[float]) -> Figures:
    yield Figure(f"{name}: p50", percentile(found, 50), "ms", (at_most(0.6),))
    yield Figure(f"{name}: p99", percentile(found, 99), "ms", (at_most(0.5),))
    yield Figure(f"{name}: p99.9", percentile(found, 99.9), "ms", (at_most(1.0), no_more_than(100)))


def idle_connections(system: System, scale: Scale) -> Figures:
    """W13: connections that asked for the versions once, and then nothing; one client that works."""
    count, requests = scale.of(10_000, 1_000), scale.of(4_000, 400)
    raise_descriptor_limit()
    with system.running() as server, contextlib.ExitStack() as connections:
        create_topics(server, 1, "live")
        with LiveProducer(server, "live") as live:
            live.wait_for(requests)
        before_mib = live_heap_mib(server.pid), resident_mib(server.pid)
        for _ in range(count):
            connection = connections.enter_context(connect(server.bootstrap_servers))
            connection.sendall(frame(ApiVersionsRequest(), 0))
            if receive(connection) is None:
                raise RuntimeError("an idle connection was refused")
        # A heap that was filled once stays resident: what connections take of it is seen from within only. The other
        # memory is looked at second, because a collection may touch some.
        after_mib = live_heap_mib(server.pid), resident_mib(server.pid)
        growth_mib = max(after - before for before, after in zip(before_mib, after_mib, strict=True))
        yield Figure("memory per connection", growth_mib * 1024 / count, "KiB", (at_most(0.5),))
        with CpuUse(server) as cpu, LiveProducer(server, "live") as live:
            live.wait_for(requests)
        yield Figure("live produce p99", percentile(live.latencies_ms(), 99), "ms", (at_most(1.0),))
        yield cpu.per_requests("live produce", requests)
        yield resident(server)


END_TO_END = Workload("W5", "latency end to end, 1 KB records, linger.ms=0, acks=1", end_to_end, peers=(KFAKE,))
IDLE_CONNECTIONS = Workload("W13", "10,000 idle connections", idle_connections, peers=PEERS)
