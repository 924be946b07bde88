"""LeaderAndIsr (key 4): the controller assigns partitions to lead and to follow.   Version 7.

Behaviour: between brokers. The response is sent once the logs are open and the roles are taken. If the configs of new
topics cannot be read, which comes before their logs are created, the connection is closed, and the controller sends the
request again.
Errors of a request as a whole: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED; per partition:
STALE_CONTROLLER_EPOCH (an earlier leader epoch), INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.network.outcome import CloseConnection
from barnabas.controller.coordination.interface import CoordinationError
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse


async def handle(request: LeaderAndIsrRequest, context: RequestContext) -> LeaderAndIsrResponse:
    if not await context.is_sent_by(request.controller_id):
        return LeaderAndIsrResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        return await context.services.commands.leader_and_isr(request)
    except CoordinationError as error:
        raise CloseConnection(f"the configs of new topics cannot be read: {error}") from error


HANDLER: Handler[LeaderAndIsrRequest, LeaderAndIsrResponse] = Handler(
    key=4, min_version=7, max_version=7, handle=handle, is_inter_broker=True
)
