"""A start that fails half-way gives everything back, and a part that fails to stop keeps no other from it."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

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
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from barnabas.storage.files import UnsyncedFiles
from barnabas.storage.log_manager import LogManager

REASON = "nobody foresaw this"


def new_broker(data_dir: Path, **options: str) -> Broker:
    given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data_dir)}
    return Broker(config.load(options=given | options), Environment(files=UnsyncedFiles()))


async def started_and_stopped(data_dir: Path, **options: str) -> None:
    broker = new_broker(data_dir, **options)
    await broker.start()
    await broker.stop()


@pytest.mark.parametrize(
    ("part", "step"),
    [
        (LogManager, "open"),
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
    real = getattr(part, step)

    async def fail_after(self: Any, *arguments: Any) -> None:
        await real(self, *arguments)
        raise OSError(errno.EIO, REASON)

    def fail_at_once(self: Any, *arguments: Any, **settings: Any) -> None:
        real(self, *arguments, **settings)
        raise OSError(errno.EIO, REASON)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
        with monkeypatch.context() as patched:
            patched.setattr(part, step, fail_after if asyncio.iscoroutinefunction(real) else fail_at_once)
            with pytest.raises(OSError, match=REASON):
                await started_and_stopped(tmp_path, **listeners)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await started_and_stopped(tmp_path, **listeners)

    asyncio.run(run())


def test_a_listener_that_cannot_be_bound_gives_back_the_one_before(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            listeners = f"A://127.0.0.1:0,B://127.0.0.1:{port}"
            protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT", "inter.broker.listener.name": "A"}
            broker = new_broker(tmp_path, listeners=listeners, **protocols)
            with pytest.raises(OSError, match="cannot listen on B"):
                await broker.start()
        assert [bound.socket.fileno() for bound in broker._listeners] == [-1]

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
    real = getattr(part, stop)

    async def fail(self: Any) -> None:
        pending = real(self)
        if pending is not None:
            await pending
        raise ValueError(REASON)

    def fail_at_once(self: Any) -> None:
        real(self)
        raise ValueError(REASON)

    async def run() -> None:
        monkeypatch.setattr(part, stop, fail if asyncio.iscoroutinefunction(real) else fail_at_once)
        await started_and_stopped(tmp_path)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    assert REASON in caplog.text
