"""Upkeep over many logs: what the disk has to be asked is asked in threads, and the event loop has turns in between."""

import asyncio
import errno
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.configuration.config import load
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.retention import Retention
from barnabas.clock import ManualClock
from barnabas.storage.compaction.cleaner_manager import log_to_clean
from barnabas.storage.config import LogConfig
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.retention import SEGMENTS_AT_ONCE
from barnabas.threads import OsThreads
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.records import Record, build_batch
from tests.support.files import RuledFiles, path_of

pytestmark = pytest.mark.slow

LOGS = 250
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class NotingFiles(RuledFiles):
    """The real disk; notes what is read by the thread that made it, and fails for paths with `broken` in them."""

    def __init__(self) -> None:
        super().__init__(open=self._note_open, pread=self._note, stat=self._note)
        self.loop_thread = threading.get_ident()
        self.read_on_loop: list[str] = []
        self.read_in_threads = 0
        self.broken = "\0"
        self.error = errno.EIO

    def _note_open(self, path: str, *, create: bool = False, **_: object) -> None:
        if not create:
            self._note(path)

    def _note(self, concerned: str | int, *_: object) -> None:
        what = path_of(concerned)
        if self.broken in what:
            raise OSError(self.error, os.strerror(self.error))
        if threading.get_ident() == self.loop_thread:
            self.read_on_loop.append(what)
        else:
            self.read_in_threads += 1


class Bench:
    """A replica manager with many logs of two segments, started anew, so that nothing of them is in memory."""

    def __init__(self, folder: Path, config: LogConfig, ages_ms: Callable[[int], int]) -> None:
        self.files = NotingFiles()
        self.clock = ManualClock(now_ms=NOW_MS)
        manager = self._open(folder, config)
        for number in range(LOGS):
            log = manager.get_or_create("t", number, ZERO_TOPIC_ID, config)
            for key in (b"a", b"b"):
                batch = build_batch([Record(0, NOW_MS - ages_ms(number), key, b"v")])
                log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
                log.update_high_watermark(log.log_end_offset)
                log.roll()
        manager.close()
        self.log_manager = self._open(folder, config)
        self.replicas = ReplicaManager(
            1,
            self.log_manager,
            MetadataCache(),
            self.clock,
            lambda _topic: config,
            lambda _: None,
            lambda _: None,
            lambda: pytest.fail("nobody follows"),
        )
        self.retention = Retention(self.replicas, self.log_manager, self.clock)
        for log in self.log_manager.logs:
            partition = Partition(log.topic, log.partition, ZERO_TOPIC_ID, log, 1, flush_before_ack=False)
            self.replicas._partitions[log.topic, log.partition] = partition
        self.files.read_on_loop.clear()
        self.files.read_in_threads = 0

    def _open(self, folder: Path, config: LogConfig) -> LogManager:
        manager = LogManager(
            LogEnvironment(self.files, self.clock, OsThreads(), lambda: "the-only-one"),
            LogManagerSettings([folder], lambda _topic: config, node_id=1),
        )
        manager.lock()
        manager.load()
        return manager

    def log(self, number: int) -> PartitionLog:
        found = self.log_manager.get("t", number)
        assert found is not None
        return found

    async def watch(self, job: Callable[[], Any], each_turn: Callable[[int], None] = lambda _turn: None) -> Any:
        """Run a job; `each_turn` is called between its slices, with their number. What it returned."""
        turns = 0
        loop = asyncio.get_running_loop()

        def tick() -> None:
            nonlocal turns, handle
            turns += 1
            each_turn(turns)
            handle = loop.call_soon(tick)

        handle = loop.call_soon(tick)
        try:
            found = job()
            found = await found if inspect.isawaitable(found) else found
        finally:
            handle.cancel()
        assert turns >= LOGS // 100, "others had no turn"
        return found

    async def close(self) -> None:
        await self.replicas.close()
        self.log_manager.close()


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


RETENTION = LogConfig(retention_ms=HOUR_MS, file_delete_delay_ms=0)
COMPACTION = LogConfig(cleanup_policy=frozenset({"compact"}), min_compaction_lag_ms=1000, max_compaction_lag_ms=HOUR_MS)


