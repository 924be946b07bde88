"""Several processes on one event loop, in time that moves only when nothing else does: each can be paused and killed.

Whose code runs is told by the context that asyncio gives every callback, task and timer on its way (`contextvars`):
what a process starts belongs to it. So nothing of a process has to know that it is simulated.

- `pause` is SIGSTOP: nothing of the process runs until `resume`, which has it do all that came meanwhile, in order.
- `kill` is SIGKILL: nothing of it runs again, not even what would clean up. Of what others hold for it (connections,
  a session with the metadata store), they hear in their own way.
- `light_fuse` has something happen, a kill for example, between two steps of the process.

The order of what is ready is drawn from the seed, as `shuffled_loop.py` says.
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
from tools.shuffled_loop import Lane, Ready, ShuffledLoop
from tools.simulated_network import SimulatedHost


class SimulatedThreads(OneThread):
    """A process's threads: a job is done at once, some time after it was given, and its result is heard of later still.
    One that is alone does its jobs in their order.
    """

    def __init__(self, draw: random.Random, mean_s: float) -> None:
        self._draw = draw
        self._mean_s = mean_s

    def delay_s(self) -> float:
        """How long a job, or the news of it, takes: often next to nothing."""
        return self._draw.expovariate(1 / self._mean_s) if self._draw.random() < 0.5 else 0.0

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return self.later(asyncio.get_running_loop().time() + self.delay_s(), partial(job, *arguments))

    def later(self, at_s: float, job: Callable[[], T]) -> asyncio.Future[T]:
        """Have a job done then, which is now or later."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            if future.done():  # nobody waits for it any more
                return
            outcome: ThreadFuture[T] = ThreadFuture()
            try:
                outcome.set_result(job())
            except Exception as error:  # noqa: BLE001 - carried to whoever awaits
                outcome.set_exception(error)
            loop.call_later(self.delay_s(), resolve, future, outcome)

        loop.call_at(at_s, do)
        return future

    def workers(self, name: str, count: int) -> Workers:
        return self if count > 1 else _OneWorker(self)


class _OneWorker:
    """A thread of its own for one kind of job."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._last_s = 0.0

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        self._last_s = max(self._last_s, asyncio.get_running_loop().time() + self._threads.delay_s())
        return self._threads.later(self._last_s, partial(job, *arguments))

    async def stop(self) -> None:
        """Whoever awaits jobs has heard of them by now."""


def resolve(future: asyncio.Future[T], outcome: ThreadFuture[T]) -> None:
    """Tell whoever waits how a job ended."""
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
        """Where `asyncio.open_connection` leads from here."""
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
        """Run a coroutine, and all that comes of it, in this process."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context)

    def pause(self) -> None:
        self.is_paused = True
        _loop().paused[self] = None

    def resume(self) -> None:
        """Go on; what was due meanwhile comes first."""
        self.is_paused = False
        held, self._held = self._held, []
        loop = _loop()
        loop.paused.pop(self, None)
        for lane, handle in held:
            loop.put_back(lane, handle)

    def kill(self) -> None:
        """What it does right now has no effects any more; whoever has them must ask whether it `is_dead`."""
        self.is_dead = True
        self._at_the_end_of_the_fuse = None
        tasks = [task for reference in self._tasks if (task := reference()) is not None and not task.done()]
        self._tasks.clear()
        self._held.clear()  # which may be all that keeps a task
        # Coroutines end now and not whenever memory is given back, so that a seed tells one story; one that runs, when
        # it has come to its next wait.
        asyncio.get_running_loop().call_soon(self._end, tasks, context=contextvars.Context())

    def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(Exception):
                self.context.run(task.get_coro().close)
            asyncio.tasks._unregister_task(task)  # nobody cancels it and waits for that

    def light_fuse(self, steps: int, then: Callable[[], None]) -> None:
        """Call `then` after so many steps: callbacks, and what counts as one by calling `step`."""
        self._fuse, self._at_the_end_of_the_fuse = steps, then

    def put_fuse_out(self) -> None:
        self._at_the_end_of_the_fuse = None

    @property
    def has_fuse(self) -> bool:
        return self._at_the_end_of_the_fuse is not None

    def step(self) -> None:
        """The process is about to do something."""
        self._fuse -= 1
        if self._fuse <= 0 and self._at_the_end_of_the_fuse is not None:
            then, self._at_the_end_of_the_fuse = self._at_the_end_of_the_fuse, None
            contextvars.Context().run(then)

    def hold(self, lane: Lane | None, handle: asyncio.Handle) -> None:
        """Keep what would run now, as long as the process is paused; of a dead one nothing is kept."""
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
    """Who waits for a future, if it is one, or who is to tell of it; whose task it is."""
    return future.process if isinstance(future, (_Future, _Task)) else None


def current_process() -> Process | None:
    """Whose code runs; None for what belongs to nobody."""
    return _PROCESS.get()


class _ReadyOfProcesses(Ready):
    """Passes over what belongs to a process that does not run."""

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
    """What the loop passes over."""

    def __init__(self) -> None:
        self._cancelled = True


_numbers = count()


class _Task(asyncio.Task[Any]):
    """A task that has the same place in a set whenever a seed's story is told: by its number, not its address."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._number = next(_numbers)
        self.process = _PROCESS.get()
        super().__init__(*arguments, **keywords)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """As `_Task`."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._number = next(_numbers)
        self.process = _PROCESS.get()
        super().__init__(*arguments, **keywords)

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(ShuffledLoop):
    """The loop. It has no threads: what would run in one is a job that a process takes a turn for
    (`barnabas.threads.OneThread`).
    """

    def __init__(self, seed: int) -> None:
        global _numbers
        _numbers = count()
        super().__init__(seed)
        self._ready = _ReadyOfProcesses(self._draw)
        self._timers: list[tuple[float, asyncio.TimerHandle]] = []
        """A heap of what is due when; in asyncio's place, which has Python compare handles."""
        self.set_task_factory(_new_task)
        self.paused: dict[Process, None] = {}

    def _run_once(self) -> None:
        """A round of asyncio's loop without sockets, which nobody has here."""
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
        """As asyncio's, without what only its debugging needs: half a million times in a simulated minute."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As `call_soon`."""
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
        """As `call_soon`: there is only one thread."""
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
    """Run `main`, which belongs to no process, on a loop of its own."""

    async def run() -> Any:
        try:
            return await main
        finally:
            for process in list(_loop().paused):
                process.resume()

    with asyncio.Runner(loop_factory=lambda: ProcessLoop(seed)) as runner:
        return runner.run(run())
