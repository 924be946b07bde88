"""A leader that is a real broker, and logs that follow it over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from barnabas.broker.network.peer_connection import PeerConnection, PeerUnavailable
from barnabas.broker.replication.fetcher import FetchSettings
from barnabas.broker.replication.fetcher_context import FetcherContext
from barnabas.broker.replication.fetcher_manager import FetcherManager
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.throttles import Throttle
from barnabas.broker.server import Broker
from barnabas.broker.timers import Timers
from barnabas.clock import Clock, SystemClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.storage.config import LogConfig
from barnabas.storage.files import Files
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.storage.segment_reader import ColdRead
from barnabas.threads import OneThread, OsThreads, Threads
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.names import TopicId
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tests.broker.running import ENVIRONMENT, running

T = TypeVar("T")
FOLLOWER: Final = 2
TOPIC_ID: Final = TopicId(bytes(range(1, 17)))
CONFIG: Final = LogConfig(segment_bytes=20_000)


class Watched:
    """A connection that reports each request: when one is sent, the response before it has been processed."""

    def __init__(self, connection: PeerConnection, changed: asyncio.Event) -> None:
        self.connection = connection
        self.is_cut = self.is_broken = False
        self._changed = changed

    def send(self, request: Message, version: int, timeout_ms: int | None = None) -> "asyncio.Future[Any]":
        self._changed.set()
        if self.is_broken:
            self.is_broken = False
            raise ZeroDivisionError("a mistake")
        if self.is_cut:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(PeerUnavailable("the network is cut"))
            return answer
        sent = self.connection.send(request, version, timeout_ms)
        sent.add_done_callback(lambda _: asyncio.get_running_loop().call_soon(self._changed.set))
        return sent


class HeldThreads(OneThread):
    """A thread that starts each job only when the test allows it."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    def call(self, job: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        async def do() -> T:
            self.begun.set()
            await self.may_go_on.wait()
            return job(*arguments)

        return asyncio.ensure_future(do())


def open_logs(data_dir: Path, threads: Threads | None = None, files: Files | None = None) -> LogManager:
    logs = LogManager(
        LogEnvironment(files or UnsyncedFiles(), SystemClock(), threads or OsThreads(), lambda: "the-only-one"),
        LogManagerSettings([data_dir], lambda _topic: CONFIG, node_id=FOLLOWER, cluster_id="c"),
    )
    logs.lock()
    logs.load()
    return logs


