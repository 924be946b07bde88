"""A login by SASL over a raw connection, for mechanisms that librdkafka does not have."""

import socket

from barnabas.broker.security.sasl.mechanism import ClientMechanism
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tools.attack.hostile import ask


def log_in(connection: socket.socket, client: ClientMechanism) -> ErrorCode:
    """The result of a login."""
    handshake = ask(connection, SaslHandshakeRequest(mechanism=client.name), 1, SaslHandshakeResponse)
    assert handshake.error_code == 0
    exchange = client.start()
    message: bytes | None = exchange.first()
    while message is not None:
        answer = ask(connection, SaslAuthenticateRequest(auth_bytes=message), 2, SaslAuthenticateResponse)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        message = exchange.answer(bytes(answer.auth_bytes))
    return ErrorCode.NONE
