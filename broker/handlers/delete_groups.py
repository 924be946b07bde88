"""DeleteGroups (key 42): delete empty groups and their offsets.   Versions 0-2.

Behaviour: each group succeeds or fails by itself; a group that is named twice gets one result.
Errors per group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.
Authorization: Delete on Group: GROUP_AUTHORIZATION_FAILED per group.
Versions: 1 throttling before the response (KIP-219); 2 flexible.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.groups.events import DeleteGroup
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import Turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    response = DeleteGroupsResponse()
    turns = Turns()
    for group_id in dict.fromkeys(request.groups_names):
        response.results.append(DeletableGroupResult(group_id=group_id, error_code=await _delete(group_id, context)))
        await turns.after(weight_of(group_id))
    return response


async def _delete(group_id: str, context: RequestContext) -> ErrorCode:
    if not context.authorize(Operation.DELETE, ResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        return (await context.services.groups.answer(DeleteGroup(group_id, 0))).error
    except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
        return context.services.unforeseen.refusal(error, f"group {group_id!r}").error


HANDLER: Handler[DeleteGroupsRequest, DeleteGroupsResponse] = Handler(
    key=42, min_version=0, max_version=2, handle=handle
)
