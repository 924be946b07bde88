"""ListGroups (key 16): the groups that this broker coordinates.   Versions 0-5.

Behaviour: filters by state and type name, case-insensitively; an unknown name matches nothing. All groups are of type
"classic".
Errors: COORDINATOR_LOAD_IN_PROGRESS while any of the broker's shards are being loaded, COORDINATOR_NOT_AVAILABLE,
POLICY_VIOLATION (a response of more than 32 MiB).
Versions: 1 throttle time; 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import check_reply, text_bytes
from barnabas.wire.errors import ApiError
from barnabas.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

GROUP_BYTES = 40
"""The size of a group in a response, besides its id and protocol type."""


def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    try:
        groups = context.services.groups.list_groups(request.states_filter, request.types_filter)
        size = sum(GROUP_BYTES + text_bytes(each.group_id) + text_bytes(each.protocol_type) for each in groups)
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
