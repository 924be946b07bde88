"""AddOffsetsToTxn (key 25): a producer will commit a group's offsets in its transaction.   Versions 0-4.

Behaviour: adds the group's partition of `__consumer_offsets` to the transaction. Clients of transaction version 2 do
not send it: TxnOffsetCommit adds the partition.
Errors: INVALID_REQUEST (empty id), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version
2), CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
Authorization: Write on TransactionalId: TRANSACTIONAL_ID_AUTHORIZATION_FAILED; Read on Group:
GROUP_AUTHORIZATION_FAILED.
Versions: 2 PRODUCER_FENCED; 3 flexible; 4 TRANSACTION_ABORTABLE is understood.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.broker.coordinators.transactions.events import AddPartitions
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
    if not context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    services = context.services
    event = AddPartitions(
        request.transactional_id,
        0,
        request.producer_id,
        request.producer_epoch,
        frozenset({(GROUP_METADATA_TOPIC, services.groups.runtime.partition_for(request.group_id))}),
        client_version=0,
    )
    try:
        error_code = (await services.transactions.partitions(event)).error
    except ApiError as error:
        error_code = error.error
    if error_code is ErrorCode.PRODUCER_FENCED and context.api_version < 2:
        error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error_code)


HANDLER: Handler[AddOffsetsToTxnRequest, AddOffsetsToTxnResponse] = Handler(
    key=25, min_version=0, max_version=4, handle=handle
)
