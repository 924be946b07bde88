"""The event queue of a controller: its work, one item at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from barnabas.controller.admin_request import AdminRequest
from barnabas.wire.errors import ApiError, ErrorCode

Work = Callable[[], Awaitable[None]]
"""The work of an event in the controller's task, without concurrency."""


class Event(NamedTuple):
    """One work item: for a `request`, or because of an event. One that `needs_controllership` is refused by a broker
    that is not the controller.
    """

    work: Work
    request: AdminRequest[Any] | None = None
    needs_controllership: bool = True

    def fail(self, error: Exception) -> None:
        """Fail the request, if there is one."""
        if self.request is not None:
            self.request.fail(error)


class EventQueue:
    """Takes events from any code on the event loop, and passes them to the controller's task in order."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._is_closed = False

    def submit(
        self, work: Work, request: AdminRequest[Any] | None = None, *, needs_controllership: bool = True
    ) -> None:
        """Submit `work`, to be done after everything submitted before; never waits. Nothing is done after `close`."""
        event = Event(work, request, needs_controllership)
        if self._is_closed:
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))
        else:
            self._events.put_nowait(event)

    def __len__(self) -> int:
        """The number of pending events."""
        return self._events.qsize()

    def close(self) -> None:
        """End the queue after the submitted events."""
        self._is_closed = True
        self._events.put_nowait(None)

    async def next(self) -> Event | None:
        """The next event, None after the last."""
        return await self._events.get()
