"""One client connection: splits bytes into frames, and frames into requests to the server.

The first four bytes may be a four-letter word (`ruok`, `srvr`, `stat`), whose response is plain text. Otherwise the
first frame begins or resumes a session.

*Source*: ZooKeeper's `NIOServerCnxn.java`.
"""

import asyncio
import logging
import struct
from typing import Final, Protocol, cast

from barnabas.clock import Clock
from barnabas.controller.coordination.zookeeper_server.authentication import AuthFailed, ClientLogins
from barnabas.controller.coordination.zookeeper_server.jute import MalformedMessage
from barnabas.controller.coordination.zookeeper_server.messages import (
    FRAME_BYTES_MAX,
    ConnectRequest,
    read_connect_request,
)
from barnabas.controller.coordination.zookeeper_server.service import Client, InPieces, LastRequest
from barnabas.controller.coordination.zookeeper_server.sessions import Session
from barnabas.network import peer_host

logger = logging.getLogger(__name__)

_LENGTH: Final = struct.Struct(">i")

TURN_MS: Final = 10
"""The time that one connection is served before others have their turn. A client may send any number of requests at
once; while they are served no other connection is read, and no session expires.
"""

LARGE_REQUEST_BYTES: Final = 4 * 1024
"""Larger requests of all connections have one turn in a round of the event loop. The largest transaction takes 0.2 s,
and other clients wait for one of them at most.
"""

UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""A client with this many unread bytes is neither read from nor served until it has read some. The total over all
clients is bounded as well (`Server.add_held`).
"""


class Server(Protocol):
    """The connection's interface to the server that accepted it."""

    @property
    def is_crowded(self) -> bool:
        """Whether connections hold so much memory that no request is served until some of it is freed."""
        ...

    def accept(self, connection: "ZooKeeperConnection") -> None:
        """Register a new connection, for which another one, or this one, may be closed."""
        ...

    def meet(self, logins: ClientLogins, host: str, certificate: bytes | None) -> None:
        """Note who a new client is, by its address and its certificate (DER). Raises: AuthFailed."""
        ...

    def add_held(self, size: int) -> None:
        """Add to the memory that connections hold (negative: subtract)."""
        ...

    def forget(self, connection: "ZooKeeperConnection") -> None: ...

    def wait_for_turn(self, connection: "ZooKeeperConnection") -> None:
        """Call `take_turn` of the connection once, after the connections that wait already."""
        ...

    def connect(self, connection: "ZooKeeperConnection", request: ConnectRequest) -> bytes:
        """Attach a session to the connection (none if it has expired), and return the response. Raises: LastRequest."""
        ...

    def serve(self, session: Session[Client], connection: "ZooKeeperConnection", frame: bytes) -> bytes | InPieces:
        """The response, or a generator that computes it in several turns. Raises: LastRequest, MalformedMessage."""
        ...

    def four_letter_word(self, word: bytes) -> bytes | None:
        """The response to a four-letter word; None for other words."""
        ...


