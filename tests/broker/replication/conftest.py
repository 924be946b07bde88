"""Hosted partitions without a broker: a log manager over real files, whose syncs a test can hold back or have fail."""

import asyncio
import errno
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.alter_partitions import AlterPartitions
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.replication.isr import RoleChange
from barnabas.broker.replication.leadership import Leaderships
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.storage.config import LogConfig
from barnabas.storage.log import LogAppendInfo
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.threads import OsThreads
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ResponsePartitionData,
    ResponseTopicData,
)
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataRequest
from barnabas.wire.names import TopicId
from barnabas.wire.records import Record, build_batch
from tools.waiting import PATIENCE_S

NODE_ID = 1
OTHER_ID = 2
BROKER_EPOCH = 70
LAG_MS_MAX = 30_000
TOPIC_ID = TopicId(bytes(range(1, 17)))
NOW_MS = 1_700_000_000_000


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests on an event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class Files(UnsyncedFiles):
    """The real disk, except where a test sets a fault, or holds syncs back until they may `go_on`."""

    def __init__(self) -> None:
        self.sync_error: OSError | None = None
        self.open_error: OSError | None = None
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncs = 0
        self._changed = threading.Condition()

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        if self.open_error is not None:
            raise self.open_error
        return super().open(path, create=create, truncate=truncate)

    def sync(self, descriptor: int) -> None:
        with self._changed:
            self.syncs += 1
            self._changed.notify_all()
        assert self.go_on.wait(PATIENCE_S)
        if self.sync_error is not None:
            raise self.sync_error
        super().sync(descriptor)

    async def reached(self, syncs: int) -> None:
        """Return when so many syncs have begun."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: self.syncs >= syncs, PATIENCE_S)

        assert await asyncio.to_thread(wait), f"{self.syncs} syncs began"


class Storage:
    """One log directory under a manual clock."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock(now_ms=NOW_MS)
        self.files = Files()
        self.config = LogConfig()
        self._path = path
        self.manager = self._open()

    def _open(self) -> LogManager:
        manager = LogManager(
            LogEnvironment(self.files, self.clock, OsThreads(), lambda: "the-only-one"),
            LogManagerSettings([self._path], lambda _topic: self.config, node_id=NODE_ID, cluster_id="a-cluster"),
        )
        manager.lock()
        manager.load()
        manager.lost.settle(())  # as if a controller had told of no partition
        manager.set_cluster_id("a-cluster")
        return manager

    def restart(self) -> None:
        """Stop cleanly and start again: little is in memory after that."""
        self.manager.close()
        self.manager = self._open()

    def partition(self, *, flush_before_ack: bool = False) -> Partition:
        log = self.manager.get_or_create("t", 0, TOPIC_ID, self.config)
        return Partition("t", 0, TOPIC_ID, log, NODE_ID, flush_before_ack=flush_before_ack)

    @asynccontextmanager
    async def hosting(self, *, flush_before_ack: bool = False) -> "AsyncIterator[Hosting]":
        found = Hosting(self, flush_before_ack=flush_before_ack)
        try:
            yield found
        finally:
            self.files.go_on.set()
            await found.replicas.close()


