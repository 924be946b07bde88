"""The time that threads wait for results of event loops: as long as the caller is interested."""

import threading
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Patience:
    """The time that threads, in whose context this is (`use`), wait for results of event loops: until `end`, which any
    thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: set[Future[Any]] = set()
        self.is_over = False

    def use(self) -> None:
        """Make the calling thread, and threads that get its context, wait with this patience."""
        _patience.set(self)

    def end(self) -> None:
        """End all waits: pending results are cancelled, and later ones, too."""
        with self._lock:
            self.is_over = True
            awaited = list(self._awaited)
        for each in awaited:
            each.cancel()

    def result(self, asked: Future[T]) -> T:
        """The result of a future. Raises CancelledError when waits have ended."""
        with self._lock:
            is_over = self.is_over
            self._awaited.add(asked)
        if is_over:
            asked.cancel()
        try:
            return asked.result()
        finally:
            with self._lock:
                self._awaited.discard(asked)


_patience: Final[ContextVar[Patience | None]] = ContextVar("patience", default=None)


def result_of(asked: Future[T]) -> T:
    """The result of another thread's future, as long as the calling thread has patience. Raises CancelledError."""
    patience = _patience.get()
    return asked.result() if patience is None else patience.result(asked)
