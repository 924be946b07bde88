"""What a broker does by itself, over and over: retention, checkpoints, flushes by time, expiry, idle connections.

Each job runs again `interval_ms` of the broker's clock after it finished; one that fails is logged and tried again.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from barnabas.broker.timers import TimerHandle, Timers

logger = logging.getLogger(__name__)

Job = Callable[[], None] | Callable[[], Awaitable[None]]


class Housekeeping:
    """Runs periodic jobs on the event loop until closed; a job that blocks hands its blocking part to a thread
    itself."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._handles: dict[str, TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def every(self, name: str, interval_ms: int, job: Job, *, initial_delay_ms: int | None = None) -> None:
        """Run `job` every `interval_ms`, first after `initial_delay_ms` (default: one interval)."""
        delay_ms = interval_ms if initial_delay_ms is None else initial_delay_ms
        self._handles[name] = self._timers.call_later(delay_ms, lambda: self._start(name, interval_ms, job))

    def _start(self, name: str, interval_ms: int, job: Job) -> None:
        try:
            pending = job()
        except Exception:
            logger.exception("%s failed", name)
            pending = None
        if inspect.isawaitable(pending):
            task = asyncio.ensure_future(self._finish(name, interval_ms, job, pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif not self._closed:
            self.every(name, interval_ms, job)

    async def _finish(self, name: str, interval_ms: int, job: Job, pending: Awaitable[None]) -> None:
        try:
            await pending
        except Exception:
            logger.exception("%s failed", name)
        if not self._closed:
            self.every(name, interval_ms, job)

    def running(self) -> "list[asyncio.Task[None]]":
        """Jobs that are under way."""
        return list(self._tasks)

    async def close(self) -> None:
        """Stop; jobs that are under way are waited for."""
        self._closed = True
        for handle in self._handles.values():
            handle.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
