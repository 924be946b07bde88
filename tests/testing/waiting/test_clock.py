"""OffsetClock: the real time and a bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from barnabas.clock import ManualClock, OffsetClock, SystemClock


def test_both_times_move_by_the_same() -> None:
    clock = OffsetClock(ManualClock(now_ms=1_000))
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)


def test_a_moved_clock_follows_the_clock_below() -> None:
    base = ManualClock(now_ms=1_000)
    clock = OffsetClock(base)
    clock.advance(250)
    base.advance(50)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_300, 300)


def test_the_default_clock_is_the_machines() -> None:
    clock = OffsetClock()
    assert abs(clock.now_ms() - SystemClock().now_ms()) < 10_000
    assert isinstance(clock.base, SystemClock)


def test_a_manual_clock_starts_at_the_machines_time() -> None:
    clock = ManualClock()
    assert abs(clock.now_ms() - SystemClock().now_ms()) < 10_000
    assert clock.monotonic_ms() == 0


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back by 1 ms"):
        OffsetClock().advance(-1)


def test_threads_lose_nothing() -> None:
    clock = OffsetClock(ManualClock(now_ms=0))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(clock.advance, [1] * 4_000))
    assert clock.now_ms() == 4_000
