"""Listeners on which only authenticated connections are served: requests before the login are refused.

Source: SaslServerAuthenticator and SocketServer.processCompletedReceives of Kafka. ApiVersions is served before the
login, also after the handshake. After SaslHandshake 0 the client's messages have no header, nor have their answers. A
session that ends (KIP-368) serves no request after its end but the handshake that renews it.

Clients that take the answer to a refused token of OAUTHBEARER for a success, as kafkajs and aiokafka do, send Metadata
next: its topics have the error ILLEGAL_SASL_STATE, as in Kafka, which the client tells its user. A Metadata that names
no topic has no place for an error before version 13: its connection is closed, whereas Kafka sends a response without
brokers, after which aiokafka goes on waiting.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from barnabas.broker.network.outcome import CloseConnection, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.broker.network.session import Session
from barnabas.broker.security.sasl.login import Login
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed
from barnabas.controller.coordination.interface import CoordinationError
from barnabas.wire import codec, headers, messages
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from barnabas.broker.network.connection import Connection, RequestServer
    from barnabas.broker.security.sasl.listeners import Sasl

_BEFORE: Final = (ApiVersionsRequest.API_KEY, SaslHandshakeRequest.API_KEY, SaslAuthenticateRequest.API_KEY)

_API_KEY: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")


class AuthenticatedRequests:
    """Passes requests to `requests` only from connections that have authenticated."""

    def __init__(self, requests: RequestServer, sasl: Sasl) -> None:
        self.clock = requests.clock
        self._requests = requests
        self._sasl = sasl
        self._session_clock = sasl.clock  # which a test may move, unlike that of connections

    def dispatch(self, frame: memoryview | bytearray, connection: Connection) -> Outcome:
        """Serve one request. Raises ProtocolError for a request before the login or after the session's end, or as
        `requests` does."""
        login = connection.session.login
        if login is not None and self._session_clock.monotonic_ms() <= login.served_until_ms:
            return self._requests.dispatch(frame, connection)
        return self._dispatch_unauthenticated(login, frame, connection)

    def _dispatch_unauthenticated(
        self, login: Login | None, frame: memoryview | bytearray, connection: Connection
    ) -> Outcome:
        """Serve a request of a connection that has not authenticated, or whose session has ended; and the first one of
        a session that does not end."""
        session = connection.session
        if login is not None:
            if login.is_complete and login.ends_ms is None:
                connection.serve_by(self._requests)
                return self._requests.dispatch(frame, connection)
            if login.is_under_way and not login.has_headers:
                return self._take_token(bytes(frame), session)
        key = _API_KEY.unpack_from(frame)[0] if len(frame) >= _API_KEY.size else -1
        if login is not None and login.is_complete and key != SaslHandshakeRequest.API_KEY:
            raise ProtocolError("the session has ended, and the client has not authenticated again")
        if key not in _BEFORE:
            told = f"{messages.API_NAMES.get(key, key)} before the client has authenticated"
            if login is not None and login.is_under_way and key == MetadataRequest.API_KEY:
                return self._refuse_metadata(frame, connection.session, told)
            raise ProtocolError(told)
        return self._requests.dispatch(frame, connection)

    def _refuse_metadata(self, frame: memoryview | bytearray, session: Session, reason: str) -> Awaitable[Parts]:
        """Refuse a Metadata request in the middle of a login. Raises ProtocolError if it names no topic."""
        header = headers.parse_request_header(frame)
        version_min, version_max = MetadataRequest.VALID_VERSIONS
        if not version_min <= header.api_version <= version_max:
            raise ProtocolError(f"version {header.api_version} of Metadata: {reason}")
        request: MetadataRequest
        request, _ = codec.decoder(MetadataRequest, header.api_version)(frame, header.body_position)
        if not request.topics:
            raise ProtocolError(reason)
        error_code = ErrorCode.ILLEGAL_SASL_STATE
        refused = MetadataResponse(
            topics=[
                MetadataResponseTopic(error_code=error_code, name=topic.name or "", topic_id=topic.topic_id)
                for topic in request.topics
            ]
        )
        body = codec.encode(refused, header.api_version)
        packed = headers.response_header(header.api_key, header.api_version, header.correlation_id)
        return self._close_with([_LENGTH.pack(len(packed) + len(body)), packed, body], session, reason)

    async def _close_with(self, reply: Parts, session: Session, reason: str) -> Parts:
        """Fail a login with the response to another request than SaslAuthenticate. Raises CloseConnection."""
        assert session.login is not None
        await self._sasl.failed(session.listener.name, session.client_host, reason, is_again=session.login.is_again)
        closing = CloseConnection(reason)
        closing.reply = reply
        raise closing

    async def _take_token(self, token: bytes, session: Session) -> Parts:
        """Answer a message without a header."""
        try:
            answer = await authenticate(token, session, self._sasl)
        except AuthenticationFailed as failure:
            raise CloseConnection(str(failure)) from failure
        return [_LENGTH.pack(len(answer)), answer]


def login_of(session: Session, sasl: Sasl) -> Login | None:
    """The login of a connection, made when it is first needed; None on a listener without SASL."""
    if session.login is None and (listener := sasl.listeners.get(session.listener.name)) is not None:
        session.login = Login(listener, sasl.clock)
    return session.login


async def authenticate(message: bytes, session: Session, sasl: Sasl) -> bytes:
    """Take a client's message of SASL; returns the answer. When the login is complete, the session has its principal.
    Raises AuthenticationFailed, after the delay of failures: the connection has to be closed; CloseConnection if a
    source of identities cannot be read."""
    login = session.login
    assert login is not None
    is_again = login.is_again
    try:
        answer = await login.take(message)
    except AuthenticationFailed as failure:
        await sasl.failed(session.listener.name, session.client_host, str(failure), is_again=is_again)
        raise
    except CoordinationError as error:
        raise CloseConnection(f"the registration of a broker cannot be read: {error}") from error
    if login.is_complete:
        assert login.identity is not None
        session.log_in(f"User:{login.identity.name}", login.mechanism)
        if login.identity.broker_id >= 0:
            session.belongs_to_broker(login.identity.broker_id)
        sasl.succeeded(session.listener.name, session.client_host, is_again=is_again)
    return answer
