"""Several processes on one event loop, in virtual time: each can be paused and killed.

The running process is determined by the context that asyncio passes to every callback, task and timer (`contextvars`):
everything that a process starts belongs to it. So a process's code needs no knowledge of the simulation.

- `pause` is SIGSTOP: nothing of the process runs until `resume`, which then runs all delayed callbacks, in order.
- `kill` is SIGKILL: nothing of the process runs again, not even cleanup. Its peers (of connections, or of a session
  with the metadata store) notice in their own ways.
- `light_fuse` triggers an event, a kill for example, between two steps of the process.

The order of ready callbacks is drawn from the seed, as described in `loop.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from functools import partial
from itertools import count
from typing import Any

from barnabas.threads import Arguments, OneThread, T, Workers
from tools.simulation.world.loop import Lane, Ready, ShuffledLoop
from tools.simulation.world.network import SimulatedHost


class SimulatedThreads(OneThread):
    """A process's threads: a job runs at once, at some time after its submission, and its result arrives even later. A
    single thread runs its jobs in their order.
    """

    def __init__(self, draw: random.Random, mean_s: float) -> None:
        self._draw = draw
        self._mean_s = mean_s

    def delay_s(self) -> float:
        """The delay of a job, or of its result: often almost zero."""
        return self._draw.expovariate(1 / self._mean_s) if self._draw.random() < 0.5 else 0.0

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return self.later(asyncio.get_running_loop().time() + self.delay_s(), partial(job, *arguments))

    def later(self, at_s: float, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job at that time, which is now or later."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            if future.done():  # it is no longer awaited
                return
            outcome: ThreadFuture[T] = ThreadFuture()
            try:
                outcome.set_result(job())
            except Exception as error:  # noqa: BLE001 - passed on to the awaiting code
                outcome.set_exception(error)
            loop.call_later(self.delay_s(), resolve, future, outcome)

        loop.call_at(at_s, do)
        return future

    def workers(self, name: str, count: int) -> Workers:
        return self if count > 1 else _OneWorker(self)


class _OneWorker:
    """A separate thread for one kind of job."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._last_s = 0.0

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        self._last_s = max(self._last_s, asyncio.get_running_loop().time() + self._threads.delay_s())
        return self._threads.later(self._last_s, partial(job, *arguments))

    async def stop(self) -> None:
        """Do nothing: the results of all jobs have arrived by now."""


def resolve(future: asyncio.Future[T], outcome: ThreadFuture[T]) -> None:
    """Set a job's result or exception."""
    if future.done():
        return
    error = outcome.exception()
    if error is None:
        future.set_result(outcome.result())
    else:
        future.set_exception(error)


class Process:
    """One process: everything that was started in its `context`."""

    def __init__(self, name: str, host: SimulatedHost | None = None) -> None:
        self.name = name
        self.host = host
        """The target network of `asyncio.open_connection` in this process."""
        self.is_paused = False
        self.is_dead = False
        self._fuse = 0
        self._at_the_end_of_the_fuse: Callable[[], None] | None = None
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)
        self._held: list[tuple[Lane | None, asyncio.Handle]] = []
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._tasks_max = 100

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine, and everything that it starts, in this process."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context)

    def pause(self) -> None:
        self.is_paused = True
        _loop().paused[self] = None

    def resume(self) -> None:
        """Continue; delayed callbacks run first."""
        self.is_paused = False
        held, self._held = self._held, []
        loop = _loop()
        loop.paused.pop(self, None)
        for lane, handle in held:
            loop.put_back(lane, handle)

    def kill(self) -> None:
        """Kill the process. Its current step has no effects any more: code with effects must check `is_dead`."""
        self.is_dead = True
        self._at_the_end_of_the_fuse = None
        tasks = [task for reference in self._tasks if (task := reference()) is not None and not task.done()]
        self._tasks.clear()
        self._held.clear()  # it may hold the only reference to a task
        # Close coroutines now and not when memory is freed, so that a seed is reproducible; a running one is closed at
        # its next wait.
        asyncio.get_running_loop().call_soon(self._end, tasks, context=contextvars.Context())

    def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                self.context.run(task.get_coro().close)
            asyncio.tasks._unregister_task(task)  # it is not cancelled and awaited at the end

    def light_fuse(self, steps: int, then: Callable[[], None]) -> None:
        """Call `then` after `steps` steps: callbacks, and calls of `step`."""
        self._fuse, self._at_the_end_of_the_fuse = steps, then

    def put_fuse_out(self) -> None:
        self._at_the_end_of_the_fuse = None

    @property
    def has_fuse(self) -> bool:
        return self._at_the_end_of_the_fuse is not None

    def step(self) -> None:
        """The process is about to do a step."""
        self._fuse -= 1
        if self._fuse <= 0 and self._at_the_end_of_the_fuse is not None:
            then, self._at_the_end_of_the_fuse = self._at_the_end_of_the_fuse, None
            contextvars.Context().run(then)

    def hold(self, lane: Lane | None, handle: asyncio.Handle) -> None:
        """Keep a ready callback while the process is paused; those of a dead process are dropped."""
        if not self.is_dead:
            self._held.append((lane, handle))

    def add(self, task: asyncio.Task[Any]) -> None:
        if self.is_dead:
            asyncio.get_running_loop().call_soon(self._end, [task], context=contextvars.Context())
            return
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if (known := each()) is not None and not known.done()]
            self._tasks_max = 2 * len(self._tasks) + 100


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def process_of(future: object) -> Process | None:
    """The process of a task, or the one that waits for a future or resolves it."""
    return future.process if isinstance(future, (_Future, _Task)) else None


