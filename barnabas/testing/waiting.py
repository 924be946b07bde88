"""Waiting for something in the broker to change, without polling."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_until(reached: Callable[[], T | None], listeners: set[Callable[[], None]]) -> T:
    """Return what `reached` returns once that is not None; it is asked again after every change that the listeners
    hear of."""
    changed = asyncio.Event()
    listeners.add(changed.set)
    try:
        while (found := reached()) is None:
            changed.clear()
            await changed.wait()
        return found
    finally:
        listeners.discard(changed.set)


async def with_timeout(waiting: Coroutine[Any, Any, T], timeout_s: float, found: Callable[[], str]) -> T:
    """The result of `waiting`; raises TimeoutError that says what was found instead."""
    try:
        async with asyncio.timeout(timeout_s):
            return await waiting
    except TimeoutError:
        raise TimeoutError(f"after {timeout_s:g} s {found()}") from None
