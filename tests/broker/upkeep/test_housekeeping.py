"""Periodic work by the intervals that a configuration may hold."""

import asyncio

import pytest

from barnabas.broker.timers import Timers
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.clock import REPEAT_MIN_MS, ManualClock


async def runs(interval_ms: int, *, is_async: bool, minutes: int = 1) -> int:
    """How often a job runs in that time."""
    clock = ManualClock(now_ms=0)
    timers = Timers(clock, asyncio.get_running_loop())
    housekeeping = Housekeeping(timers, clock)
    count = 0

    def job() -> None:
        nonlocal count
        count += 1

    async def async_job() -> None:
        job()

    housekeeping.every("the job", interval_ms, async_job if is_async else job)
    for _ in range(minutes * 60_000 // 10):
        clock.advance(10)
        timers.fire_due()
        while running := housekeeping.running():
            await asyncio.wait(running)
    await housekeeping.close()
    timers.close()
    return count


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("interval_ms", "expected"),
    [
        (-(2**63), 1),  # KafkaScheduler.schedule: a period of 0 or less is no period
        (-1, 1),
        (0, 1),
        (1, 60_000 // REPEAT_MIN_MS),
        (REPEAT_MIN_MS, 60_000 // REPEAT_MIN_MS),
        (30_000, 2),
        (2**63 - 1, 0),
    ],
)
def test_how_often_a_job_runs_in_a_minute(interval_ms: int, expected: int, is_async: bool) -> None:
    assert asyncio.run(runs(interval_ms, is_async=is_async)) == expected


def test_a_first_run_at_once_is_followed_by_others() -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        housekeeping = Housekeeping(timers, clock)
        times: list[int] = []
        housekeeping.every("the job", 500, lambda: times.append(clock.monotonic_ms()), initial_delay_ms=0)
        for _ in range(1_100):
            clock.advance(1)
            timers.fire_due()
        assert times == [1, 501, 1001]
        await housekeeping.close()
        timers.close()

    asyncio.run(scenario())
