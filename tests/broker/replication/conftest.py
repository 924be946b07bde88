"""Hosted partitions without a broker: a log manager over real files, whose syncs a test can hold back or have fail."""

import asyncio
import errno
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.replication.partition import Partition
from barnabas.clock import ManualClock
from barnabas.storage.config import LogConfig
from barnabas.storage.files import OsFiles
from barnabas.storage.log import LogAppendInfo
from barnabas.storage.log_manager import LogManager
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState
from barnabas.wire.names import TopicId
from barnabas.wire.records import Record, build_batch

NODE_ID = 1
OTHER_ID = 2
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


class Files(OsFiles):
    """The real disk, except where a test sets a fault."""

    def __init__(self) -> None:
        self.sync_error: OSError | None = None
        self.open_error: OSError | None = None

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        if self.open_error is not None:
            raise self.open_error
        return super().open(path, create=create, truncate=truncate)

    def sync(self, descriptor: int) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        super().sync(descriptor)


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
            self.files, [self._path], lambda _topic: self.config, self.clock, node_id=NODE_ID, cluster_id="a-cluster"
        )
        manager.open()
        manager.set_cluster_id("a-cluster")
        return manager

    def restart(self) -> None:
        """Stop cleanly and start again: little is in memory after that."""
        self.manager.close()
        self.manager = self._open()

    def partition(self, *, flush_before_ack: bool = False) -> Partition:
        log = self.manager.get_or_create("t", 0, TOPIC_ID, self.config)
        return Partition("t", 0, TOPIC_ID, log, NODE_ID, flush_before_ack=flush_before_ack)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    found = Storage(tmp_path)
    yield found
    found.manager.close()


def told(**given: Any) -> LeaderAndIsrPartitionState:
    """The controller's word on partition 0: this broker leads in epoch 0, alone, unless something else is given."""
    fields: dict[str, Any] = {
        "partition_index": 0, "controller_epoch": 1, "leader": NODE_ID, "leader_epoch": 0, "partition_epoch": 0,
        "replicas": [NODE_ID], "isr": [NODE_ID],
    }  # fmt: skip
    return LeaderAndIsrPartitionState(**(fields | given))


def append(partition: Partition, *values: bytes) -> LogAppendInfo:
    """Append a batch to the log alone: nobody has told the partition yet."""
    records = [Record(offset, NOW_MS, None, value, [], 0) for offset, value in enumerate(values)]
    return partition.log.append_as_leader(
        build_batch(records), leader_epoch=partition.state.leader_epoch, now_ms=NOW_MS
    )


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "no space left on device")
