"""SaslHandshake (key 17): agree on the mechanism of authentication.   Versions 0-1.

Behaviour: the mechanisms of the listener (`sasl.enabled.mechanisms`). The client's messages come next, in
SaslAuthenticate requests, or without headers after version 0. UNSUPPORTED_SASL_MECHANISM, with the enabled ones, comes
after the delay of failed logins, and the connection is closed. A connection whose session ends may authenticate again,
at most once a second (KIP-368). On the inter-broker listener without SASL brokers send their secrets by PLAIN
(`broker/security/broker_secrets.py`); on other listeners without SASL the request is refused.
Errors: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE (no SASL here; the connection has authenticated, or is doing so).
Authorization: none, as in Kafka: it comes before authentication.
Versions: 1 SaslAuthenticate follows (KIP-152).
"""

from collections.abc import Awaitable

from barnabas.broker.api.authentication import login_of
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security.sasl.listeners import SaslListener
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

_NAME_LENGTH_MAX = 20
"""The length to which an unknown mechanism is shortened in the log: that of the longest name by RFC 4422."""


def handle(
    request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse | Awaitable[SaslHandshakeResponse]:
    sasl = context.services.sasl
    login = login_of(context.session, sasl)
    if login is None or not login.may_begin(request.mechanism):
        if login is not None and login.has_ended:
            raise CloseConnection("the session has ended, and the client authenticates again too often")
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    listener = sasl.listeners[context.session.listener.name]
    if not login.begin(request.mechanism, has_headers=context.api_version >= 1):
        return _refuse(request.mechanism, listener, context)
    return SaslHandshakeResponse(mechanisms=listener.names)


async def _refuse(mechanism: str, listener: SaslListener, context: RequestContext) -> SaslHandshakeResponse:
    session = context.session
    reason = f"the mechanism {mechanism[:_NAME_LENGTH_MAX]!r} is not enabled"
    await context.services.sasl.failed(session.listener.name, session.client_host, reason, is_again=False)
    refused = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=listener.names)
    raise CloseConnection("SaslHandshake was refused", refused)


HANDLER: Handler[SaslHandshakeRequest, SaslHandshakeResponse] = Handler(
    key=17, min_version=0, max_version=1, handle=handle
)
