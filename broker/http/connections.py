"""The connections of an HTTP port: limits of their number, time, and memory. Used for the pages of a broker
(`server.py`) and for the verbs of `serve --control` (`barnabas/testing/control/server.py`).

A connection serves one request after the other and always has one deadline, so that silence, an incomplete request and
an unread response all end in the same way. If there are too many connections, the oldest is cut, so that a health check
is answered whatever other clients do. aiohttp, which parses the requests, limits neither time nor number nor invalid
data: it is given one complete head at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from barnabas.broker.http.chunks import ChunkFraming
from barnabas.broker.http.framing import framing_of
from barnabas.inflight_budget import InflightBudget
from barnabas.network import peer_host
from barnabas.wire.framing import foreign_protocol

logger = logging.getLogger(__name__)

_HEAD_END: Final = b"\r\n\r\n"
_NO_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_CHUNKS_REFUSED: Final = b'{"error": "the body is in too many chunks: send larger ones, or a Content-Length"}\n'
_TOO_MANY_CHUNKS: Final = (
    b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n"
    b"Content-Length: %d\r\n\r\n%s"
) % (len(_CHUNKS_REFUSED), _CHUNKS_REFUSED)

EXCHANGE_TIMEOUT_S: Final = 30
"""The maximum time for a request to arrive, the first one or the one after a response; and then for its response, until
the client has read it."""

HEAD_BYTES_MAX: Final = 16 * 1024
"""The maximum size of a request's line and headers together."""

AHEAD_BYTES_MAX: Final = HEAD_BYTES_MAX
"""The maximum size of the requests that a client sends before it has the response to an earlier one (pipelining). The
connection of a client that sends more closes after that response."""

CONNECTIONS_MAX: Final = 32
PAGES_MAX: Final = 4
"""The number of /metrics pages that may be built or sent at a time: with many partitions each takes megabytes."""

BODIES_BYTES_MAX: Final = 16 * 1024 * 1024
"""The limit of memory of the large bodies of all requests without a response yet, plus one more."""

LARGE_BODY_BYTES: Final = 64 * 1024
"""A smaller body waits for no other: it may be what a waiting request needs."""

UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit of memory of all unread responses together, unless there is only one."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The limits of one port's connections. `port` is its name in the log.

    With `takes_bodies` the bodies of requests are passed on; otherwise they are dropped. With `may_wait` requests may
    take as long as they need: the deadline is for receiving the request, and then for the response; and a connection
    with a complete request is not cut for a new one.
    """

    port: str = "the HTTP port"
    connections_max: int = CONNECTIONS_MAX
    exchange_timeout_s: float = EXCHANGE_TIMEOUT_S
    takes_bodies: bool = False
    may_wait: bool = False


class BodyTooLarge(Exception):
    """A request's body exceeds the limit."""


