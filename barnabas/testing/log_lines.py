"""The last lines that each broker, or cluster, of a test has logged: whatever its event loop or a thread of its own
says, whichever other brokers the process has."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

from barnabas.controller.coordination.owner_thread import Worker
from barnabas.threads import Threads, Workers

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

LINES_KEPT: Final = 100
"""Of each broker or cluster."""

CURRENT_TEST: Final = "PYTEST_CURRENT_TEST"
"""pytest's name for the environment variable that says which test runs."""

_numbers: Final = itertools.count(1)
_here: Final = threading.local()
"""`lines`: of whom what this thread logs is. Threads, not tasks: those have the context of whoever asks for them."""


class _Line(NamedTuple):
    number: int
    test: str
    """During which it was logged; empty for none."""

    text: str


class Lines:
    """The last lines of a broker or a cluster, which go with it."""

    def __init__(self) -> None:
        self._lines: deque[_Line] = deque(maxlen=LINES_KEPT)
        self._began = next(_numbers)

    def here(self) -> None:
        """Keep what the calling thread logs from now on."""
        _here.lines = self

    def job(self, job: Callable[[*Arguments], T]) -> Callable[[*Arguments], T]:
        """A job as it is, whose lines are kept in whichever thread of ours it is done."""

        def do(*arguments: *Arguments) -> T:
            self.here()
            return job(*arguments)

        return do

    def append(self, text: str) -> None:
        """Keep a line."""
        self._lines.append(_Line(next(_numbers), current_test(), text))

    def told(self) -> list[str]:
        """These lines, and those of nobody's threads since this was made; of the test that runs only, if one does."""
        now = current_test()
        since = [line for line in list(_of_nobody._lines) if line.number > self._began]
        return [line.text for line in sorted([*self._lines, *since]) if line.test in (now or line.test, "")]


_of_nobody: Final = Lines()


def current_test() -> str:
    """The id of the test that pytest runs; empty for none."""
    return os.environ.get(CURRENT_TEST, "").rpartition(" ")[0]


def of_this_broker() -> list[str]:
    """What the broker has logged whose event loop runs here, see `Lines.told`."""
    return _lines_here().told()


def _lines_here() -> Lines:
    found: Lines = getattr(_here, "lines", _of_nobody)
    return found


class LineKeeper(logging.Handler):
    """Keeps lines by the thread that has logged them; which levels that are is up to `logging`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        _lines_here().append(self.format(record))
        would_print = None if logging.getLogger().handlers else logging.lastResort  # but for this handler
        if would_print is not None and record.levelno >= would_print.level:
            would_print.handle(record)

    def attach(self) -> None:
        """Keep lines from now on; does nothing when that is so."""
        logging.getLogger("barnabas").addHandler(self)


class OwnThreads:
    """A broker's threads, in which it logs as itself."""

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
    """`Workers` in which a broker logs as itself."""

    def __init__(self, workers: Workers, lines: Lines) -> None:
        self._workers = workers
        self._lines = lines

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return self._workers.call(self._lines.job(job), *arguments)

    async def stop(self) -> None:
        await self._workers.stop()


class OwnStoreWorker:
    """The thread of a metadata store, in which a broker or a cluster logs as itself."""

    def __init__(self, worker: Worker, lines: Lines) -> None:
        self._worker = worker
        self._lines = lines

    def submit(self, work: Callable[[], T], /) -> asyncio.Future[T]:
        return self._worker.submit(self._lines.job(work))

    def stop(self) -> None:
        self._worker.stop()
