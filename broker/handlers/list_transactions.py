"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).   Versions 0-2.

Behaviour: filters by state, producer id, from version 1 on by how long a transaction has been open, in version 2 by a
regular expression of RE2's syntax that must match the whole id; empty filters match everything. The response names
filter states that do not exist. Other requests have their turn while ids are matched with an expression, and one such
request is served at a time.
Errors: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, POLICY_VIOLATION (a response of more than 32 MiB; an
expression that is too long, or would take too long for the longest id), INVALID_REGULAR_EXPRESSION (version 2).
Authorization: Describe on TransactionalId: ids are left out.
Versions: 1 duration (KIP-994); 2 regular expression (KIP-1152).
"""

from collections.abc import Awaitable, Sequence

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import check_reply, text_bytes
from barnabas.broker.coordinators.transactions.id_pattern import STEPS_PER_TURN, IdPattern
from barnabas.broker.coordinators.transactions.service import ListedTransactions
from barnabas.broker.coordinators.transactions.state import Transaction
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

TRANSACTION_BYTES = 40
"""The size of a transaction in a response, besides its id."""


def handle(
    request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse | Awaitable[ListTransactionsResponse]:
    if request.transactional_id_pattern:
        return _matching(request, request.transactional_id_pattern, context)
    try:
        listed = _listed(request, context)
        return _response(listed, context) if context.authorizer is None else _described(listed, context)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error)


async def _matching(
    request: ListTransactionsRequest, pattern: str, context: RequestContext
) -> ListTransactionsResponse:
    async with context.services.transactions.comparing:
        try:
            listed = _listed(request, context)
            found = await _compared(listed.transactions, IdPattern(pattern))
            return await _described(listed._replace(transactions=found), context)
        except ApiError as error:
            return ListTransactionsResponse(error_code=error.error)


async def _compared(transactions: Sequence[Transaction], pattern: IdPattern) -> list[Transaction]:
    """The transactions whose ids match. Errors: ApiError, POLICY_VIOLATION."""
    turns = Turns(STEPS_PER_TURN)
    found = []
    for transaction in transactions:
        transactional_id = transaction.transactional_id.encode()
        steps = pattern.steps(transactional_id)
        if pattern.matches(transactional_id):
            found.append(transaction)
        await turns.after(steps)
    return found


def _listed(request: ListTransactionsRequest, context: RequestContext) -> ListedTransactions:
    return context.services.transactions.list_transactions(
        frozenset(request.producer_id_filters), list(dict.fromkeys(request.state_filters)), request.duration_filter
    )


async def _described(listed: ListedTransactions, context: RequestContext) -> ListTransactionsResponse:
    """The response with the transactional ids that the client may describe."""
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
    turns = Turns()
    found = []
    for transaction in listed.transactions:
        if may_describe(transaction.transactional_id):
            found.append(transaction)
        await turns.after_one()
    try:
        return _response(listed._replace(transactions=found), context)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error)


def _response(listed: ListedTransactions, context: RequestContext) -> ListTransactionsResponse:
    """Errors: ApiError, POLICY_VIOLATION."""
    size = sum(TRANSACTION_BYTES + text_bytes(found.transactional_id) for found in listed.transactions)
    check_reply(size, context.services.reply_bytes_max)
    return ListTransactionsResponse(
        unknown_state_filters=listed.unknown_states,
        transaction_states=[
            TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.value,
            )
            for transaction in listed.transactions
        ],
    )


HANDLER: Handler[ListTransactionsRequest, ListTransactionsResponse] = Handler(
    key=66, min_version=0, max_version=2, handle=handle, has_large_replies=True
)
