"""Timers over an injected clock.

One heap holds every timer of the broker and one event-loop callback waits for the earliest. Timers follow the clock
that was handed in, not the loop's own: a test that moves the clock calls `fire_due()` and every timer that came due has
run when it returns.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from barnabas.clock import Clock


class TimerHandle:
    """One scheduled call; `cancel()` is idempotent and safe after the call ran."""

    __slots__ = ("at_ms", "callback")

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Schedules calls at `monotonic_ms` instants of the clock; owned by the event loop."""

    _COMPACT_ABOVE_MIN = 1024

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._heap: list[tuple[int, int, TimerHandle]] = []
        self._sequence = itertools.count()
        self._wakeup: asyncio.TimerHandle | None = None
        self._wakeup_at_ms = 0
        self._compact_above = self._COMPACT_ABOVE_MIN
        self._closed = False

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` once the clock's monotonic time has reached `at_ms`; callbacks must not raise."""
        handle = TimerHandle(at_ms, callback)
        heapq.heappush(self._heap, (at_ms, next(self._sequence), handle))
        if len(self._heap) > self._compact_above:
            self._drop_cancelled()
        if self._wakeup is None or at_ms < self._wakeup_at_ms:
            self._arm()
        return handle

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> TimerHandle:
        return self.call_at(self._clock.monotonic_ms() + delay_ms, callback)

    def fire_due(self) -> None:
        """Run every timer that is due by the clock, in order of their instants, including those that they schedule."""
        while self._heap:
            at_ms, _, handle = self._heap[0]
            if handle.callback is not None and at_ms > self._clock.monotonic_ms():
                break
            heapq.heappop(self._heap)
            callback, handle.callback = handle.callback, None
            if callback is not None:
                callback()
        self._arm()

    def close(self) -> None:
        self._closed = True
        self._heap.clear()
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _arm(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        if self._heap and not self._closed:
            self._wakeup_at_ms = self._heap[0][0]
            # One millisecond more than the rounded-down difference: waking early would only arm again.
            delay_ms = max(0, self._wakeup_at_ms - self._clock.monotonic_ms())
            self._wakeup = self._loop.call_later((delay_ms + 0.5) / 1000 if delay_ms else 0, self._on_wakeup)

    def _on_wakeup(self) -> None:
        self._wakeup = None
        self.fire_due()

    def _drop_cancelled(self) -> None:
        """Cancelled timers stay in the heap until due; forget them now and then, so that heartbeats cannot fill memory
        (amortised O(1))."""
        self._heap = [entry for entry in self._heap if entry[2].callback is not None]
        heapq.heapify(self._heap)
        self._compact_above = max(self._COMPACT_ABOVE_MIN, 2 * len(self._heap))
