"""Threads, where there may be none to be had: a container's `pids.max`, `ulimit -u`, no memory for a stack.

That passes, as a lack of descriptors does, and nothing fails of it: what has threads goes on with those that it has.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

THREADS_AT_START: Final = 4
"""Of a broker's pool; so many jobs go on side by side when no more can be had."""

T = TypeVar("T")


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


def run_in_threads(groups: Sequence[Sequence[Callable[[], T]]], threads_per_group: int, name: str) -> list[list[T]]:
    """Run each group's jobs in threads of its own, or, where not one can be started for it, in this one; what they
    returned. Blocking. The first error of a group ends it, and is raised when all groups are done.
    """
    running = [_Jobs(jobs) for jobs in groups]
    threads: list[Thread] = []
    alone: list[_Jobs[T]] = []
    for jobs in running:
        found = _start(jobs.work, min(threads_per_group, len(jobs.results)), name)
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


def _start(work: Callable[[], None], count: int, name: str) -> list[Thread]:
    started: list[Thread] = []
    for _ in range(count):
        thread = Thread(target=work, name=name)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s: %s, going on with %d", name, error, len(started))
            break
        started.append(thread)
    return started


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
