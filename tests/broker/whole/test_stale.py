"""What was looked up before a wait, and has changed when the wait is over (decision 10)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import pytest

import barnabas.storage.log
from barnabas.broker.configuration import config
from barnabas.broker.coordinators.runtime import LOAD_RETRY_DELAY_MS, CoordinatorRuntime
from barnabas.broker.coordinators.transactions.events import InitProducerId
from barnabas.broker.environment import Environment
from barnabas.broker.replication.internal_topic_log import InternalTopicLog
from barnabas.broker.server import Broker
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.coordination.embedded import EmbeddedSession
from barnabas.controller.operations.topics import NewTopic
from barnabas.storage.files import UnsyncedFiles
from barnabas.storage.segment_reader import FetchData
from barnabas.storage.timestamps import TimestampLookup
from barnabas.storage.validation import CHEAP_RECORDS_MAX
from barnabas.testing.requests import ask
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.wire.record_batch import TimestampType, iter_headers
from barnabas.wire.records import Record, build_batch


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a coroutine function as a test."""

    @wraps(test)
    def run(*arguments: object, **keywords: object) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[Broker]:
    keys = {
        "log.dirs": str(data_dir),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    failures: list[str] = []
    broker = Broker(config.load(options=keys), Environment(clock=ManualClock(), files=UnsyncedFiles()), failures.append)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
    assert failures == []


async def create(broker: Broker, name: str, **configs: str) -> None:
    topic = NewTopic(name, 1, configs={key.replace("_", "."): value for key, value in configs.items()})
    (outcome,) = await broker.controller.create_topics([topic])
    assert outcome.error is ErrorCode.NONE, outcome


async def delete(broker: Broker, name: str) -> None:
    assert await broker.controller.delete_topics([name]) == {name: None}


async def produce(broker: Broker, topic: str, count: int = 1, *, age_ms: int = 0) -> ErrorCode:
    """Records without keys."""
    batch = bytearray(build_batch([Record(n, broker.clock.now_ms() - age_ms, None, b"x") for n in range(count)]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    answer = await ask(broker, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data]), 11)
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


class Gate:
    """Has the first call of a method wait, in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        call = getattr(owner, name)

        def wait(*arguments: Any, **keywords: Any) -> Any:
            if not self._reached.is_set():
                self._reached.set()
                assert self._go_on.wait(60)
            return call(*arguments, **keywords)

        monkeypatch.setattr(owner, name, wait)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 60)

    def open(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("change", ["configuration", "another topic of the name"])
@in_loop
async def test_a_batch_is_checked_by_the_rules_of_the_log_that_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Large batches are looked at in a thread; a topic that is compacted by then takes no records without keys."""
    async with running(tmp_path) as broker:
        await create(broker, "t", message_timestamp_before_max_ms="1000000")
        gate = Gate(monkeypatch, barnabas.storage.log, "validate_batch")
        waiting = asyncio.ensure_future(produce(broker, "t", CHEAP_RECORDS_MAX + 1))
        await gate.reached()
        if change == "configuration":
            await broker.configs.replace("topics", "t", {"cleanup.policy": "compact"})
        else:
            await delete(broker, "t")
            await create(broker, "t", cleanup_policy="compact")
        gate.open()
        assert await waiting is ErrorCode.INVALID_RECORD
        partition = broker.replicas.partition("t", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 0


@in_loop
async def test_a_batch_that_is_checked_twice_is_not_stamped_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for a topic of LogAppendTime stamps the batch; by then the topic may be one of CreateTime."""
    async with running(tmp_path) as broker:
        await create(broker, "t", message_timestamp_type="LogAppendTime")
        gate = Gate(monkeypatch, barnabas.storage.log, "validate_batch")
        waiting = asyncio.ensure_future(produce(broker, "t", CHEAP_RECORDS_MAX + 1, age_ms=5_000))
        await gate.reached()
        await broker.configs.replace("topics", "t", {"message.timestamp.type": "CreateTime"})
        gate.open()
        assert await waiting is ErrorCode.NONE
        partition = broker.replicas.partition("t", 0)
        assert partition is not None
        found = partition.log.read(0, 1 << 20)
        assert isinstance(found, FetchData)
        (header,) = iter_headers(found.records)
        assert header.timestamp_type is TimestampType.CREATE_TIME
        assert header.max_timestamp == broker.clock.now_ms() - 5_000


@pytest.mark.parametrize("change", ["deleted", "records deleted"])
@in_loop
async def test_an_offset_by_time_that_is_gone_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async with running(tmp_path) as broker:
        await create(broker, "t")
        for _ in range(3):
            assert await produce(broker, "t") is ErrorCode.NONE
        gate = Gate(monkeypatch, TimestampLookup, "first_at_or_after")
        asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=0)])
        waiting = asyncio.ensure_future(ask(broker, ListOffsetsRequest(replica_id=-1, topics=[asked]), 7))
        await gate.reached()
        if change == "deleted":
            await delete(broker, "t")
        else:
            broker.replicas.delete_records(broker.replicas.partition_or_error("t", 0), 2)
        gate.open()
        answer = (await waiting).topics[0].partitions[0]
        told = (ErrorCode.of(answer.error_code), answer.offset)
        assert told == ((ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) if change == "deleted" else (ErrorCode.NONE, 2))


@in_loop
async def test_no_configuration_is_left_for_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        await create(broker, "t")
        exists = EmbeddedSession.exists

        async def exists_until_asked(session: EmbeddedSession, path: str, *watcher: Any) -> Any:
            found = await exists(session, path, *watcher)
            if path == znodes.config_path("topics", "t") and "t" in broker.metadata:
                await delete(broker, "t")
            return found

        monkeypatch.setattr(EmbeddedSession, "exists", exists_until_asked)
        with pytest.raises(ApiError) as caught:
            await broker.configs.replace("topics", "t", {"retention.ms": "1"}, if_topic_exists=True)
        assert caught.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create(broker, "t")
        assert broker.configs.overrides("topics", "t") == {}


@in_loop
async def test_no_offset_is_committed_for_a_topic_that_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction's coordinator takes its time to add the group's partition."""
    async with running(tmp_path) as broker:
        await create(broker, "t")
        for name in ("__consumer_offsets", "__transaction_state"):
            await create(broker, name)
        await broker.settle()
        _, producer_id, epoch = await broker.transactions.producer(InitProducerId("p", 0, 60_000))
        committed = InternalTopicLog(broker.replicas, "__transaction_state").committed
        replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(InternalTopicLog, "committed", lambda *_: replicated)
        request = TxnOffsetCommitRequest(
            transactional_id="p",
            group_id="g",
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=-1,
            member_id="",
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
                )
            ],
        )
        waiting = asyncio.ensure_future(ask(broker, request, 5))
        await asyncio.sleep(0)
        monkeypatch.setattr(InternalTopicLog, "committed", lambda *_: None)
        await delete(broker, "t")
        assert not waiting.done()
        assert committed is not None
        replicated.set_result(None)
        (topic,) = (await waiting).topics
        assert ErrorCode.of(topic.partitions[0].error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.groups.runtime.runner("g").shard.offsets.pending


@in_loop
async def test_what_every_shard_is_told_reaches_the_next_life_of_one_that_is_lost_meanwhile() -> None:
    clock = ManualClock()
    timers = Timers(clock, asyncio.get_running_loop())
    told: list[tuple[int, bool]] = []
    go_on = asyncio.Event()

    class Log:
        def read_all(self, partition: int) -> list[bytes]:
            return []

    class Shard(list[int]):
        skipped: ClassVar[dict[str, int]] = {}

    class Runner:
        def __init__(self, partition: int) -> None:
            self.partition = partition
            self.is_closed = False

        def start(self) -> None: ...

        def close(self, error: ApiError) -> None:
            self.is_closed = True

    runtime: Any = CoordinatorRuntime(
        "tests",
        Log(),
        2,
        timers,
        clock,
        Shard,
        lambda partition, *_: Runner(partition),  # type: ignore[arg-type]
    )

    async def act(runner: Runner) -> None:
        await go_on.wait()
        told.append((runner.partition, runner.is_closed))

    for partition in range(2):
        runtime.on_elected(partition, 1)
    await asyncio.wait(runtime.running())
    telling = asyncio.ensure_future(runtime.tell_all(act))
    await asyncio.sleep(0)
    runtime.on_lost(0)
    go_on.set()
    await telling
    assert told == [(0, True), (1, False)]
    clock.advance(LOAD_RETRY_DELAY_MS)
    timers.fire_due()
    await asyncio.wait(runtime.running())
    assert told == [(0, True), (1, False), (0, False)]
    await runtime.stop()
