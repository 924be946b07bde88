"""Flushes in the background, on slow disks: beside deletions, beside each other, and at a stop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path

import pytest

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.replication.flusher import FLUSHES_PER_DIRECTORY
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller.topics import NewTopic
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.errors import StorageError
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tests.support.files import SlowDisk
from tests.support.scarce_threads import no_new_threads
from tools.waiting import PATIENCE_S


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a coroutine function as a test."""

    @wraps(test)
    def run(*arguments: object, **keywords: object) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


@pytest.fixture
def slow() -> Iterator[SlowDisk]:
    slow = SlowDisk("slow-")
    yield slow
    slow.go_on.set()


@asynccontextmanager
async def running(slow: SlowDisk, data_dir: Path, **configs: object) -> AsyncIterator[Broker]:
    """A broker whose time stands still; a failure of it is the test's."""
    keys = {"log.dirs": data_dir, "listeners": "PLAINTEXT://127.0.0.1:0", "log.cleaner.enable": "false"}
    keys |= {name.replace("_", "."): value for name, value in configs.items()}
    failures: list[str] = []
    options = {key: str(value) for key, value in keys.items()}
    broker = Broker(config.load(options=options), Environment(clock=ManualClock(), files=slow), failures.append)
    await broker.start()
    try:
        yield broker
    finally:
        slow.go_on.set()
        if broker.is_ready:
            await broker.stop()
    assert failures == []


async def create(broker: Broker, name: str, partitions: int = 1) -> None:
    (outcome,) = await broker.controller.create_topics([NewTopic(name, partitions)])
    assert outcome.error is ErrorCode.NONE, outcome


async def produce(broker: Broker, topic: str, partition: int = 0) -> ErrorCode:
    batch = bytearray(build_batch([Record(0, broker.clock.now_ms(), None, b"x")]))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        ],
    )
    answer = await ask(broker, request, 11)
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


def pass_of_flushes(broker: Broker) -> None:
    """Run the flushes that a second of the clock begins."""
    broker.clock.advance(1_000)  # type: ignore[attr-defined]
    broker.timers.fire_due()


def log_of(broker: Broker, topic: str) -> object:
    partition = broker.replicas.partition(topic, 0)
    assert partition is not None
    return partition.log


@in_loop
async def test_a_log_that_was_deleted_before_its_turn_is_no_failure(slow: SlowDisk, tmp_path: Path) -> None:
    """Its files are gone by then, not only renamed."""
    async with running(slow, tmp_path, log_segment_delete_delay_ms=0) as broker:
        await create(broker, "slow", FLUSHES_PER_DIRECTORY)
        await create(broker, "doomed")
        for partition in range(FLUSHES_PER_DIRECTORY):
            assert await produce(broker, "slow", partition) is ErrorCode.NONE
        assert await produce(broker, "doomed") is ErrorCode.NONE
        pass_of_flushes(broker)
        await slow.reached(1)
        assert await broker.controller.delete_topics(["doomed"]) == {"doomed": None}
        assert broker.log_manager.delete_due_files() == 1
        slow.go_on.set()
        await broker.settle()
        assert await produce(broker, "slow") is ErrorCode.NONE


@pytest.mark.parametrize("flushed", ["before the acknowledgement", "after each record"])
@in_loop
async def test_producers_learn_of_the_deletion_of_their_log(slow: SlowDisk, tmp_path: Path, flushed: str) -> None:
    """As in Kafka, whose DelayedProduce looks for the partition: the error is UNKNOWN_TOPIC_OR_PARTITION, and no disk
    failed."""
    is_first = flushed == "before the acknowledgement"
    configs = {"barnabas_flush_before_ack": "true"} if is_first else {"log_flush_interval_messages": 1}
    async with running(slow, tmp_path, log_segment_delete_delay_ms=0, **configs) as broker:
        await create(broker, "slow")
        waiting = [asyncio.ensure_future(produce(broker, "slow")) for _ in range(2)]
        await slow.reached(1)
        assert await broker.controller.delete_topics(["slow"]) == {"slow": None}
        await create(broker, "slow")
        slow.go_on.set()
        assert await asyncio.gather(*waiting) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        assert await produce(broker, "slow") is ErrorCode.NONE


