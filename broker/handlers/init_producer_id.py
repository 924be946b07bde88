"""InitProducerId (key 22): a producer id, and for a transactional producer the next epoch.   Versions 0-5.

Behaviour: without a transactional id every call returns a new id and epoch 0; ids come from blocks of 1000 that the
controller allocates. With one, the former producer of the transactional id is fenced: an open transaction is aborted
first, and meanwhile the response is CONCURRENT_TRANSACTIONS. A producer that sends its id and epoch continues after an
error unless it has been fenced itself (KIP-360). Exhausted epochs bring a new producer id.
Errors: INVALID_REQUEST (empty transactional id, a producer id without an epoch or the reverse),
INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version 4),
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS (also while no block of ids is available), COORDINATOR_NOT_AVAILABLE.
Authorization: Write on TransactionalId (with a transactional id): TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
IdempotentWrite on Cluster or Write on Topic (any topic; without a transactional id, KIP-679):
CLUSTER_AUTHORIZATION_FAILED.
Versions: 2 flexible; 3 producer id and epoch of the caller (KIP-360); 4 PRODUCER_FENCED; 5 transaction version 2
(KIP-890).
"""

from barnabas.broker.api.authorization import may_on_any, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    refusal = _refusal(request.transactional_id, context)
    if refusal is not None:
        return _error(refusal)
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _error(ErrorCode.INVALID_REQUEST)
    try:
        if request.transactional_id is not None:
            return await _init_transactional(request, request.transactional_id, context)
        producer_id = await context.services.producer_ids.next()
    except ApiError as error:
        return _error(error.error)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(transactional_id: str | None, context: RequestContext) -> ErrorCode | None:
    """The error if the client may not produce so."""
    if transactional_id is not None:
        is_allowed = context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return None if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    is_allowed = may_on_cluster(context, Operation.IDEMPOTENT_WRITE) or may_on_any(
        context, Operation.WRITE, ResourceType.TOPIC
    )
    return None if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _init_transactional(
    request: InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> InitProducerIdResponse:
    # Idempotent producers, the majority, need no transaction coordinator, and do not import its modules.
    from barnabas.broker.coordinators.transactions.events import InitProducerId, ProducerIdAndEpoch

    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch) if request.producer_id != -1 else None
    event = InitProducerId(transactional_id, 0, request.transaction_timeout_ms, expected)
    reply = await context.services.transactions.producer(event)
    if reply.error is ErrorCode.PRODUCER_FENCED and context.api_version < 4:
        return _error(ErrorCode.INVALID_PRODUCER_EPOCH)
    return InitProducerIdResponse(
        error_code=reply.error, producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
    )


def _error(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


HANDLER: Handler[InitProducerIdRequest, InitProducerIdResponse] = Handler(
    key=22, min_version=0, max_version=5, handle=handle, waits_for=WaitsFor.CONTROLLER
)
