"""ListConfigResources (key 74): the names of the resources that have configs (KIP-1142).   Versions 0-1.

Behaviour: all topics, live brokers (those with an address on the listener that the request came in on; a second time as
resources of loggers), groups and client metrics with configs, of which there are none. A request without types requests
all.
Errors: UNSUPPORTED_VERSION for any type besides these.
Authorization: DescribeConfigs on Cluster: CLUSTER_AUTHORIZATION_FAILED.
Versions: 0, when it was ListClientMetricsResources (KIP-714), lists client metrics only; 1 types.
"""

from collections.abc import Iterable

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Kafka's ConfigResource.Type."""


def handle(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
    if not may_on_cluster(context, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    supported = {CLIENT_METRICS}
    if context.api_version >= 1:
        supported |= {TOPIC, BROKER, BROKER_LOGGER, GROUP}
    asked = set(request.resource_types) or supported
    if not asked <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    metadata = context.services.metadata
    brokers = [str(each.broker_id) for each in metadata.brokers() if context.session.listener.name in each.endpoints]
    response = ListConfigResourcesResponse()
    for resource_type in (BROKER_LOGGER, BROKER):
        if resource_type in asked:
            response.config_resources += _resources(resource_type, brokers)
    if TOPIC in asked:
        response.config_resources += _resources(TOPIC, (topic.name for topic in metadata.topics()))
    return response


def _resources(resource_type: int, names: Iterable[str]) -> list[ConfigResource]:
    return [ConfigResource(resource_name=name, resource_type=resource_type) for name in names]


HANDLER: Handler[ListConfigResourcesRequest, ListConfigResourcesResponse] = Handler(
    key=74, min_version=0, max_version=1, handle=handle, has_large_replies=True
)
