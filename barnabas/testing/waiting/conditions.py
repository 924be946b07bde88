"""Waits for conditions at whichever broker runs, without polling: a wait may outlive the broker that it began at."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

Listeners = set[Callable[[], None]]


class NothingMoreComes(RuntimeError):
    """The awaited event is impossible now."""


class Brokers:
    """The successive brokers during a task's wait: `has_one` is set except between two brokers, `changes` counts the
    replacements.
    """

    def __init__(self, look_again: Callable[[], None]) -> None:
        self.has_one = asyncio.Event()
        self.has_one.set()
        self.changes = 0
        self._look_again = look_again

    def ends(self) -> None:
        """A broker is about to end, and its state means nothing any more."""
        self.has_one.clear()
        self.changes += 1

    def begun(self) -> None:
        """The next broker serves."""
        self.has_one.set()
        self._look_again()


_outliving: WeakKeyDictionary[asyncio.Task[Any], Brokers] = WeakKeyDictionary()


@contextmanager
def outliving(look_again: Callable[[], None] = lambda: None) -> Iterator[Brokers]:
    """Continue the wait of the current task when the broker is replaced: `look_again` is called after it. Tasks without
    this are ended then (`Calls.end`).
    """
    task = asyncio.current_task()
    assert task is not None
    outer = _outliving.get(task)
    brokers = _outliving[task] = Brokers(look_again)
    try:
        yield brokers
    finally:
        del _outliving[task]
        if outer is not None:
            _outliving[task] = outer


def brokers_of(task: asyncio.Task[Any]) -> Brokers | None:
    """The object to notify of replacements of brokers; None for a task that does not outlive its broker."""
    return _outliving.get(task)


def _is_heard(arrived: "asyncio.Future[Any]") -> None:
    """Retrieve an error that a wait did not, because its time was over: it is no error to be logged."""
    if not arrived.cancelled():
        arrived.exception()


async def wait_until(
    reached: Callable[[], T | None],
    listeners: Listeners | Callable[[], Iterable[Listeners]],
    recheck_s: float | None = None,
) -> T:
    """Return the result of `reached` once it is not None; it is called within every change that the listeners report,
    so that a short-lived state is not missed. With `recheck_s` it is also called at that interval, and the listeners
    are looked up again; both also happen when the broker is replaced. Raises the NothingMoreComes of `reached`.
    """
    arrived: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    arrived.add_done_callback(_is_heard)
    told: list[Listeners] = []

    def look() -> None:
        if arrived.done() or not brokers.has_one.is_set():
            return
        try:
            found = reached()
        except NothingMoreComes as error:
            arrived.set_exception(error)  # for the waiting task, not for the code that reports a change
        else:
            if found is not None:
                arrived.set_result(found)

    def listen() -> None:
        told[:] = listeners() if callable(listeners) else [listeners]
        for each in told:
            each.add(look)

    def listen_no_more() -> None:
        for each in told:
            each.discard(look)

    def look_around() -> None:
        listen_no_more()
        listen()
        look()

    try:
        with outliving(look_around) as brokers:
            while not arrived.done():
                look_around()
                await asyncio.wait([arrived], timeout=recheck_s)
            return arrived.result()
    finally:
        listen_no_more()
