"""The cost of clients that do a little all the time: each writes a record of 1 KiB every second to a partition of its
own, and reads it on a second connection as consumers do, with a Fetch that waits for half a second at most.
"""

import asyncio
import time
from collections import deque
from typing import Final, NamedTuple

from barnabas.broker.client.client import BrokerConnection, check, parse_bootstrap_servers
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from benchmarks.clients import TIMEOUT_S, create_topics
from benchmarks.processes import cpu_seconds, pss_mib
from benchmarks.spread import percentile
from tools.processes.barnabas import BarnabasBrokers

TOPIC: Final = "of-each"
RECORD: Final = bytes(1024)
EVERY_S: Final = 1.0
FETCH_WAIT_MS: Final = 500
"""`fetch.max.wait.ms` of Kafka's consumers."""

OPENED_AT_ONCE: Final = 50
TOPIC_NAME_MAX_VERSION: Final = 12
"""The last version of Produce and Fetch, or an earlier one, in which a topic goes by its name."""


class Served(NamedTuple):
    """The cost of some clients. Milliseconds are from the send of a record until its reader has it."""

    clients: int
    connection_kib: float
    """The broker's memory for each of their connections, with everything that belongs to it."""
    processor: float
    """The broker's share of a processor, in percent."""
    clients_processor: float
    """The share of the process with all clients, in percent of a processor."""
    p50_ms: float
    p99_ms: float


def measure(count: int, seconds: float) -> Served:
    """The cost of `count` clients for a broker, over some seconds. Errors: ClientError."""
    with BarnabasBrokers(1) as cluster:
        create_topics(cluster, count, TOPIC, timeout_s=TIMEOUT_S, replicas=1)
        return asyncio.run(_measure(cluster.addresses[0], cluster.broker_pid(cluster.node_ids[0]), count, seconds))


async def _measure(address: str, pid: int, count: int, seconds: float) -> Served:
    clients = [_Client(address, number) for number in range(count)]
    await clients[0].open()  # loads what the first client needs
    memory = pss_mib(pid)
    for start in range(1, count, OPENED_AT_ONCE):
        await asyncio.gather(*(each.open() for each in clients[start : start + OPENED_AT_ONCE]))
    working = [asyncio.create_task(each.work(EVERY_S * each.number / count)) for each in clients]
    await asyncio.sleep(3 * EVERY_S)  # all are at work
    for each in clients:
        each.latencies_ms.clear()
    used, own, started_s = cpu_seconds(pid), time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    passed_s = time.monotonic() - started_s
    used, own = cpu_seconds(pid) - used, time.process_time() - own
    grown = pss_mib(pid) - memory
    for task in working:
        task.cancel()
    ended = await asyncio.gather(*working, return_exceptions=True)
    await asyncio.gather(*(each.close() for each in clients))
    if failures := [each for each in ended if not isinstance(each, asyncio.CancelledError)]:
        raise RuntimeError(f"{len(failures)} clients failed, as this one: {failures[0]!r}")
    found = [latency for each in clients for latency in each.latencies_ms]
    return Served(
        clients=count,
        connection_kib=1024 * grown / (2 * count - 2),
        processor=100 * used / passed_s,
        clients_processor=100 * own / passed_s,
        p50_ms=percentile(found, 50),
        p99_ms=percentile(found, 99),
    )


class _Client:
    """A producer and a consumer of a partition."""

    def __init__(self, address: str, number: int) -> None:
        [(host, port)] = parse_bootstrap_servers(address)
        self.number = number
        self.latencies_ms: list[float] = []
        self._writing = BrokerConnection(host, port, f"producer-{number}", TIMEOUT_S)
        self._reading = BrokerConnection(host, port, f"consumer-{number}", TIMEOUT_S)
        self._sent_s: deque[float] = deque()

    async def open(self) -> None:
        await asyncio.gather(self._writing.open(), self._reading.open())

    async def close(self) -> None:
        await asyncio.gather(self._writing.close(), self._reading.close())

    async def work(self, delay_s: float) -> None:
        """Write and read until cancelled; the first record comes after `delay_s`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._write(delay_s))

    async def _write(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        data = PartitionProduceData(
            index=self.number, records=build_batch([Record(0, time.time_ns() // 1_000_000, None, RECORD)])
        )
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
        )
        due_s = loop.time() + delay_s
        while True:
            await asyncio.sleep(due_s - loop.time())
            self._sent_s.append(loop.time())
            answer: ProduceResponse = await self._writing.send(request, max_version=TOPIC_NAME_MAX_VERSION)
            check(answer.responses[0].partition_responses[0].error_code, "cannot write")
            due_s += EVERY_S

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        partition = FetchPartition(partition=self.number, fetch_offset=0, partition_max_bytes=2**20)
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=2**20,
            topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
        )
        while True:
            answer: FetchResponse = await self._reading.send(
                request, max_version=TOPIC_NAME_MAX_VERSION, wait_s=FETCH_WAIT_MS / 1000
            )
            [found] = answer.responses[0].partitions
            check(found.error_code, "cannot read")
            while found.records and partition.fetch_offset < found.high_watermark:
                partition.fetch_offset += 1
                self.latencies_ms.append(1000 * (loop.time() - self._sent_s.popleft()))
