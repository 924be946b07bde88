"""Threads for work that blocks, or that would occupy the event loop for too long. They are handed in (`Threads`), so
that a simulation can do without any.

Threads may be scarce (a container's `pids.max`, `ulimit -u`, no memory for a stack). That passes, as a lack of
descriptors does, and nothing fails of it: what has threads goes on with those that it has.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Thread
from typing import Any, Final, Generic, Protocol, TypeVar, TypeVarTuple

logger = logging.getLogger(__name__)

THREADS_AT_START: Final = 4
"""How many threads a broker's pool begins with; so many jobs go on side by side when no more can be had."""

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class ThreadPool(ThreadPoolExecutor):
    """A pool that starts some threads at once, and more when there is work; work for which no more can be had waits for
    one of those.

    Raises:
        RuntimeError: there are none at all.
    """

    def __init__(self, name: str, started: int, max_workers: int | None = None) -> None:
        super().__init__(max_workers, name)
        everybody_is_here = Event()
        try:
            for _ in range(started):
                self.submit(everybody_is_here.wait)
        finally:
            everybody_is_here.set()

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()  # the only place that knows
        except RuntimeError as error:
            if not self._threads:
                raise
            logger.debug("%s: %s; work waits for one that runs", self._thread_name_prefix, error)


class Workers(Protocol):
    """Threads for one kind of job, which takes its turn behind others of its kind only. Event loop only."""

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        """As `Threads.call`, in one of these."""
        ...

    async def stop(self) -> None:
        """Take no more jobs, drop those that have not begun, and return when none runs."""
        ...


class Threads(Protocol):
    """Where jobs run that block. No job may wait for what the event loop or another job does: there may be only one
    thread.
    """

    def begin(self) -> None:
        """Have the threads for `call`, which end with the running event loop. Raises RuntimeError: there are none."""
        ...

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        """Have a job done while the running event loop goes on; it hears of the outcome. A job that has begun is done
        even if nobody waits for it any more. Raises RuntimeError: there is no thread for it.
        """
        ...

    def workers(self, name: str, count: int) -> Workers:
        """Threads apart from those of `call`: neither wait for the other. Raises RuntimeError: there are none."""
        ...

    def run(self, groups: Sequence[Sequence[Callable[[], T]]], threads_per_group: int, name: str) -> list[list[T]]:
        """Run each group's jobs, up to `threads_per_group` of them side by side, and the groups beside each other; what
        they returned. `name` is that of the threads. Blocking. The first error of a group ends it, and is raised when
        all groups are done.
        """
        ...

    def pause(self, duration_ms: int) -> None:
        """Have the calling thread, which is none of an event loop's, let others get on. Blocking."""
        ...


class OsThreads:
    """The operating system's threads. A group of `run` for which not one can be started runs in the calling one.
    `start` is what starts those of `run`.
    """

    def __init__(self, start: Callable[[Thread], None] = Thread.start) -> None:
        self._start = start

    def begin(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPool("broker", THREADS_AT_START))

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(None, job, *arguments)

    def workers(self, name: str, count: int) -> Workers:
        return _OsWorkers(ThreadPool(name, count, count))

    def run(self, groups: Sequence[Sequence[Callable[[], T]]], threads_per_group: int, name: str) -> list[list[T]]:
        running = [_Jobs(jobs) for jobs in groups]
        threads: list[Thread] = []
        alone: list[_Jobs[T]] = []
        for jobs in running:
            found = self._start_some(jobs.work, min(threads_per_group, len(jobs.results)), name)
            threads += found
            if not found:
                alone.append(jobs)
        for jobs in alone:
            jobs.work()
        for thread in threads:
            thread.join()
        for jobs in running:
            if jobs.error is not None:
                raise jobs.error
        return [[jobs.results[number] for number in range(len(jobs.results))] for jobs in running]

    def pause(self, duration_ms: int) -> None:
        Event().wait(duration_ms / 1000)

    def _start_some(self, work: Callable[[], None], count: int, name: str) -> list[Thread]:
        started: list[Thread] = []
        for _ in range(count):
            thread = Thread(target=work, name=name)
            try:
                self._start(thread)
            except RuntimeError as error:
                logger.warning("%s: %s, going on with %d", name, error, len(started))
                break
            started.append(thread)
        return started


class _OsWorkers:
    """`Workers` of the operating system: a pool of threads."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, job, *arguments)

    async def stop(self) -> None:
        end = partial(self._pool.shutdown, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, end)


class OneThread:
    """None but the calling thread, in which jobs run one after the other, those of `call` in a turn of the event loop:
    for simulations. Also the `Workers` that it gives.
    """

    def begin(self) -> None:
        """Do nothing: the one thread is there already."""

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        loop.call_soon(_do, outcome, job, arguments)
        return outcome

    def workers(self, name: str, count: int) -> Workers:
        return self

    async def stop(self) -> None:
        """Do nothing: no thread was started."""

    def run(self, groups: Sequence[Sequence[Callable[[], T]]], threads_per_group: int, name: str) -> list[list[T]]:
        return [[job() for job in jobs] for jobs in groups]

    def pause(self, duration_ms: int) -> None:
        """Do nothing: there are no other threads to make room for."""


def _do(outcome: asyncio.Future[T], job: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if outcome.done():  # nobody waits for it any more
        return
    try:
        result = job(*arguments)
    except Exception as error:  # noqa: BLE001 - carried to whoever waits
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


class _Jobs(Generic[T]):
    """Jobs that several threads share."""

    def __init__(self, jobs: Sequence[Callable[[], T]]) -> None:
        self._left = list(enumerate(jobs))[::-1]
        self.results: list[T] = [None] * len(jobs)  # type: ignore[list-item]
        self.error: BaseException | None = None

    def work(self) -> None:
        while self.error is None:
            try:
                number, job = self._left.pop()
            except IndexError:
                return
            try:
                self.results[number] = job()
            except BaseException as error:  # noqa: BLE001 - carried to whoever waits
                self.error = error
