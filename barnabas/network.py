"""The network: the port that a broker uses, and the machine's own network behind it.

A broker is handed a `Network` (`broker/environment.py`), so that a test or a simulation can hand in another one.
Accepted connections are asyncio's transports, with or without a socket (`get_extra_info("socket")` may be None). So are
the connections that the broker opens to other brokers; those to ZooKeeper are kazoo's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeAlias, TypeVar

NewProtocol: TypeAlias = Callable[[], asyncio.BaseProtocol]
"""Makes what serves one accepted connection."""

P = TypeVar("P", bound=asyncio.BaseProtocol)

BACKLOG: Final = 100
"""Connections that wait to be accepted, where nobody asks for another number: asyncio's default."""


class BoundSocket(Protocol):
    """A port that is reserved; who connects is refused until it listens."""

    @property
    def port(self) -> int:
        """The port that was asked for, or the free one that was found for 0."""
        ...

    async def listen(self, new_protocol: NewProtocol, backlog: int = BACKLOG) -> None:
        """Accept connections. Raises OSError if another process has taken the same port and was faster."""
        ...

    def close(self) -> None:
        """Accept no more and give the port back, if that has not been done; what was accepted stays."""
        ...


class Network(Protocol):
    """Where a broker can listen, and how this machine is called."""

    def host_name(self) -> str:
        """The name under which others may find this machine."""
        ...

    async def addresses(self, host: str) -> Sequence[str]:
        """Every address of `host`, a name or an address. Raises OSError."""
        ...

    def bind(
        self,
        host: str | None,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> BoundSocket:
        """Take a port on `host`, a name or an address, or on all addresses (None); of a name's addresses, that of IPv4.

        The sizes are of the system's buffers for each connection that is accepted, by default the system's own. Raises
        OSError.
        """
        ...

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Open a connection to `host`, a name or an address, that sends small pieces at once (TCP_NODELAY).

        Waits for as long as the other side takes: who bounds that cancels. Raises OSError.
        """
        ...


def peer_host(transport: asyncio.BaseTransport) -> str:
    """The address of who is connected, as text; A.B.C.D also where one socket accepts both families, which shows
    IPv4 peers as ::ffff:A.B.C.D: limits and group members name A.B.C.D."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""


def send_now(transport: asyncio.BaseTransport, data: bytes) -> None:
    """Send a few last bytes on a connection that is about to be cut, past its transport, which would drop them. What
    cannot be sent at once is lost."""
    found = transport.get_extra_info("socket")
    if found is None or found.fileno() < 0:
        return
    with suppress(OSError), socket.fromfd(found.fileno(), socket.AF_INET, socket.SOCK_STREAM) as own:
        own.setblocking(False)
        own.send(data)


class OsNetwork:
    """The network of the operating system."""

    def host_name(self) -> str:
        return socket.gethostname()

    async def addresses(self, host: str) -> Sequence[str]:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))

    def bind(
        self,
        host: str | None,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> BoundSocket:
        dual_stack = host is None and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual_stack or ":" in (host or "") else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
            bound.bind((host or ("::" if dual_stack else "0.0.0.0"), port))
            for option, size in ((socket.SO_RCVBUF, receive_buffer_bytes), (socket.SO_SNDBUF, send_buffer_bytes)):
                if size is not None:
                    bound.setsockopt(socket.SOL_SOCKET, option, size)  # accepted sockets take it over
        except OSError:
            bound.close()
            raise
        bound.setblocking(False)
        return _OsBoundSocket(bound)

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        # asyncio and uvloop set TCP_NODELAY on each connection by themselves.
        return await asyncio.get_running_loop().create_connection(new_protocol, host, port)


class _OsBoundSocket:
    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self._server: asyncio.Server | None = None
        self.port: int = bound.getsockname()[1]

    async def listen(self, new_protocol: NewProtocol, backlog: int = BACKLOG) -> None:
        loop = asyncio.get_running_loop()
        # Also before uvloop does: where two had taken the same port, it says nothing of the one that may not listen.
        self._socket.listen(backlog)
        self._server = await loop.create_server(new_protocol, sock=self._socket, backlog=backlog)

    def close(self) -> None:
        server, self._server = self._server, None
        if isinstance(server, asyncio.Server):
            # Its own `close` would fail to tell of what it has accepted in this turn, and leave that open for ever.
            server.get_loop().remove_reader(self._socket)
        elif server is not None:
            server.close()  # uvloop's, which tells at once
        self._socket.close()
