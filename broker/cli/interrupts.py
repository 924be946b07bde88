"""SIGINT and SIGTERM while a command works with brokers: the first one cancels the work, a second one ends the process.

Python runs a handler between two steps of the main thread. A signal that arrives after the last of these steps before
the event loop waits for sockets is not noticed until a socket or a timer ends the wait: after half a minute if the
broker does not respond. The numbers of signals are therefore read by a thread, from a socket to which Python writes
them wherever the main thread is (`signal.set_wakeup_fd`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

TIDY_S: Final = 3.0
"""The time in which cancelled work may clean up (its records are written, its member leaves the group) before that is
cancelled, too."""

END_S: Final = 2.0
"""The time for the rest before the process ends: a name server may not respond, or the output may not be read."""

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """Signal `number` arrived. The cause is the exception of the work, if there was one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(work: Callable[[], Coroutine[Any, Any, T]], *, tidy_s: float = TIDY_S, end_s: float = END_S) -> T:
    """The result of `work`, from an event loop of its own. Raises: Interrupted after a signal, even if the work was
    done by then."""
    signals = _Signals((tidy_s, end_s))
    try:
        with signals:
            result = asyncio.run(signals.cancellable(work))
    except asyncio.CancelledError:
        if not signals.number:
            raise
        raise Interrupted(signals.number) from None
    except Exception as error:
        if not signals.number:
            raise
        raise Interrupted(signals.number) from error
    if signals.number:
        raise Interrupted(signals.number)
    return result


class _Signals:
    """Receives signals, from the beginning of the `with` block to its end. `number` is that of the first one, or 0.

    Ignored signals stay ignored. `limits_s`: the time after which the work is cancelled again, and then the time after
    which the process ends.
    """

    def __init__(self, limits_s: tuple[float, float]) -> None:
        self._limits_s = limits_s
        self.number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)

    async def cancellable(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`; a signal cancels it, even one that arrived before."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.number:
            raise asyncio.CancelledError
        return await work()

    def __enter__(self) -> None:
        self._numbers, self._written = socket.socketpair()
        self._written.setblocking(False)
        with _held_back():  # in the thread, too: it inherits the mask, so that signals go to the main thread
            try:
                self._thread.start()
            except RuntimeError:  # no thread is available: signals end the process at once
                self._numbers.close()
                self._written.close()
                return
            self._former = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
            for number in _NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._hear)

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is None:
            return
        with _held_back():
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._former)
        self._written.close()
        self._thread.join()  # after it has read the last number
        self._numbers.close()

    def _hear(self, _number: int, _frame: object) -> None:
        """Let the next signal end the process. The thread cancels the work."""
        with _held_back():
            for each in self._handlers:
                signal.signal(each, signal.SIG_DFL)

    def _listen(self) -> None:
        self.number = self._next(None)
        if not self.number:
            return
        for limit_s in self._limits_s:
            self._cancel()
            try:
                second = self._next(limit_s)
            except TimeoutError:
                continue
            if second:  # the main thread had no step in between, in which it would have received the first
                os._exit(128 + second)
            return
        os._exit(128 + self.number)

    def _next(self, limit_s: float | None) -> int:
        """The next number, 0 when the block has ended. Raises: TimeoutError after `limit_s`."""
        self._numbers.settimeout(limit_s)
        while number := self._numbers.recv(1):
            if number[0] in _NUMBERS:
                return number[0]
        return 0

    def _cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._task.cancel)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Signals are delivered when this has ended. Python loses a signal that arrives while its handler is exchanged."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
