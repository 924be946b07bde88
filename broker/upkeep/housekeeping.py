"""The periodic jobs of a broker: retention, checkpoints, flushes by time, expiry, idle connections.

Each job runs again `interval_ms` of the broker's clock after it finished; a failure is logged, and the job runs again.
Intervals come from the configuration: see `Housekeeping.every`.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from barnabas.broker.timers import TimerHandle, Timers
from barnabas.clock import Clock
from barnabas.clock import interval_ms as bounded_interval_ms
from barnabas.set_aside import SetAside

Job = Callable[[], None] | Callable[[], Awaitable[object]]


@dataclass(slots=True)
class _Periodic:
    """A job and its pause after each run; None when it runs only once."""

    name: str
    job: Job
    interval_ms: int | None


class Housekeeping:
    """Runs periodic jobs on the event loop until closed; a job that blocks runs its blocking part in a
    thread itself."""

    def __init__(self, timers: Timers, clock: Clock) -> None:
        self._timers = timers
        self.set_aside = SetAside[str]("housekeeping", clock, first_delay_ms=0)
        """Jobs that failed in their last run; they run again like all others."""
        self._jobs: dict[str, _Periodic] = {}
        self._handles: dict[str, TimerHandle] = {}
        """The timers of the pausing jobs, by the jobs' names."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def every(self, name: str, interval_ms: int, job: Job, *, initial_delay_ms: int | None = None) -> None:
        """Run `job` every `interval_ms`, first after `initial_delay_ms` (default: one interval).

        With an interval of 0 or less it runs once, as in Kafka (KafkaScheduler.schedule); a small one is raised to
        `clock.REPEAT_MIN_MS`, since a run takes time.
        """
        bounded_ms = bounded_interval_ms(interval_ms)
        periodic = self._jobs[name] = _Periodic(name, job, bounded_ms if interval_ms > 0 else None)
        self._run_later(bounded_ms if initial_delay_ms is None else initial_delay_ms, periodic)

    def change_interval(self, name: str, interval_ms: int) -> None:
        """Run that job every `interval_ms` from now on, or from the end of its present run."""
        periodic = self._jobs[name]
        bounded_ms = bounded_interval_ms(interval_ms)
        periodic.interval_ms = bounded_ms if interval_ms > 0 else None
        handle = self._handles.get(name)
        if handle is not None and not self._closed:
            handle.cancel()
            self._run_later(bounded_ms, periodic)

    def _run_later(self, delay_ms: int, periodic: "_Periodic") -> None:
        self._handles[periodic.name] = self._timers.call_later(delay_ms, lambda: self._start(periodic))

    def _start(self, periodic: "_Periodic") -> None:
        del self._handles[periodic.name]
        pending = None
        try:
            pending = periodic.job()
        except Exception as error:  # noqa: BLE001 - it runs again
            self.set_aside.put(periodic.name, error)
        else:
            if not inspect.isawaitable(pending):
                self.set_aside.release(periodic.name)
        finally:  # it runs again in any case
            if inspect.isawaitable(pending):
                task = asyncio.ensure_future(self._finish(periodic, pending))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._finished(periodic)

    async def _finish(self, periodic: "_Periodic", pending: Awaitable[object]) -> None:
        try:
            with self.set_aside.attempt(periodic.name):
                await pending
        finally:
            self._finished(periodic)

    def _finished(self, periodic: "_Periodic") -> None:
        if periodic.interval_ms is not None and not self._closed:
            self._run_later(periodic.interval_ms, periodic)

    def running(self) -> "list[asyncio.Task[None]]":
        """Jobs that are running."""
        return list(self._tasks)

    async def close(self) -> None:
        """Stop, after the running jobs have ended."""
        self._closed = True
        for handle in self._handles.values():
            handle.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
