"""Requests to a broker from its own process, as of a client without a socket.

They take the way of all requests: `Dispatcher.serve` decodes them, bounds them, counts them, and is the boundary for
errors. What a connection adds is here: requests are served one after the other, wait for memory, and wait while a quota
throttles their client. An interceptor of a test stands before connections and does not see these requests.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from barnabas.broker.api.dispatch import Requester
from barnabas.broker.network.listener import ListenerContext
from barnabas.broker.network.outcome import Delayed, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.broker.network.session import Session
from barnabas.inflight_budget import InflightBudget
from barnabas.storage.file_records import FileRegion
from barnabas.threads import Threads
from barnabas.timers import Timers
from barnabas.wire import codec, headers
from barnabas.wire.errors import ProtocolError
from barnabas.wire.framing import LENGTH_SIZE
from barnabas.wire.schema import Message

Response = TypeVar("Response", bound=Message)

NO_CONNECTION_ID: Final = -1
_CORRELATION_ID: Final = 0


class FrameServer(Protocol):
    """Serves request frames, as `Dispatcher` does."""

    def serve(self, frame: bytearray, connection: Requester, /) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class LocalResources:
    """The resources that local clients share with the connections of their broker.

    `requests` serves them. Those that wait count for `budget`, and each may have `request_bytes_max` bytes. `timers`
    end the throttling of clients; `threads` read records that a response has in files.
    """

    requests: FrameServer
    budget: InflightBudget
    request_bytes_max: int
    timers: Timers
    threads: Threads


class LocalClient:
    """A client in the broker's process; owned by the event loop. Its requests are served in order, one at a time.

    `listener_name` selects the addresses of brokers in responses, and `client_id` is the client's in quotas and logs.
    """

    def __init__(self, resources: LocalResources, listener_name: str, client_id: str) -> None:
        self.session = Session(self, ListenerContext(listener_name), NO_CONNECTION_ID, client_host="127.0.0.1")
        self._resources = resources
        self._client_id = client_id
        self._in_order = asyncio.Lock()
        self._held_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_within_quota = asyncio.Event()
        self._is_within_quota.set()
        self._throttles = 0

    async def ask(self, request: Message, version: int, response_class: type[Response]) -> Response:
        """The response to a request, as a client of that version receives it.

        Raises:
            ProtocolError, CloseConnection: the broker would close a client's connection: the request is too large, its
                version is not served, or it failed for an unforeseen reason.
            ValueError: the version cannot carry the request; or the protocol has no response to it (Produce with
                acks=0), and it has been served.
        """
        header = headers.request_header(request.API_KEY, version, _CORRELATION_ID, self._client_id)
        frame = bytearray(header + codec.encode(request, version))
        if len(frame) > self._resources.request_bytes_max:
            raise ProtocolError(f"a request of {len(frame)} bytes; {self._resources.request_bytes_max} are allowed")
        self.hold(len(frame))
        try:
            await self._in_order.acquire()
            try:
                while not (self._has_room.is_set() and self._is_within_quota.is_set()):
                    await self._has_room.wait()
                    await self._is_within_quota.wait()
            except BaseException:
                self._in_order.release()
                raise
        finally:
            self.hold(-len(frame))
        try:
            parts = await self._served(frame)
        finally:
            self._in_order.release()
        if parts is None:
            raise ValueError(f"there is no response to {request!r}")
        return await self._decoded(parts, version, response_class)

    async def _served(self, frame: bytearray) -> Parts | None:
        outcome = self._resources.requests.serve(frame, self)
        while isinstance(outcome, Delayed):
            await outcome.ready
            outcome = outcome.resume()
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def _decoded(self, parts: Parts, version: int, response_class: type[Response]) -> Response:
        threads = self._resources.threads
        read = [await threads.call(part.read) if isinstance(part, FileRegion) else part for part in parts]
        reply = memoryview(b"".join(read))[LENGTH_SIZE:]
        _, position = headers.parse_response_header(reply, response_class.API_KEY, version)
        return codec.decode(response_class, version, reply, position)

    # --- as a connection ----------------------------------------------------------------------------------------------

    def hold(self, size: int) -> None:
        """Count the bytes of a request that waits; a negative size when it no longer does."""
        self._held_bytes += size
        self._resources.budget.report(self, self._held_bytes)

    def pause_for_budget(self) -> None:
        self._has_room.clear()

    def resume_from_budget(self) -> None:
        self._has_room.set()

    def throttle(self, throttle_time_ms: int) -> None:
        """Begin no other request before so much time has passed."""
        self._throttles += 1
        self._is_within_quota.clear()
        self._resources.timers.call_later(throttle_time_ms, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttles -= 1
        if not self._throttles:
            self._is_within_quota.set()

    def exempt(self) -> None:
        """Nothing: the limits of clients hold for a local one in whatever name it asks."""

    def unbound_frames(self) -> None:
        """Nothing: a local client does not log in."""