class HttpConnections:
    """The connections of an HTTP server, oldest first: by their last response, or else by when they began.
    `new_protocol` creates aiohttp's protocol of a connection. Owned by the event loop.
    """

    def __init__(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        bounds: HttpBounds,
        is_reserved_descriptor: Callable[[int], bool] = lambda _descriptor: False,
    ) -> None:
        self.bounds = bounds
        self.bodies = InflightBudget(BODIES_BYTES_MAX)
        self._new_protocol = new_protocol
        self._is_reserved_descriptor = is_reserved_descriptor
        self._by_transport: dict[Hashable, HttpConnection] = {}

    def __len__(self) -> int:
        return len(self._by_transport)

    def new(self) -> HttpConnection:
        """The protocol of a new connection, for the listening socket."""
        return HttpConnection(self, self._new_protocol())

    def new_with_tls(self) -> HttpConnection:
        """The same for a connection that begins with a handshake of TLS (`TlsHandshakes.before`)."""
        return HttpConnection(self, self._new_protocol(), has_tls=True)

    def replace(self, transport: asyncio.Transport, encrypted: asyncio.Transport) -> None:
        """Count a connection by its encrypted transport, if it is still counted."""
        if (connection := self._by_transport.pop(transport, None)) is not None:
            self._by_transport[encrypted] = connection

    def admit(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        """Count a new connection; if there are too many, the oldest is cut, first those without a complete request. A
        connection whose descriptor is reserved for files is closed as well: the next one uses the freed descriptor.
        """
        self._by_transport[transport] = connection
        if self._is_reserved_descriptor(transport.get_extra_info("socket").fileno()):
            connection.close_for("the remaining descriptors are reserved for files")
            if (silent := self._oldest_silent()) is not None:
                silent.close_for("the remaining descriptors are reserved for files")
        elif len(self._by_transport) > self.bounds.connections_max:
            silent = self._oldest_silent()
            oldest = next(iter(self._by_transport.values()))
            loser = oldest if silent is connection and not self.bounds.may_wait else silent
            assert loser is not None, "the newcomer has not asked"
            loser.close_for(f"more than {self.bounds.connections_max} connections to {self.bounds.port}")

    def _oldest_silent(self) -> HttpConnection | None:
        return next((other for other in self._by_transport.values() if not other.has_asked), None)

    def discard(self, transport: asyncio.Transport) -> None:
        self._by_transport.pop(transport, None)

    def has_asked(self, transport: Hashable) -> None:
        """Note that a complete request has arrived on a connection."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.note_asked()

    def is_answered(self, transport: Hashable) -> None:
        """Note that a request has been processed: its response is sent next."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.note_answered()

    def is_last(self, transport: Hashable) -> bool:
        """Whether the connection must close after the response to its present request."""
        connection = self._by_transport.get(transport)
        return connection is None or connection.is_last

    def is_sent(self, transport: Hashable) -> None:
        """Note that a response has been written, and that the connection stays open."""
        if (connection := self._by_transport.pop(transport, None)) is not None:
            self._by_transport[transport] = connection
            connection.note_sent()

    def holds_page(self, transport: Hashable) -> None:
        """Note that a large response is built for this connection; if there are too many, the oldest is cut."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.holds_page = True
        holders = [other for other in self._by_transport.values() if other.holds_page]
        for oldest in holders[:-PAGES_MAX]:
            oldest.close_for(f"more than {PAGES_MAX} connections ask for /metrics and do not read it")

    async def body(self, request: web.Request, bytes_max: int) -> bytes:
        """The body of a request; a large one counts until the request is answered. While all of them together exceed
        the limit, one is read on, and the others wait. An encoded body counts with its maximum decoded size.

        Raises: BodyTooLarge, web.RequestPayloadError.
        """
        connection = self._by_transport.get(request.transport)
        if connection is None:
            raise web.RequestPayloadError("the connection is gone")
        if (request.content_length or 0) > bytes_max:
            raise BodyTooLarge
        body = bytearray()
        encoded_bytes = bytes_max if "Content-Encoding" in request.headers else 0
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > bytes_max:
                raise BodyTooLarge
            if (held_bytes := max(len(body), encoded_bytes)) > LARGE_BODY_BYTES:
                self.bodies.report(connection, held_bytes)
                await connection.has_room.wait()
        return bytes(body)

    def bound_unread(self) -> None:
        """A response is not being read: if all unread responses exceed the limit, cut the oldest connections."""
        unread = {other: other.unread_bytes for other in self._by_transport.values() if other.is_unread}
        excess = sum(unread.values()) - UNREAD_BYTES_MAX
        for oldest in list(unread)[:-1]:
            if excess <= 0:
                return
            excess -= unread[oldest]
            oldest.close_for("unread responses of all connections exceed their limit")


class HttpConnection(asyncio.Protocol):
    """One connection: passes one request at a time to aiohttp's protocol, and cuts the connection at its deadline. One
    that `has_tls` is counted before its handshake, and aiohttp gets to know it afterwards."""

    def __init__(self, connections: HttpConnections, protocol: asyncio.Protocol, *, has_tls: bool = False) -> None:
        self._is_known = not has_tls
        """Whether aiohttp knows the connection."""
        self.has_asked = False
        self.holds_page = False
        self.is_unread = False
        self.has_room = asyncio.Event()
        """Whether more of a body may be read."""
        self.has_room.set()
        self._is_refused = False
        self._is_in_exchange = False
        """Whether a request has been passed on whose response has not been written."""
        self._is_last = False
        self._is_answered = False
        self._head = bytearray()
        self._body_left: int | None = 0
        """The bytes of the body that have not arrived; None if only the parser of the body can tell."""
        self._framing: ChunkFraming | None = None
        self._ahead = bytearray()
        self._connections = connections
        self._protocol = protocol
        self._deadline = self._new_deadline()

    def _new_deadline(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._connections.bounds.exchange_timeout_s, self._time_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        self._host = peer_host(transport)
        if self._is_known:
            self._protocol.connection_made(transport)
        self._connections.admit(self._transport, self)

    def encrypted(self, transport: asyncio.Transport, certificate: bytes | None) -> None:
        """Go on with this transport, which encrypts the former one."""
        self._connections.replace(self._transport, transport)
        self._transport = transport
        self._is_known = True
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._connections.discard(self._transport)
        self._connections.bodies.report(self, 0)
        if self._is_known:
            self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Buffer data until the head of a request is complete, then pass it on, and its body. What follows is kept
        until the response has been written, within a limit.

        aiohttp would buffer everything it is sent: each of an endless series of requests, and each piece of invalid
        data, with an exception.
        """
        if self._is_refused:
            return
        if self._is_in_exchange:
            self._receive_body(data)
        else:
            self._receive_head(data)

    def _receive_head(self, data: bytes) -> None:
        if not self._head and (spoken := _spoken_instead(data)) is not None:
            logger.warning(
                "closing HTTP connections from %s: the peer speaks %s; this port is for HTTP", self._host, spoken
            )
            self._refuse(_NO_HTTP)
            return
        start = max(0, len(self._head) - len(_HEAD_END) + 1)
        self._head += data
        if self._head.startswith((b"\r", b"\n")):
            # Empty lines before a request mean nothing: RFC 9112, section 2.2.
            self._head, start = self._head.lstrip(b"\r\n"), 0
        end = self._head.find(_HEAD_END, start)
        if (len(self._head) if end < 0 else end) > HEAD_BYTES_MAX:
            self._refuse(_TOO_LARGE)
        elif end >= 0:
            received, self._head = bytes(self._head), bytearray()
            self._hand_on(received[: end + len(_HEAD_END)], received[end + len(_HEAD_END) :])

    def _refuse(self, response: bytes) -> None:
        """Respond here to what is no request, and drop all that follows."""
        self._is_refused = True
        self._head = bytearray()
        self._transport.write(response)
        self._transport.close()

    def _hand_on(self, head: bytes, rest: bytes) -> None:
        """Pass a complete head on to aiohttp, with the part of the body that arrived with it."""
        framing = framing_of(head)
        takes_bodies = self._connections.bounds.takes_bodies
        self._is_in_exchange = True
        self._is_last = framing.is_last or (not takes_bodies and framing.body_bytes != 0)
        self._body_left = framing.body_bytes if takes_bodies else 0
        self._framing = ChunkFraming() if takes_bodies and framing.is_chunked else None
        body = rest[: self._body_left]
        if self._is_within_framing(body):
            self._protocol.data_received(head + body)
            self._pass_over(body, rest)

    def _receive_body(self, data: bytes) -> None:
        body = data[: self._body_left]
        if body and (self._body_left is not None or (not self.has_asked and self._is_within_framing(body))):
            self._protocol.data_received(body)
        self._pass_over(body, data)

    def _pass_over(self, body: bytes, data: bytes) -> None:
        """Count `body` as received, and keep what follows it in `data`, if a request may follow."""
        if self._body_left is not None:
            self._body_left -= len(body)
        if self._is_last:
            return
        self._ahead += data[len(body) :]
        if len(self._ahead) > AHEAD_BYTES_MAX:
            self._is_last = True
            self._ahead = bytearray()

    def _is_within_framing(self, data: bytes) -> bool:
        """Whether the framing of a body is within its limit, the next piece included. Beyond the limit, the client gets
        its response here, unless it has one. Further bytes are dropped, so that the client reads the response.
        """
        if self._framing is None:
            return True
        self._framing.add(data)
        if not self._framing.is_too_much:
            return True
        self._is_refused = True
        if not self._is_answered:
            self._transport.write(_TOO_MANY_CHUNKS)
            self._transport.write_eof()
        return False

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self.is_unread = True
        self._protocol.pause_writing()
        self._connections.bound_unread()

    def resume_writing(self) -> None:
        self.is_unread = False
        self._protocol.resume_writing()

    @property
    def is_last(self) -> bool:
        """Whether the connection must close after its response: because of the request, of bytes that its handler did
        not wait for, or of too many bytes ahead."""
        return self._is_last or self._body_left != 0

    @property
    def unread_bytes(self) -> int:
        """The bytes of the response that the client has not read."""
        return self._transport.get_write_buffer_size()

    def pause_for_budget(self) -> None:
        self.has_room.clear()

    def resume_from_budget(self) -> None:
        self.has_room.set()

    def note_asked(self) -> None:
        """The request is complete; if requests may wait, the response may take longer than the deadline."""
        self.has_asked = True
        self._deadline.cancel()
        if not self._connections.bounds.may_wait:
            self._deadline = self._new_deadline()

    def note_answered(self) -> None:
        """The response is sent next, with a new deadline for the client to read it."""
        self._is_answered = True
        self._connections.bodies.report(self, 0)
        self._deadline.cancel()
        self._deadline = self._new_deadline()

    def note_sent(self) -> None:
        """The response has been written: the next request may come, within a new deadline."""
        self.note_answered()
        if self.is_last:  # more has come ahead since the response began
            self._transport.close()
            return
        self.has_asked = self.holds_page = self._is_answered = self._is_in_exchange = False
        ahead, self._ahead = bytes(self._ahead), bytearray()
        if ahead:
            self.data_received(ahead)

    def close_for(self, reason: str) -> None:
        """Cut the connection and log the reason."""
        logger.info("closing an HTTP connection from %s: %s", self._host, reason)
        self._connections.discard(self._transport)
        self._transport.abort()

    def _time_out(self) -> None:
        self.close_for(f"it took longer than {self._connections.bounds.exchange_timeout_s:g} s")


def _spoken_instead(first_bytes: bytes) -> str | None:
    """The other protocol that a client's first bytes belong to, None if they may be HTTP."""
    if first_bytes[:1] == b"\x00":  # of the length of a Kafka request below 16 MiB: no client begins with a larger one
        return "Kafka's protocol (clients connect to what `listeners` has)"
    return "TLS" if foreign_protocol(first_bytes) == "TLS" else None
