"""An event loop that runs ready callbacks in an order drawn from a seed, in virtual time.

Every choice that asyncio leaves open is drawn anew at each step: the next of the ready tasks, the future whose
callbacks run first, the time when a thread's job begins and when its result arrives. The same seed gives the same run,
in the same process or in another one with the same PYTHONHASHSEED.

The following orders are kept, because asyncio documents them and code may rely on them:

- plain callbacks (`call_soon`, sockets, due timers) run in the order in which they were scheduled;
- the callbacks of one future run in the order in which they were added;
- timers become due in the order of their times;
- an executor with one thread runs its jobs in the order of their submission; their results arrive in that order, and
  after everything that a job itself has posted to the loop. (The metadata store's responses are such results: a later
  read is newer.)

Jobs run in real threads, since some of them call the loop and wait for the result. But the loop and the threads take
turns, so that only one of them runs at any time.
"""

import asyncio
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from barnabas.threads import Arguments, OneThread, T, Workers

PATIENCE_S = 60
"""The real time for which the loop waits for a thread before it counts as stuck."""

Lane = tuple[str, int]

PLAIN: Lane = ("plain", 0)


class InOrder:
    """Represents an executor with one thread, in `run_in_executor`."""


class Answer(asyncio.Future[Any]):
    """The result of a job of an executor with one thread."""

    lane: Lane


class Ready:
    """Replaces the loop's queue: handles keep their order within a lane, but not between lanes.

    A task's next step has a separate lane.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw_bits = draw.getrandbits
        self._lanes: dict[Lane, deque[asyncio.Handle]] = {}
        self._next: list[Lane | asyncio.Handle] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, handle: asyncio.Handle) -> None:
        if type(handle._callback).__name__ == "TaskStepMethWrapper":  # type: ignore[attr-defined]
            self.append_to(None, handle)
            return
        arguments = handle._args
        if arguments and len(arguments) == 1 and asyncio.isfuture(future := arguments[0]) and future.done():
            self.append_to(future.lane if isinstance(future, Answer) else ("future", id(future)), handle)
        else:
            self.append_to(PLAIN, handle)

    def append_to(self, lane: Lane | None, handle: asyncio.Handle) -> None:
        """`lane` is None for a new lane."""
        self._count += 1
        if lane is None:
            self._next.append(handle)
        elif (handles := self._lanes.get(lane)) is not None:
            handles.append(handle)
        else:
            self._lanes[lane] = deque((handle,))
            self._next.append(lane)

    def popleft(self) -> asyncio.Handle:
        return self.pop()[1]

    def pop(self) -> tuple[Lane | None, asyncio.Handle]:
        """The next handle and its lane, drawn like `Random.randrange`, whose calls would take a large part of the
        loop's time.
        """
        slots = self._next
        many = len(slots)
        bits = many.bit_length()
        while (slot := self._draw_bits(bits)) >= many:
            pass
        self._count -= 1
        lane: Lane | None = None
        handle = slots[slot]
        if isinstance(handle, tuple):
            lane = handle
            handles = self._lanes[lane]
            handle = handles.popleft()
            if handles:
                return lane, handle
            del self._lanes[lane]
        slots[slot] = slots[-1]
        slots.pop()
        return lane, handle

    def clear(self) -> None:
        self._lanes.clear()
        self._next.clear()
        self._count = 0


class _ReadyBesideThreads(Ready):
    """Lets threads run before each step."""

    def __init__(self, draw: random.Random, before_each: Callable[[], None]) -> None:
        super().__init__(draw)
        self._before_each = before_each

    def pop(self) -> tuple[Lane | None, asyncio.Handle]:
        self._before_each()
        return super().pop()


class ShuffledLoop(asyncio.SelectorEventLoop):
    """The loop. `job_s_max` is the maximum time, on the loop's clock, until the result of a thread's job arrives."""

    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool
    _ready: Any
    _default_executor: Any

    def __init__(self, seed: int, *, job_s_max: float = 0.0) -> None:
        self._now_s = 0.0
        self._draw = random.Random(seed)
        self._job_s_max = job_s_max
        self._turn = threading.Condition()
        self._moving = 0
        """Threads that are neither done nor waiting for the loop."""
        self._done: list[tuple[int, Callable[[], None]]] = []
        self._jobs = 0
        self._threads = ThreadPoolExecutor(32, "job")
        super().__init__()
        self._ready = _ReadyBesideThreads(self._draw, self._let_threads_move)

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        self._let_threads_move()
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise RuntimeError("everybody waits for something that nobody will do")
            self._now_s = max(self._now_s, self._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Return at once: no jobs reach that executor, and asyncio's thread for its shutdown would not take turns."""
        self._executor_shutdown_called = True
        if self._default_executor is not None:
            self._default_executor.shutdown()

    def close(self) -> None:
        self._threads.shutdown()
        super().close()

    # --- threads ------------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | InOrder | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a job in a thread, at some later moment; the result arrives at some moment after that."""
        self._jobs += 1
        number = self._jobs
        is_in_order = isinstance(executor, InOrder) or getattr(executor, "_max_workers", 0) == 1
        lane = ("executor", id(executor)) if is_in_order else ("job", number)
        future = Answer(loop=self) if is_in_order else self.create_future()
        if isinstance(future, Answer):
            future.lane = ("answer", id(executor))

        def begin() -> None:
            with self._turn:
                self._moving += 1
            self._threads.submit(work)
            self._let_threads_move()

        def work() -> None:
            outcome: ThreadFuture[Any] = ThreadFuture()
            try:
                outcome.set_result(func(*args))
            except BaseException as error:  # noqa: BLE001 - passed on to the awaiting code
                outcome.set_exception(error)
            with self._turn:
                self._done.append((number, lambda: self._tell_later(lane, future, outcome, is_in_order=is_in_order)))
                self._moving -= 1
                self._turn.notify_all()

        self._put(lane, begin)
        return future

    def _tell_later(
        self, lane: Lane, future: "asyncio.Future[Any]", outcome: "ThreadFuture[Any]", *, is_in_order: bool
    ) -> None:
        def tell() -> None:
            if future.done():
                return
            error = outcome.exception()
            if error is None:
                future.set_result(outcome.result())
            else:
                future.set_exception(error)

        if is_in_order:
            self._put(PLAIN, tell)  # after the job's own callbacks
        elif not self._job_s_max or self._draw.random() < 0.5:
            self._put(lane, tell)
        else:
            self.call_later(self._draw.random() * self._job_s_max, tell)

    def _put(self, lane: Lane, callback: Callable[[], None]) -> None:
        self._ready.append_to(lane, asyncio.Handle(callback, (), self))

    def _let_threads_move(self) -> None:
        """Wait until no thread runs: each is done, or waits for the loop."""
        with self._turn:
            if not self._turn.wait_for(lambda: not self._moving, PATIENCE_S):
                raise RuntimeError("a thread neither ends nor asks the loop for something")
            done, self._done = sorted(self._done, key=lambda each: each[0]), []
        for _, tell in done:
            tell()

    def waits_for_loop(self, answer: "ThreadFuture[Any]") -> None:
        """A thread continues when the loop has a result."""

        def go_on(_answer: "ThreadFuture[Any]") -> None:
            with self._turn:
                self._moving += 1

        answer.add_done_callback(go_on)
        with self._turn:
            self._moving -= 1
            self._turn.notify_all()


