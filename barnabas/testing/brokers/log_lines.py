"""The last log lines of each broker, or cluster, of a test: of its event loop and its own threads, independent of other
brokers in the process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

from barnabas.controller.coordination.owner_thread import Worker
from barnabas.testing.caller import current_test
from barnabas.threads import Threads, Workers

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

LINES_KEPT: Final = 100
"""Per broker or cluster."""

_numbers: Final = itertools.count(1)
_here: Final = threading.local()
"""`lines`: the owner of this thread's log lines. By thread, not by task: tasks have the context of their callers."""


class _Line(NamedTuple):
    number: int
    test: str
    """The test during which it was logged; empty for none."""

    text: str


class Lines:
    """The last lines of a broker or a cluster, kept as long as it exists."""

    def __init__(self) -> None:
        self._lines: deque[_Line] = deque(maxlen=LINES_KEPT)
        self._began = next(_numbers)

    def here(self) -> None:
        """Keep the log lines of the calling thread from now on."""
        _here.lines = self

    def job(self, job: Callable[[*Arguments], T]) -> Callable[[*Arguments], T]:
        """The job, wrapped so that its log lines are kept whichever of our threads runs it."""

        def do(*arguments: *Arguments) -> T:
            self.here()
            return job(*arguments)

        return do

    def append(self, text: str) -> None:
        """Keep a line."""
        self._lines.append(_Line(next(_numbers), current_test(), text))

    def told(self) -> list[str]:
        """These lines, and those of other threads since this was created; only of the running test, if there is one."""
        now = current_test()
        since = [line for line in list(_of_nobody._lines) if line.number > self._began]
        return [line.text for line in sorted([*self._lines, *since]) if line.test in (now or line.test, "")]


_of_nobody: Final = Lines()


def of_this_broker() -> list[str]:
    """The log lines of the broker whose event loop runs here, see `Lines.told`."""
    return _lines_here().told()


def _lines_here() -> Lines:
    found: Lines = getattr(_here, "lines", _of_nobody)
    return found


class LineKeeper(logging.Handler):
    """Keeps lines by the thread that has logged them; `logging` decides about levels."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        _lines_here().append(self.format(record))
        would_print = None if logging.getLogger().handlers else logging.lastResort  # without this handler
        if would_print is not None and record.levelno >= would_print.level:
            would_print.handle(record)

    def attach(self) -> None:
        """Keep lines from now on; does nothing if it is attached."""
        logging.getLogger("barnabas").addHandler(self)


class OwnThreads:
    """A broker's threads, which log on its behalf."""

    def __init__(self, threads: Threads, lines: Lines) -> None:
        self._threads = threads
        self._lines = lines

    def begin(self) -> None:
        self._threads.begin()

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return self._threads.call(self._lines.job(job), *arguments)

    def workers(self, name: str, count: int) -> Workers:
        return _OwnWorkers(self._threads.workers(name, count), self._lines)

    def run(self, groups: Sequence[Sequence[Callable[[], T]]], threads_per_group: int, name: str) -> list[list[T]]:
        own = [[self._lines.job(job) for job in jobs] for jobs in groups]
        return self._threads.run(own, threads_per_group, name)

    def pause(self, duration_ms: int) -> None:
        self._threads.pause(duration_ms)


class _OwnWorkers:
    """`Workers` that log on a broker's behalf."""

    def __init__(self, workers: Workers, lines: Lines) -> None:
        self._workers = workers
        self._lines = lines

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return self._workers.call(self._lines.job(job), *arguments)

    async def stop(self) -> None:
        await self._workers.stop()


class OwnStoreWorker:
    """The thread of a metadata store, which logs on behalf of a broker or a cluster."""

    def __init__(self, worker: Worker, lines: Lines) -> None:
        self._worker = worker
        self._lines = lines

    def submit(self, work: Callable[[], T], /) -> asyncio.Future[T]:
        return self._worker.submit(self._lines.job(work))

    def stop(self) -> None:
        self._worker.stop()
