"""No new thread is to be had, as under a container's limit of processes: that passes."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from barnabas.broker.cluster.metadata import TRANSACTION_STATE_TOPIC
from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller.coordination.interface import StoreUnavailable
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.topics import NewTopic
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.testing.contents.requests import ask
from barnabas.threads import OneThread, OsThreads, T, ThreadPool
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tests.support.scarce_threads import no_new_threads


class _InTurn:
    """A metadata store's worker without a thread: work is done when it is submitted."""

    def submit(self, work: Callable[[], T], /) -> asyncio.Future[T]:
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 - carried to whoever awaits
            outcome.set_exception(error)
        return outcome

    def stop(self) -> None:
        """There is nothing to end."""


def _config(*directories: Path) -> config.BrokerConfig:
    keys = {
        "log.dirs": ",".join(map(str, directories)),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "barnabas.flush.before.ack": "true",
        "transaction.state.log.num.partitions": "1",
    }
    return config.load(options=keys)


async def _use(broker: Broker) -> None:
    """A creation, a deletion, and acknowledgements after flushes."""
    await broker.controller.create_topics([NewTopic("t", 4, 1), NewTopic("u", 1, 1)])
    assert await broker.controller.delete_topics(["u"]) == {"u": None}
    batch = build_batch([Record(0, 0, None, b"v")])
    requests = [
        ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=index, records=bytearray(batch))])
            ],
        )
        for index in range(4)
    ]
    produced = await asyncio.gather(*(ask(broker, request, 9) for request in requests))
    errors = [response.responses[0].partition_responses[0].error_code for response in produced]
    assert errors == [ErrorCode.NONE] * 4


def test_a_broker_serves_and_stops_cleanly_without_new_threads(tmp_path: Path) -> None:
    """Flushes before each acknowledgement, a creation and a deletion, and the stop, which brings logs to the disk."""
    directories = [tmp_path / "a", tmp_path / "b"]

    async def scenario() -> None:
        failures: list[str] = []
        environment = Environment(clock=ManualClock(), files=UnsyncedFiles())
        broker = Broker(_config(*directories), environment, failures.append)
        await broker.start()
        with no_new_threads():
            await _use(broker)
            await broker.stop()
        assert failures == []
        assert all((directory / CLEAN_SHUTDOWN_FILE).exists() for directory in directories)

    asyncio.run(scenario())


def test_a_broker_that_is_handed_the_one_thread_starts_none(tmp_path: Path) -> None:
    """In its second life there are logs to open, and a coordinator's to read."""

    async def live(clock: ManualClock) -> int:
        environment = Environment(clock=clock, files=UnsyncedFiles(), store_worker=_InTurn, threads=OneThread())
        broker = Broker(_config(tmp_path), environment)
        await broker.start()
        if not broker.metadata.has_partition("t", 0):
            await _use(broker)
            await broker.controller.create_topics([NewTopic(TRANSACTION_STATE_TOPIC, 1, 1)])
        await broker.settle()  # the coordinator's log is read
        initialized = await ask(broker, InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000), 4)
        assert initialized.error_code == ErrorCode.NONE
        clock.advance(600_000)
        await broker.settle()  # retention, compaction, checkpoints, free space, ...
        described = await ask(broker, DescribeLogDirsRequest(topics=None), 4)
        assert described.results[0].total_bytes > 0
        await broker.stop()
        assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
        return int(initialized.producer_epoch)

    async def scenario() -> None:
        clock = ManualClock()
        assert [await live(clock) for _ in range(2)] == [0, 1]

    with no_new_threads():
        asyncio.run(scenario())


def test_a_session_without_a_thread_fails_in_one_line() -> None:
    """As one that finds no server is: a start ends with that line, whoever lost a session tries again."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPool("pool", 1, 1))
        refusal = r"no connection to ZooKeeper at 127\.0\.0\.1:1: can't start new thread"
        with no_new_threads(), pytest.raises(StoreUnavailable, match=refusal):
            await ZooKeeperSession.open("127.0.0.1:1", connection_timeout_ms=10_000)

    asyncio.run(scenario())


def test_work_waits_for_a_thread_that_runs() -> None:
    with ThreadPool("pool", 1, 8) as pool, no_new_threads():
        assert [future.result() for future in [pool.submit(int, number) for number in range(20)]] == list(range(20))


def test_a_pool_has_its_threads_from_the_start() -> None:
    with ThreadPool("pool", 3, 8):
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("pool_")]) == 3


@pytest.mark.parametrize("to_be_had", [0, 1, 100])
def test_jobs_run_in_as_many_threads_as_there_are(to_be_had: int) -> None:
    started: list[threading.Thread] = []

    def start_some(thread: threading.Thread) -> None:
        if len(started) >= to_be_had:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        thread.start()

    threads = OsThreads(start_some)
    groups = [[lambda number=number: number for number in range(first, first + 9)] for first in (0, 100)]
    assert threads.run(groups, 2, "jobs") == [list(range(9)), list(range(100, 109))]
    assert threads.run([[], []], 2, "jobs") == [[], []]

    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        threads.run([[fail], [lambda: None]], 2, "jobs")
    assert len(started) <= 4 + 2
