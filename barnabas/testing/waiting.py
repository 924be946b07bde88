"""Waits for changes in the broker, without polling."""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

TIMEOUT_VARIABLE: Final = "BARNABAS_TESTING_TIMEOUT_S"


def default_timeout_s(environment: Mapping[str, str]) -> float:
    """The default timeout of a test's waits, in seconds of real time. Raises ValueError."""
    text = environment.get(TIMEOUT_VARIABLE, "30")
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s < math.inf:
        raise ValueError(f"{TIMEOUT_VARIABLE} is a number of seconds, not {text!r}")
    return timeout_s


TIMEOUT_S: Final = default_timeout_s(os.environ)

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
    this are ended then (`BrokerThread.replace`).
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


async def with_timeout(waiting: Coroutine[Any, Any, T], timeout_s: float, found: Callable[[], str]) -> T:
    """The result of `waiting`; raises TimeoutError with the actual state."""
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        raise TimeoutError(f"after {timeout_s:g} s {found()}") from None


def check_wait(timeout: object, count: object = 1, *, least: int = 1) -> None:
    """Refuse an invalid time in seconds, and a number below `least`, before the wait. Errors: ValueError, TypeError."""
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"timeout is a number of seconds, not {timeout!r:.100}")
    if not timeout >= 0:
        raise ValueError(f"timeout is in seconds, 0 or more, not {timeout}")
    check_count("count", count, least)


def check_count(name: str, value: object, least: int) -> None:
    """Refuse an invalid number. Errors: ValueError, TypeError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value!r:.100}")
    if value < least:
        raise ValueError(f"{name} is {least} or more, not {value}")


def check_may_block(alternative: str) -> None:
    """Refuse to wait in a thread whose event loop may have to run the awaited work. Raises RuntimeError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this would block the running event loop: await {alternative}(...) instead")
