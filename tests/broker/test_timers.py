import asyncio

from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock, SystemClock


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


def test_a_timer_may_schedule_one_that_is_due_too() -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        fired: list[int] = []

        def again() -> None:
            fired.append(clock.monotonic_ms())
            if len(fired) < 3:
                timers.call_at(clock.monotonic_ms(), again)

        timers.call_later(10, again)
        clock.advance(10)
        timers.fire_due()
        assert fired == [10, 10, 10]
        timers.close()

    asyncio.run(scenario())


def test_a_cancelled_timer_never_runs_and_costs_no_memory_for_long() -> None:
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
        await asyncio.wait_for(fired.wait(), 5)
        timers.close()

    asyncio.run(scenario())
