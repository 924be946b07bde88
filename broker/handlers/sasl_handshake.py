"""SaslHandshake (key 17): agree on the mechanism of authentication.   Version 1.

Behaviour: between brokers, on their listener; PLAIN is the only mechanism. SaslAuthenticate comes next. After
UNSUPPORTED_SASL_MECHANISM the connection is closed.
Errors: UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE (the connection has authenticated), CLUSTER_AUTHORIZATION_FAILED.
Authorization: none, as in Kafka: it comes before authentication.
Versions: 1 SaslAuthenticate follows (KIP-152); after version 0, which is not served, tokens have no header.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.security import sasl_plain
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(request: SaslHandshakeRequest, context: RequestContext) -> SaslHandshakeResponse:
    mechanisms = [sasl_plain.MECHANISM]
    if context.session.is_broker:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    if request.mechanism not in mechanisms:
        refused = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
        raise CloseConnection("SaslHandshake was refused", refused)
    context.session.sasl_mechanism = request.mechanism
    return SaslHandshakeResponse(mechanisms=mechanisms)


HANDLER: Handler[SaslHandshakeRequest, SaslHandshakeResponse] = Handler(
    key=17, min_version=1, max_version=1, handle=handle, is_inter_broker=True
)
