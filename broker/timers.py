"""Timers over an injected clock.

One heap holds every timer of the broker, and one event-loop callback waits for the earliest. Timers use the injected
clock, not the loop's own: when a test moves the clock and calls `fire_due()`, every timer that is due by then has run
when it returns.

Timers cannot occupy the loop: none is due before a millisecond has passed, so that timers scheduled by a callback run
in a later round, and a round with many callbacks lets the loop do other work in between.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from barnabas.clock import Clock, delay_ms, seconds_of

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.01
"""The time for which due timers run before the event loop does other work."""

PATIENCE_MAX_MS: Final = 1_000


class TimerHandle:
    """One scheduled call; `cancel()` is idempotent and safe after the call ran."""

    __slots__ = ("at_ms", "callback")

    def __init__(self, at_ms: int, callback: Callable[[], None]) -> None:
        self.at_ms = at_ms
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Schedules calls at `monotonic_ms` instants of the clock; owned by the event loop.

    `work_s`, in seconds, measures how long a round has run callbacks (the loop's own time may stand still meanwhile);
    by default the clock does.
    """

    _COMPACT_ABOVE_MIN = 1024

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, work_s: Callable[[], float] | None = None
    ) -> None:
        self._work_s = work_s or seconds_of(clock)
        self._clock = clock
        self._loop = loop
        self._heap: list[tuple[int, int, TimerHandle]] = []
        self._sequence = itertools.count()
        self._wakeup: asyncio.Handle | None = None
        self._wakeup_at_ms = 0
        self._patience_ms = 0
        self._compact_above = self._COMPACT_ABOVE_MIN
        self._closed = False

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` once the clock's monotonic time has reached `at_ms`, any integer; in a millisecond at the
        earliest.
        """
        return self.call_later(at_ms - self._clock.monotonic_ms(), callback)

    def call_later(self, after_ms: int, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` after so much time: any integer, see `clock.delay_ms`. Its exceptions are logged."""
        at_ms = self._clock.monotonic_ms() + delay_ms(after_ms)
        handle = TimerHandle(at_ms, callback)
        heapq.heappush(self._heap, (at_ms, next(self._sequence), handle))
        if len(self._heap) > self._compact_above:
            self._drop_cancelled()
        if self._wakeup is None or at_ms < self._wakeup_at_ms:
            self._arm()
        return handle

    def fire_due(self) -> None:
        """Run every timer that is due by the clock now, in order of their instants, however long that takes."""
        now_ms = self._clock.monotonic_ms()
        while self._fire_next(now_ms):
            pass
        self._arm()

    def close(self) -> None:
        self._closed = True
        self._heap.clear()
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _fire_next(self, now_ms: int) -> bool:
        """Run the first timer if it was due at `now_ms`; returns whether one was run, or a cancelled one removed."""
        if not self._heap:
            return False
        at_ms, _, handle = self._heap[0]
        if handle.callback is not None and at_ms > now_ms:
            return False
        heapq.heappop(self._heap)
        callback, handle.callback = handle.callback, None
        if callback is not None:
            try:
                callback()
            except Exception:  # it does not affect the other timers
                with suppress(Exception):  # nor does an error of the logging, with a clock beyond all dates
                    logger.exception("what a timer called failed")
        return True

    def _arm(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        if self._heap and not self._closed:
            self._wakeup_at_ms = self._heap[0][0]
            # Half a millisecond more than the rounded-down difference: waking early would only schedule another
            # wake-up.
            left_ms = max(delay_ms(self._wakeup_at_ms - self._clock.monotonic_ms()), self._patience_ms)
            self._wakeup = self._loop.call_later((left_ms + 0.5) / 1000, self._on_wakeup)

    def _on_wakeup(self) -> None:
        """Run due timers; those left after a slice run after the loop's other work."""
        self._wakeup = None
        now_ms = self._clock.monotonic_ms()
        end_s = self._work_s() + SLICE_S
        # A clock that only a test moves is checked less and less often.
        self._patience_ms = min(2 * self._patience_ms or 1, PATIENCE_MAX_MS)
        go_on = self._arm
        try:
            while self._fire_next(now_ms):
                self._patience_ms = 0
                if self._work_s() > end_s:
                    go_on = self._go_on_soon
                    break
        finally:
            go_on()

    def _go_on_soon(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        if not self._closed:
            self._wakeup_at_ms = self._clock.monotonic_ms()
            self._wakeup = self._loop.call_soon(self._on_wakeup)

    def _drop_cancelled(self) -> None:
        """Remove cancelled timers, which otherwise stay in the heap until due, so that heartbeats cannot fill memory
        (amortised O(1))."""
        self._heap = [entry for entry in self._heap if entry[2].callback is not None]
        heapq.heapify(self._heap)
        self._compact_above = max(self._COMPACT_ABOVE_MIN, 2 * len(self._heap))
