"""ExpireDelegationToken (key 40): a delegation token expires at another time, or is removed (KIP-48).   Versions 1-2.

Behaviour: the token of the HMAC expires after the asked period from now, but not after the end of its maximum lifetime;
with a negative period it is removed at once, also if it has expired. Sessions that have begun with the token go on
until it would have expired.
Authorization: none, as in Kafka: a token's owner and its renewers may let it expire.
Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (as for CreateDelegationToken); DELEGATION_TOKEN_AUTH_DISABLED without
`delegation.token.secret.key`; DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH, DELEGATION_TOKEN_EXPIRED;
REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Versions: 2 flexible.
Source: KafkaApis.handleExpireTokenRequest, DelegationTokenControlManager.expireDelegationToken of Kafka 4.3.0.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.api.token_requests import NO_TIMESTAMP, may_ask_for_tokens
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


async def handle(request: ExpireDelegationTokenRequest, context: RequestContext) -> ExpireDelegationTokenResponse:
    if not may_ask_for_tokens(context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIMESTAMP)
    tokens = context.services.tokens
    if tokens is None:
        return ExpireDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    try:
        expiry_ms = await tokens.expire(context.session.principal, bytes(request.hmac), request.expiry_time_period_ms)
    except ApiError as failure:
        return ExpireDelegationTokenResponse(error_code=failure.error)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


HANDLER: Handler[ExpireDelegationTokenRequest, ExpireDelegationTokenResponse] = Handler(
    key=40, min_version=1, max_version=2, handle=handle, waits_for=WaitsFor.CONTROLLER
)
