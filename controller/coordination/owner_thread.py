"""The one thread that owns a store's file and tree, and the exchange between it and event loops."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Executes work items one after the other, in the order of submission. A simulation uses another implementation
    than `OwnerThread`.
    """

    def submit(self, work: Callable[[], T], /) -> "asyncio.Future[T]":
        """Submit a work item; called on an event loop. Its result is delivered there after everything that it, and the
        work before it, posted there. It is executed even if its future is cancelled.
        """
        ...

    def stop(self) -> None:
        """Execute the submitted work, and return when it is done; idempotent. Nothing may be submitted afterwards."""
        ...


class OwnerThread:
    """A `Worker` with a real thread, started with the first work item."""

    def __init__(self, name: str = "metadata-store") -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._has_started = False

    def submit(self, work: Callable[[], T], /) -> "asyncio.Future[T]":
        """Raises: RuntimeError if no thread can be started."""
        if not self._has_started:
            self._thread.start()
            self._has_started = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - passed on to the awaiting code
                post(loop, _resolve, future, None, error)
            else:
                post(loop, _resolve, future, result, None)

        self._work.put(run)
        return future

    def stop(self) -> None:
        if self._has_started:
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _resolve(future: "asyncio.Future[T]", result: T, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object) -> None:
    """`call_soon_threadsafe`, ignored if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
