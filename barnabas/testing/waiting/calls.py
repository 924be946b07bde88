"""Coroutines that other threads, and other event loops, run on the event loop of a broker or a cluster."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar
from weakref import finalize

from barnabas.testing.waiting.conditions import brokers_of
from barnabas.testing.waiting.patience import result_of

T = TypeVar("T")


class Calls:
    """The coroutines that run on the event loop of `owner` (a "broker", a "cluster") for other threads and loops. When
    the brokers that they use are replaced (`pause`, `end`, `go_on`), they end with an error that says so, except those
    that repeat their look-up (`conditions.outliving`). `check_ready` raises if no broker can be used.
    """

    def __init__(self, owner: str, check_ready: Callable[[], None] = lambda: None) -> None:
        self._owner = owner
        self._check_ready = check_ready
        self._running: dict[asyncio.Task[Any], str] = {}
        """The tasks that run for others, and what happens to the brokers that they use, once these are about to end."""
        self.ends_as = "stopped"
        """The fate of the owner, when its event loop ends."""
        self._lock = threading.Lock()
        self._asked: dict[Future[Any], Coroutine[Any, Any, Any]] | None = None
        """The futures that threads wait for; None if no event loop runs."""

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept calls for an event loop, which the calling thread runs."""
        self._loop = loop
        self._thread = threading.current_thread()
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._asked = {}

    def close(self) -> None:
        """The event loop is closed: calls that did not run get an error."""
        with self._lock:
            left, self._asked = self._asked or {}, None
        for asked, coroutine in left.items():
            coroutine.close()
            with suppress(InvalidStateError):  # the waiting thread has gone
                asked.set_exception(self._stopped())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result.

        Errors: the coroutine's own; RuntimeError when called on the event loop itself, when there is no broker, or when
        the owner stops meanwhile, or its brokers are replaced.
        """
        return self.run_through(self._call(coroutine))

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `run`, from a coroutine on another loop; when that is cancelled, so is this one."""
        return await self._result(self._call(coroutine))

    def watch(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `run`, for a coroutine that sends no request to brokers and waits for the owner's state, such as hits
        of a fault: it continues while brokers are replaced.
        """
        return self.run_through(self._watch(coroutine))

    async def watch_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `watch`, from a coroutine on another loop; when that is cancelled, so is this one."""
        return await self._result(self._watch(coroutine))

    def run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `run`, for a coroutine that starts and stops brokers, and is not ended by that."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(f"this blocks, so it must not be called on the {self._owner}'s own event loop")
        try:
            return result_of(self._submit(coroutine))
        except CancelledError:
            raise self._stopped() from None

    def pause(self, what: str) -> None:
        """The brokers are about to end; `what` happens to them ("was reset"). Calls from now on use the next ones, and
        errors of pending calls have no other meaning: a broker that ends responds, too. Event loop only.
        """
        self._may_run.clear()
        for task in self._running:
            brokers = brokers_of(task)
            if brokers is None:
                self._running[task] = what
            else:
                brokers.ends()

    async def end(self) -> None:
        """End the calls that use ended brokers, which will not respond. Event loop only."""
        for task in [task for task, what in self._running.items() if what]:
            task.cancel()
        await asyncio.sleep(0)

    def go_on(self) -> None:
        """The next brokers serve. Event loop only."""
        for brokers in filter(None, map(brokers_of, self._running)):
            brokers.begun()
        self._may_run.set()

    async def _result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, for a caller on another loop."""
        try:
            return await asyncio.wrap_future(self._submit(coroutine))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._stopped() from None

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:  # else the loop might end in between, unnoticed
            if self._asked is None:
                coroutine.close()
                raise RuntimeError(f"the {self._owner} has stopped")
            asked = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._asked[asked] = coroutine
        asked.add_done_callback(self._is_done)
        return asked

    def _is_done(self, asked: "Future[Any]") -> None:
        with self._lock:
            if self._asked is not None:
                self._asked.pop(asked, None)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A coroutine that runs `coroutine` once there are brokers to use."""
        return _closing(coroutine, self._run_call(coroutine))

    def _watch(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """A coroutine that runs `coroutine`, which uses no broker, unless there is none and none is about to start."""
        return _closing(coroutine, self._run_watch(coroutine))

    async def _run_watch(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._may_run.is_set():
            self._check_ready()
        return await coroutine

    async def _run_call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises RuntimeError if the brokers in use end, whatever they respond."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._may_run.wait()
            self._check_ready()
            self._running[task] = ""
            result = await coroutine
        except (Exception, asyncio.CancelledError):
            self._check_asked(task)
            raise
        else:
            self._check_asked(task)
            return result
        finally:
            self._running.pop(task, None)

    def _check_asked(self, task: asyncio.Task[Any]) -> None:
        """Raises RuntimeError if the brokers that the task uses are replaced."""
        if what := self._running.get(task):
            raise RuntimeError(f"the {self._owner} {what} meanwhile") from None

    def _stopped(self) -> RuntimeError:
        return RuntimeError(f"the {self._owner} {self.ends_as} meanwhile")


def _closing(coroutine: Coroutine[Any, Any, T], running: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """`running`, which runs `coroutine`; closes `coroutine` if `running` is cancelled, or closed, before it begins."""
    finalize(running, coroutine.close).atexit = False
    return running


def of_another_process() -> RuntimeError:
    """The error in a process that was forked from the one of the broker, or the cluster."""
    return RuntimeError("only the process that started it can use it: a forked process can connect to its address")
