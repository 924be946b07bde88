"""Handshakes of TLS on accepted connections, and on those to other brokers: how many, how long, and what follows.

A connection is accepted without TLS and counts as one from then on (`Connections.admit`), so that all limits apply
before any bytes are read; then the event loop turns its transport into an encrypted one (`loop.start_tls`).
`create_server(ssl=...)` would do the handshake by itself: it admits nobody before, has no limit of handshakes, measures
time by its own clock, and keeps the certificate with which it began.

A handshake with an RSA key of 2048 bits costs about a millisecond of the event loop, with one of an elliptic curve a
quarter of that, and has no part that a thread could do for asyncio or uvloop: both drive OpenSSL themselves. So the
number of handshakes at once bounds how long requests wait for them. Others wait, unread, in the order in which they
came.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from barnabas.network import NewProtocol, peer_host, send_now
from barnabas.timers import ScheduledCall, Timers

if TYPE_CHECKING:
    import ssl

    from barnabas.broker.security.tls.contexts import Tls

logger = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 128
"""The limit of handshakes at once; the others wait."""

HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""The time from the acceptance of a connection to the end of its handshake."""

SHUTDOWN_TIMEOUT_S: Final = 2.0
"""The time for which a closed connection waits for the other side to say that it has closed, too."""

_HOSTS_MAX: Final = 1_000
"""The number of hosts whose last failure is remembered."""


class HandshakeFailed(OSError):
    """A handshake that failed, with the reason as text."""


class HasTls(Protocol):
    """A listener, and its present TLS (`listener_tls.py`)."""

    name: str
    tls: Tls


