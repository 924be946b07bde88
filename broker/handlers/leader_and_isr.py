"""LeaderAndIsr (key 4): the controller tells which partitions to lead and which to follow.   Version 7.

Behaviour: between brokers. Answered when the logs are there and the roles are taken. A connection is closed where the
configs of topics could not be read before their logs were made: the controller tells it again.
Errors of a request as a whole: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED; per partition:
STALE_CONTROLLER_EPOCH (an earlier leader epoch), INCONSISTENT_TOPIC_ID, KAFKA_STORAGE_ERROR.
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
