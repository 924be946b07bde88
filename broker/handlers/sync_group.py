"""SyncGroup (key 14): the leader of a classic group sends the assignment, members receive their parts.   Versions 0-5.

Behaviour: members wait for the leader, and all of them for the assignment to be stored. In a stable group the response
is the current assignment, so a retry is safe.
Errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL
(also where version 5 names no protocol), INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR (assignment too large to be stored).
Authorization: Read on Group: GROUP_AUTHORIZATION_FAILED.
Versions: 1 throttle time; 3 group instance id (KIP-345); 4 flexible; 5 protocol type and name (KIP-559).
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.coordinators.groups.events import SyncGroup
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    if context.api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    context.client_id = None  # no longer needed, and both it and the wait may be long
    try:
        reply = await context.services.groups.answer(_event_of(request))
    except ApiError as error:
        return SyncGroupResponse(error_code=error.error)
    return SyncGroupResponse(
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


def _event_of(request: SyncGroupRequest) -> SyncGroup:
    """The event for the coordinator. The request drops its assignments, since they are large, and it may
    wait for long.
    """
    event = SyncGroup(
        group_id=request.group_id,
        token=0,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((assignment.member_id, assignment.assignment) for assignment in request.assignments),
    )
    request.assignments = []
    return event


HANDLER: Handler[SyncGroupRequest, SyncGroupResponse] = Handler(
    key=14, min_version=0, max_version=5, handle=handle, waits_for=WaitsFor.OTHER_CLIENTS
)
