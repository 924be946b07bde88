"""UpdateMetadata (key 6): the controller sends the live brokers and the leaders of partitions.   Version 8.

Behaviour: between brokers. The response is sent once all parts of the broker have applied it.
Errors: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED.
Authorization: ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse


async def handle(request: UpdateMetadataRequest, context: RequestContext) -> UpdateMetadataResponse:
    if not await context.is_sent_by(request.controller_id):
        return UpdateMetadataResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.services.commands.update_metadata(request)


HANDLER: Handler[UpdateMetadataRequest, UpdateMetadataResponse] = Handler(
    key=6, min_version=8, max_version=8, handle=handle, is_inter_broker=True
)
