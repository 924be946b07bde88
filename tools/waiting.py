"""Waiting in tests: for an event, never for a number of seconds.

A test that waits asks for a condition, and one limit bounds every wait. The limit is far longer than a busy machine
needs, so that it ends only what would never come. A test whose subject is the length of a wait measures it in the full
tier (`tests/README.md`).
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

    `what` names what is waited for, or returns it at the end, for the error. Raises TimeoutError after `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        time.sleep(LOOK_INTERVAL_S)
    return found


async def until(look: Callable[[], T], what: str | Callable[[], object] = "the condition") -> T:
    """The same in a coroutine: the event loop goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        await asyncio.sleep(LOOK_INTERVAL_S)
    return found


async def until_answer(ask: Callable[[], Awaitable[T]], what: str | Callable[[], object] = "the condition") -> T:
    """The same for a condition that has to be asked for."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := await ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(_in_vain(what))
        await asyncio.sleep(LOOK_INTERVAL_S)
    return found


def _in_vain(what: str | Callable[[], object]) -> str:
    return f"{what() if callable(what) else what}: not seen within {PATIENCE_S:g} s"
