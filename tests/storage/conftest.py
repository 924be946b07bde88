"""A log on a real disk, the batches to fill it with, and a disk that fails on demand."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.clock import ManualClock
from barnabas.storage.config import LogConfig
from barnabas.storage.files import Buffer
from barnabas.storage.log import LogAppendInfo, PartitionLog
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.storage.validation import AppendOrigin, ExpensiveBatch, validate_produced_batch
from barnabas.threads import OsThreads
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.records import Record, build_batch
from tests.support.files import RuledFiles

_numbers = itertools.count()


class FaultyFiles(RuledFiles):
    """The real disk, except where a test sets a fault. Nothing waits for it, since no power is cut: what a crash leaves
    of writes that are not synced is for `tools/simulation/world/disk.py`."""

    def __init__(self) -> None:
        super().__init__()
        self.write_limit: int | None = None
        """Bytes that may still be written before the disk is full."""
        self.write_size_max: int | None = None
        """Bytes that one call writes at most."""
        self.fail_truncate = False
        self.fail_sync = False
        self.cached = True
        self.descriptors = 4096
        self.opened: list[str] = []
        self.synced: list[str] = []

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        if self.write_size_max is not None:
            data = memoryview(data)[: self.write_size_max]
        if self.write_limit is None:
            return super().pwrite(descriptor, data, position)
        if self.write_limit == 0:
            raise OSError(errno.ENOSPC, "the disk is full")
        count = super().pwrite(descriptor, memoryview(data)[: self.write_limit], position)
        self.write_limit -= count
        return count

    def truncate(self, descriptor: int, size: int) -> None:
        if self.fail_truncate:
            raise OSError(errno.EIO, "broken disk")
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        if self.fail_sync:
            raise OSError(errno.EIO, "broken disk")
        self.synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        super().sync(descriptor)

    def reads_cached(self, directory: str) -> bool:
        return self.cached and super().reads_cached(directory)

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        self.opened.append(path)
        return super().open(path, create=create, truncate=truncate)

    def descriptor_limit(self) -> int:
        return self.descriptors


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **settings: Any) -> bytearray:
    """A produced batch with one record per value."""
    first = settings.get("base_offset", 0)
    records = [Record(first + index, timestamp, None, value) for index, value in enumerate(values)]
    return build_batch(records, **settings)


class Logs:
    """One log directory with a log manager that can be closed, crashed and started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.files = FaultyFiles()
        self.config = LogConfig()
        self.failures: list[str] = []
        self.topic_id: bytes = ZERO_TOPIC_ID
        self.start()

    def start(
        self, path: Path | None = None, before_opening: Callable[[LogManager], None] = lambda _manager: None
    ) -> LogManager:
        self.path = path or self.path
        self.manager = LogManager(
            LogEnvironment(self.files, self.clock, OsThreads(), self.new_id, on_failure=self.failures.append),
            LogManagerSettings([self.path], lambda _topic: self.config, node_id=1, cluster_id="a-cluster"),
        )
        before_opening(self.manager)
        self.manager.lock()
        self.manager.load()
        self.manager.set_cluster_id("a-cluster")
        return self.manager

    def new_id(self) -> str:
        """An id for a log directory, unlike any other that a test has."""
        return f"directory-{next(_numbers)}"

    def log(self, topic: str = "topic", partition: int = 0, **settings: Any) -> PartitionLog:
        if settings:
            self.config = LogConfig(**settings)
        return self.manager.get_or_create(topic, partition, self.topic_id, self.config)

    def restart(self, *, clean: bool = True, path: Path | None = None) -> LogManager:
        """Close, or crash, and start again (on a copy, if `path` names one)."""
        self.stop(clean=clean)
        return self.start(path)

    def stop(self, *, clean: bool = True) -> None:
        if clean:
            self.manager.close()
        else:
            self.manager.abandon()

    def append(self, log: PartitionLog, *values: bytes, epoch: int = 0, **settings: Any) -> LogAppendInfo:
        settings.setdefault("timestamp", self.clock.now_ms())
        info = log.append_as_leader(batch(*values, **settings), leader_epoch=epoch, now_ms=self.clock.now_ms())
        log.update_high_watermark(log.log_end_offset)
        return info

    def append_raw(
        self, log: PartitionLog, data: bytearray, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> LogAppendInfo:
        now_ms = self.clock.now_ms()
        try:
            info = log.append_as_leader(data, leader_epoch=0, now_ms=now_ms, origin=origin)
        except ExpensiveBatch:  # the broker validates it in a thread
            validated = validate_produced_batch(data, log.config, log.topic, now_ms, 13)
            info = log.append_as_leader(data, leader_epoch=0, now_ms=now_ms, origin=origin, validated=validated)
        log.update_high_watermark(log.log_end_offset)
        return info


def read(log: PartitionLog, offset: int, max_bytes: int = 1 << 20, **settings: Any) -> FetchData:
    """Read, from the disk if necessary."""
    try:
        return log.read(offset, max_bytes, **settings)
    except ColdRead as cold:
        return cold.load()


def base_offsets(data: Buffer) -> list[int]:
    """The base offsets of the batches in `data`, which must be whole."""
    found, position = [], 0
    while position < len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        found.append(base_offset)
        position += 12 + length
    assert position == len(data)
    return found


def read_all(log: PartitionLog) -> list[int]:
    """The base offsets of all batches that can be read."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = read(log, offset)
        assert data.records
        found += base_offsets(data.records)
        offset = data.next_offset
    return found


class Toolbox:
    """The functions and classes above, for tests that ask for them as a fixture."""

    batch = staticmethod(batch)
    read = staticmethod(read)
    read_all = staticmethod(read_all)
    base_offsets = staticmethod(base_offsets)
    Logs = Logs
    FaultyFiles = FaultyFiles


@pytest.fixture
def tools() -> type[Toolbox]:
    return Toolbox


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    found = Logs(tmp_path / "data")
    yield found
    found.stop(clean=False)


@pytest.fixture
def make_logs(tmp_path: Path) -> Iterator[Callable[[str], Logs]]:
    made: list[Logs] = []

    def make(name: str) -> Logs:
        made.append(Logs(tmp_path / name))
        return made[-1]

    yield make
    for found in made:
        found.stop(clean=False)
