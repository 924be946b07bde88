"""A group of 200 consumers: all join, and one leaves."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from confluent_kafka import Consumer

from benchmarks.clients import TIMEOUT_S, create_topics
from benchmarks.model import Figure, Figures, Scale, Workload, at_most
from benchmarks.processes import CpuUse, resident
from benchmarks.system import PEERS, Server, System

TOPIC = "measured"
WARM_UP_MEMBERS = 5
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
"""Barnabas' default. With Kafka's, 3 s, the figure of a group that begins would be the delay."""


def join_and_leave(system: System, scale: Scale) -> Figures:
    """W12: until every member knows its partitions. Most of the time goes by in waiting for heartbeats."""
    members = scale.of(200, 40)
    with system.running(NO_DELAY) as server, ExitStack() as closing:
        create_topics(server, members, TOPIC)
        with ExitStack() as closing_first:  # __consumer_offsets is created, code compiled
            _join(_consumers(server, "warm-up", WARM_UP_MEMBERS, closing_first), members)
        consumers = _consumers(server, "benchmark", members, closing)
        with CpuUse(server) as cpu:
            started_s = time.monotonic()
            _join(consumers, members)
            yield Figure("all join: time to stable", time.monotonic() - started_s, "s", (at_most(1.0),))
            started_s = time.monotonic()
            consumers.pop().close()
            _wait_until_stable(consumers, members)
            yield Figure("one leaves: time to stable", time.monotonic() - started_s, "s", (at_most(1.0),))
        yield cpu.in_all()
        yield resident(server)


def _consumers(server: Server, group: str, count: int, closing: ExitStack) -> list[Consumer]:
    settings = {"bootstrap.servers": server.bootstrap_servers, "group.id": group, "log_level": 0}
    consumers = [Consumer(settings) for _ in range(count)]
    for consumer in consumers:
        closing.callback(consumer.close)
    return consumers


def _join(consumers: Sequence[Consumer], partitions: int) -> None:
    for consumer in consumers:
        consumer.subscribe([TOPIC])
    _wait_until_stable(consumers, partitions)


def _wait_until_stable(consumers: Sequence[Consumer], partitions: int) -> None:
    """Serve the members until all partitions are assigned, each to one of them, and every member has some: a
    generation of those that came first is not stable."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        for consumer in consumers:
            consumer.poll(0)
        assignments = [consumer.assignment() for consumer in consumers]
        assigned = [each.partition for assignment in assignments for each in assignment]
        if all(assignments) and len(assigned) == partitions == len(set(assigned)):
            return
        time.sleep(0.01)
    raise RuntimeError(f"the group is not stable after {TIMEOUT_S} s")


JOIN_AND_LEAVE = Workload("W12", "a group of 200 consumers", join_and_leave, peers=PEERS)
