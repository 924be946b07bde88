"""ControlledShutdown (key 7): a broker that is about to stop transfers its leaderships.   Version 3.

Behaviour: between brokers, served by the controller. The response is sent once other replicas lead; the partitions that
remain have no other eligible replica.
Errors: NOT_CONTROLLER, BROKER_NOT_AVAILABLE (not registered), STALE_BROKER_EPOCH, REQUEST_TIMED_OUT,
KAFKA_STORAGE_ERROR, CLUSTER_AUTHORIZATION_FAILED.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse


async def handle(request: ControlledShutdownRequest, context: RequestContext) -> ControlledShutdownResponse:
    if not await context.is_sent_by(request.broker_id):
        return ControlledShutdownResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.services.controller.controlled_shutdown(request)


HANDLER: Handler[ControlledShutdownRequest, ControlledShutdownResponse] = Handler(
    key=7,
    min_version=3,
    max_version=3,
    handle=handle,
    waits_for=WaitsFor.CONTROLLER,
    is_inter_broker=True,
)
