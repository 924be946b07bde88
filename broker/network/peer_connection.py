"""A connection from this broker to another one: requests out, responses back in their order.

Where the inter-broker listener asks for SASL, it logs in first, and again before its session ends (KIP-368); requests
wait meanwhile. Then it sends this broker's secret, and continues without waiting for the response. A broker of Apache
Kafka responds with ILLEGAL_SASL_STATE (KafkaApis.handleSaslHandshakeRequest), and receives the requests all the same.

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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from barnabas.broker.security.sasl import plain
from barnabas.broker.security.sasl.login import BROKER_MECHANISM
from barnabas.broker.security.sasl.mechanism import (
    AuthenticationFailed,
    ClientExchange,
    ClientMechanism,
    CredentialsUnavailable,
    RenewedMechanism,
)
from barnabas.broker.security.sasl.plain import Credentials
from barnabas.network import Network
from barnabas.threads import Threads
from barnabas.timers import ScheduledCall, Timers
from barnabas.wire import codec, messages
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.framing import FrameReader, ReceiveBuffer
from barnabas.wire.headers import parse_response_header, request_header
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.schema import Message

if TYPE_CHECKING:
    from barnabas.broker.security.tls.contexts import Tls

SASL_HANDSHAKE_VERSION: Final = 1
SASL_AUTHENTICATE_VERSION: Final = 2

RESPONSE_BYTES_MAX: Final = 256 * 1024 * 1024
"""More than any response: fetches are limited by replica.fetch.response.max.bytes, unless one batch is larger."""

_LENGTH: Final = struct.Struct(">i")


RENEWED_AFTER: Final = 0.85
"""The share of a session's lifetime after which it is renewed (SaslClientAuthenticator.ReauthInfo: 0.85 to 0.95)."""


class PeerLogin(NamedTuple):
    """How this broker logs in to others: by a mechanism, whose keys `threads` derive."""

    mechanism: ClientMechanism
    threads: Threads


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
        credentials: this broker's secret; None sends none.
        tls: the present TLS of the listener, if that has any: the certificate of this broker, and whom it trusts.
        login: the login of SASL, where the listener asks for one.
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
        tls: Callable[[], Tls] | None = None,
        login: PeerLogin | None = None,
    ) -> None:
        self._network = network
        self._tls = tls
        self._address = address
        self._timers = timers
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._name = name
        self._receive_buffer = ReceiveBuffer() if receive_buffer is None else receive_buffer
        self._response_bytes_max = response_bytes_max
        self._credentials = credentials
        self._login = login
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
            wait_ms = timeout_ms or self._request_timeout_ms
            timer = self._timers.call_later(wait_ms, partial(link.time_out, request.API_KEY, wait_ms))
            link.send(_Waiting(request.API_KEY, version, parts, timer, answer))
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
                self._tls,
            )
            self._link.open()
            self._link.authenticate(self._login, self._credentials, self._request_timeout_ms)
        return self._link


