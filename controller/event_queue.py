"""The queue of a controller: what it has to do, one thing at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from barnabas.controller.admin_request import AdminRequest
from barnabas.wire.errors import ApiError, ErrorCode

Work = Callable[[], Awaitable[None]]
"""What an operation does in the controller's task, where nothing else happens meanwhile."""


class Event(NamedTuple):
    """One thing to do: for a `request`, or because something happened. One that `needs_controllership` is not done by
    a broker that is not the controller."""

    work: Work
    request: AdminRequest[Any] | None = None
    needs_controllership: bool = True

    def fail(self, error: Exception) -> None:
        """Tell who asked, if somebody did."""
        if self.request is not None:
            self.request.fail(error)


class EventQueue:
    """Takes events from everybody on the event loop, and gives them to the controller's task in their order."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._is_closed = False

    def submit(
        self, work: Work, request: AdminRequest[Any] | None = None, *, needs_controllership: bool = True
    ) -> None:
        """Have `work` done when everything submitted before it is; never waits. Nothing is done after `close`."""
        event = Event(work, request, needs_controllership)
        if self._is_closed:
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        else:
            self._events.put_nowait(event)

    def __len__(self) -> int:
        """How many events wait."""
        return self._events.qsize()

    def close(self) -> None:
        """Nothing comes after what has been submitted."""
        self._is_closed = True
        self._events.put_nowait(None)

    async def next(self) -> Event | None:
        """The next event, None after the last."""
        return await self._events.get()