class LoopThreads(OneThread):
    """A broker's threads: jobs run by the loop, except for those that are not awaited."""

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(None, job, *arguments)

    def workers(self, name: str, count: int) -> Workers:
        return _LoopWorkers(InOrder() if count == 1 else None)


class _LoopWorkers:
    """Threads for one kind of job; with a single thread the jobs stay in order."""

    def __init__(self, executor: InOrder | None) -> None:
        self._executor = executor

    def call(self, job: Callable[[*Arguments], T], *arguments: *Arguments) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShuffledLoop)
        return loop.run_in_executor(self._executor, job, *arguments)

    async def stop(self) -> None:
        """Do nothing: the results of all jobs have arrived by now."""


class LoopClock:
    """A broker's clock with the loop's time."""

    START_MS = 1_700_000_000_000

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return self.START_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)


@contextmanager
def shuffled(seed: int, *, job_s_max: float = 0.0) -> "Iterator[asyncio.Runner]":
    """A runner with such a loop. Threads may call `asyncio.run_coroutine_threadsafe`, and wait for the result."""
    ask = asyncio.run_coroutine_threadsafe

    def ask_and_wait(coroutine: Any, loop: asyncio.AbstractEventLoop) -> "ThreadFuture[Any]":
        answer = ask(coroutine, loop)
        assert isinstance(loop, ShuffledLoop)
        loop.waits_for_loop(answer)
        return answer

    with (
        patch.object(asyncio, "run_coroutine_threadsafe", ask_and_wait),
        asyncio.Runner(loop_factory=lambda: ShuffledLoop(seed, job_s_max=job_s_max)) as runner,
    ):
        yield runner
