"""Both event loops: asyncio's, and that of a broker, which is uvloop's where there is uvloop."""

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from barnabas.broker.event_loops import new_event_loop


def has_uvloop() -> bool:
    """Whether this process, and those that it starts, have uvloop."""
    try:
        importlib.import_module("uvloop")
    except ImportError:
        return False
    return True


def run_as_a_broker(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a broker's event loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


RUNS: Final[list[Callable[[Coroutine[Any, Any, Any]], Any]]] = [asyncio.run, run_as_a_broker]
