"""State that was looked up before an await, and has changed when the await is over (decision 10)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pytest

from barnabas.broker.coordinators.effects import Effects
from barnabas.broker.coordinators.runner import ShardRunner
from barnabas.broker.coordinators.runtime import LOAD_RETRY_DELAY_MS, CoordinatorDefinition, CoordinatorRuntime
from barnabas.broker.coordinators.shard import Shard
from barnabas.broker.coordinators.transactions.events import InitProducerId
from barnabas.broker.server import Broker
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.controller import znodes
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.controller.topics import NewTopic
from barnabas.set_aside import SetAside
from barnabas.storage.segment_reader import FetchData
from barnabas.storage.validation import CHEAP_RECORDS_MAX
from barnabas.testing.contents.requests import ask
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
from tests.broker.running import ENVIRONMENT, running
from tests.support.files import SlowDisk
from tools.waiting import PATIENCE_S

T = TypeVar("T")


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a coroutine function as a test."""

    @wraps(test)
    def run(*arguments: object, **keywords: object) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


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
    """Until it is open, jobs wait in front of the one thread that opens records."""

    def __init__(self, broker: Broker) -> None:
        self._go_on = threading.Event()
        self._first = asyncio.ensure_future(broker.replicas.read_records(lambda: self._go_on.wait(PATIENCE_S)))

    async def holds(self, job: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Begin a job that waits there."""
        waiting = asyncio.ensure_future(job)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        return waiting

    def open(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("change", ["configuration", "another topic of the name"])
@in_loop
async def test_a_batch_is_checked_by_the_rules_of_its_log(tmp_path: Path, change: str) -> None:
    """Large batches are looked at in a thread; a topic that is compacted by then takes no records without keys."""
    async with running(tmp_path) as broker:
        await create(broker, "t", message_timestamp_before_max_ms="1000000")
        gate = Gate(broker)
        waiting = await gate.holds(produce(broker, "t", CHEAP_RECORDS_MAX + 1))
        if change == "configuration":
            await broker.configs.change("topics", "t", lambda _: {"cleanup.policy": "compact"})
        else:
            await delete(broker, "t")
            await create(broker, "t", cleanup_policy="compact")
        gate.open()
        assert await waiting is ErrorCode.INVALID_RECORD
        partition = broker.replicas.partition("t", 0)
        assert partition is not None
        assert partition.log.log_end_offset == 0


@in_loop
async def test_a_batch_that_is_checked_twice_is_not_stamped_twice(tmp_path: Path) -> None:
    """A look for a topic of LogAppendTime stamps the batch; by then the topic may be one of CreateTime."""
    async with running(tmp_path) as broker:
        await create(broker, "t", message_timestamp_type="LogAppendTime")
        gate = Gate(broker)
        waiting = await gate.holds(produce(broker, "t", CHEAP_RECORDS_MAX + 1, age_ms=5_000))
        await broker.configs.change("topics", "t", lambda _: {"message.timestamp.type": "CreateTime"})
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
async def test_an_offset_by_time_that_is_gone_is_not_told(tmp_path: Path, change: str) -> None:
    async with running(tmp_path) as broker:
        await create(broker, "t")
        for _ in range(3):
            assert await produce(broker, "t") is ErrorCode.NONE
        gate = Gate(broker)
        asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=0)])
        waiting = await gate.holds(ask(broker, ListOffsetsRequest(replica_id=-1, topics=[asked]), 7))
        if change == "deleted":
            await delete(broker, "t")
        else:
            broker.replicas.delete_records(broker.replicas.partition_or_error("t", 0), 2)
        gate.open()
        answer = (await waiting).topics[0].partitions[0]
        told = (ErrorCode.of(answer.error_code), answer.offset)
        assert told == ((ErrorCode.NOT_LEADER_OR_FOLLOWER, -1) if change == "deleted" else (ErrorCode.NONE, 2))


class LateStore(EmbeddedStore):
    """A store whose result for `path` comes after `meanwhile` has happened, once."""

    path = ""
    meanwhile: Callable[[], Awaitable[None]]

    async def session(self) -> EmbeddedSession:
        session = await super().session()
        get_many = session.get_many

        async def get_until_asked(paths: Sequence[str], *watcher: Any) -> Any:
            found = await get_many(paths, *watcher)
            if self.path in paths:
                self.path = ""
                await self.meanwhile()
            return found

        session.get_many = get_until_asked
        return session


@in_loop
async def test_a_topic_deleted_meanwhile_leaves_no_configuration(tmp_path: Path) -> None:
    store = LateStore(":memory:", ManualClock())
    await store.open()
    async with running(tmp_path, replace(ENVIRONMENT, metadata_store=store)) as broker:
        await create(broker, "t")
        store.path, store.meanwhile = znodes.config_path("topics", "t"), lambda: delete(broker, "t")
        with pytest.raises(ApiError) as caught:
            await broker.configs.change("topics", "t", lambda _: {"retention.ms": "1"}, if_topic_exists=True)
        assert caught.value.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert store.path == "", "nobody asked"
        await create(broker, "t")
        assert broker.configs.overrides("topics", "t") == {}
    await store.close()


@in_loop
async def test_a_topic_deleted_meanwhile_gets_no_offset(tmp_path: Path) -> None:
    """The transaction's coordinator takes its time to add the group's partition."""
    slow = SlowDisk("__transaction_state-")
    slow.go_on.set()
    async with running(tmp_path, replace(ENVIRONMENT, files=slow), barnabas_flush_before_ack="true") as broker:
        await create(broker, "t")
        for name in ("__consumer_offsets", "__transaction_state"):
            await create(broker, name)
        await broker.settle()
        _, producer_id, epoch = await broker.transactions.producer(InitProducerId("p", 0, 60_000))
        slow.go_on.clear()
        slow.begun.clear()
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
        await slow.reached()
        await delete(broker, "t")
        assert not waiting.done()
        slow.go_on.set()
        (topic,) = (await waiting).topics
        assert ErrorCode.of(topic.partitions[0].error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.groups.runtime.runner("g").shard.offsets.pending


@in_loop
async def test_events_for_all_shards_reach_a_shard_loaded_again() -> None:
    clock = ManualClock()
    timers = Timers(clock, asyncio.get_running_loop())
    told: list[tuple[int, bool]] = []
    go_on = asyncio.Event()

    class Log:
        async def read_all(self, partition: int, take: Callable[[bytes], bool]) -> None:
            """There is nothing."""

    class Nothing(Shard[Any, Any, Any]):
        held_bytes = 0

        def __len__(self) -> int:
            return 0

        @staticmethod
        def decode_record(key: bytes, value: bytes | None) -> Any:
            raise AssertionError("the log holds no records")

        def decide(self, event: Any, now_ms: int, settings: Any, uncommitted: Collection[str]) -> Effects[Any, Any]:
            raise AssertionError("nobody asks")

        def _apply(self, key: str, change: Any, record_offset: int, producer_id: int) -> None:
            raise AssertionError("nothing is decided")

        def commit_timeout_ms(self, key: str, settings: Any) -> int:
            raise AssertionError("nothing is decided")

    log: Any = Log()
    aside = SetAside[str]("events of tests", clock)
    definition = CoordinatorDefinition("tests", ShardRunner[Any, Any, Any], Nothing, Any, 0, aside)
    runtime = CoordinatorRuntime(definition, log, 2, timers, clock, None)

    async def act(runner: ShardRunner[Any, Any, Any]) -> None:
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
