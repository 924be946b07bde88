"""A connection from this broker to another one: requests out, responses back in their order.

It shows who this broker is before anything else, and goes on without waiting for the answer. A broker of Apache Kafka
that asks nobody for that answers ILLEGAL_SASL_STATE (KafkaApis.handleSaslHandshakeRequest), and is asked all the same.

Brokers of a cluster speak the versions that they know of each other, so nothing is negotiated. Nothing is tried again
here, because only who asked knows whether that is right (whoever does waits a while in between).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from barnabas.broker.security import sasl_plain
from barnabas.broker.security.sasl_plain import Credentials
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
"""More than any broker answers: fetches are bounded by replica.fetch.response.max.bytes, unless one batch is larger."""

_LENGTH: Final = struct.Struct(">i")


class PeerUnavailable(OSError):
    """Another broker gave no answer: it cannot be reached, the connection broke, or it was silent for too long. What it
    was asked may have been done, or may yet be."""


class PeerConnection:
    """One connection to another broker, made at the first request, and anew at the first after a break; owned by the
    event loop.

    Args:
        network: what opens connections.
        address: where the broker is now, asked at each connect; None while it is not alive.
        timers: end the wait for answers.
        client_id: what the requests say they come from.
        request_timeout_ms: how long an answer may take, the making of the connection included.
        name: how errors call the broker, as "broker 2".
        receive_buffer: what small responses are read into; connections of one loop may share it.
        credentials: what shows who this broker is; None shows nothing.
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
        """Have a request leave, after those that were sent before; the future is its response.

        `timeout_ms` is how long the answer may take, by default `request_timeout_ms`. The future fails with
        PeerUnavailable; those of all other requests under way then do, too, because the connection is closed: in which
        state the broker is, nobody knows. A future that is cancelled recalls nothing. Of the response to a Fetch,
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
        """How many requests were sent since the start, or would have been if the broker had been reached."""
        return self._sent_before + (0 if self._link is None else self._link.sent_count)

    @property
    def waiting_count(self) -> int:
        """How many requests have no answer yet."""
        return 0 if self._link is None else self._link.waiting_count

    def follow_address(self) -> None:
        """Break the connection if the broker is not where it was when that was made."""
        if self._link is not None and self._link.address != self._address():
            self._link.end("has gone from there")

    def close(self) -> None:
        """Connect no more; requests under way fail."""
        self._is_closed = True
        if self._link is not None:
            self._link.end("is not asked any more: the connection is closed")

    def _open_link(self) -> _Link | str:
        """The connection, or why there is none."""
        if self._is_closed:
            return "is not asked any more: the connection is closed"
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
    """A request whose answer has not come yet; nobody but the connection itself waits for those of its handshake."""

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
    """A TCP connection from the attempt to make it to its end."""

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
        """Send an encoded request now, or as soon as there is a connection."""
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
        """How many requests this connection was given."""
        return self._correlation_id - self._handshakes

    @property
    def waiting_count(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting)

    def _time_out(self, api_key: int, timeout_ms: int) -> None:
        self.end(f"did not answer {messages.API_NAMES[api_key]} within {timeout_ms} ms")

    def authenticate(self, credentials: Credentials, timeout_ms: int) -> None:
        """Show who this broker is, before it asks anything. If that is not believed then the connection is cut."""
        steps: list[tuple[Message, int]] = [
            (SaslHandshakeRequest(mechanism=sasl_plain.MECHANISM), SASL_HANDSHAKE_VERSION),
            (SaslAuthenticateRequest(auth_bytes=sasl_plain.encode(credentials)), SASL_AUTHENTICATE_VERSION),
        ]
        for request, version in steps:
            parts: list[Any] = []
            codec.encoder(type(request), version)(request, parts)
            self.send(request.API_KEY, version, parts, None, timeout_ms)
            self._handshakes += 1

    def _take_step(self, answer: Any) -> None:
        """A step of the handshake was answered."""
        error = ErrorCode.of(answer.error_code)
        if error not in (ErrorCode.NONE, ErrorCode.ILLEGAL_SASL_STATE):
            self.end(f"does not believe who this broker is: {error.name}")

    # --- the connection ---------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open(), name=f"connection to {self._peer}")

    async def _open(self) -> None:
        try:
            await self._network.connect(*self.address, lambda: self)
        except (OSError, ValueError) as error:  # ValueError: a host that is no name
            number = getattr(error, "errno", None) or 0
            self.end(f"cannot be reached: {os.strerror(number).lower() if number > 0 else error}")

    def end(self, reason: str) -> None:
        """Cut the connection, or the attempt; requests under way fail."""
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
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
        """Give a response to who waits for it. Errors: ProtocolError, when it is not what was asked for."""
        if not self._waiting:
            raise ProtocolError("a response that nobody asked for")
        request = self._waiting[0]
        correlation_id, position = parse_response_header(frame, request.api_key, request.version)
        if correlation_id != request.correlation_id:
            raise ProtocolError(f"the response to request {correlation_id} instead of {request.correlation_id}")
        if self._reader.is_shared(frame):
            frame = memoryview(bytes(frame))  # the next read would overwrite what a view of records shows
        decode = codec.decoder(messages.api(request.api_key).response_class, request.version)
        # Elements are counted to bound what strangers make us build; what a broker sends is bounded by its bytes.
        response, _ = decode(frame, position, len(frame))
        self._waiting.popleft()
        request.timer.cancel()
        if request.answer is None:
            self._take_step(response)
        elif not request.answer.done():
            request.answer.set_result(response)


def _fail(answer: asyncio.Future[Any], error: PeerUnavailable) -> None:
    """Let an answer fail; who has lost interest in it is not told."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()
