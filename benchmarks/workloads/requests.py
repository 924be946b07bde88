"""The cost of a request with one record, and of a flush before its response."""

from benchmarks.clients import create_topics, requests_per_second
from benchmarks.model import Figure, Figures, Scale, Workload, at_least
from benchmarks.processes import CpuUse, resident
from benchmarks.system import PEERS, System


def unbatched(system: System, scale: Scale) -> Figures:
    """W3: as many requests as one connection, and 16, can have served."""
    records = scale.of(400_000, 40_000)
    with system.running() as server:
        create_topics(server, 1, "warm-up", "measured")
        requests_per_second(server, "warm-up", 4, records // 2)
        for connections in (1, 16):
            name = _connections(connections)
            with CpuUse(server) as cpu:
                rate = requests_per_second(server, "measured", connections, records)
            yield Figure(f"{name}: rate", rate, "requests/s", (at_least(1.2),))
            yield cpu.per_requests(name, records)
        yield resident(server)


def flushed(system: System, scale: Scale) -> Figures:
    """W10: the same, acknowledged only when the disk has the record."""
    with system.running(system.flush_before_ack) as server:
        create_topics(server, 1, "warm-up", "measured")
        requests_per_second(server, "warm-up", 4, scale.of(20_000, 200))
        for connections, records in ((1, scale.of(20_000, 500)), (16, scale.of(50_000, 2_000))):
            name = _connections(connections)
            with CpuUse(server) as cpu:
                rate = requests_per_second(server, "measured", connections, records)
            yield Figure(f"{name}: rate", rate, "requests/s", (at_least(2),))
            yield cpu.per_requests(name, records)
        yield resident(server)


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"


UNBATCHED_REQUESTS = Workload(
    "W3", "produce unbatched: 100 B, one record a request, 5 requests in flight", unbatched, peers=PEERS
)
FLUSHED_REQUESTS = Workload("W10", "produce unbatched, each record on the disk before its acknowledgement", flushed)
