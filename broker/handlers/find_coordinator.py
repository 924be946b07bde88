"""FindCoordinator (key 10): the coordinator of a group, or of a producer's transactions.   Versions 0-6.

Behaviour: the leader of the group's partition of `__consumer_offsets`, or of the transactional id's partition of
`__transaction_state`, with its address on the listener that the request came in on. The first request creates that
topic; until its partitions have leaders the response is COORDINATOR_NOT_AVAILABLE, which clients retry.
Deviations: that response's message says why where this is known: too few brokers for the topic's replicas, a full disk.
Errors per key: COORDINATOR_NOT_AVAILABLE; INVALID_REQUEST for key types other than 0 and 1 (there are no share groups).
Authorization: Describe on Group (key type 0): GROUP_AUTHORIZATION_FAILED per key; Describe on TransactionalId (key type
1): TRANSACTIONAL_ID_AUTHORIZATION_FAILED per key.
Versions: 1 key type, message; 3 flexible; 4 several keys (KIP-699); 5 transaction version 2 (KIP-890); 6 key type of
share groups (KIP-932), served because clients that are configured for Kafka 4 send it without ApiVersions.
"""

from collections.abc import Awaitable
from typing import NamedTuple

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.configuration.listeners import Endpoint
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1

NOBODY = Endpoint("", -1)
SUCCESS_MESSAGE = "NONE"
"""Kafka sends the name of its non-error, not null."""


class _Found(NamedTuple):
    """The coordinator of one key, or the error."""

    error: ErrorCode
    message: str | None = None
    node_id: int = -1
    endpoint: Endpoint = NOBODY


def handle(
    request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if context.api_version < 4:
        found = _find(request.key_type, request.key, context)
        return FindCoordinatorResponse(
            error_code=found.error,
            error_message=found.message,
            node_id=found.node_id,
            host=found.endpoint.host,
            port=found.endpoint.port,
        )
    return in_turns(_find_all(request, context))


def _find_all(request: FindCoordinatorRequest, context: RequestContext) -> InPieces[FindCoordinatorResponse]:
    coordinators, turns = [], Turns()
    for key in request.coordinator_keys:
        found = _find(request.key_type, key, context)
        coordinators.append(
            Coordinator(
                key=key,
                error_code=found.error,
                error_message=found.message,
                node_id=found.node_id,
                host=found.endpoint.host,
                port=found.endpoint.port,
            )
        )
        if turns.is_over(weight_of(key)):
            yield
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(key_type: int, key: str, context: RequestContext) -> _Found:
    services = context.services
    if key_type == GROUP:
        if not context.authorize(Operation.DESCRIBE, ResourceType.GROUP, key):
            return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        topic, index = GROUP_METADATA_TOPIC, services.groups.runtime.partition_for(key)
    elif key_type == TRANSACTION:
        if not context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
            return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        topic, index = TRANSACTION_STATE_TOPIC, services.transactions.runtime.partition_for(key)
    else:
        return _Found(ErrorCode.INVALID_REQUEST, f"This broker does not support coordinators of type {key_type}.")
    if topic not in services.metadata:
        services.auto_topics.create([topic])
        return _not_available(topic, context)
    partition = services.metadata.partition(topic, index)
    listener_name = context.session.listener.name
    endpoint = None if partition is None else services.metadata.endpoint(partition.leader, listener_name)
    if partition is None or endpoint is None:
        return _not_available(topic, context)
    return _Found(ErrorCode.NONE, SUCCESS_MESSAGE, partition.leader, endpoint)


def _refused(error: ErrorCode) -> _Found:
    return _Found(error, error.message)


def _not_available(topic: str, context: RequestContext) -> _Found:
    services = context.services
    why = services.auto_topics.why_missing(topic) or services.disk_space.complaint()
    return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, why or ErrorCode.COORDINATOR_NOT_AVAILABLE.message)


HANDLER: Handler[FindCoordinatorRequest, FindCoordinatorResponse] = Handler(
    key=10, min_version=0, max_version=6, handle=handle
)
