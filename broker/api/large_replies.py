"""Makes large replies one after the other, with rests in between in which the event loop is free for everybody else.

Tens of megabytes take the loop tens of milliseconds. A client that waits for one such reply per request of its own is
slowed down to 20 requests a second; after a rest as long as the work, the loop has caught up with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from barnabas.timers import Timers

Made = TypeVar("Made")

RESTING_MIN_MS: Final = 5
"""Work that takes less is followed by the next at once, as nobody notices it: nearly all replies are small."""


class LargeReplies:
    """One large reply at a time; owned by the event loop. `work_s`, in seconds, measures the work."""

    def __init__(self, timers: Timers, work_s: Callable[[], float]) -> None:
        self._timers = timers
        self._work_s = work_s
        self._turn = asyncio.Lock()

    async def make(self, work: Callable[[], Made], has_room: Callable[[], Awaitable[None]] | None = None) -> Made:
        """Return what `work` returns, when it is its turn and `has_room` has returned; other tasks come first."""
        await self._turn.acquire()
        started_s: float | None = None
        try:
            await asyncio.sleep(0)
            if has_room is not None:
                await has_room()
            started_s = self._work_s()
            return work()
        finally:
            self._rest(0 if started_s is None else self._work_s() - started_s)

    def _rest(self, worked_s: float) -> None:
        """Let the next one begin, after as long a time as the work took if that was long."""
        worked_ms = round(worked_s * 1000)
        if worked_ms < RESTING_MIN_MS:
            self._turn.release()
        else:
            self._timers.call_later(worked_ms, self._turn.release)