def current_process() -> Process | None:
    """The running process; None for code outside of all processes."""
    return _PROCESS.get()


class _ReadyOfProcesses(Ready):
    """Skips the callbacks of processes that do not run."""

    def append_to(self, lane: Lane | None, handle: asyncio.Handle) -> None:
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is not None and (process.is_paused or process.is_dead):
            process.hold(lane, handle)
        else:
            super().append_to(lane, handle)

    def popleft(self) -> asyncio.Handle:
        lane, handle = self.pop()
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is not None:
            if process.has_fuse:
                process.step()
            if process.is_paused or process.is_dead:
                process.hold(lane, handle)
                return _Cancelled()
        return handle


class _Cancelled(asyncio.Handle):
    """A handle that the loop skips."""

    def __init__(self) -> None:
        self._cancelled = True


_numbers = count()


class _Task(asyncio.Task[Any]):
    """A task with a reproducible place in sets: its hash is its number, not its address."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._number = next(_numbers)
        self.process = _PROCESS.get()
        super().__init__(*arguments, **keywords)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """Like `_Task`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._number = next(_numbers)
        self.process = _PROCESS.get()
        super().__init__(*arguments, **keywords)

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(ShuffledLoop):
    """The loop. It has no threads: their jobs are run as turns of a process (`barnabas.threads.OneThread`)."""

    def __init__(self, seed: int) -> None:
        global _numbers
        _numbers = count()
        super().__init__(seed)
        self._ready = _ReadyOfProcesses(self._draw)
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        """A heap of scheduled handles, in place of asyncio's, which compares handles in Python."""
        self.set_task_factory(_new_task)
        self.paused: dict[Process, None] = {}

    def _run_once(self) -> None:
        """A round of asyncio's loop without sockets, which are not used here."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][1]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise RuntimeError("everybody waits for something that nobody will do")
            self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[1])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:  # noqa: BLE001 - as `Handle._run`
                told = {"message": f"Exception in callback {handle._callback}", "exception": error, "handle": handle}
                self.call_exception_handler(told)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Like asyncio's, without its debugging support: it is called half a million times in a simulated minute."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Like `call_soon`."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def put_back(self, lane: Lane | None, handle: asyncio.Handle) -> None:
        self._ready.append_to(lane, handle)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Like `call_soon`: there is only one thread."""
        return self.call_soon(callback, *args, context=context)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect from the process's host in its network."""
        process = current_process()
        assert process is not None, "nobody connects"
        assert process.host is not None, "a process without a network connects"
        return await process.host.connect(host, port, protocol_factory)


def _loop() -> ProcessLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)
    return loop


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Any = None) -> asyncio.Task[Any]:
    task = _Task(coroutine, loop=loop, context=context)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        process.add(task)
    return task


def run_processes(seed: int, main: Coroutine[Any, Any, Any]) -> Any:
    """Run `main`, which belongs to no process, on a new loop."""

    async def run() -> Any:
        try:
            return await main
        finally:
            for process in list(_loop().paused):
                process.resume()

    with asyncio.Runner(loop_factory=lambda: ProcessLoop(seed)) as runner:
        return runner.run(run())
