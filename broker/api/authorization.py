"""What the client of one request may do, as the authorizer decides (Kafka's AuthHelper).

Which operation a handler asks for, and what it responds when that is refused, is in the handler's header; the page
docs/authorization.md has all of them.
"""

from collections.abc import Mapping
from typing import Final

from barnabas.broker.api.context import RequestContext
from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages import API_NAMES


class Decisions:
    """Whether the client may perform one operation on resources of one type, by name; without an authorizer always.

    Each name is decided once, so that the entries of one request have the same result.
    """

    __slots__ = ("_context", "_decided", "_is_asked", "_operation", "_resource_type")

    def __init__(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> None:
        self._context = context
        self._operation = operation
        self._resource_type = resource_type
        self._is_asked = context.authorizer is not None
        self._decided: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        if not self._is_asked:
            return True
        decided = self._decided.get(name)
        if decided is None:
            decided = self._decided[name] = self._context.authorize(self._operation, self._resource_type, name)
        return decided


def may_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Whether the client may perform an operation on the cluster."""
    return context.authorize(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def may_on_any(context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
    """Whether there may be a resource of this type on which the client may perform an operation (KIP-679)."""
    session, authorizer = context.session, context.authorizer
    return authorizer is None or authorizer.authorize_by_resource_type(
        session.principal, session.client_host, operation, resource_type
    )


def check_on_cluster(context: RequestContext, operation: Operation) -> None:
    """Check that the client may perform an operation on the cluster. Errors: CLUSTER_AUTHORIZATION_FAILED."""
    if not may_on_cluster(context, operation):
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Request {API_NAMES[context.api_key]} needs {operation.name} permission.",
        )


def check_on_configs(context: RequestContext, operation: Operation, config_type: int, name: str) -> None:
    """Check that the client may perform an operation on the configs of a resource of a type of Kafka's
    ConfigResource.Type. Those of brokers, loggers and client metrics belong to the cluster; unknown types to nothing.
    Errors: TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED.
    """
    found = _OF_CONFIG_TYPE.get(config_type)
    if found is None:
        return
    resource_type, error = found
    if not context.authorize(operation, resource_type, CLUSTER_NAME if resource_type is ResourceType.CLUSTER else name):
        raise ApiError(error)


_OF_CLUSTER: Final = (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_OF_CONFIG_TYPE: Final[Mapping[int, tuple[ResourceType, ErrorCode]]] = {
    2: (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    4: _OF_CLUSTER,
    8: _OF_CLUSTER,
    16: _OF_CLUSTER,
    32: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}


def operations_on_cluster(context: RequestContext) -> int:
    """The bit field of what the client may do with the cluster; empty if it may not describe the cluster (KIP-430)."""
    if not may_on_cluster(context, Operation.DESCRIBE):
        return 0
    return context.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)
