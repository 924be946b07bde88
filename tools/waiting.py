"""Waiting in tests: for an event, never for a number of seconds.

A test waits for a condition, with one common limit for all waits. The limit is far longer than a busy machine needs, so
that only waits without an end reach it. A test about the duration of a wait measures it in the full tier
(`tests/README.md`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 300.0
"""The limit of every wait in the tests."""
LOOK_INTERVAL_S: Final = 0.01


def wait_until(look: Callable[[], T], what: str | Callable[[], object] = "the condition") -> T:
    """Call `look` until it returns something true, and return that.

    `what` describes the condition, or returns a description at the end, for the error. Raises TimeoutError after
    `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        time.sleep(LOOK_INTERVAL_S)
    return found


async def until(look: Callable[[], T], what: str | Callable[[], object] = "the condition") -> T:
    """The same in a coroutine: the event loop continues meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        await asyncio.sleep(LOOK_INTERVAL_S)
    return found


async def until_answer(ask: Callable[[], Awaitable[T]], what: str | Callable[[], object] = "the condition") -> T:
    """The same for a condition whose check is awaited."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        await asyncio.sleep(LOOK_INTERVAL_S)
    return found


def _in_vain(what: str | Callable[[], object]) -> str:
    return f"{what() if callable(what) else what}: not seen within {PATIENCE_S:g} s"