def test_retention_reads_in_threads_and_lets_others_have_turns(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, RETENTION, lambda number: number % 2 * 2 * HOUR_MS)
        await bench.watch(bench.retention.run)
        # Of a log that loses segments the leader epochs have to be known; others have a turn after each of them.
        losing = {f"{tmp_path}/t-{number}/leader-epoch-checkpoint" for number in range(1, LOGS, 2)}
        assert set(bench.files.read_on_loop) <= losing
        assert bench.files.read_in_threads >= LOGS
        bench.files.read_on_loop.clear()
        assert [bench.log(number).log_start_offset for number in range(LOGS)] == [0, 2] * (LOGS // 2)
        bench.files.read_in_threads = 0
        await bench.watch(bench.retention.run)
        assert bench.files.read_on_loop == []
        assert bench.files.read_in_threads == 0, "it is known now"
        await bench.close()

    run(test)


def test_many_segments_of_one_log_go_in_turns(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, RETENTION, lambda _number: 0)
        log, old_ms = bench.log(0), NOW_MS - 2 * HOUR_MS
        log.increment_log_start_offset(log.log_end_offset)
        count = 2 * SEGMENTS_AT_ONCE + 1
        for _ in range(count):
            batch = build_batch([Record(0, old_ms, b"a", b"v")])
            log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
            log.roll()
        log.update_high_watermark(log.log_end_offset)
        starts = [log.log_start_offset]
        await bench.watch(bench.retention.run, lambda _turn: starts.append(log.log_start_offset))
        assert log.log_start_offset == log.log_end_offset
        assert max(after - before for before, after in pairwise(starts)) <= SEGMENTS_AT_ONCE + 2
        await bench.close()

    run(test)


def test_a_thread_reads_the_time_of_a_file_without_timestamps(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, RETENTION, lambda _number: NOW_MS + 1)  # timestamp -1
        for number in range(LOGS):
            for path in (tmp_path / f"t-{number}").glob("*.log"):
                os.utime(path, (0, (NOW_MS - number % 2 * 2 * HOUR_MS) / 1000))
        for _ in range(2):
            await bench.watch(bench.retention.run)
            assert [path for path in bench.files.read_on_loop if not path.endswith("leader-epoch-checkpoint")] == []
        assert [bench.log(number).log_start_offset for number in range(LOGS)] == [0, 2] * (LOGS // 2)
        await bench.close()

    run(test)


def test_logs_changed_during_a_pass_are_no_failure(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, RETENTION, lambda _number: 2 * HOUR_MS)
        deleted, written = range(0, LOGS, 3), range(1, LOGS, 3)
        logs = {number: bench.log(number) for number in range(LOGS)}

        def interfere(turn: int) -> None:
            if turn == 1:
                for number in deleted:
                    bench.log_manager.delete("t", number)
                for number in written:
                    batch = build_batch([Record(0, NOW_MS, b"new", b"v")])
                    logs[number].append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
                    logs[number].update_high_watermark(logs[number].log_end_offset)

        await bench.watch(bench.retention.run, interfere)
        assert [number for number in logs if number not in deleted and logs[number].failure is not None] == []
        assert [number for number in deleted if logs[number].log_start_offset] == []
        ends = [(logs[number].log_start_offset, logs[number].log_end_offset) for number in written]
        assert ends == [(2, 3)] * len(written)
        assert not any(segment.file.holders for log in logs.values() for segment in log.segments), "a file stays open"
        await bench.close()

    run(test)


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_a_log_with_unreadable_times_does_not_stop_retention(tmp_path: Path, error: int) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, RETENTION, lambda _number: 2 * HOUR_MS)
        bench.files.broken, bench.files.error = "/t-7/", error
        await bench.watch(bench.retention.run)
        starts = [bench.log(number).log_start_offset for number in range(LOGS)]
        assert [number for number, start in enumerate(starts) if start != 2] == [7]
        assert (bench.log(7).failure is None) == (error == errno.EMFILE), "what passes is no failure"
        bench.files.broken = "\0"
        await bench.watch(bench.retention.run)
        assert bench.log(7).log_start_offset == (2 if error == errno.EMFILE else 0)
        await bench.replicas.close()
        bench.log_manager.abandon()

    run(test)


def test_compaction_looks_for_candidates_in_threads(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path, COMPACTION, lambda number: number % 2 * 2 * HOUR_MS)
        config = load(options={"log.dirs": str(tmp_path)})
        compaction = Compaction(bench.replicas, bench.clock, bench.log_manager, config, time.monotonic, sys.executable)
        logs = {number: bench.log(number) for number in range(LOGS)}

        def delete_one(turn: int) -> None:
            if turn == 1:
                bench.log_manager.delete("t", 1)

        found = await bench.watch(compaction._candidates, delete_one)
        assert [path for path in bench.files.read_on_loop if not path.endswith(".snapshot")] == []
        assert bench.files.read_in_threads >= LOGS
        assert {to_clean.log for to_clean in found} == {logs[number] for number in range(3, LOGS, 2)}
        assert all(to_clean.is_due for to_clean in found)
        assert len(compaction.set_aside) == 0
        await bench.close()

    run(test)


def test_a_pass_that_reads_a_new_topic_of_the_name_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It works by paths: when its log was deleted, a new one may have the same. Found by the simulation (seed 7)."""

    async def test() -> None:
        bench = Bench(tmp_path, COMPACTION, lambda number: number % 2 * 2 * HOUR_MS)
        config = load(options={"log.dirs": "/"})
        compaction = Compaction(bench.replicas, bench.clock, bench.log_manager, config, time.monotonic, sys.executable)
        old = bench.log(1)
        to_clean = log_to_clean(old, old.clean_offset, NOW_MS)
        assert to_clean is not None

        def make_anew(turn: int) -> None:
            if turn == 1:
                bench.log_manager.delete("t", 1)
                bench.log_manager.get_or_create("t", 1, ZERO_TOPIC_ID, COMPACTION)

        assert not await bench.watch(lambda: compaction._clean(to_clean), make_anew)
        assert bench.log(1) is not old
        assert (len(compaction.set_aside), caplog.messages) == (0, [])
        await bench.close()

    run(test)
