"""Timeouts of a test's waits, and the arguments that waits refuse."""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

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
