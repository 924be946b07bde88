"""IncrementalAlterConfigs (key 44): change single dynamic configs and log levels (KIP-339, KIP-412).   Versions 0-1.

Behaviour: SET, DELETE, and APPEND and SUBTRACT for lists (starting from the default where nothing is set); each
resource succeeds or fails as a whole and by itself; null values other than for DELETE and keys named twice are refused.
BROKER is the broker that receives the request or, with an empty name, all brokers; BROKER_LOGGER sets levels in this
process until it ends.
Errors per resource: INVALID_REQUEST (duplicates, nulls, unknown operations, another broker's id, read-only or bad
broker configs, types that are not served), INVALID_CONFIG, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
Authorization: AlterConfigs on Topic: TOPIC_AUTHORIZATION_FAILED per resource; AlterConfigs on Cluster (brokers,
loggers, client metrics): CLUSTER_AUTHORIZATION_FAILED per resource; AlterConfigs on Group: GROUP_AUTHORIZATION_FAILED
per resource.
Deviations: throttle_time_ms is always 0; resource types GROUP and CLIENT_METRICS are refused (nothing here has such
configs); listeners cannot be changed in a running broker; the authorizer is asked before the values of a broker's
configs are checked.   Versions: 1 flexible.
"""

from functools import partial

from barnabas.broker.api.authorization import check_on_configs
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.configuration.changes import (
    APPEND,
    DELETE,
    OPERATION_NAMES,
    SET,
    SUBTRACT,
    apply_operations,
    broker_id,
)
from barnabas.broker.observability.logs import KAFKA_LEVELS, ROOT_LOGGER, logger_levels, set_logger_level
from barnabas.broker.security.operations import Operation
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """One outcome per resource, in the order of the request."""
    outcomes = await context.services.config_changes.alter(
        request.resources,
        apply_operations,
        partial(_check, context),
        validate_only=request.validate_only,
        alter_loggers=partial(_alter_loggers, context.services.node_id, validate_only=request.validate_only),
    )
    return IncrementalAlterConfigsResponse(
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


def _alter_loggers(own_id: int, resource: AlterConfigsResource, *, validate_only: bool) -> None:
    """Source: RuntimeLoggerManager.java."""
    node_id = broker_id(resource.resource_name, "Node id")
    if node_id != own_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {own_id}, but received {node_id}")
    known = logger_levels()
    for config in resource.configs:
        _check_logger(config, known)
    if not validate_only:
        for config in resource.configs:
            set_logger_level(config.name, config.value if config.config_operation == SET else None)


def _check_logger(config: AlterableConfig, known: dict[str, str]) -> None:
    operation = config.config_operation
    if operation in (APPEND, SUBTRACT):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{OPERATION_NAMES[operation]} operation is not allowed for the BROKER_LOGGER resource",
        )
    if operation not in (SET, DELETE):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource",
        )
    if config.name not in known:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {config.name} does not exist!")
    if operation == DELETE and config.name == ROOT_LOGGER:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT_LOGGER} logger is not allowed")
    if operation == SET and config.value not in KAFKA_LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {config.name} to {config.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(KAFKA_LEVELS))}",
        )


HANDLER: Handler[IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse] = Handler(
    key=44, min_version=0, max_version=1, handle=handle, waits_for=WaitsFor.CONTROLLER
)
