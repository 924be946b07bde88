"""Timers that fire on a test's command: `barnabas.timers.Timers` without any time."""

import asyncio
from collections.abc import Callable


class ManualTimers:
    """`waiting` are the timers that were neither fired nor cancelled, in the order of their creation."""

    def __init__(self) -> None:
        self.waiting: list[ManualTimer] = []
        self._news = asyncio.Event()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> "ManualTimer":
        timer = ManualTimer(self, delay_ms, callback)
        self.waiting.append(timer)
        self._news.set()
        return timer

    async def has(self, delay_ms: int) -> None:
        """Wait until there is a timer with this delay."""
        while all(timer.delay_ms != delay_ms for timer in self.waiting):
            self._news.clear()
            await self._news.wait()

    def fire(self, delay_ms: int | None = None) -> None:
        """Fire the waiting timers with this delay, or all waiting timers."""
        for timer in list(self.waiting):
            if delay_ms in (None, timer.delay_ms):
                timer.cancel()
                timer.callback()


class ManualTimer:
    """One scheduled call."""

    def __init__(self, timers: ManualTimers, delay_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.delay_ms = delay_ms
        self.callback = callback

    def cancel(self) -> None:
        if self in self._timers.waiting:
            self._timers.waiting.remove(self)
