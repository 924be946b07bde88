"""The lost logs of a broker: how they are written and read."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.storage.checkpoints import LOST_LOGS_FILE
from barnabas.storage.lost_logs import LostLogs
from barnabas.storage.os_files import OsFiles
from tools.waiting import PATIENCE_S

FILES = OsFiles()


def lost_logs(folder: Path, files: OsFiles = FILES) -> LostLogs:
    """The lost logs of a broker without logs."""
    return LostLogs(files, cast("Any", SimpleNamespace(first_path=str(folder), by_log={}, missing={}, has_new=False)))


def read(folder: Path) -> LostLogs:
    found = lost_logs(folder)
    found.find(())
    return found


def test_nothing_is_lost_and_nothing_written(tmp_path: Path) -> None:
    lost = read(tmp_path)
    assert lost.is_written
    assert not lost.is_lost("w", 0)
    lost.write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("may_be_any", "named", "text"),
    [
        (False, {("w", 1), ("a-b", 10)}, "0\n2\na-b 10\nw 1\n"),
        (True, set(), "0\n1\n*\n"),
        (True, {("w", 1)}, "0\n1\n*\n"),
    ],
)
def test_written_lost_logs_are_read(tmp_path: Path, may_be_any: bool, named: set[tuple[str, int]], text: str) -> None:
    lost = lost_logs(tmp_path)
    lost.may_be_any, lost.named = may_be_any, named
    assert not lost.is_written
    lost.write()
    assert lost.is_written
    assert (tmp_path / LOST_LOGS_FILE).read_text() == text
    again = read(tmp_path)
    assert again.is_written
    assert (again.is_lost("w", 1), again.is_lost("other", 0)) == (True, may_be_any)


def test_two_threads_may_write_at_the_same_time(tmp_path: Path) -> None:
    """The start, and the first command of a controller."""
    waits: list[threading.Event] = [threading.Event(), threading.Event()]

    class Slow(OsFiles):
        def rename(self, old: str, new: str) -> None:
            if not waits[0].is_set():
                waits[0].set()
                # Real time: nothing comes while the lock is held. On a busy machine nothing does all the same.
                assert waits[1].wait(0.2) is False, "the other one has come in between"
            super().rename(old, new)

    lost = lost_logs(tmp_path, Slow())
    lost.named = {("w", 1)}

    def write() -> None:
        lost.write()
        waits[1].set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(write)
        assert waits[0].wait(PATIENCE_S)
        lost.named = {("w", 2)}
        waits[1].clear()
        second = threads.submit(write)
        first.result(PATIENCE_S)
        second.result(PATIENCE_S)
    assert (tmp_path / LOST_LOGS_FILE).read_text() == "0\n1\nw 2\n"


def test_known_partitions_without_a_log_are_lost_by_name(tmp_path: Path) -> None:
    """All partitions are known."""
    lost = lost_logs(tmp_path)
    lost.may_be_any = True
    lost.write()
    lost.settle([("w", 1)])
    assert (lost.named, lost.may_be_any, lost.is_written) == ({("w", 1)}, False, False)
    lost.settle([("w", 1), ("never lost", 0)])
    assert lost.named == {("w", 1)}
    lost.settle([])
    lost.write()
    assert list(tmp_path.iterdir()) == [], "the file goes with the last of them"


@pytest.mark.parametrize("content", [b"0\n1\nw\n", b"0\n1\nw x\n", b"0\n2\nw 1\n", b"1\n0\n", b"\xff\n"])
def test_a_file_that_cannot_be_read_says_that_any_may_be_lost(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / LOST_LOGS_FILE).write_bytes(content)
    assert read(tmp_path).may_be_any
    assert f"{LOST_LOGS_FILE} cannot be read" in caplog.text
