"""One bad apple among good ones: told once, counted, tried later."""

import logging

import pytest

from barnabas.clock import ManualClock
from barnabas.set_aside import SetAside


def one_pass(aside: SetAside[str], members: list[str], bad: set[str]) -> list[str]:
    """The members that were tried without an error."""
    done = []
    for member in aside.ready(members):
        with aside.attempt(member):
            if member in bad:
                raise ValueError(f"{member} is bad")
            done.append(member)
    return done


def test_an_entry_that_raises_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    aside = SetAside[str]("counting", clock, first_delay_ms=1000, longest_delay_ms=4000)
    members = ["a", "b", "c"]
    assert one_pass(aside, members, {"b"}) == ["a", "c"]
    assert aside.members == ["b"]
    for delay_ms in (1000, 2000, 4000, 4000):
        clock.advance(delay_ms - 1)
        assert one_pass(aside, members, set()) == ["a", "c"], "before its time"
        clock.advance(1)
        assert one_pass(aside, members, {"b"}) == ["a", "c"]
    assert aside.failures == 5
    assert [record.getMessage() for record in caplog.records] == [
        "counting of b failed, the next try is in 1 s or later: ValueError: b is bad"
    ]
    clock.advance(4000)
    caplog.set_level(logging.INFO)
    assert one_pass(aside, members, set()) == members
    assert not aside.members
    assert caplog.records[-1].getMessage() == "counting of b works again"


def test_another_reason_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    aside = SetAside[str]("counting", clock)
    aside.put("a", ValueError("1"))
    aside.put("a", ValueError("2"), reason="two", is_final=True)
    clock.advance(1 << 50)
    assert not aside.is_ready("a")
    assert [(record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        ("counting of a failed, the next try is in 60 s or later: ValueError: 1", True),
        ("counting of a failed, the next try is at the next start: two", False),
    ]


def test_removed_entries_are_forgotten() -> None:
    aside = SetAside[str]("counting", ManualClock())
    aside.put("a", ValueError())
    assert aside.ready(["b"]) == ["b"]
    assert not aside.members


def test_the_number_of_remembered_entries_is_bounded() -> None:
    aside = SetAside[int]("counting", ManualClock(), members_max=3)
    for number in range(10):
        aside.put(number, ValueError())
    assert aside.members == [7, 8, 9]
    assert aside.failures == 10
