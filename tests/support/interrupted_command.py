"""Sends one SIGINT at each point of a command: `python -m tests.support.interrupted_command JOB` prints a line of JSON
per point.

A point is a line that the main thread is about to run, or a line of the thread that receives signals. A poll is a wait
of the event loop: there the signal arrives in C code, after the last step at which Python would have run a handler and
before the wait, which no trace function reaches.

The process runs the command up to a function, and forks there: for one run without a signal, which counts the points,
and for one run per point, which sends itself the signal. Each run then continues to the end of the command.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import operator
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tools.processes import children
from tools.waiting import PATIENCE_S

SILENT: Final = "{silent}"
"""In a job's arguments, this is replaced by the address of a server that accepts connections and never responds."""

POINT: Final = "{point}"

LONG_S: Final = 1.0
"""An event loop that would wait longer than this has nothing to do."""

LONG_WAIT: Final = "a long wait"

MAIN, THREAD, POLL = "main", "thread", "poll"


@dataclass(frozen=True)
class Job:
    """A command and the points of its interruption: after the start of the function `begin`, each `every`th line from
    the `first` on, and with `others` also all lines of the other thread and all polls. `stdin` is its whole input;
    POINT in it is replaced by the kind and the number of the point.
    """

    arguments: Sequence[str]
    begin: str = "with_client"
    every: int = 1
    first: int = 1
    others: bool = True
    stdin: str = ""


@dataclass
class Counts:
    """The number of points of a command, by kind."""

    main: int = 0
    thread: int = 0
    poll: int = 0


@dataclass(frozen=True)
class Ending:
    """The end of a command that was interrupted at point `number` of its `kind`. `place` is the line about to run, or
    empty if the point was not reached. `status` is as in subprocess. `waited_s` is the time for which the event loop
    waited after the signal without an event.
    """

    kind: str
    number: int
    place: str
    status: int
    out: str
    err: str
    waited_s: float


