"""RenewDelegationToken (key 39): a delegation token expires later (KIP-48).   Versions 1-2.

Behaviour: the token of the HMAC expires after the asked period from now, or after `delegation.token.expiry.time.ms` if
that is shorter or the period is not above 0; not after the end of its maximum lifetime. Sessions that have begun with
the token end when it would have expired, unless their clients authenticate again.
Authorization: none, as in Kafka: a token's owner and its renewers may renew it.
Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (as for CreateDelegationToken); DELEGATION_TOKEN_AUTH_DISABLED without
`delegation.token.secret.key`; DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH;
REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Versions: 2 flexible.
Source: KafkaApis.handleRenewTokenRequest, DelegationTokenControlManager.renewDelegationToken of Kafka 4.3.0.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.api.token_requests import NO_TIMESTAMP, may_ask_for_tokens
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse


async def handle(request: RenewDelegationTokenRequest, context: RequestContext) -> RenewDelegationTokenResponse:
    if not may_ask_for_tokens(context):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=NO_TIMESTAMP)
    tokens = context.services.tokens
    if tokens is None:
        return RenewDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    try:
        expiry_ms = await tokens.renew(context.session.principal, bytes(request.hmac), request.renew_period_ms)
    except ApiError as failure:
        return RenewDelegationTokenResponse(error_code=failure.error)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expiry_ms)


HANDLER: Handler[RenewDelegationTokenRequest, RenewDelegationTokenResponse] = Handler(
    key=39, min_version=1, max_version=2, handle=handle, waits_for=WaitsFor.CONTROLLER
)
