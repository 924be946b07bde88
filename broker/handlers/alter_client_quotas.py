"""AlterClientQuotas (key 49): set and remove quotas of users, client ids and addresses (KIP-546, KIP-612).   Versions
0-1.

Behaviour: every entity succeeds or fails by itself, and all changes of one entity are made together. With validate_only
everything is checked and nothing is changed. A quota that does not exist is removed without an error.
Authorization: AlterConfigs on Cluster: CLUSTER_AUTHORIZATION_FAILED per entity.
Errors per entity: INVALID_REQUEST (no entity, one that is given twice, an unknown type, an empty name, ip beside other
types, no IP address; an unknown quota or one that is given twice; a value that is not above 0, too large, or not whole
where it has to be), POLICY_VIOLATION (too much memory), REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Deviations: the name of a host is refused as an ip, where Kafka resolves it; NaN is refused; of an entity that is given
twice the first changes are made, as in Kafka, but the error says so for each.
Versions: 1 flexible.
"""

from typing import TYPE_CHECKING

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.configuration.changes import check_room
from barnabas.broker.security.operations import Operation
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)

if TYPE_CHECKING:
    from barnabas.broker.quotas.alterations import ConfigEntity


async def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
    if not may_on_cluster(context, Operation.ALTER_CONFIGS):
        refusal = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return AlterClientQuotasResponse(entries=[_result(entry, refusal) for entry in request.entries])
    turns = Turns()
    response = AlterClientQuotasResponse()
    seen: set[ConfigEntity] = set()
    for entry in request.entries:
        error: ApiError | None = None
        try:
            await _alter(entry, seen, context, is_only_validated=request.validate_only)
        except ApiError as refused:
            error = refused
        response.entries.append(_result(entry, error))
        await turns.after_one()
    return response


async def _alter(
    entry: RequestEntryData, seen: "set[ConfigEntity]", context: RequestContext, *, is_only_validated: bool
) -> None:
    """Change the quotas of one entity. Raises ApiError."""
    from barnabas.broker.quotas.alterations import QuotaChange, config_entity, merged, new_values

    entity = config_entity([(part.entity_type, part.entity_name) for part in entry.entity])
    if entity in seen:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The entity is given more than once in the request.")
    seen.add(entity)
    changes = (QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops)
    values = new_values(entity.entity_type, changes)
    configs = context.services.configs
    check_room(configs.overrides(*entity), merged(configs.overrides(*entity), values), configs.held_bytes)
    if not is_only_validated:
        await configs.change(*entity, lambda current: merged(current, values))


def _result(entry: RequestEntryData, error: ApiError | None) -> ResponseEntryData:
    return ResponseEntryData(
        error_code=ErrorCode.NONE if error is None else error.error,
        error_message=None if error is None else error.message,
        entity=[
            ResponseEntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
        ],
    )


HANDLER: Handler[AlterClientQuotasRequest, AlterClientQuotasResponse] = Handler(
    key=49, min_version=0, max_version=1, handle=handle, waits_for=WaitsFor.CONTROLLER
)
