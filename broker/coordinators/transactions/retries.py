"""A queue of transaction markers and coordinator records that were refused, by a full disk for instance: they are tried
again, a few at a time.

A full disk refuses everything, for minutes, and there may be thousands of transactions to end. So a few are tried at a
time, in turn, with a pause after each turn with a failure. Once nothing fails any more the turns follow without a
pause.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.timers import Timers

RETRY_DELAY_MS: Final = 100
"""The delay of a retry."""

MARKERS_PER_TURN: Final = 64
"""The number of markers that are written before other work has its turn."""

Retry = Callable[[int], int]
"""Retries: takes the number of markers it may write, and returns how many it tried. It adds itself again after another
failure."""


class Retries:
    """The queue of all waiting retries; owned by the event loop."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[Retry] = deque()
        self._is_scheduled = False

    def add(self, retry: Retry) -> None:
        """Run a retry after `RETRY_DELAY_MS`, or after those before it."""
        self._waiting.append(retry)
        self._schedule(RETRY_DELAY_MS)

    def _schedule(self, delay_ms: int) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._timers.call_later(delay_ms, self._take_turn)

    def _take_turn(self) -> None:
        """Retry a bounded number of markers, of each transaction once. A retry that fails again is added behind those
        that have not had their turn, and so all wait; else the next turn follows at once.
        """
        self._is_scheduled = False
        left = MARKERS_PER_TURN
        try:
            for _ in range(len(self._waiting)):
                left -= max(1, self._waiting.popleft()(left))
                if left <= 0:
                    break
        finally:
            if self._waiting:
                self._schedule(0)
