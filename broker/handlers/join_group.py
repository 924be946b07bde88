"""JoinGroup (key 11): become, or stay, a member of a classic group.   Versions 0-9.

Behaviour: the response waits until all members have joined or the rebalance timeout is over; then the leader receives
all members, and the others receive the leader's id. A new member without instance id first gets MEMBER_ID_REQUIRED and
an id to join with (version 4+). A static member that returns takes its old place; in a stable group without a
rebalance.
Errors: MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT,
GROUP_MAX_SIZE_REACHED, INVALID_GROUP_ID, REBALANCE_IN_PROGRESS (the same member has joined again on another
connection), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.
Authorization: Read on Group: GROUP_AUTHORIZATION_FAILED.
Versions: 1 rebalance timeout (before: the session timeout); 2 throttle time; 4 member id required (KIP-394); 5 group
instance id (KIP-345); 6 flexible; 7 protocol type, nullable protocol name (KIP-559); 8 reason (KIP-800); 9 skip
assignment (KIP-814).
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.coordinators.groups.changes import Protocol
from barnabas.broker.coordinators.groups.events import JoinGroup, JoinReply
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)


async def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return _response(JoinReply(ErrorCode.GROUP_AUTHORIZATION_FAILED, ""), context.api_version)
    try:
        reply = await context.services.groups.answer(_event_of(request, context))
    except ApiError as error:
        reply = JoinReply(error.error, request.member_id)
    return _response(reply, context.api_version)


def _event_of(request: JoinGroupRequest, context: RequestContext) -> JoinGroup:
    """The event for the coordinator. The request drops its protocols, since it may wait for long, and the memory budget
    counts only the protocols that the group keeps.
    """
    groups, version = context.services.groups, context.api_version
    event = JoinGroup(
        group_id=request.group_id,
        token=0,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=_protocols(request.protocols),
        reason=request.reason or "",
        fresh_id="" if request.member_id else groups.new_id(),
        member_id_required=version >= 4,
        can_skip_assignment=version >= 9,
    )
    request.protocols = []
    return event


def _protocols(protocols: list[JoinGroupRequestProtocol]) -> tuple[Protocol, ...]:
    """Each name once, in order of preference: a duplicate name would count as two votes."""
    metadata: dict[str, bytes] = {}
    for protocol in protocols:
        metadata.setdefault(protocol.name, protocol.metadata)
    return tuple(metadata.items())


def _response(reply: JoinReply, version: int) -> JoinGroupResponse:
    protocol_name = reply.protocol_name
    if version < 7:
        protocol_name = protocol_name or ""
    return JoinGroupResponse(
        error_code=reply.error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=protocol_name,
        leader=reply.leader_id,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


HANDLER: Handler[JoinGroupRequest, JoinGroupResponse] = Handler(
    key=11, min_version=0, max_version=9, handle=handle, has_large_replies=True, waits_for=WaitsFor.OTHER_CLIENTS
)
