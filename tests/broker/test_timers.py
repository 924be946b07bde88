import asyncio
import time
from functools import partial

import pytest

from barnabas.broker.timers import SLICE_S, Timers
from barnabas.clock import ManualClock, SystemClock
from tools.waiting import PATIENCE_S

LONG_MAX = 2**63 - 1


class SlowClock(SystemClock):
    """Of a machine where nothing takes less than a millisecond, by which time goes on while timers run."""

    def monotonic_ms(self) -> int:
        time.sleep(0.001)  # Real time: of the machine that this clock is of
        return super().monotonic_ms()


def test_fire_due_runs_what_the_clock_has_passed_in_order() -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        fired: list[str] = []
        timers.call_later(200, lambda: fired.append("b"))
        timers.call_later(100, lambda: fired.append("a"))
        timers.call_later(300, lambda: fired.append("c"))
        clock.advance(250)
        timers.fire_due()
        assert fired == ["a", "b"]
        timers.close()

    asyncio.run(scenario())


def test_timers_set_by_a_timer_run_in_a_later_round() -> None:
    """However small the delay: a timer that sets itself again would never let the round end."""

    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        fired: list[tuple[int, int]] = []

        def again(after_ms: int) -> None:
            fired.append((clock.monotonic_ms(), after_ms))
            timers.call_later(after_ms, lambda: again(after_ms))

        for after_ms in (-LONG_MAX, -1, 0, 1):
            timers.call_later(after_ms, partial(again, after_ms))
        timers.call_at(-1, partial(again, 2))
        timers.fire_due()
        assert fired == []
        clock.advance(1)
        timers.fire_due()
        timers.fire_due()
        assert fired == [(1, -LONG_MAX), (1, -1), (1, 0), (1, 1), (1, 2)]
        clock.advance(1)
        timers.fire_due()
        assert fired[5:] == [(2, -LONG_MAX), (2, -1), (2, 0), (2, 1)]
        timers.close()

    asyncio.run(scenario())


def test_a_timer_that_sets_itself_again_leaves_the_loop_turns() -> None:
    async def scenario() -> None:
        timers = Timers(SlowClock(), asyncio.get_running_loop())
        fired = 0
        thrice = asyncio.Event()

        def again() -> None:
            nonlocal fired
            fired += 1
            if fired == 3:
                thrice.set()
            if fired < 1_000:
                timers.call_later(-5, again)

        timers.call_later(0, again)
        await asyncio.wait_for(thrice.wait(), PATIENCE_S)
        assert fired < 10
        timers.close()

    asyncio.run(scenario())


def test_many_timers_that_are_due_leave_room_for_the_loop() -> None:
    async def scenario() -> None:
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        done = asyncio.Event()
        rounds: set[int] = set()
        turns = 0

        def count_turns() -> None:
            nonlocal turns
            turns += 1
            if not done.is_set():
                asyncio.get_running_loop().call_soon(count_turns)

        def work() -> None:
            end_s = time.monotonic() + 2 * SLICE_S
            while time.monotonic() < end_s:
                pass
            rounds.add(turns)

        count_turns()
        for _ in range(5):
            timers.call_later(0, work)
        timers.call_later(1, done.set)
        await asyncio.wait_for(done.wait(), PATIENCE_S)
        assert len(rounds) == 5, rounds
        timers.close()

    asyncio.run(scenario())


def test_a_moved_clock_has_everything_run_that_is_due() -> None:
    """`fire_due` keeps that promise, whatever a slice of the loop's time is."""

    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        fired: list[int] = []

        def work(number: int) -> None:
            time.sleep(SLICE_S)  # Real time: the work of a timer
            fired.append(number)

        for number in range(5):
            timers.call_later(number, partial(work, number))
        clock.advance(5)
        timers.fire_due()
        assert fired == [0, 1, 2, 3, 4]
        timers.close()

    asyncio.run(scenario())


def test_no_delay_is_too_long() -> None:
    async def scenario() -> None:
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        fired = asyncio.Event()
        for after_ms in (10**400, LONG_MAX * 3_600_000, LONG_MAX, 2**31 - 1):
            timers.call_later(after_ms, lambda: pytest.fail("too early"))
            timers.call_at(after_ms, lambda: pytest.fail("too early"))
        await asyncio.sleep(0)
        timers.call_later(5, fired.set)
        await asyncio.wait_for(fired.wait(), PATIENCE_S)
        timers.close()

    asyncio.run(scenario())


def test_a_timer_whose_call_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        fired = asyncio.Event()

        def fail() -> None:
            raise ZeroDivisionError

        timers.call_later(0, fail)
        timers.call_later(1, fired.set)
        await asyncio.wait_for(fired.wait(), PATIENCE_S)
        timers.close()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["what a timer called failed"]


def test_a_cancelled_timer_never_runs_and_is_freed() -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        for _ in range(50_000):
            timers.call_later(30_000, lambda: None).cancel()
        assert len(timers._heap) < 5_000
        clock.advance(60_000)
        timers.fire_due()
        timers.close()

    asyncio.run(scenario())


def test_the_event_loop_wakes_for_a_timer_by_the_real_clock() -> None:
    async def scenario() -> None:
        timers = Timers(SystemClock(), asyncio.get_running_loop())
        fired = asyncio.Event()
        timers.call_later(60_000, lambda: None)
        timers.call_later(5, fired.set)
        await asyncio.wait_for(fired.wait(), PATIENCE_S)
        timers.close()

    asyncio.run(scenario())
