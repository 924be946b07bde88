"""DescribeGroups (key 15): state, protocol and members of groups.   Versions 0-6.

Behaviour: the members' metadata is shown while the group is stable. A group that does not exist is Dead; from version 6
on that is an error too.
Errors per group: GROUP_ID_NOT_FOUND (version 6+), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: Describe on Group: GROUP_AUTHORIZATION_FAILED per group.
Versions: 1 throttle time; 3 authorized operations; 4 group instance id (KIP-345); 5 flexible; 6 GROUP_ID_NOT_FOUND and
messages (KIP-1043).
"""

from collections.abc import Awaitable

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom, text_bytes
from barnabas.broker.coordinators.groups.views import DEAD
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import NOT_ASKED, Operation, ResourceType
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

MEMBER_BYTES = 100
"""The size of a member in a response, or of a group, besides texts that clients chose."""


def handle(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse | Awaitable[DescribeGroupsResponse]:
    return in_turns(_describe_all(request, context))


def _describe_all(request: DescribeGroupsRequest, context: RequestContext) -> InPieces[DescribeGroupsResponse]:
    room: ReplyRoom[str, DescribedGroup] = ReplyRoom(_reply_bytes, context.services.reply_bytes_max)
    groups, turns = [], Turns()
    for group_id in request.groups:
        group = _describe(group_id, context, room)
        is_asked = request.include_authorized_operations and group.error_code == ErrorCode.NONE
        group.authorized_operations = (
            context.authorized_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED
        )
        groups.append(group)
        if turns.is_over(weight_of(group_id)):
            yield
    return DescribeGroupsResponse(groups=groups)


def _describe(group_id: str, context: RequestContext, room: ReplyRoom[str, DescribedGroup]) -> DescribedGroup:
    if not context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        known = room.again(group_id)
        return room.first(group_id, _group(group_id, context)) if known is None else known
    except Exception as found:  # noqa: BLE001 - one entry's error does not affect the others
        error = context.services.unforeseen.refusal(found, f"group {group_id!r}")
        return _failed(group_id, error, context.api_version)


def _group(group_id: str, context: RequestContext) -> DescribedGroup:
    group = context.services.groups.describe(group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


def _reply_bytes(group: DescribedGroup) -> int:
    members = sum(
        MEMBER_BYTES
        + text_bytes(member.member_id)
        + text_bytes(member.group_instance_id)
        + text_bytes(member.client_id)
        + len(member.member_metadata)
        + len(member.member_assignment)
        for member in group.members
    )
    return MEMBER_BYTES + text_bytes(group.protocol_type) + text_bytes(group.protocol_data) + members


def _failed(group_id: str, error: ApiError, version: int) -> DescribedGroup:
    if error.error is not ErrorCode.GROUP_ID_NOT_FOUND:
        return DescribedGroup(group_id=group_id, error_code=error.error)
    if version < 6:
        return DescribedGroup(group_id=group_id, group_state=DEAD)
    return DescribedGroup(group_id=group_id, group_state=DEAD, error_code=error.error, error_message=error.message)


HANDLER: Handler[DescribeGroupsRequest, DescribeGroupsResponse] = Handler(
    key=15, min_version=0, max_version=6, handle=handle, has_large_replies=True
)
