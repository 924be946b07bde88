"""Waits that are made of timers (`barnabas/timers.py`)."""

import asyncio

import pytest

from barnabas.timers import pause, time_limit
from tests.support.manual_timers import ManualTimers


def test_a_block_that_takes_too_long_is_cancelled() -> None:
    async def scenario() -> None:
        timers = ManualTimers()
        was_cancelled = False

        async def work() -> None:
            nonlocal was_cancelled
            async with time_limit(timers, 500):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    was_cancelled = True
                    raise

        task = asyncio.create_task(work())
        await timers.has(500)
        assert not task.done()
        timers.fire()
        with pytest.raises(TimeoutError):
            await task
        assert was_cancelled
        assert timers.waiting == []

    asyncio.run(scenario())


def test_a_block_that_ends_in_time_leaves_no_timer() -> None:
    async def scenario() -> None:
        timers = ManualTimers()
        async with time_limit(timers, 500):
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="its own"):
            async with time_limit(timers, 500):
                raise ValueError("its own")
        assert timers.waiting == []

    asyncio.run(scenario())


def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def scenario() -> None:
        timers = ManualTimers()

        async def work() -> None:
            async with time_limit(timers, 500):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await timers.has(500)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert timers.waiting == []

    asyncio.run(scenario())


def test_a_pause_ends_with_its_timer() -> None:
    async def scenario() -> None:
        timers = ManualTimers()
        pausing = asyncio.create_task(pause(timers, 70))
        await timers.has(70)
        assert not pausing.done()
        timers.fire()
        await pausing
        given_up = asyncio.create_task(pause(timers, 80))
        await timers.has(80)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert timers.waiting == []

    asyncio.run(scenario())