@in_loop
async def test_a_log_whose_sync_takes_long_holds_back_no_other(slow: SlowDisk, tmp_path: Path) -> None:
    async with running(slow, tmp_path, log_flush_interval_ms=1_000) as broker:
        for name in ("slow", "other"):
            await create(broker, name)
        assert await produce(broker, "slow") is ErrorCode.NONE
        for _ in range(3):
            assert await produce(broker, "other") is ErrorCode.NONE
            pass_of_flushes(broker)
            await slow.reached(1)
            async with asyncio.timeout(PATIENCE_S):
                await until_flushed(broker, "other")
        assert not slow.go_on.is_set()


async def until_flushed(broker: Broker, topic: str) -> None:
    log = log_of(broker, topic)
    while log.recovery_point < log.log_end_offset:  # type: ignore[attr-defined]
        await asyncio.wait(broker.replicas.flusher.under_way(), return_when=asyncio.FIRST_COMPLETED)


@pytest.mark.parametrize("pool_finds_threads_later", [False, True])
@in_loop
async def test_a_flush_that_finds_no_thread_passes(
    slow: SlowDisk, tmp_path: Path, pool_finds_threads_later: bool
) -> None:
    """No file was synced, so the next flush does it. The segments are released once, although the pool has kept the
    job."""
    async with running(slow, tmp_path, log_segment_bytes=100, log_segment_delete_delay_ms=0) as broker:
        await create(broker, "slow")
        for _ in range(2):
            assert await produce(broker, "slow") is ErrorCode.NONE
        partition = broker.replicas.partition("slow", 0)
        assert partition is not None
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8, "new"))
        with no_new_threads(), pytest.raises(StorageError, match="can't start new thread"):
            await broker.replicas.flusher.flush(partition.log)
        assert partition.log.recovery_point == 0
        if not pool_finds_threads_later:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8, "newer"))
        slow.go_on.set()
        assert await produce(broker, "slow") is ErrorCode.NONE
        await broker.replicas.flusher.flush(partition.log)
        assert partition.log.recovery_point == 3
        broker.replicas.delete_records(partition, 2)
        await broker.retention.run()
        broker.log_manager.delete_due_files()
        assert [path.name for path in sorted((tmp_path / "slow-0").glob("*.log*"))] == ["00000000000000000002.log"]


@in_loop
async def test_a_stop_begins_no_new_flushes_before_the_last(slow: SlowDisk, tmp_path: Path) -> None:
    """The threads that close logs flush the rest of the pass."""
    async with running(slow, tmp_path) as broker:
        await create(broker, "slow", 12)
        for partition in range(12):
            assert await produce(broker, "slow", partition) is ErrorCode.NONE
        pass_of_flushes(broker)
        await slow.reached(FLUSHES_PER_DIRECTORY)
        running_before = set(slow.begun)
        stopping = asyncio.ensure_future(broker.stop())
        async with asyncio.timeout(PATIENCE_S):
            while not broker.replicas.flusher._is_stopping:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
        assert not stopping.done()
        slow.go_on.set()
        await stopping
    assert len(running_before) == FLUSHES_PER_DIRECTORY
    assert len(slow.begun) == 12
    assert {log for log, thread in slow.begun.items() if not thread.startswith("logs")} == running_before
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


@in_loop
async def test_a_stop_waits_for_the_flush_of_an_acknowledgement(slow: SlowDisk, tmp_path: Path) -> None:
    """A log that is still being flushed when it is closed would not count as closed cleanly."""
    async with running(slow, tmp_path, barnabas_flush_before_ack="true") as broker:
        await create(broker, "slow")
        waiting = asyncio.ensure_future(produce(broker, "slow"))
        await slow.reached(1)
        stopping = asyncio.ensure_future(broker.stop())
        # Real time: a stop that does not wait ends in threads. On a busy machine this one waits all the same.
        await asyncio.wait([stopping], timeout=0.2)
        assert not stopping.done()
        slow.go_on.set()
        await stopping
    assert await waiting is ErrorCode.NONE
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
