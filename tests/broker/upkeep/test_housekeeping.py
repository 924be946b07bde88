"""Periodic work by the intervals that a configuration may hold."""

import asyncio
import logging

import pytest

from barnabas.broker.timers import Timers
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.clock import REPEAT_MIN_MS, ManualClock, SystemClock
from tools.waiting import PATIENCE_S


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
def test_jobs_run_at_their_intervals(interval_ms: int, expected: int, is_async: bool) -> None:
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


def test_an_interval_that_is_changed_counts_from_then_on() -> None:
    async def scenario() -> None:
        clock = ManualClock(now_ms=0)
        timers = Timers(clock, asyncio.get_running_loop())
        housekeeping = Housekeeping(timers, clock)
        times: list[int] = []

        def job() -> None:
            times.append(clock.monotonic_ms())
            if len(times) == 2:
                housekeeping.change_interval("the job", 200)  # while it runs

        housekeeping.every("the job", 15_000, job)
        for _ in range(1_000):
            clock.advance(1)
            timers.fire_due()
            if clock.monotonic_ms() == 100:
                housekeeping.change_interval("the job", 300)
        assert times == [400, 700, 900]
        housekeeping.change_interval("the job", 0)
        clock.advance(100_000)
        timers.fire_due()
        clock.advance(100_000)
        timers.fire_due()
        assert len(times) == 4  # once more, as in Kafka, and no further
        await housekeeping.close()
        timers.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True])
def test_jobs_and_timers_go_on_though_nothing_can_be_told(is_async: bool) -> None:
    """A clock beyond all dates: whoever asks for the time raises, and so does the logger that tells of it."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        timers = Timers(clock, loop)
        housekeeping = Housekeeping(timers, clock)
        is_bad, failed = True, 0
        thrice, worked, fired = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def job() -> None:
            nonlocal failed
            if is_bad:
                failed += 1
                if failed == 3:
                    thrice.set()
                raise OverflowError("timestamp out of range")
            worked.set()

        async def async_job() -> None:
            job()

        def refuse(*_args: object, **_fields: object) -> None:
            raise OverflowError("timestamp out of range")

        def bad_timer() -> None:
            timers.call_later(1, bad_timer if is_bad else fired.set)
            raise OverflowError("timestamp out of range")

        usual = logging.getLogRecordFactory()
        logging.setLogRecordFactory(refuse)
        try:
            housekeeping.every("the job", REPEAT_MIN_MS, async_job if is_async else job)
            timers.call_later(1, bad_timer)
            async with asyncio.timeout(PATIENCE_S):
                await thrice.wait()
            is_bad = False
        finally:
            logging.setLogRecordFactory(usual)
        async with asyncio.timeout(PATIENCE_S):
            await worked.wait()
            await fired.wait()
        await housekeeping.close()
        timers.close()

    asyncio.run(scenario())
