"""AlterPartition (key 56): the leader of a partition proposes a new ISR.   Version 3.

Behaviour: between brokers, served by the controller (KIP-497, KIP-841, KIP-903). The response is sent once the ISR is
stored.
Errors: of a request as a whole: NOT_CONTROLLER, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED; per partition:
UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER, FENCED_LEADER_EPOCH, INVALID_UPDATE_VERSION,
INVALID_REQUEST, INELIGIBLE_REPLICA.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(request: AlterPartitionRequest, context: RequestContext) -> AlterPartitionResponse:
    if not await context.is_sent_by(request.broker_id):
        return AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.services.controller.alter_partition(request)


HANDLER: Handler[AlterPartitionRequest, AlterPartitionResponse] = Handler(
    key=56,
    min_version=3,
    max_version=3,
    handle=handle,
    waits_for=WaitsFor.CONTROLLER,
    is_inter_broker=True,
)
