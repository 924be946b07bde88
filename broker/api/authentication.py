"""Listeners on which only authenticated connections are served: requests before the login are refused.

Source: SaslServerAuthenticator and SocketServer.processCompletedReceives of Kafka. ApiVersions is served before the
login, also after the handshake. After SaslHandshake 0 the client's messages have no header, nor have their answers. A
session that ends (KIP-368) serves no request after its end but the handshake that renews it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from barnabas.broker.network.outcome import CloseConnection, Outcome
from barnabas.broker.network.reply_queue import Parts
from barnabas.broker.network.session import Session
from barnabas.broker.security.sasl.login import Login
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed
from barnabas.controller.coordination.interface import CoordinationError
from barnabas.wire import messages
from barnabas.wire.errors import ProtocolError
from barnabas.wire.messages.api_versions import ApiVersionsRequest
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
            raise ProtocolError(f"{messages.API_NAMES.get(key, key)} before the client has authenticated")
        return self._requests.dispatch(frame, connection)

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
