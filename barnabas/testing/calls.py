"""What threads, and other event loops, have the event loop of a broker, or of a cluster, do for them."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar
from weakref import finalize

from barnabas.testing.patience import result_of
from barnabas.testing.waiting import Brokers, brokers_of

T = TypeVar("T")


class Calls:
    """The coroutines that run on the event loop of `owner` (a "broker", a "cluster") for somebody else. When others
    take the place of the brokers that they ask (`pause`, `end`, `go_on`), they end with an error that says so, but for
    those that look again by themselves (`waiting.outliving`)."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._running: dict[asyncio.Task[Any], str] = {}
        """What runs for others, and what came over the brokers that were asked, once these have ended."""
        self._may_run = asyncio.Event()
        self._may_run.set()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take calls for an event loop, which the calling thread runs."""
        self._loop = loop
        self._thread = threading.current_thread()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and wait for its result.

        Errors: the coroutine's own; RuntimeError when called on the event loop itself, or when the owner stops
        meanwhile, or other brokers take the place of those that are asked.
        """
        return self.run_through(self._call(coroutine))

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `run`, from a coroutine on another loop; when that is cancelled, so is this one."""
        try:
            return await asyncio.wrap_future(self._submit(self._call(coroutine)))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._stopped() from None

    def run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """As `run`, of what brings about that brokers begin and end, and is not ended by that."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(f"this blocks, so it must not be called on the {self._owner}'s own event loop")
        try:
            return result_of(self._submit(coroutine))
        except CancelledError:
            raise self._stopped() from None

    def pause(self) -> None:
        """The brokers are about to end: what is asked from now on is asked of the next ones. Event loop only."""
        self._may_run.clear()
        for wait in self._waits():
            wait.ends()

    async def end(self, what: str) -> None:
        """End what was asked of brokers that have ended, and will not answer; `what` happened to them ("was reset").
        Event loop only."""
        for task in [task for task in self._running if brokers_of(task) is None]:
            self._running[task] = what
            task.cancel()
        await asyncio.sleep(0)

    def go_on(self) -> None:
        """The next brokers serve. Event loop only."""
        for wait in self._waits():
            wait.begun()
        self._may_run.set()

    def _waits(self) -> list[Brokers]:
        """Calls that outlive their brokers."""
        return [brokers for task in self._running if (brokers := brokers_of(task)) is not None]

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise RuntimeError(f"the {self._owner} has stopped") from None

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What runs a coroutine once there are brokers that may be asked."""
        running = self._run_call(coroutine)
        finalize(running, coroutine.close).atexit = False  # where it is cancelled, or closed, before it begins
        return running

    async def _run_call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises RuntimeError where the brokers that are asked end."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._may_run.wait()
            self._running[task] = ""
            return await coroutine
        except asyncio.CancelledError:
            if what := self._running.get(task):
                raise RuntimeError(f"the {self._owner} {what} meanwhile") from None
            raise
        finally:
            self._running.pop(task, None)

    def _stopped(self) -> RuntimeError:
        return RuntimeError(f"the {self._owner} stopped meanwhile")
