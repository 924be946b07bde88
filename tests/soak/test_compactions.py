"""The files of a compaction at a crash, and the passes in the broker's log."""

import os
from pathlib import Path

import pytest

from barnabas.clock import SystemClock
from tools.soak.compactions import CLEANED, DELETED, SWAP, passes, stage_of_crash, wait_for_compaction


def leave(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).touch()


def test_a_crash_without_compaction(tmp_path: Path) -> None:
    leave(tmp_path, "topic-0/0.log", "topic-1.5f-delete/0.log.deleted", "meta.properties")
    assert stage_of_crash(tmp_path) is None


@pytest.mark.parametrize(
    ("names", "stage"),
    [
        (["0.log", "0.log.deleted"], "less than 1 s after a swap"),
        (["0.log", "0.log.deleted", "0.log.cleaned"], "during a pass"),
        (["0.log", "0.log.deleted", "0.log.swap", "9.log.cleaned"], "during a swap"),
    ],
)
def test_the_last_step_of_compaction_before_a_crash(tmp_path: Path, names: list[str], stage: str) -> None:
    leave(tmp_path, "topic-1/0.log", *(f"topic-0/{name}" for name in names))
    assert stage_of_crash(tmp_path) == stage


def test_a_swap_of_long_ago_is_none(tmp_path: Path) -> None:
    leave(tmp_path, "topic-0/0.log.deleted")
    assert stage_of_crash(tmp_path, SystemClock().now_ms() + 2_000) is None


@pytest.mark.parametrize("stage", [CLEANED, SWAP, DELETED])
def test_waiting_ends_with_a_file_that_was_not_there(tmp_path: Path, stage: str) -> None:
    """The old one is no sign; the new one comes with the first pause of the wait."""
    leave(tmp_path, f"topic-0/0.log{stage}", "topic-1/0.log")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        leave(tmp_path, f"topic-1/0.log{stage}")

    wait_for_compaction(tmp_path, stage, patience_s=60, sleep=pause)
    assert len(pauses) == 1


def test_waiting_has_an_end(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "topic-0")
    wait_for_compaction(tmp_path, SWAP, patience_s=0)


def test_passes_are_counted_by_topic() -> None:
    text = """INFO a-b-0: compacted up to offset 12, 3 of 4 records stay
WARNING a-b-0 is compacted in 3 s or later: no space
INFO __consumer_offsets-1: compacted up to offset 7, 3 of 4 records stay
INFO a-b-11: compacted up to offset 9, 3 of 4 records stay
"""
    assert passes(text) == {"a-b": 2, "__consumer_offsets": 1}
