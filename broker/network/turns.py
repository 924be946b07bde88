"""Whose requests are served now: a slice of time for all connections together in each round of the event loop, then the
loop's other work (accepting, timers, signals, replies), then those whose requests were kept, one after the other.

Kafka takes one request of a connection at a time too, and several threads share the connections among them. (Long work
of one request has turns of its own: `barnabas/turns.py`.)
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.01
"""What all connections together spend on requests before the event loop does other work; one request may be longer.
What goes on in a coroutine after it has waited is not counted."""

TURN_S: Final = 0.002
"""How long one connection with kept requests is served before the next one has its turn."""

FRAMES_PER_TURN: Final = 16
"""Requests of one connection that are served before others have their turn, however little time they take."""


class Waiting(Protocol):
    """What the turns need of a connection with kept requests."""

    def take_turn(self) -> bool:
        """Serve what is kept until `end_s`, one request at least; whether there is more that could be served."""
        ...

    def abort(self) -> None: ...


class RequestTurns:
    """The event loop's time for requests; owned by the event loop.

    Until `end_s` (by `work_s`, in seconds) a request that has come in is served at once: whoever serves looks at that
    first, and asks `is_over` beyond it. The time runs from the first request after the last slice: a marker tells that
    the loop has come round. There is one in 10 ms at most, however many requests there are.

    Half of a slice is for those who have just asked for one thing, so that they do not wait for all that others have
    asked in advance; the rest, one turn at least, for who has waited the longest.
    """

    def __init__(self, work_s: Callable[[], float]) -> None:
        self.work_s = work_s
        self.end_s = 0.0
        self._came_in: deque[Waiting] = deque()
        self._waiting: deque[Waiting] = deque()
        self._is_marked = False
        self._is_held = False

    def is_over(self) -> bool:
        """Whether requests have to wait for another round of the loop. To be asked when `end_s` has passed; if it did
        so long ago, a new slice begins."""
        if self._is_held or self._is_marked:
            return True
        self.end_s = self.work_s() + SLICE_S
        self._mark()
        return False

    def come_in(self, connection: Waiting) -> None:
        """`connection` has just received one request, and has its turn soon; it does not ask again before."""
        self._came_in.append(connection)
        self._mark()

    def queue(self, connection: Waiting) -> None:
        """Have a turn come for a connection with several requests, or with one that it has had for some time."""
        self._waiting.append(connection)
        self._mark()

    def hold(self) -> None:
        """Give nobody a turn until `release`."""
        self._is_held = True
        self.end_s = float("-inf")

    def release(self) -> None:
        """Give turns again, if they were held."""
        if not self._is_held:
            return
        self._is_held = False
        self.end_s = 0.0
        self._mark_if_asked()

    def _come_round(self) -> None:
        """The loop has done its other work: serve those who wait, for a slice."""
        began_s = self.work_s()
        newcomers, self._came_in = self._came_in, deque()
        newcomers.reverse()  # a burst comes as one: whoever asks after it comes before it
        self._give_turns(newcomers, began_s + SLICE_S / 2)
        self._waiting += newcomers
        self._give_turns(self._waiting, began_s + SLICE_S)
        self._is_marked = False
        if not self._is_held:
            self.end_s = began_s + SLICE_S
            self._mark_if_asked()

    def _give_turns(self, queue: deque[Waiting], end_s: float) -> None:
        """To one after the other until `end_s`, to one at least."""
        while queue and not self._is_held:
            self.end_s = min(self.work_s() + TURN_S, end_s)
            self._give_turn(queue.popleft())
            if self.work_s() >= end_s:
                return

    def _give_turn(self, connection: Waiting) -> None:
        try:
            has_more = connection.take_turn()
        except Exception:  # a reply is missing, and the others are none the worse for it
            logger.exception("serving a request that was kept failed")
            connection.abort()
            return
        if has_more:
            self._waiting.append(connection)

    def _mark_if_asked(self) -> None:
        if self._came_in or self._waiting:
            self._mark()

    def _mark(self) -> None:
        if not self._is_marked:
            self._is_marked = True
            asyncio.get_running_loop().call_soon(self._come_round)