class AskedController:
    """A controller that receives AlterPartition, and responds when the test does."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]] = (
            asyncio.Queue()
        )
        self._answer: asyncio.Future[AlterPartitionResponse] | None = None

    async def send(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        answer: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((request, answer))
        return await answer

    async def next_request(self) -> AlterPartitionRequest:
        """The next request to the controller."""
        async with asyncio.timeout(PATIENCE_S):
            request, self._answer = await self._asked.get()
        return request

    async def is_asked_nothing(self) -> bool:
        for _ in range(10):  # whoever asks needs a turn of the loop or two
            await asyncio.sleep(0)
        return self._asked.empty()

    async def answer(self, response: AlterPartitionResponse | OSError) -> None:
        """Respond to the last request, and let the response be processed."""
        assert self._answer is not None
        if isinstance(response, OSError):
            self._answer.set_exception(response)
        else:
            self._answer.set_result(response)
        for _ in range(10):
            await asyncio.sleep(0)

    async def store(self, isr: list[int], *, leader_epoch: int = 0, partition_epoch: int) -> None:
        """Respond with a state of partition 0 that is now stored."""
        await self._answer_for_partition(
            ResponsePartitionData(
                leader_id=NODE_ID, leader_epoch=leader_epoch, isr=isr, partition_epoch=partition_epoch
            )
        )

    async def refuse(self, error: ErrorCode) -> None:
        await self._answer_for_partition(ResponsePartitionData(error_code=error))

    async def _answer_for_partition(self, answer: ResponsePartitionData) -> None:
        await self.answer(AlterPartitionResponse(topics=[ResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])]))


class Hosting:
    """A replica manager over that directory, and the partitions that its coordinators learned of."""

    def __init__(self, storage: Storage, *, flush_before_ack: bool) -> None:
        self.controller = AskedController()
        self._clock = storage.clock
        self.elected: list[str] = []
        self.resigned: list[str] = []
        self.metadata = MetadataCache()
        self.replicas = ReplicaManager(
            NODE_ID,
            storage.manager,
            self.metadata,
            storage.clock,
            lambda _topic: storage.config,
            lambda partition: self.elected.append(str(partition)),
            lambda partition: self.resigned.append(str(partition)),
            self._make_leaderships,
            flush_before_ack=flush_before_ack,
        )

    def _make_leaderships(self) -> Leaderships:
        self.timers = Timers(self._clock, asyncio.get_running_loop())
        alter_partitions = AlterPartitions(
            NODE_ID, lambda: BROKER_EPOCH, self.controller.send, self.timers, self._clock
        )
        return Leaderships(self._clock, LAG_MS_MAX, self.metadata.is_alive, alter_partitions)

    async def live(self, *broker_ids: int) -> None:
        """Send the live brokers, as the controller does."""
        brokers = [UpdateMetadataBroker(id=broker_id) for broker_id in broker_ids]
        await self.metadata.update(UpdateMetadataRequest(live_brokers=brokers))

    def fetch(self, replica_id: int, offset: int, *, log_start_offset: int = 0, broker_epoch: int = 80) -> None:
        """A fetch of a follower from `offset` on."""
        leadership = self.partition().leadership
        assert leadership is not None
        leadership.fetched(replica_id, broker_epoch, offset, log_start_offset)

    async def lead(
        self, *states: LeaderAndIsrPartitionState, topic: str = "t", topic_id: TopicId = TOPIC_ID
    ) -> list[ErrorCode]:
        """Send the roles of partitions of one topic; returns the errors, or the error of the whole request."""
        told = LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=list(states))
        answer = await self.replicas.leader_and_isr(LeaderAndIsrRequest(topic_states=[told]))
        if answer.error_code:
            return [ErrorCode.of(answer.error_code)]
        return [ErrorCode.of(each.error_code) for each in answer.topics[0].partition_errors]

    async def stop(self, *indexes: int, delete: bool, leader_epoch: int = -1) -> list[ErrorCode]:
        states = [
            StopReplicaPartitionState(partition_index=index, leader_epoch=leader_epoch, delete_partition=delete)
            for index in indexes
        ]
        topic = StopReplicaTopicState(topic_name="t", partition_states=states)
        answer = await self.replicas.stop_replica(StopReplicaRequest(topic_states=[topic]))
        if answer.error_code:
            return [ErrorCode.of(answer.error_code)]
        return [ErrorCode.of(each.error_code) for each in answer.partition_errors]

    def partition(self, index: int = 0) -> Partition:
        return self.replicas.partition_or_error("t", index)

    def append(self, *values: bytes, index: int = 0, acks: int = -1) -> tuple[Partition, LogAppendInfo]:
        return self.replicas.append("t", index, batch_of(*values), acks, 11)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    found = Storage(tmp_path)
    yield found
    found.manager.close()


def told(**given: Any) -> LeaderAndIsrPartitionState:
    """The state of partition 0 as the controller sends it: this broker leads in epoch 0, alone, unless the test changes
    that."""
    fields: dict[str, Any] = {
        "partition_index": 0, "controller_epoch": 1, "leader": NODE_ID, "leader_epoch": 0, "partition_epoch": 0,
        "replicas": [NODE_ID], "isr": [NODE_ID],
    }  # fmt: skip
    return LeaderAndIsrPartitionState(**(fields | given))


def tell(partition: Partition, told: LeaderAndIsrPartitionState) -> RoleChange:
    """The controller's state of a partition that no other broker has a replica of, or that another broker leads."""

    def lead_followers(*_: object) -> Any:
        raise AssertionError("it has followers")

    return partition.become_leader_or_follower(told, lead_followers)


def append(partition: Partition, *values: bytes) -> LogAppendInfo:
    """Append a batch to the log alone; the partition is not notified."""
    return partition.log.append_as_leader(batch_of(*values), leader_epoch=partition.state.leader_epoch, now_ms=NOW_MS)


def batch_of(*values: bytes) -> bytearray:
    return build_batch([Record(offset, NOW_MS, None, value, [], 0) for offset, value in enumerate(values)])


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "no space left on device")
