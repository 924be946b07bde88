"""SaslAuthenticate (key 36): authenticate, by the mechanism of SaslHandshake.   Versions 0-2.

Behaviour: the mechanism's messages, until the login is complete (`broker/security/sasl/`). The session may then have a
lifetime (KIP-368): that of the client's token, and at most `connections.max.reauth.ms`. SASL_AUTHENTICATION_FAILED
comes after the delay of failed logins, and the connection is closed, so that each guess costs one. The connection of a
broker that has sent its secret belongs to that broker from then on; it is closed if the metadata store, which has the
registrations, cannot be read: the other broker retries.
Errors: ILLEGAL_SASL_STATE (no handshake before), SASL_AUTHENTICATION_FAILED.
Authorization: none, as in Kafka: it is the authentication.
Versions: 1 session_lifetime_ms; 2 flexible.
"""

from barnabas.broker.api.authentication import authenticate
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security.sasl.mechanism import AuthenticationFailed
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(request: SaslAuthenticateRequest, context: RequestContext) -> SaslAuthenticateResponse:
    login = context.session.login
    if login is None or not login.is_under_way:
        told = "SaslAuthenticate request received after successful authentication"
        if login is None or login.identity is None:
            told = "SaslAuthenticate request received without a SaslHandshake request before"
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=told)
    try:
        answer = await authenticate(request.auth_bytes, context.session, context.services.sasl)
    except AuthenticationFailed as failure:
        refused = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=failure.message
        )
        raise CloseConnection("SaslAuthenticate was refused", refused) from failure
    lifetime_ms = login.lifetime_ms if login.is_complete else 0
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms)


HANDLER: Handler[SaslAuthenticateRequest, SaslAuthenticateResponse] = Handler(
    key=36, min_version=0, max_version=2, handle=handle
)
