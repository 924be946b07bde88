"""AllocateProducerIds (key 67): a broker requests a block of producer ids.   Version 0.

Behaviour: between brokers, served by the controller (KIP-730). The response is sent once the block is stored as
allocated.
Errors: NOT_CONTROLLER, BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR,
CLUSTER_AUTHORIZATION_FAILED.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse


async def handle(request: AllocateProducerIdsRequest, context: RequestContext) -> AllocateProducerIdsResponse:
    if not await context.is_sent_by(request.broker_id):
        return AllocateProducerIdsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.services.controller.grant_producer_ids(request)


HANDLER: Handler[AllocateProducerIdsRequest, AllocateProducerIdsResponse] = Handler(
    key=67,
    min_version=0,
    max_version=0,
    handle=handle,
    waits_for=WaitsFor.CONTROLLER,
    is_inter_broker=True,
)