class _Waiting:
    """A request without a response yet: that of a caller, who waits for `answer`, or one of the connection's own login,
    whose response `step` takes. `parts` is the encoded body until it is sent."""

    __slots__ = ("answer", "api_key", "correlation_id", "parts", "step", "timer", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        parts: list[Any],
        timer: ScheduledCall,
        answer: asyncio.Future[Any] | None = None,
        step: Callable[[Any], None] | None = None,
    ) -> None:
        self.correlation_id = 0
        self.api_key = api_key
        self.version = version
        self.parts = parts
        self.timer = timer
        self.answer = answer
        self.step = step


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
        tls: Callable[[], Tls] | None,
    ) -> None:
        host, port = address
        self.address = address
        self.is_over = False
        self._network = network
        self._tls = tls
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
        self._login: PeerLogin | None = None
        self._exchange: ClientExchange | None = None
        self._credentials: Credentials | None = None
        self._login_timeout_ms = 0
        self._held: deque[_Waiting] = deque()
        """Requests that wait for the login."""
        self._is_logging_in = False
        self._deriving: asyncio.Task[None] | None = None
        self._renewal: ScheduledCall | None = None

    # --- requests ---------------------------------------------------------------------------------

    def send(self, request: _Waiting) -> None:
        """Send a request now, or as soon as the connection is open; a caller's waits for the login, too."""
        if self._is_logging_in and request.step is None:
            self._held.append(request)
            return
        self._correlation_id = request.correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = request_header(request.api_key, request.version, self._correlation_id, self._client_id)
        framed = [_LENGTH.pack(len(header) + sum(map(len, request.parts))) + header, *request.parts]
        request.parts = []
        self._waiting.append(request)
        if self._transport is None:
            self._unsent += framed
        else:
            self._transport.writelines(framed)

    @property
    def sent_count(self) -> int:
        """The number of requests given to this connection."""
        return self._correlation_id - self._handshakes + len(self._held)

    @property
    def waiting_count(self) -> int:
        """The number of requests without a response yet."""
        return len(self._waiting) + len(self._held)

    def time_out(self, api_key: int, timeout_ms: int) -> None:
        """A request has no response after so much time: the connection is cut."""
        self.end(f"did not answer {messages.API_NAMES[api_key]} within {timeout_ms} ms")

    # --- the login --------------------------------------------------------------------------------

    def authenticate(self, login: PeerLogin | None, credentials: Credentials | None, timeout_ms: int) -> None:
        """Log in, and send this broker's secret, before the first request. If that fails, the connection is cut."""
        self._login, self._credentials, self._login_timeout_ms = login, credentials, timeout_ms
        if login is None:
            self._send_secret(plain.MECHANISM)
        else:
            self._log_in()

    def _send_step(self, request: Message, version: int, step: Callable[[Any], None]) -> None:
        parts: list[Any] = []
        codec.encoder(type(request), version)(request, parts)
        timeout_ms = self._login_timeout_ms
        timer = self._timers.call_later(timeout_ms, partial(self.time_out, request.API_KEY, timeout_ms))
        self._handshakes += 1
        self.send(_Waiting(request.API_KEY, version, parts, timer, step=step))

    def _send_secret(self, mechanism: str) -> None:
        if self._credentials is not None:
            shown = plain.encode(self._credentials)
            self._send_step(SaslHandshakeRequest(mechanism=mechanism), SASL_HANDSHAKE_VERSION, self._check_secret)
            self._send_step(SaslAuthenticateRequest(auth_bytes=shown), SASL_AUTHENTICATE_VERSION, self._check_secret)

    def _check_secret(self, response: Any) -> None:
        error = ErrorCode.of(response.error_code)
        if error not in (ErrorCode.NONE, ErrorCode.ILLEGAL_SASL_STATE):
            self.end(f"does not accept the identity of this broker: {error.name}")

    def _log_in(self) -> None:
        """Log in by SASL, for the first time or again; requests wait until that is done."""
        assert self._login is not None
        self._is_logging_in = True
        mechanism = self._login.mechanism
        if isinstance(mechanism, RenewedMechanism):
            preparing = self._prepare(mechanism)
            self._deriving = asyncio.get_running_loop().create_task(preparing, name=f"login to {self._peer}")
        else:
            self._begin_login()

    async def _prepare(self, mechanism: RenewedMechanism) -> None:
        """Renew the credentials, if it is time for that, and log in."""
        try:
            await mechanism.prepare()
        except CredentialsUnavailable as error:
            self.end(f"cannot be logged in to: {error}")
        if not self.is_over:
            self._begin_login()

    def _begin_login(self) -> None:
        assert self._login is not None
        self._exchange = self._login.mechanism.start(self.address[0])
        handshake = SaslHandshakeRequest(mechanism=self._login.mechanism.name)
        self._send_step(handshake, SASL_HANDSHAKE_VERSION, self._take_handshake)

    def _take_handshake(self, response: Any) -> None:
        if not self._is_refused(response.error_code, ""):
            self._deriving = asyncio.get_running_loop().create_task(self._greet(), name=f"login to {self._peer}")

    def _send_message(self, message: bytes) -> None:
        request = SaslAuthenticateRequest(auth_bytes=message)
        self._send_step(request, SASL_AUTHENTICATE_VERSION, self._take_challenge)

    def _take_challenge(self, response: Any) -> None:
        if not self._is_refused(response.error_code, response.error_message):
            answering = self._answer(bytes(response.auth_bytes), response.session_lifetime_ms)
            self._deriving = asyncio.get_running_loop().create_task(answering, name=f"login to {self._peer}")

    def _is_refused(self, error_code: int, message: str | None) -> bool:
        """Whether the login is refused; then the connection is cut."""
        if error_code == ErrorCode.NONE:
            return False
        self.end(f"refuses the login of this broker: {message or ErrorCode.of(error_code).name}")
        return True

    async def _greet(self) -> None:
        """Send the first message."""
        assert self._exchange is not None
        message = await self._made(self._exchange.first)
        if message is not None and not self.is_over:
            self._send_message(message)

    async def _made(self, make: Callable[[], bytes | None]) -> bytes | None:
        """A message that is made in a thread; the connection is cut if there can be none."""
        assert self._login is not None
        try:
            return await self._login.threads.call(make)
        except (AuthenticationFailed, RuntimeError) as error:
            self.end(f"cannot be logged in to: {error}")
            return None

    async def _answer(self, challenge: bytes, lifetime_ms: int) -> None:
        assert self._exchange is not None
        message = await self._made(partial(self._exchange.answer, challenge))
        if self.is_over:
            return
        if message is not None:
            self._send_message(message)
            return
        self._exchange = None
        self._is_logging_in = False
        if lifetime_ms > 0:
            self._renewal = self._timers.call_later(int(lifetime_ms * RENEWED_AFTER), self._log_in)
        if self._credentials is not None:
            self._send_secret(BROKER_MECHANISM)
            self._credentials = None  # a renewed session stays the broker's
        while self._held:
            self.send(self._held.popleft())

    # --- the connection ---------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect."""
        self._opening = asyncio.get_running_loop().create_task(self._open(), name=f"connection to {self._peer}")

    async def _open(self) -> None:
        try:
            if self._tls is None:
                await self._network.connect(*self.address, lambda: self)
            else:
                await self._open_encrypted(self._tls())
        except (OSError, ValueError) as error:  # ValueError: a host that is no valid name
            number = getattr(error, "errno", None) or 0
            self.end(f"cannot be reached: {os.strerror(number).lower() if number > 0 else error}")

    async def _open_encrypted(self, tls: Tls) -> None:
        """Connect, and begin when the handshake is done. Raises OSError."""
        from barnabas.broker.network.tls_handshakes import Handshake

        _, handshake = await self._network.connect(*self.address, Handshake)
        try:
            transport = await handshake.run(tls.client, server_hostname=self.address[0])
        except BaseException:
            handshake.plain.abort()
            raise
        self.connection_made(transport)
        handshake.hand_over(transport, self)

    def end(self, reason: str) -> None:
        """Cut the connection, or the attempt; requests in flight fail."""
        if self.is_over:
            return
        self.is_over = True
        if self._opening is not None:
            self._opening.cancel()
        if self._deriving is not None:
            self._deriving.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._unsent.clear()
        waiting, self._waiting = [*self._waiting, *self._held], deque()
        self._held.clear()
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
            assert request.step is not None
            request.step(response)
        elif not request.answer.done():
            request.answer.set_result(response)


def _fail(answer: asyncio.Future[Any], error: PeerUnavailable) -> None:
    """Let a response fail; a cancelled or finished one is left as it is."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()
