"""ListGroups (key 16): the groups that this broker coordinates.   Versions 0-5.

Behaviour: filters by state and type name, case-insensitively; an unknown name matches nothing. All groups are of type
"classic".
Errors: COORDINATOR_LOAD_IN_PROGRESS while any of the broker's shards are being loaded, COORDINATOR_NOT_AVAILABLE,
POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: Describe on Cluster or Describe on Group: groups are left out.
Versions: 1 throttle time; 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
"""

from collections.abc import Awaitable, Sequence

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import check_reply, text_bytes
from barnabas.broker.coordinators.groups import views
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

GROUP_BYTES = 40
"""The size of a group in a response, besides its id and protocol type."""


def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse | Awaitable[ListGroupsResponse]:
    try:
        groups = context.services.groups.list_groups(request.states_filter, request.types_filter)
    except ApiError as error:
        return ListGroupsResponse(error_code=error.error)
    if context.authorizer is None or may_on_cluster(context, Operation.DESCRIBE):
        return _response(groups, context)
    return in_turns(_described(groups, context))


def _described(groups: Sequence[views.ListedGroup], context: RequestContext) -> InPieces[ListGroupsResponse]:
    """The response with the groups that the client may describe."""
    shown, turns = [], Turns()
    for group in groups:
        if context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
            shown.append(group)
        if turns.is_over(weight_of(group.group_id)):
            yield
    return _response(shown, context)


def _response(groups: Sequence[views.ListedGroup], context: RequestContext) -> ListGroupsResponse:
    size = sum(GROUP_BYTES + text_bytes(each.group_id) + text_bytes(each.protocol_type) for each in groups)
    try:
        check_reply(size, context.services.reply_bytes_max)
    except ApiError as error:
        return ListGroupsResponse(error_code=error.error)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups
        ]
    )


HANDLER: Handler[ListGroupsRequest, ListGroupsResponse] = Handler(
    key=16, min_version=0, max_version=5, handle=handle, has_large_replies=True
)
