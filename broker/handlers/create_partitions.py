"""CreatePartitions (key 37): add partitions to topics (KIP-195).   Versions 0-3.

Behaviour: `count` is the topic's new total; every topic succeeds or fails by itself; a name that is given twice gets
one result. The response is sent once this broker serves the new partitions. Records stay where they are: a key's
partition may change.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS (no increase), INVALID_REPLICA_ASSIGNMENT,
INVALID_REPLICATION_FACTOR (too few brokers), REASSIGNMENT_IN_PROGRESS, INVALID_REQUEST (duplicates), POLICY_VIOLATION
(more than 10,000 new partitions), REQUEST_TIMED_OUT (they are still being added), NOT_CONTROLLER, KAFKA_STORAGE_ERROR,
THROTTLING_QUOTA_EXCEEDED (version 3+, KIP-599; before, partitions are added and the client is throttled).
Authorization: Alter on Topic: TOPIC_AUTHORIZATION_FAILED per topic.
Deviations: with a timeout of zero or less partitions are added in the background, with the result REQUEST_TIMED_OUT, as
before Kafka 4.
Versions: 1 nothing new; 2 flexible; 3 THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.topics import NewPartitions
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

STRICT_QUOTA_FROM_VERSION: Final = 3


async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    refused = _refused(request, context)
    expansions = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
        if topic.name not in refused
    ]
    results: dict[str, ApiError | None] = {}
    try:
        if context.meter is not None and not request.validate_only:
            refused |= await _beyond_quota(expansions, request, context)
            expansions = [expansion for expansion in expansions if expansion.name not in refused]
        if expansions or not refused:
            results = await context.services.controller.create_partitions(
                expansions, validate_only=request.validate_only, timeout_ms=request.timeout_ms
            )
    except ApiError as error:
        results = dict.fromkeys((expansion.name for expansion in expansions), error)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=name,
                error_code=ErrorCode.NONE if error is None else error.error,
                error_message=_message(error),
            )
            for name, error in {**results, **refused}.items()
        ]
    )


def _refused(request: CreatePartitionsRequest, context: RequestContext) -> dict[str, ApiError]:
    """The errors of the topics that the client may not alter. A name that is given twice fails for that, whoever
    asks."""
    may_alter = Decisions(context, Operation.ALTER, ResourceType.TOPIC)
    error = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    counts = Counter(topic.name for topic in request.topics)
    return {name: error for name, count in counts.items() if count == 1 and not may_alter(name)}


_UNEXPLAINED = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Errors without a message, as in Kafka."""


async def _beyond_quota(
    expansions: list[NewPartitions], request: CreatePartitionsRequest, context: RequestContext
) -> dict[str, ApiError]:
    """The errors of the topics that the client's quota of controller mutations refuses. Topics that cannot be expanded
    do not count. Raises ApiError."""
    is_strict = context.api_version >= STRICT_QUOTA_FROM_VERSION
    quota = None if context.meter is None else context.meter.limit_mutations(is_strict=is_strict)
    if quota is None:
        return {}
    controller = context.services.controller
    checked = await controller.create_partitions(expansions, validate_only=True, timeout_ms=request.timeout_ms)
    topics = controller.cluster.topics
    return quota.refused(
        {
            expansion.name: expansion.count - len(topics[expansion.name].assignments)
            for expansion in expansions
            if checked[expansion.name] is None and expansion.name in topics
        }
    )


def _message(error: ApiError | None) -> str | None:
    return None if error is None or error.error in _UNEXPLAINED else error.message


HANDLER: Handler[CreatePartitionsRequest, CreatePartitionsResponse] = Handler(
    key=37, min_version=0, max_version=3, handle=handle, waits_for=WaitsFor.CONTROLLER
)
