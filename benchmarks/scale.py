"""The cost of partitions, connections and clients in a cluster: `python -m benchmarks.scale`.

`barnabas serve --brokers N` with more and more idle partitions of three replicas each, all in sync: how much memory
and processor time a partition costs, how long it takes to make them, and how long until they are led again when the
controller is killed; then how much memory a connection costs that asks for nothing, and what clients cost that write
and read a little (`active_clients.py`). Memory is the proportional share (PSS), since brokers share what their parent
has loaded. Processor times do not depend on what else the machine does, seconds do.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from barnabas.broker.client.client import BrokerConnection, parse_bootstrap_servers
from benchmarks import active_clients
from benchmarks.clients import TIMEOUT_S, admin_of, create_topics
from benchmarks.leaders import Leaders, Partition, Telling
from benchmarks.processes import cpu_seconds, pss_mib
from tools.processes.barnabas import BarnabasBrokers

REPLICAS: Final = 3
TOPIC_PARTITIONS: Final = 1_000
SETTLED_S: Final = 3.0
"""The pause without requests before memory is measured: temporary allocations are given back in it."""


class Held(NamedTuple):
    """The cost of some partitions, in MiB, seconds, and seconds of processor time; `idle` in percent of a processor."""

    partitions: int
    broker_mib: float
    """The memory of each broker, on average."""
    parent_mib: float
    made_s: float
    made_cpu_s: float
    """The processor time of all processes together."""
    idle: float
    """The load of the busiest broker."""
    led_s: float
    """The time from the kill of the controller until all other brokers' metadata name leaders for its partitions."""
    led_cpu_s: float
    """The processor time of the other brokers and the parent, meanwhile."""


def measure(brokers: int, steps: Sequence[int], idle_s: float) -> list[Held]:
    """The cost of partitions for brokers, at each step. Raises RuntimeError if a step takes too long."""
    found: list[Held] = []
    # A session outlives any pause that a busy machine makes.
    with BarnabasBrokers(brokers, {"zookeeper.session.timeout.ms": "30000"}) as cluster, Leaders() as leaders:
        for step in steps:
            found.append(_held(cluster, leaders, step, idle_s))
            _tell(found[-1])
    return found


def _held(cluster: BarnabasBrokers, leaders: Leaders, count: int, idle_s: float) -> Held:
    before_s, started_s = _cpu_s(cluster), time.monotonic()
    _create(cluster, leaders, count)
    made_s, made_cpu_s = time.monotonic() - started_s, _cpu_s(cluster) - before_s
    time.sleep(SETTLED_S)
    idle = _idle(cluster, idle_s)
    memory = [pss_mib(cluster.broker_pid(each)) for each in cluster.node_ids]
    parent_mib = pss_mib(cluster.pid)
    led_s, led_cpu_s = _led_again(cluster, leaders) if count else (0.0, 0.0)
    leaders.wait_in_sync(cluster.addresses, count, REPLICAS)
    return Held(count, sum(memory) / len(memory), parent_mib, made_s, made_cpu_s, idle, led_s, led_cpu_s)


def _create(cluster: BarnabasBrokers, leaders: Leaders, count: int) -> None:
    """Make topics until there are so many partitions, all in sync and known to everybody."""
    there = len(_told(leaders, cluster.addresses[0]).partitions)
    while there < count:
        partitions = min(count - there, TOPIC_PARTITIONS)
        create_topics(cluster, partitions, f"held-{there}", timeout_s=TIMEOUT_S, replicas=REPLICAS)
        there += partitions
    leaders.wait_in_sync(cluster.addresses, count, REPLICAS)


def _idle(cluster: BarnabasBrokers, idle_s: float) -> float:
    pids = [cluster.broker_pid(each) for each in cluster.node_ids]
    before = [cpu_seconds(pid) for pid in pids]
    started_s = time.monotonic()
    time.sleep(idle_s)
    used = max(cpu_seconds(pid) - before_s for pid, before_s in zip(pids, before, strict=True))
    return 100 * used / (time.monotonic() - started_s)


