"""Waiting for something in the broker to change, without polling."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


Listeners = set[Callable[[], None]]


async def wait_until(
    reached: Callable[[], T | None],
    listeners: Listeners | Callable[[], Iterable[Listeners]],
    recheck_s: float | None = None,
) -> T:
    """Return what `reached` returns once that is not None; it is asked within every change that the listeners hear of,
    so that a state which lasts but a moment is not missed. With `recheck_s` it is asked so often in any case, and so is
    who has listeners."""
    arrived: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    told: list[Listeners] = []

    def look() -> None:
        if not arrived.done() and (found := reached()) is not None:
            arrived.set_result(found)

    def listen() -> None:
        told[:] = listeners() if callable(listeners) else [listeners]
        for each in told:
            each.add(look)

    def listen_no_more() -> None:
        for each in told:
            each.discard(look)

    try:
        while not arrived.done():
            listen_no_more()
            listen()
            look()
            await asyncio.wait([arrived], timeout=recheck_s)
        return arrived.result()
    finally:
        listen_no_more()


async def with_timeout(waiting: Coroutine[Any, Any, T], timeout_s: float, found: Callable[[], str]) -> T:
    """The result of `waiting`; raises TimeoutError that says what was found instead."""
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        raise TimeoutError(f"after {timeout_s:g} s {found()}") from None


def check_may_block(alternative: str) -> None:
    """Refuse to wait in a thread whose event loop may have to run what is waited for. Raises RuntimeError."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this would block the running event loop: await {alternative}(...) instead")
