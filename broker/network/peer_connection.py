"""A connection from this broker to another one: requests out, responses back in their order.

It authenticates first, and continues without waiting for the response. A broker of Apache Kafka without authentication
responds with ILLEGAL_SASL_STATE (KafkaApis.handleSaslHandshakeRequest), and receives the requests all the same.

Brokers of a cluster use fixed versions, so nothing is negotiated. Nothing is retried here, because only the caller
knows whether a retry is right (callers that retry wait in between).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.network import Network
from barnabas.timers import ScheduledCall, Timers
from barnabas.wire import codec, messages
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.framing import FrameReader, ReceiveBuffer
from barnabas.wire.headers import parse_response_header, request_header
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message

SASL_HANDSHAKE_VERSION: Final = 1
SASL_AUTHENTICATE_VERSION: Final = 2

RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
"""More than any response: fetches are limited by replica.fetch.response.max.bytes, unless one batch is larger."""

_LENGTH: Final = struct.Struct(">i")


class PeerUnavailable(OSError):
    """Another broker did not respond: it cannot be reached, the connection broke, or the request timed out. The request
    may have been carried out, or may yet be."""


class PeerConnection:
    """One connection to another broker, opened by the first request, and again by the first after a break; owned by the
    event loop.

    Args:
        network: opens connections.
        address: the broker's present address, called at each connect; None while it is not alive.
        timers: end the wait for responses.
        client_id: the client id of the requests.
        request_timeout_ms: the default timeout of a request, including the connect.
        name: the broker's name in errors, as "broker 2".
        receive_buffer: buffer for small responses; connections of one loop may share it.
        credentials: authenticate this broker; None sends none.
    """

    def __init__(
        self,
        network: Network,
        address: Callable[[], tuple[str, int] | None],
        timers: Timers,
        client_id: str,
        request_timeout_ms: int,
        *,
        name: str = "broker",
        receive_buffer: ReceiveBuffer | None = None,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        credentials: Credentials | None = None,
    ) -> None:
        self._network = network
        self._address = address
        self._timers = timers
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._name = name
        self._receive_buffer = ReceiveBuffer() if receive_buffer is None else receive_buffer
        self._response_bytes_max = response_bytes_max
        self._credentials = credentials
        self._link: _Link | None = None
        self._sent_before = 0
        self._is_closed = False

    def send(self, request: Message, version: int, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        """Send a request, after those that were sent before; the future is its response.

        `timeout_ms` limits the wait for the response, by default `request_timeout_ms`. The future fails with
        PeerUnavailable; then so do those of all other requests in flight, because the connection is closed: the state
        of the broker is unknown. Cancelling the future does not recall the request. In the response to a Fetch,
        `records` are views of a buffer that is its own. Errors: ValueError as `codec.encode`, at once.
        """
        parts: list[Any] = []
        codec.encoder(type(request), version)(request, parts)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        link = self._open_link()
        if isinstance(link, str):
            _fail(answer, PeerUnavailable(f"{self._name} {link}"))
        else:
            link.send(request.API_KEY, version, parts, answer, timeout_ms or self._request_timeout_ms)
        return answer

    @property
    def sent_count(self) -> int:
        """The number of requests sent since the start, including those that could not be sent."""
        return self._sent_before + (0 if self._link is None else self._link.sent_count)

    @property
    def waiting_count(self) -> int:
        """The number of requests without a response yet."""
        return 0 if self._link is None else self._link.waiting_count

    def follow_address(self) -> None:
        """Close the connection if the broker's address has changed since it was opened."""
        if self._link is not None and self._link.address != self._address():
            self._link.end("has gone from there")

    def close(self) -> None:
        """Do not connect any more; requests in flight fail."""
        self._is_closed = True
        if self._link is not None:
            self._link.end("is not needed any more: the connection is closed")

    def _open_link(self) -> _Link | str:
        """The connection, or why there is none."""
        if self._is_closed:
            return "is not needed any more: the connection is closed"
        if self._link is None or self._link.is_over:
            address = self._address()
            if address is None:
                return "is not alive, as far as is known"
            self._sent_before = self.sent_count
            self._link = _Link(
                self._network,
                address,
                self._timers,
                self._client_id,
                self._name,
                FrameReader(self._receive_buffer, self._response_bytes_max),
            )
            self._link.open()
            if self._credentials is not None:
                self._link.authenticate(self._credentials, self._request_timeout_ms)
        return self._link


class _Waiting:
    """A request without a response yet; `answer` is None for the requests of the connection's own handshake."""

    __slots__ = ("answer", "api_key", "correlation_id", "timer", "version")

    def __init__(
        self, correlation_id: int, api_key: int, version: int, answer: asyncio.Future[Any] | None, timer: ScheduledCall
    ) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.answer = answer
        self.timer = timer


