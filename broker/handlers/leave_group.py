"""LeaveGroup (key 13): members leave a classic group, or an administrator removes them.   Versions 0-5.

Behaviour: from version 3 on a batch, each entry with its own error; an entry without member id removes the static
member with the instance id. Before, one member whose error is the response's.
Errors: per member UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID; for all INVALID_GROUP_ID, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
Authorization: Read on Group: GROUP_AUTHORIZATION_FAILED.
Versions: 1 throttle time; 3 batches (KIP-345); 4 flexible; 5 reason (KIP-800).
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.groups.events import LeaveGroup, Leaver
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse


async def handle(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if context.api_version >= 3:
        leavers = tuple(
            Leaver(member.member_id, member.group_instance_id, member.reason or "") for member in request.members
        )
    else:
        leavers = (Leaver(request.member_id, None, ""),)
    try:
        reply = await context.services.groups.answer(LeaveGroup(request.group_id, 0, leavers))
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.error)
    if context.api_version < 3:
        return LeaveGroupResponse(error_code=reply.members[0].error)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=member.error
            )
            for member in reply.members
        ]
    )


HANDLER: Handler[LeaveGroupRequest, LeaveGroupResponse] = Handler(key=13, min_version=0, max_version=5, handle=handle)
