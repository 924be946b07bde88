"""An event loop whose time only moves when a test advances it: a client's wait without a response ends on the test's
command, and responses may take any real time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StandingLoop(asyncio.SelectorEventLoop):
    """An event loop with a stopped clock; sockets and other threads are served normally."""

    _now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Run the calls that are due after this time. Call it on the loop itself."""
        self._now_s += seconds


def run_standing(work: Callable[[StandingLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on such a loop, and return its result. `work` gets the loop."""
    loop = StandingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work(loop))
