"""DescribeDelegationToken (key 41): delegation tokens with their HMACs (KIP-48, KIP-373).   Versions 1-3.

Behaviour: with owners, the tokens of which one of these is the owner, the requester or a renewer; without (null), all.
An empty list matches none. The client sees the tokens of which it is one of these itself, and those that it may
describe. The tokens are those that this broker has heard of; expired ones are listed until they are removed.
Authorization: Describe on DelegationToken or DescribeTokens on User (of others): they are left out.
Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (as for CreateDelegationToken); DELEGATION_TOKEN_AUTH_DISABLED without
`delegation.token.secret.key`.
Versions: 2 flexible; 3 the requester (KIP-373).
Source: KafkaApis.handleDescribeTokensRequest, DelegationTokenManager.filterToken of Kafka 4.3.0.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.token_requests import may_ask_for_tokens
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.token_znodes import DelegationToken
from barnabas.turns import Turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

FIRST_VERSION_WITH_REQUESTER = 3
TOKENS_PER_TURN = 100
"""The number of tokens that are described before others have a turn: each has an HMAC."""


async def handle(request: DescribeDelegationTokenRequest, context: RequestContext) -> DescribeDelegationTokenResponse:
    if not may_ask_for_tokens(context):
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    tokens = context.services.tokens
    if tokens is None:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}

    def is_shown(token: DelegationToken) -> bool:
        known_to = {token.owner, token.requester, *token.renewers}
        return (owners is None or not owners.isdisjoint(known_to)) and (
            context.session.principal in known_to or _may_describe(context, token)
        )

    described, turns = [], Turns(TOKENS_PER_TURN)
    for token in [] if owners == set() else await tokens.describe(is_shown):
        await turns.after_one()
        described.append(_described(token, tokens.hmac_of(token.token_id), context.api_version))
    return DescribeDelegationTokenResponse(tokens=described)


def _may_describe(context: RequestContext, token: DelegationToken) -> bool:
    return context.authorize(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id) or context.authorize(
        Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner
    )


def _described(token: DelegationToken, token_hmac: bytes, version: int) -> DescribedDelegationToken:
    owner_type, _, owner_name = token.owner.partition(":")
    renewers = [renewer.partition(":") for renewer in token.renewers]
    described = DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiry_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each_type, principal_name=name)
            for each_type, _, name in renewers
        ],
    )
    if version >= FIRST_VERSION_WITH_REQUESTER:
        requester_type, _, requester_name = token.requester.partition(":")
        described.token_requester_principal_type = requester_type
        described.token_requester_principal_name = requester_name
    return described


HANDLER: Handler[DescribeDelegationTokenRequest, DescribeDelegationTokenResponse] = Handler(
    key=41, min_version=1, max_version=3, handle=handle, has_large_replies=True
)
