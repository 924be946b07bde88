"""Who may be connected to the HTTP port, and for how long; what they ask is none of this module's business.

A connection is good for one request and has a deadline for all of it, so that silence, half a request and an answer
that nobody reads end in the same way. When there are too many, the oldest makes room, so that a health check is
answered whoever else is connected. aiohttp, which reads the request, bounds neither time nor number nor what is no
request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Final, cast

from barnabas.storage.files import is_reserved_descriptor

logger = logging.getLogger(__name__)

_HEAD_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

EXCHANGE_TIMEOUT_S: Final = 30.0
"""From the connection to the last byte that the peer takes."""

HEAD_BYTES_MAX: Final = 16 * 1024
"""Of a request: its line and headers."""

CONNECTIONS_MAX: Final = 32
PAGES_MAX: Final = 4
"""Large answers, being made or sent: a broker with many partitions fills megabytes with each page of /metrics."""


class HttpConnections:
    """The connections of an HTTP server, oldest first. `new_protocol` makes what speaks HTTP on one of them (aiohttp's
    `web.Server`). Owned by the event loop.
    """

    def __init__(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._new_protocol = new_protocol
        self._by_transport: dict[Hashable, HttpConnection] = {}

    def __len__(self) -> int:
        return len(self._by_transport)

    def new(self) -> HttpConnection:
        """The protocol of a new connection, for `loop.create_server`."""
        return HttpConnection(self, self._new_protocol())

    def admit(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        """Count a new connection; too many of them cost the oldest its place, those first that have not asked yet."""
        self._by_transport[transport] = connection
        if len(self._by_transport) > CONNECTIONS_MAX:
            everybody = self._by_transport.values()
            silent = next(other for other in everybody if not other.has_asked)  # the newcomer, if no other
            oldest = next(iter(everybody)) if silent is connection else silent
            oldest.close_for(f"more than {CONNECTIONS_MAX} connections to the HTTP port")
        if is_reserved_descriptor(transport.get_extra_info("socket").fileno()):
            connection.close_for("the descriptors that are left are for files")

    def discard(self, transport: asyncio.Transport) -> None:
        self._by_transport.pop(transport, None)

    def has_asked(self, transport: Hashable) -> None:
        """A whole request has come."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.has_asked = True

    def holds_page(self, transport: Hashable) -> None:
        """A large answer is made for this connection; too many of them cost the oldest its place."""
        if (connection := self._by_transport.get(transport)) is not None:
            connection.holds_page = True
        holders = [other for other in self._by_transport.values() if other.holds_page]
        for oldest in holders[:-PAGES_MAX]:
            oldest.close_for(f"more than {PAGES_MAX} connections ask for /metrics and do not read it")


class HttpConnection(asyncio.Protocol):
    """One connection: hands one whole request on to aiohttp's protocol, and cuts the connection at its deadline."""

    def __init__(self, connections: HttpConnections, protocol: asyncio.Protocol) -> None:
        self.has_asked = False
        self.holds_page = False
        self._has_head = False
        self._head = bytearray()
        self._connections = connections
        self._protocol = protocol
        self._deadline = asyncio.get_running_loop().call_later(EXCHANGE_TIMEOUT_S, self._time_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._protocol.connection_made(transport)
        self._connections.admit(self._transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._connections.discard(self._transport)
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Keep what comes until the one request's head is whole, then hand on that, and nothing that comes after it.

        aiohttp would keep whatever it is sent: each request of a connection that sends them without end, and each piece
        of what is no request, with an exception. No request here has a body that anybody reads.
        """
        if self._has_head:
            return
        start = max(0, len(self._head) - len(_HEAD_END) + 1)
        self._head += data
        end = self._head.find(_HEAD_END, start)
        if (len(self._head) if end < 0 else end) > HEAD_BYTES_MAX:
            self._has_head = True
            self._transport.write(_TOO_LARGE)
            self._transport.close()
        elif end >= 0:
            self._has_head = True
            self._protocol.data_received(bytes(self._head[: end + len(_HEAD_END)]))
        if self._has_head:
            self._head = bytearray()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def close_for(self, reason: str) -> None:
        """Cut the connection and tell why."""
        logger.info("closing an HTTP connection from %s: %s", self._host, reason)
        self._connections.discard(self._transport)
        self._transport.abort()

    def _time_out(self) -> None:
        self.close_for(f"it took longer than {EXCHANGE_TIMEOUT_S:g} s")
