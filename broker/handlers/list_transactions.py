"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).   Versions 0-1.

Behaviour: filters by state, producer id and, from version 1 on, by how long a transaction has been open; empty filters
let everything through. States that do not exist are named in the reply.
Errors: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, POLICY_VIOLATION (a reply of more than 32 MiB).
Deviations: version 2, a regular expression for transactional ids (KIP-1152), is not served: matching a hostile one
would take Python's engine, and with it the event loop, as long as its author wishes.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import check_reply, text_bytes
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

TRANSACTION_BYTES = 40
"""Of a transaction in a reply, besides its id."""


def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    try:
        listed = context.services.transactions.list_transactions(
            frozenset(request.producer_id_filters), list(dict.fromkeys(request.state_filters)), request.duration_filter
        )
        check_reply(sum(TRANSACTION_BYTES + text_bytes(found.transactional_id) for found in listed.transactions))
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.error)
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


HANDLER = Handler(key=66, min_version=0, max_version=1, handle=handle)
