"""Makes large replies one after the other, with rests in between in which the event loop is free for everybody else.

Tens of megabytes take the loop tens of milliseconds. A client that waits for one such reply per request of its own is
slowed down to 20 requests a second; after a rest as long as the work, the loop has caught up with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from barnabas.clock import Clock
from barnabas.timers import Timers

Made = TypeVar("Made")

RESTING_MIN_MS: Final = 5
"""Work that takes less is followed by the next at once, as nobody notices it: nearly all replies are small."""


class LargeReplies:
    """One large reply at a time; owned by the event loop. `clock` is that of the timers: where it stands still there
    are no rests, which would have no end."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers = timers
        self._clock = clock
        self._turn = asyncio.Lock()

    async def make(self, work: Callable[[], Made], has_room: Callable[[], Awaitable[None]] | None = None) -> Made:
        """Return what `work` returns, when it is its turn and `has_room` has returned; other tasks come first."""
        await self._turn.acquire()
        started_ms: int | None = None
        try:
            await asyncio.sleep(0)
            if has_room is not None:
                await has_room()
            started_ms = self._clock.monotonic_ms()
            return work()
        finally:
            self._rest(0 if started_ms is None else self._clock.monotonic_ms() - started_ms)

    def _rest(self, worked_ms: int) -> None:
        """Let the next one begin, after as long a time as the work took if that was long."""
        if worked_ms < RESTING_MIN_MS:
            self._turn.release()
        else:
            self._timers.call_later(worked_ms, self._turn.release)
