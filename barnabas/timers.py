"""Waits by the broker's own clock: the port that schedules calls, and waits that are made of such calls.

A broker has one heap of timers for everything (`broker/timers.py`). Code that waits takes it as `Timers`, so that a
test may hand in timers of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class ScheduledCall(Protocol):
    """A call that will be made, and may be called off."""

    def cancel(self) -> None:
        """Make it no more; does nothing after it was made."""
        ...


class Timers(Protocol):
    """Schedules calls on the event loop that owns it."""

    def call_later(self, delay_ms: int, callback: Callable[[], None], /) -> ScheduledCall:
        """Call `callback`, which must not raise, once so much time has passed."""
        ...


@asynccontextmanager
async def time_limit(timers: Timers, timeout_ms: int) -> AsyncIterator[None]:
    """Cancel what the block waits for when the time is up.

    Raises: TimeoutError, out of the block.
    """
    async with asyncio.timeout(None) as scope:
        loop = asyncio.get_running_loop()
        timer = timers.call_later(timeout_ms, lambda: scope.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()


async def pause(timers: Timers, delay_ms: int) -> None:
    """Wait until so much time has passed."""
    is_over = asyncio.Event()
    timer = timers.call_later(delay_ms, is_over.set)
    try:
        await is_over.wait()
    finally:
        timer.cancel()