class ZooKeeperConnection(asyncio.Protocol):
    """The protocol of one accepted socket, owned by the event loop. `port` is the local port. One with TLS is known to
    the server before its handshake, and `encrypted` afterwards."""

    def __init__(self, server: Server, port: int, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._was_answered = False
        self._is_full = False
        self._closing: asyncio.Transport | None = None
        self._is_resting = False
        self._has_turn = False
        self._unfinished: InPieces | None = None
        self.port = port
        self.opened_ms = self.progress_ms = clock.monotonic_ms()
        """The time when it was opened, or when its client last read something, or completed a request."""
        self.held_bytes = 0
        self.session: Session[Client] | None = None
        self.logins = ClientLogins()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begin(transport)
        self._server.accept(self)
        self._meet(None)

    def encrypted(self, transport: asyncio.Transport, certificate: bytes | None) -> None:
        """Go on with this transport, which encrypts the former one. `certificate` is the client's (DER), if any."""
        self._begin(transport)
        self._meet(certificate)

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def _meet(self, certificate: bytes | None) -> None:
        if self._transport is not None:
            try:
                self._server.meet(self.logins, peer_host(self._transport), certificate)
            except AuthFailed:
                self.close("its certificate cannot be used")

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = self._closing = self._unfinished = None
        self._received.clear()
        self.look_at_held()
        self._server.forget(self)

    def pause_writing(self) -> None:
        self._is_full = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self.look_at_held()
        if not self._is_resting:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._received += data
        self.look_at_held(len(data))
        if not self._is_resting:
            self._serve()

    def take_turn(self) -> None:
        """Serve a large request that has waited for its turn."""
        self._has_turn = True
        self._go_on()

    def _rest(self, transport: asyncio.Transport, *, until_turn: bool = False) -> None:
        """Let other connections have their turn before the rest of the received bytes; with `until_turn`, all that wait
        already."""
        self._is_resting = True
        if not transport.is_closing():
            transport.pause_reading()
        if until_turn:
            self._server.wait_for_turn(self)
        else:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Serve the received bytes, and resume reading when that is done."""
        self._is_resting = False
        self._serve()
        if self._transport is None or self._is_full or self._is_resting or self._transport.is_closing():
            return
        self._transport.resume_reading()

    def _serve(self) -> None:
        try:
            self._serve_frames()
        except LastRequest as last:
            if last.answer:
                self.send(last.answer)
            self.close("")
        except MalformedMessage as error:
            self.close(str(error))

    def send(self, message: bytes) -> None:
        """Send a frame; ignored if the connection is closed."""
        if self._transport is not None:
            self._transport.write(_LENGTH.pack(len(message)) + message)
            self.look_at_held(_LENGTH.size + len(message))

    def look_at_held(self, added: int = 0) -> None:
        """Report to the server the memory that the connection holds: bytes that its client has not read, and incomplete
        requests. The client has made progress if that is less than before plus the bytes added since.
        """
        transport = self._transport or self._closing
        size = len(self._received) + (0 if transport is None else transport.get_write_buffer_size())
        if size < self.held_bytes + added:
            self.progress_ms = self._clock.monotonic_ms()
        if size != self.held_bytes:
            before, self.held_bytes = self.held_bytes, size
            self._server.add_held(size - before)

    def close(self, reason: str) -> None:
        """Close after the pending bytes were sent; a non-empty reason is logged."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if reason:
            logger.info("a connection of %s is closed: %s", peer_host(transport), reason)
        self._closing = transport
        self._received.clear()
        transport.close()

    def abort(self, reason: str) -> None:
        """Abort the connection: unread responses and incomplete requests are lost."""
        if self._transport is not None:
            logger.info("a connection of %s is cut: %s", peer_host(self._transport), reason)
            self._closing, self._transport = self._transport, None
        if self._closing is not None:
            self._closing.abort()

    @property
    def is_closing(self) -> bool:
        """Whether the connection was closed while its client has not read everything yet."""
        return self._closing is not None

    def _serve_frames(self) -> None:
        position = 0
        turn_ends_ms = self._clock.monotonic_ms() + TURN_MS
        try:
            while self._transport is not None and not self._is_full:
                if self._server.is_crowded:
                    self._rest(self._transport)
                    return
                if self._unfinished is not None:
                    if self._goes_on(self._unfinished) and self._clock.monotonic_ms() >= turn_ends_ms:
                        self._rest(self._transport)
                        return
                    continue
                if len(self._received) - position < _LENGTH.size:
                    return
                if not self._was_answered and self._answer_word(bytes(self._received[: _LENGTH.size])):
                    return
                (length,) = _LENGTH.unpack_from(self._received, position)
                if not 0 <= length <= FRAME_BYTES_MAX:
                    raise MalformedMessage(f"a frame of {length} bytes")
                end = position + _LENGTH.size + length
                if end > len(self._received):
                    return
                if position and self._clock.monotonic_ms() >= turn_ends_ms:
                    self._rest(self._transport)
                    return
                if length > LARGE_REQUEST_BYTES and not self._has_turn:
                    self._rest(self._transport, until_turn=True)
                    return
                self._has_turn = False
                frame = bytes(memoryview(self._received)[position + _LENGTH.size : end])
                position = end
                self._answer(frame)
        finally:
            self._has_turn = False
            del self._received[:position]
            self.look_at_held()

    def _answer_word(self, word: bytes) -> bool:
        answer = self._server.four_letter_word(word)
        if answer is None or self._transport is None:
            return False
        self._transport.write(answer)
        self.close("")
        return True

    def _answer(self, frame: bytes) -> None:
        if self._was_answered:
            assert self.session is not None, "only connections with a session are read"
            answer = self._server.serve(self.session, self, frame)
            if isinstance(answer, bytes):
                self.send(answer)
            else:
                self._unfinished = answer
        else:
            self._was_answered = True
            self.send(self._server.connect(self, read_connect_request(frame)))

    def _goes_on(self, unfinished: InPieces) -> bool:
        """Process one more piece of a request, or respond; returns whether there are more."""
        try:
            next(unfinished)
        except StopIteration as done:
            self._unfinished = None
            self.send(done.value)
            return False
        return True
