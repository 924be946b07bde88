"""A queue of transaction markers and coordinator records that were refused, by a full disk for instance: they are tried
again, a few at a time.

A full disk refuses everything, for minutes, and there may be thousands of transactions to end. So a few are tried at a
time, in turn, with a pause after each time that refused something. Once nothing is refused any more they go on without.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.timers import Timers

RETRY_DELAY_MS: Final = 100
"""What was refused is tried again after this time."""

MARKERS_PER_TURN: Final = 64
"""So many markers are written before other work gets its turn."""

Retry = Callable[[int], int]
"""Tries again: takes how many markers it may write, and returns how many it tried to. What is refused again it adds
again."""


class Retries:
    """A queue of all that waits to be tried again; owned by the event loop."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiting: deque[Retry] = deque()
        self._is_scheduled = False

    def add(self, retry: Retry) -> None:
        """Have something tried again in `RETRY_DELAY_MS`, or when those before it have been."""
        self._waiting.append(retry)
        self._schedule(RETRY_DELAY_MS)

    def _schedule(self, delay_ms: int) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._timers.call_later(delay_ms, self._take_turn)

    def _take_turn(self) -> None:
        """Try a bounded number of markers again, of each transaction once. One that is refused again is added, behind
        those that have not had their turn, and so all wait; else the next turn follows at once.
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
