"""EndTxn (key 26): commit or abort a transaction.   Versions 0-5.

Behaviour: the response is sent once the decision is in the coordinator's log; the transaction markers follow, and until
they are written requests for the transactional id fail with CONCURRENT_TRANSACTIONS. Repeating the request has the same
outcome. From version 5 on every end bumps the producer's epoch, the response carries id and epoch for the next
transaction, and an abort is accepted without a transaction.
Errors: INVALID_REQUEST (empty id), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version
2), CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.
Authorization: Write on TransactionalId: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
Versions: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE is understood; 5 transaction version 2 (KIP-890).
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.transactions.events import EndTransaction, ProducerReply
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.end_txn import EndTxnRequest, EndTxnResponse


async def handle(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    if not context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    event = EndTransaction(
        request.transactional_id,
        0,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        client_version=2 if context.api_version >= 5 else 0,
    )
    try:
        reply = await context.services.transactions.producer(event)
    except ApiError as error:
        reply = ProducerReply(error.error)
    error_code = reply.error
    if error_code is ErrorCode.PRODUCER_FENCED and context.api_version < 2:
        error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=error_code, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)


HANDLER: Handler[EndTxnRequest, EndTxnResponse] = Handler(key=26, min_version=0, max_version=5, handle=handle)
