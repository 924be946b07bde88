"""Waiting for something in the broker to change, without polling."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_until(reached: Callable[[], T | None], listeners: set[Callable[[], None]]) -> T:
    """Return what `reached` returns once that is not None; it is asked within every change that the listeners hear of,
    so that a state which lasts but a moment is not missed."""
    arrived: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def look() -> None:
        if not arrived.done() and (found := reached()) is not None:
            arrived.set_result(found)

    listeners.add(look)
    try:
        look()
        return await arrived
    finally:
        listeners.discard(look)


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
