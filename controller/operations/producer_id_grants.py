"""AllocateProducerIds: other brokers request their blocks of producer ids from the controller.

*Source*: kafka 3.9.1 `KafkaController.processAllocateProducerIds`; KIP-730.
"""

from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.producer_ids import AllocateProducerIds
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


async def grant_producer_ids(
    context: ControllerContext, allocate: AllocateProducerIds, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocate a block to a broker that is registered in its request's epoch. Called by the task that serves it."""
    if not context.is_active:
        return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    broker = context.cluster.brokers.get(request.broker_id)
    if broker is None:
        return AllocateProducerIdsResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.epoch != request.broker_epoch:
        return AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    try:
        first, last = await allocate(broker_id=request.broker_id)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.error)
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=last - first + 1)
