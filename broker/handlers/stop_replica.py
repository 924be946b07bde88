"""StopReplica (key 5): the controller stops replicas, and deletes their logs or not.   Version 4.

Behaviour: between brokers. The response is sent once the deleted logs are gone from the directories.
Errors: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, KAFKA_STORAGE_ERROR (of a request as a whole: deleted logs may come
back), CLUSTER_AUTHORIZATION_FAILED; per partition FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse


async def handle(request: StopReplicaRequest, context: RequestContext) -> StopReplicaResponse:
    if not await context.is_sent_by(request.controller_id):
        return StopReplicaResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.services.commands.stop_replica(request)


HANDLER: Handler[StopReplicaRequest, StopReplicaResponse] = Handler(
    key=5, min_version=4, max_version=4, handle=handle, is_inter_broker=True
)
