"""A start that fails half-way gives everything back, and a part that fails to stop keeps no other from it."""

import asyncio
import socket
from pathlib import Path

import pytest

from barnabas.broker.cluster.metadata_store import MetadataStore
from barnabas.broker.configuration import config
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.environment import Environment
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.server import Broker
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller
from barnabas.controller.topics import NewTopic
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.files import Files
from barnabas.storage.log_manager import LogManager
from barnabas.storage.os_files import UnsyncedFiles
from tests.storage.conftest import batch
from tests.support.bugs import REASON, Bug
from tests.support.files import RuledFiles


def new_broker(data_dir: Path, files: Files | None = None, **options: str) -> Broker:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data_dir)}
    return Broker(config.load(options=given | options), Environment(files=files or UnsyncedFiles()))


async def started_and_stopped(data_dir: Path, **options: str) -> None:
    broker = new_broker(data_dir, **options)
    await broker.start()
    await broker.stop()


@pytest.mark.parametrize(
    ("part", "step"),
    [
        (LogManager, "lock"),
        (LogManager, "load"),
        (MetadataStore, "open"),
        (ConfigRepository, "start"),
        (Controller, "start"),
        (GroupService, "start"),
        (TransactionService, "start"),
        (Housekeeping, "every"),
    ],
)
def test_a_start_that_fails_gives_everything_back(
    part: type, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        bug = Bug(monkeypatch, part, step, afterwards=True)
        with pytest.raises(ValueError, match=REASON):
            await started_and_stopped(tmp_path, **listeners)
        bug.is_there = False
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await started_and_stopped(tmp_path, **listeners)

    asyncio.run(run())


def test_a_start_that_recovers_logs_can_be_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        broker = new_broker(tmp_path)
        await broker.start()
        await broker.controller.create_topics([NewTopic("t")])
        log = broker.log_manager.get("t", 0)
        assert log is not None
        log.append_as_leader(batch(b"kept"), leader_epoch=0, now_ms=broker.clock.now_ms())
        await broker.crash()

        def give_up(path: str, **_: object) -> None:
            if path.endswith(".log"):  # a start opens a segment only to recover it
                interrupted.give_up_start()

        interrupted = new_broker(tmp_path, RuledFiles(open=give_up))
        with pytest.raises(asyncio.CancelledError):
            await interrupted.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()

        again = new_broker(tmp_path)
        await again.start()
        recovered = again.log_manager.get("t", 0)
        assert recovered is not None
        assert recovered.log_end_offset == 1
        await again.stop()

    asyncio.run(run())


def test_a_failed_bind_closes_the_listeners_before_it(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            listeners = f"A://127.0.0.1:0,B://127.0.0.1:{port}"
            protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT", "inter.broker.listener.name": "A"}
            broker = new_broker(tmp_path, listeners=listeners, **protocols)
            with pytest.raises(OSError, match="cannot listen on B"):
                await broker.start()
        with socket.create_server(("127.0.0.1", broker.socket_server.ports["A"])):
            pass  # nobody else has it

    asyncio.run(run())


@pytest.mark.parametrize(
    ("part", "stop"),
    [
        (Compaction, "stop"),
        (Housekeeping, "close"),
        (GroupService, "stop"),
        (Controller, "stop"),
        (ReplicaManager, "close"),
        (MetadataStore, "close"),
    ],
)
def test_a_part_that_fails_to_stop_keeps_no_other_from_it(
    part: type, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        Bug(monkeypatch, part, stop, afterwards=True)
        await started_and_stopped(tmp_path)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    assert REASON in caplog.text
