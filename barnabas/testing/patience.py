"""How long threads wait for what they have asked event loops: for as long as somebody wants to know."""

import threading
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Patience:
    """How long threads, in whose context this is (`use`), wait for what they have asked event loops: until `end`, which
    any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: set[Future[Any]] = set()
        self.is_over = False

    def use(self) -> None:
        """Have the calling thread, and whoever gets its context, wait with this patience."""
        _patience.set(self)

    def end(self) -> None:
        """Have nobody wait any more: what they wait for is cancelled, and what they ask for later, too."""
        with self._lock:
            self.is_over = True
            awaited = list(self._awaited)
        for each in awaited:
            each.cancel()

    def result(self, asked: Future[T]) -> T:
        """The result of what was asked. Raises CancelledError, when nobody waits any more."""
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
    """The result of what another thread was asked, for as long as the calling one has patience. Raises
    CancelledError."""
    patience = _patience.get()
    return asked.result() if patience is None else patience.result(asked)