class Encryptable(Protocol):
    """The protocol of an accepted connection that becomes encrypted, besides asyncio's methods."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or close it; nothing is read."""
        ...

    def encrypted(self, transport: asyncio.Transport, certificate: bytes | None) -> None:
        """Use this transport from now on. `certificate` is the client's (DER), None without one."""
        ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Handshake(asyncio.Protocol):
    """A connection until it is encrypted: keeps what arrives before the handshake begins, and after it has ended.

    Neither asyncio nor uvloop lets a protocol pause reading when its connection is made: the first bytes of a client
    may have been read before the event loop is asked for TLS.
    """

    def __init__(self) -> None:
        self.plain: asyncio.Transport
        self._early = bytearray()
        self._has_ended = False
        self._is_done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.plain = cast(asyncio.Transport, transport)  # uvloop's class is no subclass

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> bool:
        self._has_ended = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True

    async def run(self, context: ssl.SSLContext, server_hostname: str | None = None) -> asyncio.Transport:
        """The encrypted transport of this connection: as a client of `server_hostname`, else as a server.

        Give it to `hand_over` before anything else happens. Raises HandshakeFailed, or ConnectionAbortedError if this
        side has closed the connection meanwhile; it is closed then.
        """
        from barnabas.broker.security.tls.contexts import reason_of, sending_alerts

        if self.plain.is_closing():
            raise ConnectionAbortedError("the connection was closed")
        loop = asyncio.get_running_loop()
        loop.call_soon(self._pass_on)
        try:
            transport = await loop.start_tls(
                self.plain,
                self,
                context if server_hostname is not None else sending_alerts(context, partial(send_now, self.plain)),
                server_side=server_hostname is None,
                server_hostname=server_hostname,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:
            self.plain.abort()
            raise HandshakeFailed(reason_of(error)) from error
        if transport is None or self.plain.is_closing():
            if transport is not None:
                transport.abort()
            raise ConnectionAbortedError("the connection was closed")
        return transport

    def _pass_on(self) -> None:
        """Give the first bytes to the protocol of TLS, which the transport has by now; it is not reading yet."""
        early, self._early = bytes(self._early), bytearray()
        if early and not self.plain.is_closing():
            _receive(self.plain.get_protocol(), early)

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        """Let `protocol`, which knows the transport, take what has arrived, and what follows."""
        transport.set_protocol(protocol)
        early, self._early = bytes(self._early), bytearray()
        if early:
            _receive(protocol, early)
        if self._has_ended:
            transport.abort()
            protocol.connection_lost(None)


def _receive(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Have a protocol receive data as its transport would."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    buffered = cast(asyncio.BufferedProtocol, protocol)
    left = memoryview(data)
    while left:
        buffer = memoryview(buffered.get_buffer(len(left)))
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        buffered.buffer_updated(size)
        left = left[size:]


class TlsHandshakes:
    """The handshakes of some ports together; owned by the event loop. `failed_count` is the number of those that
    failed since the start."""

    def __init__(self, timers: Timers, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self._timers = timers
        self._handshakes_max = handshakes_max
        self._running: set[_Accepted] = set()
        self._waiting: deque[_Accepted] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_reasons: dict[str, str] = {}
        self.failed_count = 0

    @property
    def running_count(self) -> int:
        """The number of handshakes at this moment."""
        return len(self._running)

    def before(self, new_protocol: Callable[[], Encryptable], listener: HasTls) -> NewProtocol:
        """Makes the protocol of accepted connections that become encrypted, with the settings that `listener` has then,
        and are served by `new_protocol()`."""
        return lambda: _Accepted(self, new_protocol(), listener)

    def enter(self, accepted: _Accepted) -> ScheduledCall:
        """Begin a handshake as soon as there is room; returns the timer of its deadline."""
        self._waiting.append(accepted)
        self._begin_some()
        return self._timers.call_later(HANDSHAKE_TIMEOUT_MS, accepted.time_out)

    def leave(self, accepted: _Accepted) -> None:
        """The handshake has ended, or its connection while it waited."""
        self._running.discard(accepted)
        self._begin_some()

    def _begin_some(self) -> None:
        while self._waiting and len(self._running) < self._handshakes_max:
            accepted = self._waiting.popleft()
            if accepted.is_over:
                continue
            self._running.add(accepted)
            task = asyncio.get_running_loop().create_task(accepted.shake_hands(), name="TLS handshake")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def note_failure(self, host: str, listener: str, reason: str) -> None:
        """Count a failure, and log it unless the last one of the same host had the same reason."""
        self.failed_count += 1
        if self._last_reasons.get(host) == reason:
            return
        self._last_reasons.pop(host, None)
        self._last_reasons[host] = reason
        if len(self._last_reasons) > _HOSTS_MAX:
            del self._last_reasons[next(iter(self._last_reasons))]
        logger.warning("TLS handshakes from %s on listener %s fail: %s", host, listener, reason)


class _Accepted(Handshake):
    """An accepted connection until it is encrypted."""

    def __init__(self, handshakes: TlsHandshakes, inner: Encryptable, listener: HasTls) -> None:
        super().__init__()
        self._handshakes = handshakes
        self._inner = inner
        self._listener = listener
        self._deadline: ScheduledCall | None = None
        self._is_shaking_hands = False
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._inner.connection_made(transport)
        if not self.plain.is_closing():
            asyncio.get_running_loop().call_soon(self._enter)

    def _enter(self) -> None:
        if self.is_over or self.plain.is_closing():
            return
        self.plain.pause_reading()
        self._deadline = self._handshakes.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._is_shaking_hands:  # else `run` raises the reason
            self._end(exc)

    def time_out(self) -> None:
        if not self.is_over:
            self._fail(f"it took longer than {HANDSHAKE_TIMEOUT_MS // 1000} s")

    async def shake_hands(self) -> None:
        """Do the handshake, and let the connection begin."""
        from barnabas.broker.security.tls.principal_mapping import NoMatchingRule

        self._is_shaking_hands = True
        try:
            transport = await self.run(self._listener.tls.server)
            if self.is_over:
                transport.abort()
                return
            try:
                self._inner.encrypted(transport, self._certificate(transport))
            except NoMatchingRule:
                transport.abort()
                raise
        except (HandshakeFailed, NoMatchingRule) as error:
            if not self.is_over:
                self._fail(str(error))
            return
        except ConnectionAbortedError:
            self._end(None)
            return
        except BaseException:
            self.plain.abort()
            self._end(None)
            raise
        self._leave()
        self.hand_over(transport, cast(asyncio.BaseProtocol, self._inner))

    @staticmethod
    def _certificate(transport: asyncio.Transport) -> bytes | None:
        found: bytes | None = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    def _fail(self, reason: str) -> None:
        self._handshakes.note_failure(peer_host(self.plain), self._listener.name, reason)
        self.plain.abort()
        self._end(None)

    def _leave(self) -> None:
        self.is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._handshakes.leave(self)

    def _end(self, error: Exception | None) -> None:
        """The connection has ended before it was encrypted."""
        if not self.is_over:
            self._leave()
            self._inner.connection_lost(error)
