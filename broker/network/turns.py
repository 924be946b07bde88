"""Schedules the serving of requests: in each iteration of the event loop a slice of time for all connections together,
then the loop's other work (accepting, timers, signals, responses), then connections with kept requests, one after the
other.

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
"""The time that all connections together spend on requests before the event loop does other work; one request may take
longer. Time of a coroutine after its first wait is not counted."""

TURN_S: Final = 0.002
"""The time for which one connection with kept requests is served before the next one has its turn."""

FRAMES_PER_TURN: Final = 16
"""The number of requests of one connection that are served before others have their turn, however little time they
take."""


class Waiting(Protocol):
    """The interface of a connection with kept requests."""

    def take_turn(self) -> bool:
        """Serve kept requests until `end_s`, at least one; returns whether there are more that could be served."""
        ...

    def abort(self) -> None: ...


class RequestTurns:
    """The event loop's time for requests; owned by the event loop.

    Until `end_s` (by `work_s`, in seconds) a request that has arrived is served at once: the connection checks that
    first, and calls `is_over` beyond it. The time runs from the first request after the last slice; a marker shows that
    the loop has completed an iteration. There is at most one in 10 ms, however many requests there are.

    Half of a slice is for connections that have just sent one request, so that they do not wait for all requests that
    others have sent in advance; the rest, one turn at least, for the connection that has waited the longest.
    """

    def __init__(self, work_s: Callable[[], float]) -> None:
        self.work_s = work_s
        self.end_s = 0.0
        self._came_in: deque[Waiting] = deque()
        self._waiting: deque[Waiting] = deque()
        self._is_marked = False
        self._is_held = False

    def is_over(self) -> bool:
        """Whether requests have to wait for another iteration of the loop. Called when `end_s` has passed; if that was
        long ago, a new slice begins."""
        if self._is_held or self._is_marked:
            return True
        self.end_s = self.work_s() + SLICE_S
        self._mark()
        return False

    def come_in(self, connection: Waiting) -> None:
        """`connection` has just received one request, and has its turn soon; it does not call this again before."""
        self._came_in.append(connection)
        self._mark()

    def queue(self, connection: Waiting) -> None:
        """Schedule a turn for a connection with several requests, or with one that it has had for some time."""
        self._waiting.append(connection)
        self._mark()

    def hold(self) -> None:
        """Give no turns until `release`."""
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
        """The loop has done its other work: serve waiting connections, for a slice."""
        began_s = self.work_s()
        newcomers, self._came_in = self._came_in, deque()
        newcomers.reverse()  # a burst counts as one: connections that arrive after it come before it
        self._give_turns(newcomers, began_s + SLICE_S / 2)
        self._waiting += newcomers
        self._give_turns(self._waiting, began_s + SLICE_S)
        self._is_marked = False
        if not self._is_held:
            self.end_s = began_s + SLICE_S
            self._mark_if_asked()

    def _give_turns(self, queue: deque[Waiting], end_s: float) -> None:
        """Give turns to one connection after the other until `end_s`, to at least one."""
        while queue and not self._is_held:
            self.end_s = min(self.work_s() + TURN_S, end_s)
            self._give_turn(queue.popleft())
            if self.work_s() >= end_s:
                return

    def _give_turn(self, connection: Waiting) -> None:
        try:
            has_more = connection.take_turn()
        except Exception:  # a response is missing, and the other connections are not affected
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
