"""A broker that the controller makes a follower: it fetches from a real leader while it follows, and no longer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.clock import SystemClock
from barnabas.storage.checkpoints import RECOVERY_POINT_FILE
from barnabas.storage.errors import LogDeleted
from barnabas.storage.log import PartitionLog
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.records import Record, build_batch
from tests.broker.replication.leader_and_follower import (
    CONFIG,
    FOLLOWER,
    TOPIC_ID,
    Follower,
    Leader,
    content,
    open_logs,
    pair,
)
from tests.storage.blocking import flush


class Told:
    """A replica manager of the follower."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.replicas = ReplicaManager(
            FOLLOWER, follower.logs, MetadataCache(), SystemClock(), lambda _: CONFIG, _nothing, _nothing, _nobody,
            make_fetchers=lambda: follower.manager,
        )  # fmt: skip

    async def tell(self, leader: int, epoch: int, isr: list[int] | None = None, **more: Any) -> ErrorCode:
        members = [self.follower.leader.node_id, FOLLOWER]
        state = LeaderAndIsrPartitionState(
            partition_index=0,
            leader=leader,
            leader_epoch=epoch,
            isr=isr or members,
            **more,
            replicas=[FOLLOWER] if leader == FOLLOWER else members,
        )
        topic = LeaderAndIsrTopicState(topic_name="t", topic_id=TOPIC_ID, partition_states=[state])
        answer = await self.replicas.leader_and_isr(LeaderAndIsrRequest(topic_states=[topic]))
        return ErrorCode.of(answer.topics[0].partition_errors[0].error_code)

    async def stop(self, epoch: int, *, delete: bool) -> None:
        state = StopReplicaPartitionState(partition_index=0, leader_epoch=epoch, delete_partition=delete)
        topic = StopReplicaTopicState(topic_name="t", partition_states=[state])
        await self.replicas.stop_replica(StopReplicaRequest(topic_states=[topic]))

    def log(self) -> PartitionLog:
        return self.replicas.partition_or_error("t", 0).log

    @property
    def is_following(self) -> bool:
        return self.follower.manager.following(TOPIC_ID, 0) is not None


def _nothing(_partition: Any) -> None:
    """No coordinator has anything here."""


def _nobody() -> NoReturn:
    raise AssertionError("nobody follows this broker")


@asynccontextmanager
async def told(tmp_path: Path) -> AsyncIterator[tuple[Leader, Told]]:
    async with pair(tmp_path) as (leader, follower):
        found = Told(follower)
        try:
            yield leader, found
        finally:
            await found.replicas.close()


async def test_a_broker_follows_the_leader_that_the_controller_names(tmp_path: Path) -> None:
    async with told(tmp_path) as (leader, broker):
        await leader.lead()
        leader.append(3)
        assert await broker.tell(leader.broker.node_id, 5, is_new=True) is ErrorCode.NONE
        log = broker.log()
        await broker.follower.until(lambda: log.high_watermark == 3)
        assert content(log, 3) == content(leader.partition().log, 3)
        assert await broker.tell(leader.broker.node_id, 4) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert broker.is_following, "an old word ends nothing"
        assert await broker.tell(FOLLOWER, 6, [FOLLOWER]) is ErrorCode.NONE
        assert not broker.is_following
        assert log.leader_epochs.latest_epoch == 6
        assert await broker.tell(leader.broker.node_id, 7) is ErrorCode.NONE
        assert broker.is_following
        assert await broker.tell(-1, 8) is ErrorCode.NONE
        assert not broker.is_following


@pytest.mark.parametrize("delete", [False, True])
async def test_a_replica_that_is_stopped_is_not_fetched_for(tmp_path: Path, *, delete: bool) -> None:
    async with told(tmp_path) as (leader, broker):
        await leader.lead()
        leader.append(1)
        await broker.tell(leader.broker.node_id, 5, is_new=True)
        log = broker.log()
        await broker.follower.until(lambda: log.high_watermark == 1)
        await broker.stop(4, delete=delete)
        assert broker.is_following, "an old word ends nothing"
        await broker.stop(6, delete=delete)
        assert not broker.is_following
        assert isinstance(log.failure, LogDeleted) is delete


def make_damaged_log(data_dir: Path) -> None:
    """A log with flushed bytes that have changed since."""
    logs = open_logs(data_dir)
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    for _ in range(3):
        log.append_as_leader(build_batch([Record(0, 1, None, b"value")]), leader_epoch=5, now_ms=1)
    flush(log)
    logs.checkpoint(RECOVERY_POINT_FILE)
    path = Path(log.segments[0].file.path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    logs.abandon()


async def test_a_damaged_log_is_fetched_anew_only_outside_the_isr(tmp_path: Path) -> None:
    """Other replicas may rely on its records: it is kept until the controller has removed this broker from the ISR, and
    set aside then."""
    make_damaged_log(tmp_path / "follower")
    async with told(tmp_path) as (leader, broker):
        other = leader.broker.node_id
        assert await broker.tell(other, 5) is ErrorCode.KAFKA_STORAGE_ERROR, "in the ISR"
        assert await broker.tell(FOLLOWER, 6, [other]) is ErrorCode.KAFKA_STORAGE_ERROR, "nobody else leads"
        assert await broker.tell(-1, 7, [other]) is ErrorCode.KAFKA_STORAGE_ERROR, "nobody else leads"
        assert names(tmp_path / "follower") == ["t-0"]
        await leader.lead(epoch=8)
        leader.append(3)
        assert await broker.tell(other, 8, [other]) is ErrorCode.NONE
        log, theirs = broker.log(), leader.partition().log
        await broker.follower.until(lambda: log.log_end_offset == 3)
        assert content(log, 3) == content(theirs, 3)
        kept, aside = names(tmp_path / "follower")
        assert kept == "t-0"
        assert aside.endswith("-stray")


async def test_an_earlier_topics_log_is_replaced_only_outside_the_isr(tmp_path: Path) -> None:
    async with told(tmp_path) as (leader, broker):
        other = leader.broker.node_id
        broker.follower.logs.get_or_create("t", 0, bytes(range(2, 18)), CONFIG)
        assert await broker.tell(other, 5) is ErrorCode.INCONSISTENT_TOPIC_ID, "in the ISR"
        assert await broker.tell(FOLLOWER, 6, [other]) is ErrorCode.INCONSISTENT_TOPIC_ID, "nobody else leads"
        assert names(tmp_path / "follower") == ["t-0"]
        await leader.lead(epoch=8)
        leader.append(3)
        assert await broker.tell(other, 8, [other]) is ErrorCode.NONE
        log = broker.log()
        await broker.follower.until(lambda: log.log_end_offset == 3)
        assert len(names(tmp_path / "follower")) == 2


def names(data_dir: Path) -> list[str]:
    return sorted(path.name for path in data_dir.glob("t-*"))
