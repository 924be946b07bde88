"""DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546, KIP-612).   Versions 0-1.

Behaviour: a filter has a component for each type of entity (user, client-id, ip); an entity must have all these types,
and with `strict` no other. A component matches a name, the default entity, or any entity of its type. A filter without
components matches all entities.
Authorization: DescribeConfigs on Cluster: CLUSTER_AUTHORIZATION_FAILED.
Errors: INVALID_REQUEST (an empty type, a type that comes twice, ip beside other types, an unknown match type),
UNSUPPORTED_VERSION (an unknown type).
Deviations: Kafka reports an unknown match type as UNKNOWN_SERVER_ERROR, and fails if a value in ZooKeeper is no number;
here it is left out.
Versions: 1 flexible.
"""

from collections.abc import Iterator, Mapping

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

ENTITY_TYPES = ("users", "clients", "ips")
"""The entities below /config that have quotas."""


async def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
    if not may_on_cluster(context, Operation.DESCRIBE_CONFIGS):
        # ApiError.fromThrowable of Kafka leaves out a message that is the code's own.
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeClientQuotasResponse(error_code=error, error_message=None, entries=None)
    from barnabas.broker.quotas.filters import Component, QuotaFilter, found

    components = [Component(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        quota_filter = QuotaFilter(components, is_strict=request.strict)
    except ApiError as error:
        return _refusal(error)
    turns = Turns()
    entries = []
    for parts, quotas in found(quota_filter, _entities(context)):
        entries.append(
            EntryData(
                entity=[EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in parts.items()],
                values=[ValueData(key=key, value=value) for key, value in quotas.items()],
            )
        )
        await turns.after_one()
    return DescribeClientQuotasResponse(entries=entries)


def _entities(context: RequestContext) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    configs = context.services.configs
    for entity_type, name in configs.entities(*ENTITY_TYPES):
        yield entity_type, name, configs.overrides(entity_type, name)


def _refusal(error: ApiError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.error, error_message=error.message, entries=None)


HANDLER: Handler[DescribeClientQuotasRequest, DescribeClientQuotasResponse] = Handler(
    key=48, min_version=0, max_version=1, handle=handle, has_large_replies=True
)