class NoThread(OneThread):
    """A pool that has no thread to start."""

    def call(self, job: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        raise RuntimeError("can't start new thread")


class Follower:
    """Logs that follow a broker's."""

    def __init__(
        self,
        leader: Broker,
        data_dir: Path,
        flush: Any = None,
        threads: Threads | None = None,
        throttle: Throttle | None = None,
        network_clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        clock = network_clock or SystemClock()
        self.leader = leader
        self.changed = asyncio.Event()
        self.connections: dict[tuple[int, str], Watched] = {}
        self.logs = open_logs(data_dir, threads, files)
        self.timers = Timers(clock, asyncio.get_running_loop())
        context = FetcherContext(
            FOLLOWER, lambda: 70, self.connection, self.logs, SystemClock(), clock, self.timers,
            FetchSettings(wait_max_ms=10, backoff_ms=40), flush=flush, throttle=throttle,
        )  # fmt: skip
        self.manager = FetcherManager(context)

    def connection(self, broker_id: int, purpose: str) -> Watched:
        port = self.leader.socket_server.ports["BROKERS"]
        return self.connections.setdefault(
            (broker_id, purpose),
            Watched(
                PeerConnection(
                    self.leader.environment.network, lambda: ("127.0.0.1", port), self.timers, purpose, 30_000
                ),
                self.changed,
            ),
        )

    def log(self, index: int = 0) -> PartitionLog:
        return self.logs.get_or_create("t", index, TOPIC_ID, CONFIG)

    def follow(self, index: int = 0, epoch: int = 5, *, is_in_sync: bool = True) -> PartitionLog:
        self.manager.follow("t", TOPIC_ID, index, self.leader.node_id, epoch, self.log(index), is_in_sync=is_in_sync)
        return self.log(index)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def stop(self) -> None:
        await self.manager.stop()
        for found in self.connections.values():
            found.connection.close()
        for _ in range(5):  # a leader that stops while it accepts a connection would leave that open
            await asyncio.sleep(0)
        self.logs.close()


class Leader:
    """Partitions that one broker leads, and of which another broker has replicas."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def lead(self, *, count: int = 1, epoch: int = 5) -> None:
        """Have the broker lead, as the controller does."""
        known, broker = self.broker.controller, self.broker
        alive = [
            UpdateMetadataBroker(id=node, endpoints=[UpdateMetadataEndpoint(host="h", port=1, listener="BROKERS")])
            for node in (broker.node_id, FOLLOWER)
        ]
        members = [broker.node_id, FOLLOWER]
        known.secret_digests[FOLLOWER] = ""  # it is registered, and need not show who it is
        told = [
            UpdateMetadataPartitionState(
                partition_index=index, leader=broker.node_id, leader_epoch=epoch, isr=members, replicas=members
            )
            for index in range(count)
        ]
        await broker.commands.update_metadata(
            UpdateMetadataRequest(
                controller_id=broker.node_id,
                controller_epoch=known.epoch,
                broker_epoch=known.broker_epoch,
                live_brokers=alive,
                topic_states=[UpdateMetadataTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=told)],
            )
        )
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index, leader=broker.node_id, leader_epoch=epoch, isr=members, replicas=members,
                partition_epoch=epoch, is_new=True,
            )
            for index in range(count)
        ]  # fmt: skip
        answer = await broker.commands.leader_and_isr(
            LeaderAndIsrRequest(
                controller_id=broker.node_id,
                controller_epoch=known.epoch,
                broker_epoch=known.broker_epoch,
                topic_states=[LeaderAndIsrTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=states)],
            )
        )
        assert [found.error_code for found in answer.topics[0].partition_errors] == [0] * count

    def partition(self, index: int = 0) -> Partition:
        return self.broker.replicas.partition_or_error("t", index)

    def append(self, count: int, index: int = 0, records: int = 1, size: int = 100) -> None:
        for _ in range(count):
            values = [Record(at, 1_700_000_000_000, None, b"v" * size) for at in range(records)]
            self.broker.replicas.append("t", index, build_batch(values), 1, 13)


@asynccontextmanager
async def pair(tmp_path: Path, **parts: Any) -> AsyncIterator[tuple[Leader, Follower]]:
    store = EmbeddedStore(":memory:", SystemClock(), is_durable=False)
    await store.open()
    listeners = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter_broker_listener_name": "BROKERS",
    }
    try:
        async with running(tmp_path / "leader", replace(ENVIRONMENT, metadata_store=store), **listeners) as broker:
            follower = Follower(broker, tmp_path / "follower", **parts)
            try:
                yield Leader(broker), follower
            finally:
                await follower.stop()
    finally:
        await store.close()


def content(log: PartitionLog, end_offset: int) -> bytes:
    """All bytes of the batches before an offset."""
    found, offset = b"", log.log_start_offset
    while offset < end_offset:
        try:
            data = log.read(offset, 1 << 20, max_offset=end_offset)
        except ColdRead as cold:
            data = cold.load()
        found += bytes(data.records)
        offset = data.next_offset
    return found


def assert_equal(leader: Partition, own: PartitionLog) -> None:
    """Check that logs are equal below the high watermark, and in what the broker knows of the high watermark."""
    end_offset = leader.log.high_watermark
    assert content(own, end_offset) == content(leader.log, end_offset)
    assert own.log_start_offset == leader.log.log_start_offset
    assert own.leader_epochs.entries == leader.log.leader_epochs.entries


def turn_bit(path: str, position: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[position] ^= 1
    Path(path).write_bytes(data)
