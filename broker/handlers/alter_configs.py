"""AlterConfigs (key 33): replace all dynamic configs of topics and brokers (KIP-133).   Versions 0-2.

Behaviour: configs that a resource's list does not name are reset to their defaults; each resource succeeds or fails by
itself; null values and keys named twice are refused; BROKER is the broker that receives the request or, with an empty
name, all brokers.
Errors per resource: INVALID_REQUEST (duplicates, nulls, another broker's id, read-only or bad broker configs, types
that are not served), INVALID_CONFIG, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
Authorization: AlterConfigs on Topic: TOPIC_AUTHORIZATION_FAILED per resource; AlterConfigs on Cluster (brokers, client
metrics): CLUSTER_AUTHORIZATION_FAILED per resource; AlterConfigs on Group: GROUP_AUTHORIZATION_FAILED per resource.
Deviations: throttle_time_ms is always 0; resource types GROUP and CLIENT_METRICS are refused (nothing here has such
configs); listeners cannot be changed in a running broker; the authorizer is asked before the values of a broker's
configs are checked.   Versions: 1 nothing new; 2 flexible.
"""

from functools import partial

from barnabas.broker.api.authorization import check_on_configs
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.configuration.changes import Overrides
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """One outcome per resource, in the order of the request."""
    outcomes = await context.services.config_changes.alter(
        request.resources, _named_configs, partial(_check, context), validate_only=request.validate_only
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=ErrorCode.NONE if error is None else error.error,
                error_message=None if error is None else error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(request.resources, outcomes, strict=True)
        ]
    )


def _check(context: RequestContext, resource: AlterConfigsResource) -> None:
    check_on_configs(context, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)


def _named_configs(resource: AlterConfigsResource, current: Overrides) -> Overrides:
    # null values were refused before
    return {config.name: config.value for config in resource.configs if config.value is not None}


HANDLER: Handler[AlterConfigsRequest, AlterConfigsResponse] = Handler(
    key=33, min_version=0, max_version=2, handle=handle, waits_for=WaitsFor.CONTROLLER
)