class _Link(asyncio.BufferedProtocol):
    """A TCP connection from the attempt to open it to its end."""

    def __init__(
        self,
        network: Network,
        address: tuple[str, int],
        timers: Timers,
        client_id: str,
        name: str,
        reader: FrameReader,
    ) -> None:
        host, port = address
        self.address = address
        self.is_over = False
        self._network = network
        self._timers = timers
        self._client_id = client_id
        self._peer = f"{name} at [{host}]:{port}" if ":" in host else f"{name} at {host}:{port}"
        self._reader = reader
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: list[Any] = []
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._handshakes = 0

    # --- requests ---------------------------------------------------------------------------------

    def send(
        self, api_key: int, version: int, parts: list[Any], answer: asyncio.Future[Any] | None, timeout_ms: int
    ) -> None:
        """Send an encoded request now, or as soon as the connection is open."""
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = request_header(api_key, version, self._correlation_id, self._client_id)
        framed = [_LENGTH.pack(len(header) + sum(map(len, parts))) + header, *parts]
        timer = self._timers.call_later(timeout_ms, partial(self._time_out, api_key, timeout_ms))
        self._waiting.append(_Waiting(self._correlation_id, api_key, version, answer, timer))
        if self._transport is None:
            self._unsent += framed
        else:
            self._transport.writelines(framed)

    @property
    def sent_count(self) -> int:
        """The number of requests given to this connection."""
        return self._correlation_id - self._handshakes

    @property
    def waiting_count(self) -> int:
        """The number of requests without a response yet."""
        return len(self._waiting)

    def _time_out(self, api_key: int, timeout_ms: int) -> None:
        self.end(f"did not answer {messages.API_NAMES[api_key]} within {timeout_ms} ms")

    def authenticate(self, credentials: Credentials, timeout_ms: int) -> None:
        """Authenticate this broker, before its first request. If that fails, the connection is cut."""
        steps: list[tuple[Message, int]] = [
            (SaslHandshakeRequest(mechanism=plain.MECHANISM), SASL_HANDSHAKE_VERSION),
            (SaslAuthenticateRequest(auth_bytes=plain.encode(credentials)), SASL_AUTHENTICATE_VERSION),
        ]
        for request, version in steps:
            parts: list[Any] = []
            codec.encoder(type(request), version)(request, parts)
            self.send(request.API_KEY, version, parts, None, timeout_ms)
            self._handshakes += 1

    def _take_step(self, answer: Any) -> None:
        """Process a response of the handshake."""
        error = ErrorCode.of(answer.error_code)
        if error not in (ErrorCode.NONE, ErrorCode.ILLEGAL_SASL_STATE):
            self.end(f"does not accept the identity of this broker: {error.name}")

    # --- the connection ---------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open(), name=f"connection to {self._peer}")

    async def _open(self) -> None:
        try:
            await self._network.connect(*self.address, lambda: self)
        except (OSError, ValueError) as error:  # ValueError: a host that is no valid name
            number = getattr(error, "errno", None) or 0
            self.end(f"cannot be reached: {os.strerror(number).lower() if number > 0 else error}")

    def end(self, reason: str) -> None:
        """Cut the connection, or the attempt; requests in flight fail."""
        if self.is_over:
            return
        self.is_over = True
        if self._opening is not None:
            self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._unsent.clear()
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            request.timer.cancel()
            if request.answer is not None:
                _fail(request.answer, PeerUnavailable(f"{self._peer} {reason}"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        if self.is_over:
            self._transport.abort()
            return
        unsent, self._unsent = self._unsent, []
        self._transport.writelines(unsent)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("closed the connection" if exc is None else f"closed the connection: {exc}")

    # --- responses --------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                self._hand_over(frame)
        except ProtocolError as error:
            self.end(f"answered with something that is not Kafka's protocol: {error}")

    def _hand_over(self, frame: memoryview) -> None:
        """Pass a response to its request. Errors: ProtocolError, when it does not belong to it."""
        if not self._waiting:
            raise ProtocolError("a response without a request")
        request = self._waiting[0]
        correlation_id, position = parse_response_header(frame, request.api_key, request.version)
        if correlation_id != request.correlation_id:
            raise ProtocolError(f"the response to request {correlation_id} instead of {request.correlation_id}")
        if self._reader.is_shared(frame):
            frame = memoryview(bytes(frame))  # the next read would overwrite the bytes under a view of records
        decode = codec.decoder(messages.api(request.api_key).response_class, request.version)
        # The limit of elements bounds the objects that clients make us build; a broker's response is bounded by its
        # bytes.
        response, _ = decode(frame, position, len(frame))
        self._waiting.popleft()
        request.timer.cancel()
        if request.answer is None:
            self._take_step(response)
        elif not request.answer.done():
            request.answer.set_result(response)


def _fail(answer: asyncio.Future[Any], error: PeerUnavailable) -> None:
    """Let a response fail; a cancelled or finished one is left as it is."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()
