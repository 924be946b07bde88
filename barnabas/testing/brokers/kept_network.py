"""Resources that survive when one broker replaces another on the same event loop: ports, client connections, and
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from barnabas.network import BACKLOG, BoundSocket, Network, NewProtocol, OsNetwork
from barnabas.threads import OsThreads

P = TypeVar("P", bound=asyncio.BaseProtocol)


class KeptThreads(OsThreads):
    """The operating system's threads, started by the first broker and used by its successors on the same event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._has_begun = False

    def begin(self) -> None:
        if not self._has_begun:
            super().begin()
            self._has_begun = True


class KeptNetwork:
    """The machine's network, whose ports stay bound between `keep()` and `go_on()`, when one broker ends and the next
    one begins: new connections, and those kept by `wait_for_next`, wait without noticing.
    """

    def __init__(self, network: Network | None = None) -> None:
        self._network = network or OsNetwork()
        self._sockets: dict[tuple[str | None, int], _KeptSocket] = {}
        self.is_keeping = False

    def host_name(self) -> str:
        return self._network.host_name()

    async def addresses(self, host: str) -> Sequence[str]:
        return await self._network.addresses(host)

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        return await self._network.connect(host, port, new_protocol)

    def bind(
        self,
        host: str | None,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> BoundSocket:
        kept = self._sockets.get((host, port))
        if kept is None or not self.is_keeping:
            bound = self._network.bind(
                host, port, receive_buffer_bytes=receive_buffer_bytes, send_buffer_bytes=send_buffer_bytes
            )
            kept = self._sockets[host, bound.port] = _KeptSocket(self, bound)
        kept.is_taken = True
        return kept

    def keep(self) -> None:
        """A broker is about to end, and another one to begin, with the same listeners."""
        self.is_keeping = True
        for kept in self._sockets.values():
            kept.is_taken = False

    def wait_for_next(self, port: int, transport: asyncio.Transport) -> None:
        """Keep a connection, which is between two requests, for the next broker's listener on that port."""
        kept = next(kept for kept in self._sockets.values() if kept.port == port)
        Waiting(kept).take(transport)

    def go_on(self) -> None:
        """The next broker serves, or could not start: release the resources that it has not taken."""
        self.is_keeping = False
        for place, kept in list(self._sockets.items()):
            if not kept.is_taken:
                del self._sockets[place]
                kept.close()


class _KeptSocket:
    """A port of successive brokers."""

    def __init__(self, network: KeptNetwork, bound: BoundSocket) -> None:
        self._network = network
        self._bound = bound
        self._new_protocol: NewProtocol | None = None
        self._is_listening = False
        self.is_taken = False
        self.waiting: dict[Waiting, None] = {}

    @property
    def port(self) -> int:
        return self._bound.port

    async def listen(self, new_protocol: NewProtocol, backlog: int = BACKLOG) -> None:
        self._new_protocol = new_protocol
        if not self._is_listening:
            self._is_listening = True
            await self._bound.listen(self._accept, backlog)
        while self.waiting:
            waiting, _ = self.waiting.popitem()
            waiting.give_to(cast(asyncio.BufferedProtocol, new_protocol()))

    def _accept(self) -> asyncio.BaseProtocol:
        return Waiting(self) if self._new_protocol is None else self._new_protocol()

    def close(self) -> None:
        self._new_protocol = None
        if not self._network.is_keeping:
            for waiting in list(self.waiting):
                waiting.end()
            self._bound.close()


class Waiting(asyncio.BufferedProtocol):
    """A connection while there is no broker: nothing is read from it."""

    def __init__(self, kept: _KeptSocket) -> None:
        self._kept = kept
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.take(cast(asyncio.Transport, transport))

    def take(self, transport: asyncio.Transport) -> None:
        """Make this connection wait from now on."""
        self._transport = transport
        transport.pause_reading()
        transport.set_protocol(self)
        self._kept.waiting[self] = None

    def give_to(self, protocol: asyncio.BaseProtocol) -> None:
        """A broker is there: the connection belongs to it now."""
        assert self._transport is not None
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """Close the kept connection: there will be no other broker."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.waiting.pop(self, None)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(max(sizehint, 1))

    def buffer_updated(self, nbytes: int) -> None:
        """No-op: nothing is read while a connection waits for its next broker."""
