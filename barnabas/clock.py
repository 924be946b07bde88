"""Clocks, the machine's and those of tests, and bounds for durations.

Time only comes from a clock that is handed in: code that decides takes `now_ms`, code that waits takes a `Clock`.
Durations come from clients and settings, so each goes through `delay_ms`, `interval_ms` or `wait_s` before a wait.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

DELAY_MIN_MS: Final = 1
"""The least delay of a timer: one that is due at once, and sets itself again in its own call, would never end."""

DELAY_MAX_MS: Final = 100 * 365 * 24 * 60 * 60 * 1000
"""The longest delay, a hundred years, stands for "never": more (Kafka's Long.MAX) fits into no wait of a thread or
event loop."""

REPEAT_MIN_MS: Final = 100
"""The least interval of what runs over and over by itself, whatever a configuration says."""


def delay_ms(asked_ms: int) -> int:
    """A duration that came from a request, a configuration or arithmetic, as a timer can take it, in ms."""
    return min(max(asked_ms, DELAY_MIN_MS), DELAY_MAX_MS)


def interval_ms(asked_ms: int) -> int:
    """The interval of something that runs again and again, within the same bounds but at least REPEAT_MIN_MS, in ms."""
    return min(max(asked_ms, REPEAT_MIN_MS), DELAY_MAX_MS)


def wait_s(asked_ms: int) -> float:
    """How long to wait at most, in seconds, for asyncio's and threads' waits, which may be over at once."""
    return min(max(asked_ms, 0), DELAY_MAX_MS) / 1000


class Clock(Protocol):
    """Source of wall-clock and monotonic time, both in whole milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch (may jump)."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start (never goes back)."""
        ...


def seconds_of(clock: Clock) -> Callable[[], float]:
    """A clock's monotonic time in seconds, for what measures how long it works."""
    return lambda: clock.monotonic_ms() / 1000


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to; wall and monotonic time move together.

    It starts at `now_ms`, by default at what the machine's clock says then.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self._now_ms = self._start_ms = SystemClock().now_ms() if now_ms is None else now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._now_ms - self._start_ms

    def advance(self, duration_ms: int) -> None:
        if duration_ms < 0:
            raise ValueError(f"time cannot go back by {-duration_ms} ms")
        self._now_ms += duration_ms


class OffsetClock:
    """Another clock (the machine's, by default) moved ahead by what `advance` was told so far.

    Wall and monotonic time move together, and go on with the other clock. Safe to use from several threads.
    """

    def __init__(self, base: Clock | None = None) -> None:
        self.base: Clock = SystemClock() if base is None else base
        self._offset_ms = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self.base.now_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        return self.base.monotonic_ms() + self._offset_ms

    def advance(self, duration_ms: int) -> None:
        """Move ahead. Raises ValueError for a negative duration: nothing that follows a clock expects it to go back."""
        if duration_ms < 0:
            raise ValueError(f"time cannot go back by {-duration_ms} ms")
        with self._lock:
            self._offset_ms += duration_ms

    @property
    def offset_ms(self) -> int:
        """How far it is ahead of the other clock."""
        return self._offset_ms

    def set_offset(self, offset_ms: int) -> None:
        """Be so far ahead of the other clock, back in time perhaps: only while nobody follows this one."""
        with self._lock:
            self._offset_ms = offset_ms