def endings(job: Job) -> tuple[Counts, list[Ending]]:
    """The number of points of a command, and its end for each of them."""
    done = children.run(
        [sys.executable, "-m", "tests.support.interrupted_command", json.dumps(asdict(job))],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    counts, *lines = done.stdout.splitlines()
    return Counts(**json.loads(counts)), [Ending(**json.loads(line)) for line in lines]


class Trap:
    """In a process that continues the command: counts points of each kind, and sends the signal at point `number` of
    `kind`; with number 0 at none. It writes its results to the file `report`. If the server `is_silent`, there are no
    more points once the event loop waits for it.
    """

    def __init__(self, kind: str, number: int, report: int, *, is_silent: bool) -> None:
        self._kind, self._number, self._report, self._is_silent = kind, number, report, is_silent
        self._counts = Counts()
        self._is_sprung = False
        self._raise_in_c = functools.partial(getattr(ctypes.PyDLL(None), "raise"), signal.SIGINT)

    def set(self, frame: FrameType) -> Any:
        """Start to count in this frame, with the returned trace function, and in the frames that wait for it."""
        atexit.register(self._tell_counts)
        trap = self

        class Selector(selectors.EpollSelector):
            def __init__(self) -> None:
                super().__init__()
                self._selector = _Poll(self._selector, trap)  # type: ignore[has-type]

        class Policy(asyncio.DefaultEventLoopPolicy):
            def new_event_loop(self) -> asyncio.AbstractEventLoop:
                return asyncio.SelectorEventLoop(Selector())

        asyncio.set_event_loop_policy(Policy())
        threading.settrace(self._begin_in_thread)
        sys.settrace(self._begin)
        caller = frame.f_back
        while caller is not None:
            caller.f_trace = self._begin(caller, "call", None)
            caller = caller.f_back
        return self._line

    def _tell_counts(self) -> None:
        sys.settrace(None)  # the rest is not part of the command
        self._tell(counts=asdict(self._counts))

    def _tell(self, **what: Any) -> None:
        os.write(self._report, f"{json.dumps(what)}\n".encode())

    def _spring(self, kind: str, number: int, place: str) -> bool:
        if (kind, number) != (self._kind, self._number):
            return False
        self._is_sprung = True
        self._tell(place=place)
        return True

    def _begin(self, frame: FrameType, _event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        return None if name == __file__ or name.startswith("<frozen") else self._line

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._counts.main += 1
            if self._counts.main == self._number and self._spring(MAIN, self._number, _place(frame)):
                signal.raise_signal(signal.SIGINT)
        return self._line

    def _begin_in_thread(self, _frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line_in_thread if threading.current_thread().name == "signals" else None

    def _line_in_thread(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._counts.thread += 1
            if self._spring(THREAD, self._counts.thread, _place(frame)):
                os.kill(os.getpid(), signal.SIGINT)
        return self._line_in_thread

    def poll(self, poll: Any, timeout_s: float, maximum: int) -> list[tuple[int, int]]:
        """Return the result of select.epoll's `poll`."""
        self._counts.poll += 1
        wait = functools.partial(poll, timeout_s, maximum)
        ready: list[tuple[int, int]]
        if self._spring(POLL, self._counts.poll, LONG_WAIT if timeout_s > LONG_S else "a short wait"):
            # One call in C, so that Python runs no step between the two.
            ready = list(map(operator.call, (self._raise_in_c, wait)))[1]
        else:
            if self._ends_here(timeout_s) and not poll(0, maximum):
                self._tell_counts()
                os._exit(0)
            ready = wait()
        if self._is_sprung and timeout_s > LONG_S and not ready:
            self._tell(waited_s=timeout_s)
        return ready

    def _ends_here(self, timeout_s: float) -> bool:
        """Whether there are no more points unless an event arrives; the other thread may have some."""
        return self._is_silent and not self._is_sprung and timeout_s > LONG_S and self._kind != THREAD


class _Poll:
    """A select.epoll that passes its waits through a trap."""

    def __init__(self, epoll: Any, trap: Trap) -> None:
        self._epoll, self._trap = epoll, trap

    def poll(self, timeout_s: float, maximum: int) -> list[tuple[int, int]]:
        return self._trap.poll(self._epoll.poll, timeout_s, maximum)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"


class Fork:
    """In the forking process: runs a command up to a function, and from there on in forked processes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._output = os.fdopen(os.dup(1), "w")
        self._silent = socket.create_server(("127.0.0.1", 0))

    def run(self) -> None:
        """Run the command. Does not return."""
        command = importlib.import_module("barnabas.__main__").main
        address = f"127.0.0.1:{self._silent.getsockname()[1]}"
        sys.settrace(self._begin)
        command([argument.replace(SILENT, address) for argument in self._job.arguments])

    def _begin(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_name != self._job.begin:
            return None
        sys.settrace(None)
        gc.freeze()
        trap = self._fork_at_each_point()
        if trap is None:
            os._exit(0)
        return trap.set(frame)

    def _fork_at_each_point(self) -> Trap | None:
        """Return None in this process, at the end; in each forked process its trap."""
        run = Run(self._job)
        if (trap := run.fork(MAIN, 0)) is not None:
            return trap
        if "counts" not in run.told:
            raise SystemExit(f"without a signal {self._job.arguments} ended with {run.status}\n{run.out}\n{run.err}")
        counts = Counts(**run.told["counts"])
        self._print(asdict(counts))
        for kind, number in self._points(counts):
            if (trap := run.fork(kind, number)) is not None:
                return trap
            place, waited_s = run.told.get("place", ""), run.told.get("waited_s", 0.0)
            self._print(asdict(Ending(kind, number, place, run.status, run.out, run.err, waited_s)))
            self._forget_connections()
        return None

    def _points(self, counts: Counts) -> Iterator[tuple[str, int]]:
        job = self._job
        yield from ((MAIN, number) for number in range(job.first, counts.main + 1, job.every))
        if job.others:
            yield from ((THREAD, number) for number in range(1, counts.thread + 1))
            yield from ((POLL, number) for number in range(1, counts.poll + 1))

    def _print(self, line: Any) -> None:
        self._output.write(f"{json.dumps(line)}\n")
        self._output.flush()

    def _forget_connections(self) -> None:
        """Accept and close waiting connections, to keep room in the silent server's backlog."""
        self._silent.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._silent.accept()[0].close()


class Run:
    """The run of a command in a forked process: its `status`, its output, and its trap's results."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.status = 0
        self.out = self.err = ""
        self.told: dict[str, Any] = {}

    def fork(self, kind: str, number: int) -> Trap | None:
        """Return None in this process, after the end of the forked one; in the forked process its trap."""
        out, err, report = (os.memfd_create(name) for name in ("out", "err", "report"))
        pid = os.fork()
        if not pid:
            self._take_streams(out, err, self._job.stdin.replace(POINT, f"{kind} {number}"))
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
            return Trap(kind, number, report, is_silent=SILENT in self._job.arguments)
        self.status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.out, self.err = _content(out), _content(err)
        self.told = {}
        for line in _content(report).splitlines():
            self.told |= json.loads(line)
        return None

    @staticmethod
    def _take_streams(out: int, err: int, stdin: str) -> None:
        read_end, write_end = os.pipe()
        os.write(write_end, stdin.encode())
        os.close(write_end)
        for number, standard in ((read_end, 0), (out, 1), (err, 2)):
            os.dup2(number, standard)
            os.close(number)


def _content(number: int) -> str:
    with os.fdopen(number, "rb") as file:
        file.seek(0)
        return file.read().decode()


if __name__ == "__main__":
    Fork(Job(**json.loads(sys.argv[1]))).run()
