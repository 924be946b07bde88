"""No new thread is to be had, as under a container's limit of processes: that passes."""

import asyncio
import threading
from pathlib import Path

import pytest

from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.controller.operations.topics import NewTopic
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.files import UnsyncedFiles
from barnabas.testing.requests import ask
from barnabas.threads import ThreadPool, run_in_threads
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_broker_serves_and_stops_cleanly_without_new_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes before each acknowledgement, a creation and a deletion, and the stop, which brings logs to the disk."""
    directories = [tmp_path / "a", tmp_path / "b"]

    async def scenario() -> None:
        keys = {
            "log.dirs": ",".join(map(str, directories)),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "barnabas.flush.before.ack": "true",
        }
        failures: list[str] = []
        broker = Broker(
            config.load(options=keys), Environment(clock=ManualClock(), files=UnsyncedFiles()), failures.append
        )
        await broker.start()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            await broker.controller.create_topics([NewTopic("t", 4, 1), NewTopic("u", 1, 1)])
            assert await broker.controller.delete_topics(["u"]) == {"u": None}
            batch = bytearray(build_batch([Record(0, 0, None, b"v")]))
            produced = await asyncio.gather(
                *(
                    ask(
                        broker,
                        ProduceRequest(
                            acks=-1,
                            timeout_ms=30_000,
                            topic_data=[
                                TopicProduceData(
                                    name="t",
                                    partition_data=[PartitionProduceData(index=index, records=bytearray(batch))],
                                )
                            ],
                        ),
                        9,
                    )
                    for index in range(4)
                )
            )
            errors = [response.responses[0].partition_responses[0].error_code for response in produced]
            assert errors == [ErrorCode.NONE] * 4
            await broker.stop()
        assert failures == []
        assert all((directory / CLEAN_SHUTDOWN_FILE).exists() for directory in directories)

    asyncio.run(scenario())


def test_work_waits_for_a_thread_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPool("pool", 1, 8) as pool, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        assert [future.result() for future in [pool.submit(int, number) for number in range(20)]] == list(range(20))


def test_a_pool_has_its_threads_from_the_start() -> None:
    with ThreadPool("pool", 3, 8):
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("pool_")]) == 3


@pytest.mark.parametrize("to_be_had", [0, 1, 100])
def test_jobs_run_in_as_many_threads_as_there_are(monkeypatch: pytest.MonkeyPatch, to_be_had: int) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_some(thread: threading.Thread) -> None:
        if len(started) >= to_be_had:
            _refuse(thread)
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_some)
        groups = [[lambda number=number: number for number in range(first, first + 9)] for first in (0, 100)]
        assert run_in_threads(groups, 2, "jobs") == [list(range(9)), list(range(100, 109))]
        assert run_in_threads([[], []], 2, "jobs") == [[], []]

        def fail() -> None:
            raise OSError("no")

        with pytest.raises(OSError, match="no"):
            run_in_threads([[fail], [lambda: None]], 2, "jobs")
    assert len(started) <= 4 + 2