def _led_again(cluster: BarnabasBrokers, leaders: Leaders) -> tuple[float, float]:
    """Kill the controller; see `Held`."""
    victim: int = admin_of(cluster).list_topics(timeout=TIMEOUT_S).controller_id
    addresses = dict(zip(cluster.node_ids, cluster.addresses, strict=True))
    others = [each for each in cluster.node_ids if each != victim]
    told = _told(leaders, addresses[others[0]])
    led = {_name(each): each.epoch for each in told.partitions if each.leader == victim}

    def is_led(now: Telling) -> bool:
        anew = (each for each in now.partitions if each.epoch > led.get(_name(each), each.epoch))
        return sum(each.leader >= 0 for each in anew) == len(led)

    pids = [cluster.pid, *(cluster.broker_pid(each) for each in others)]
    before_s, started_s = sum(map(cpu_seconds, pids)), time.monotonic()
    cluster.kill_broker(victim)
    led_s = leaders.wait_for([addresses[each] for each in others], is_led, "leaders after the controller's end")
    return led_s - started_s, sum(map(cpu_seconds, pids)) - before_s


def _told(leaders: Leaders, address: str) -> Telling:
    told = leaders.told_by(address)
    if told is None:
        raise RuntimeError(f"no broker answers at {address}")
    return told


def _name(partition: Partition) -> tuple[str, int]:
    return partition.topic, partition.number


def connections_kib(count: int) -> float:
    """A broker's memory for each of `count` connections, in KiB: they have asked for versions, as clients do."""
    with BarnabasBrokers(1) as cluster:
        pid = cluster.broker_pid(cluster.node_ids[0])
        return asyncio.run(_connections_kib(cluster.addresses[0], pid, count))


async def _connections_kib(address: str, pid: int, count: int) -> float:
    [(host, port)] = parse_bootstrap_servers(address)
    first = BrokerConnection(host, port, "scale", TIMEOUT_S)
    await first.open()  # loads what the first client needs
    before = pss_mib(pid)
    more = [BrokerConnection(host, port, "scale", TIMEOUT_S) for _ in range(count)]
    for start in range(0, count, 50):
        await asyncio.gather(*(each.open() for each in more[start : start + 50]))
    await asyncio.sleep(SETTLED_S)
    found = (pss_mib(pid) - before) * 1024 / count
    await asyncio.gather(*(each.close() for each in (first, *more)))
    return found


def _cpu_s(cluster: BarnabasBrokers) -> float:
    return sum(map(cpu_seconds, [cluster.pid, *(cluster.broker_pid(each) for each in cluster.node_ids)]))


def _tell(held: Held) -> None:
    print(
        f"{held.partitions:,} partitions: {held.broker_mib:.1f} MiB each broker, {held.parent_mib:.1f} MiB the parent,"
        f" made in {held.made_s:.1f} s ({held.made_cpu_s:.1f} s CPU), idle {held.idle:.1f} %,"
        f" led again after {held.led_s:.2f} s ({held.led_cpu_s:.2f} s CPU)",
        flush=True,
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=3, help="how many (default 3)")
    parser.add_argument("--partitions", default="0,1000,3000", help="the steps (default 0,1000,3000)")
    parser.add_argument("--idle", type=float, default=10, metavar="SECONDS", help="watched at each step (default 10)")
    parser.add_argument("--connections", type=int, default=900, help="to one broker; 0: none (default 900)")
    parser.add_argument("--clients", default="300", help="the steps of those at one broker; empty: none (default 300)")
    options = parser.parse_args()
    print(f"{options.brokers} brokers, load of the machine before {os.getloadavg()[0]:.1f}", flush=True)
    measure(options.brokers, [int(each) for each in options.partitions.split(",")], options.idle)
    if options.connections:
        print(f"{options.connections:,} connections: {connections_kib(options.connections):.1f} KiB each")
    for count in filter(None, options.clients.split(",")):
        served = active_clients.measure(int(count), options.idle)
        print(
            f"{served.clients:,} clients, a record a second each: the broker takes {served.processor:.0f} % of a"
            f" processor and {served.connection_kib:.1f} KiB for each of two connections, the clients' process"
            f" {served.clients_processor:.0f} %; read after {served.p50_ms:.1f} ms, 99 % after {served.p99_ms:.1f} ms",
            flush=True,
        )
    print(f"load after {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
