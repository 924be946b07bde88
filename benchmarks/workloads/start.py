"""The start of a broker, also after a crash, and its memory."""

import time

from benchmarks.clients import create_topics, seconds_to_first_ack
from benchmarks.java_tools import fill
from benchmarks.model import GIB, MIB, Figure, Figures, Scale, Workload, at_most
from benchmarks.processes import cpu_seconds, resident
from benchmarks.system import PEERS, System

SETTLING_S = 3.0
SIZE_FULL, SIZE_QUICK = 5 * GIB, 256 * MIB


def first_ack_and_memory(system: System, scale: Scale) -> Figures:
    """W8: a start with an existing topic, for a client that is already waiting; then memory."""
    with system.running() as server:
        create_topics(server, 1, "first")
        if system.has_files:
            server.stop()
            waited_s = seconds_to_first_ack(server, "first")
            yield Figure("process start to first acknowledgement", waited_s, "s", (at_most(0.15),))
            yield Figure("start: broker CPU", cpu_seconds(server.pid), "s")
        time.sleep(SETTLING_S)
        yield resident(server, "idle", at_most(0.16))
        size = scale.of(SIZE_FULL, SIZE_QUICK)
        fill(server, "first", size)
        yield resident(server, "after 5 GiB", at_most(0.15))


def after_a_crash(system: System, scale: Scale) -> Figures:
    """W14: from the start after kill -9 to the first acknowledgement; what was written is in the page cache."""
    with system.running() as server:
        create_topics(server, 1, "measured")
        fill(server, "measured", scale.of(SIZE_FULL, SIZE_QUICK))
        server.kill()
        waited_s = seconds_to_first_ack(server, "measured")
        yield Figure("process start to first acknowledgement", waited_s, "s", (at_most(1.0),))
        yield Figure("start: broker CPU", cpu_seconds(server.pid), "s")
        yield resident(server)


FIRST_ACK_AND_MEMORY = Workload("W8", "start, and memory idle and after 5 GiB", first_ack_and_memory, peers=PEERS)
AFTER_A_CRASH = Workload("W14", "restart after kill -9 with 5 GiB of log", after_a_crash)
