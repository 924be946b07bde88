"""CreateDelegationToken (key 38): a delegation token for the client, or for another user (KIP-48, KIP-373).
Versions 1-3.

Behaviour: the response has the token's id and its HMAC, with which others log in by SCRAM, as the owner. A token
expires after `delegation.token.expiry.time.ms` unless it is renewed, and at the latest after the asked lifetime or
`delegation.token.max.lifetime.ms`. This broker knows it at once, the others as soon as they hear of it.
Authorization: CreateTokens on User (if the owner is not the client): DELEGATION_TOKEN_AUTHORIZATION_FAILED.
Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (a listener of PLAINTEXT, a client of SSL without a certificate, a client
that has logged in with a token); INVALID_PRINCIPAL_TYPE (of a renewer or the owner: User alone is allowed);
DELEGATION_TOKEN_AUTH_DISABLED without `delegation.token.secret.key`; POLICY_VIOLATION (no room for more);
REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Deviations: an owner of another type than User is refused. In Kafka its token logs in as the user of that name.
Versions: 2 flexible; 3 the owner (KIP-373).
Source: KafkaApis.handleCreateTokenRequest, DelegationTokenControlManager.createDelegationToken of Kafka 4.3.0.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.api.token_requests import NO_TIMESTAMP, may_ask_for_tokens
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

USER = "User"
FIRST_VERSION_WITH_OWNER = 3


async def handle(request: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
    requester = context.session.principal
    owner = requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    response = _response(owner, requester, context.api_version)
    if (refusal := _refusal(request, context, owner)) is not None:
        response.error_code = refusal
        response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = NO_TIMESTAMP
        return response
    tokens = context.services.tokens
    if tokens is None:
        response.error_code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        return response
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in request.renewers]
    try:
        token = await tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except ApiError as error:
        response.error_code = error.error
        return response
    response.issue_timestamp_ms = token.issue_timestamp_ms
    response.expiry_timestamp_ms = token.expiry_timestamp_ms
    response.max_timestamp_ms = token.max_timestamp_ms
    response.token_id = token.token_id
    response.hmac = tokens.hmac_of(token.token_id)
    return response


def _refusal(request: CreateDelegationTokenRequest, context: RequestContext, owner: str) -> ErrorCode | None:
    """The error of a request that is not allowed."""
    if not may_ask_for_tokens(context):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if owner != context.session.principal and not context.authorize(Operation.CREATE_TOKENS, ResourceType.USER, owner):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    types = {owner.partition(":")[0], *(each.principal_type for each in request.renewers)}
    return None if types == {USER} else ErrorCode.INVALID_PRINCIPAL_TYPE


def _response(owner: str, requester: str, version: int) -> CreateDelegationTokenResponse:
    owner_type, _, owner_name = owner.partition(":")
    response = CreateDelegationTokenResponse(principal_type=owner_type, principal_name=owner_name)
    if version >= FIRST_VERSION_WITH_OWNER:
        requester_type, _, requester_name = requester.partition(":")
        response.token_requester_principal_type = requester_type
        response.token_requester_principal_name = requester_name
    return response


HANDLER: Handler[CreateDelegationTokenRequest, CreateDelegationTokenResponse] = Handler(
    key=38, min_version=1, max_version=3, handle=handle, waits_for=WaitsFor.CONTROLLER
)
