"""An event loop whose time stands still until a test moves it: what a client waits for in vain ends when the test says
so, and what is answered has all the time of the machine."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StandingLoop(asyncio.SelectorEventLoop):
    """Sockets and other threads are served as ever."""

    _now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Have the calls done that are due then. On the loop itself."""
        self._now_s += seconds


def run_standing(work: Callable[[StandingLoop], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns on such a loop, which it is given."""
    loop = StandingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work(loop))
