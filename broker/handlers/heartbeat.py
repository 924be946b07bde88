"""Heartbeat (key 12): a member of a classic group keeps its session alive.   Versions 0-4.

Behaviour: REBALANCE_IN_PROGRESS while the group waits for its members to join; otherwise NONE for a member of this
generation. While the group's shard is being loaded every heartbeat succeeds, so that a fail-over does not end sessions.
Errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, INVALID_GROUP_ID,
NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
Authorization: Read on Group: GROUP_AUTHORIZATION_FAILED.
Versions: 1 throttle time; 3 group instance id (KIP-345); 4 flexible.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.groups.events import Heartbeat, HeartbeatReply
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    event = Heartbeat(request.group_id, 0, request.member_id, request.group_instance_id, request.generation_id)
    try:
        reply = context.services.groups.ask(event)
    except ApiError as error:
        is_loading = error.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else error.error)
    assert isinstance(reply, HeartbeatReply), "a heartbeat writes nothing, so nothing delays its answer"
    return HeartbeatResponse(error_code=reply.error)


HANDLER: Handler[HeartbeatRequest, HeartbeatResponse] = Handler(key=12, min_version=0, max_version=4, handle=handle)
