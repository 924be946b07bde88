"""The connections of the HTTP port: how many there may be, and for how long. `server.py` answers what they ask.

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

from barnabas.network import peer_host
from barnabas.wire.framing import foreign_protocol

logger = logging.getLogger(__name__)

_HEAD_END: Final = b"\r\n\r\n"
_NO_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

EXCHANGE_TIMEOUT_S: Final = 30.0
"""How long a connection may last, up to the last byte that the peer takes."""

HEAD_BYTES_MAX: Final = 16 * 1024
"""How many bytes a request's line and headers may have together."""

CONNECTIONS_MAX: Final = 32
PAGES_MAX: Final = 4
"""How many pages of /metrics may be made or sent at a time: with many partitions each fills megabytes."""


class HttpConnections:
    """The connections of an HTTP server, oldest first. `new_protocol` makes what speaks HTTP on one of them (aiohttp's
    `web.Server`), `exchange_timeout_s` is how long each may take. Owned by the event loop.
    """

    def __init__(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        exchange_timeout_s: float = EXCHANGE_TIMEOUT_S,
        is_reserved_descriptor: Callable[[int], bool] = lambda _descriptor: False,
    ) -> None:
        self.exchange_timeout_s = exchange_timeout_s
        self._new_protocol = new_protocol
        self._is_reserved_descriptor = is_reserved_descriptor
        self._by_transport: dict[Hashable, HttpConnection] = {}

    def __len__(self) -> int:
        return len(self._by_transport)

    def new(self) -> HttpConnection:
        """The protocol of a new connection, for who listens."""
        return HttpConnection(self, self._new_protocol())

    def admit(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        """Count a new connection; too many of them cost the oldest its place, those first that have not asked yet."""
        self._by_transport[transport] = connection
        if len(self._by_transport) > CONNECTIONS_MAX:
            everybody = self._by_transport.values()
            silent = next(other for other in everybody if not other.has_asked)  # the newcomer, if no other
            oldest = next(iter(everybody)) if silent is connection else silent
            oldest.close_for(f"more than {CONNECTIONS_MAX} connections to the HTTP port")
        if self._is_reserved_descriptor(transport.get_extra_info("socket").fileno()):
            connection.close_for("the descriptors that are left are for files")

    def discard(self, transport: asyncio.Transport) -> None:
        self._by_transport.pop(transport, None)

    def has_asked(self, transport: Hashable) -> None:
        """Note that a whole request has come on a connection."""
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
        self._deadline = asyncio.get_running_loop().call_later(connections.exchange_timeout_s, self._time_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._host = peer_host(transport)
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
        if not self._head and (spoken := _spoken_instead(data)) is not None:
            self._has_head = True
            self._transport.write(_NO_HTTP)
            self._transport.close()
            logger.warning(
                "closing HTTP connections from %s: the peer speaks %s; this port is for HTTP", self._host, spoken
            )
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
        self.close_for(f"it took longer than {self._connections.exchange_timeout_s:g} s")


def _spoken_instead(first_bytes: bytes) -> str | None:
    """What a peer speaks whose first bytes are those of a client that has taken the port for another one."""
    if first_bytes[:1] == b"\x00":  # of the length of a request below 16 MiB: no client begins with a larger one
        return "Kafka's protocol (clients connect to what `listeners` has)"
    return "TLS" if foreign_protocol(first_bytes) == "TLS" else None
