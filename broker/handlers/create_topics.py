"""CreateTopics (key 19): create topics with counts or manual assignments, and with configs (KIP-4).   Versions 2-7.

Behaviour: every topic succeeds or fails by itself; a name that is given twice gets one result, after the others. The
response is sent once this broker serves the new partitions. With validate_only everything is checked and nothing is
created. Counts of -1 are the broker's defaults (KIP-464); with a manual assignment both must be -1.
Errors per topic: TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST (duplicates, counts beside an assignment,
__cluster_metadata), POLICY_VIOLATION (more than 10,000 partitions in one request), REQUEST_TIMED_OUT (the topic is
still being created), NOT_CONTROLLER, KAFKA_STORAGE_ERROR, THROTTLING_QUOTA_EXCEEDED (version 6+, KIP-599; before,
topics are created and the client is throttled).
Authorization: Create on Cluster or Create on Topic: TOPIC_AUTHORIZATION_FAILED per topic; DescribeConfigs on Topic
(version 5+): TOPIC_AUTHORIZATION_FAILED as the error of the topic's configs, without counts and configs.
Deviations: with a timeout of zero or less, topics are created in the background, with the result REQUEST_TIMED_OUT, as
before Kafka 4.
Versions: 4 defaults for counts; 5 flexible, the topic's counts and configs in the response (KIP-525); 6
THROTTLING_QUOTA_EXCEEDED; 7 topic id (KIP-516).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from barnabas.broker.api.authorization import Decisions, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler, WaitsFor
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.broker.configuration.changes import check_room
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.topics import CLUSTER_METADATA_TOPIC, NewTopic, TopicOutcome
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CONFIGS_FROM_VERSION: Final = 5
STRICT_QUOTA_FROM_VERSION: Final = 6
CONFIG_VALUE_LENGTH_MAX: Final = 32_767
"""The limit of Kafka's metadata records (`Short.MAX_VALUE`)."""


async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    turns = Turns()
    refused = {} if context.authorizer is None else await _refused(request.topics, turns, context)
    topics = []
    for topic in request.topics:
        if topic.name not in refused:
            topics.append(_new_topic(topic, context))
        await turns.after_one()
    if refused and not topics:
        return CreateTopicsResponse(topics=list(refused.values()))
    beyond_quota: list[TopicOutcome] = []
    try:
        if context.meter is not None and not request.validate_only:
            topics, beyond_quota = await _within_quota(topics, request, context)
        outcomes = await context.services.controller.create_topics(
            topics,
            validate_only=request.validate_only,
            timeout_ms=request.timeout_ms,
        )
        outcomes += beyond_quota
    except ApiError as error:
        outcomes = [TopicOutcome.failed(topic.name, error.error, error.message) for topic in topics]
    configs = {topic.name: {c.name: c.value for c in topic.configs if c.value is not None} for topic in request.topics}
    response = CreateTopicsResponse()
    may_describe_configs = Decisions(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
    for outcome in outcomes:
        result = _result(outcome, configs[outcome.name], context)
        if outcome.error is ErrorCode.NONE and not may_describe_configs(outcome.name):
            _hide_configs(result)
        response.topics.append(result)
        await turns.after_one()
    response.topics += refused.values()
    return response


async def _refused(
    topics: Sequence[CreatableTopic], turns: Turns, context: RequestContext
) -> dict[str, CreatableTopicResult]:
    """The results of the topics that the client may not create. A name that is given twice, and __cluster_metadata,
    fail for that, whoever asks."""
    if may_on_cluster(context, Operation.CREATE):
        return {}
    counts = Counter(topic.name for topic in topics)
    may_create = Decisions(context, Operation.CREATE, ResourceType.TOPIC)
    error, refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED, {}
    for name, count in counts.items():
        if count == 1 and name != CLUSTER_METADATA_TOPIC and not may_create(name):
            refused[name] = CreatableTopicResult(name=name, error_code=error, error_message="Authorization failed.")
        await turns.after_one()
    return refused


def _hide_configs(result: CreatableTopicResult) -> None:
    """Leave out what the client may not know of the topic that it has created."""
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = -1
    result.configs = []


async def _within_quota(
    topics: list[NewTopic], request: CreateTopicsRequest, context: RequestContext
) -> tuple[list[NewTopic], list[TopicOutcome]]:
    """The topics that the client's quota of controller mutations allows, and the outcomes of the others. Topics that
    cannot be created do not count. Raises ApiError."""
    is_strict = context.api_version >= STRICT_QUOTA_FROM_VERSION
    quota = None if context.meter is None else context.meter.limit_mutations(is_strict=is_strict)
    if quota is None:
        return topics, []
    checked = await context.services.controller.create_topics(topics, validate_only=True, timeout_ms=request.timeout_ms)
    errors = quota.refused(
        {outcome.name: outcome.partition_count for outcome in checked if outcome.error is ErrorCode.NONE}
    )
    refused = [TopicOutcome.failed(name, error.error, error.message) for name, error in errors.items()]
    return [topic for topic in topics if topic.name not in errors], refused


def _new_topic(topic: CreatableTopic, context: RequestContext) -> NewTopic:
    configs = {config.name: config.value for config in topic.configs}
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        configs=configs,
        config_error=_config_error(configs, context) if configs else None,
        is_needed=topic.name in INTERNAL_TOPICS and context.is_on_inter_broker_listener,
    )


def _config_error(configs: dict[str, str | None], context: RequestContext) -> ApiError | None:
    for name, value in configs.items():
        if value is not None and len(value) > CONFIG_VALUE_LENGTH_MAX:
            return ApiError(
                ErrorCode.INVALID_CONFIG, f"The value of {name} is longer than {CONFIG_VALUE_LENGTH_MAX} characters."
            )
    error = context.services.topic_configs.validate(configs)
    if error is not None:
        return error
    try:
        check_room({}, configs, context.services.configs.held_bytes)
    except ApiError as lack:
        return lack
    return None


def _result(outcome: TopicOutcome, configs: dict[str, str], context: RequestContext) -> CreatableTopicResult:
    if outcome.error is not ErrorCode.NONE:
        message = outcome.message
        if outcome.error is ErrorCode.REQUEST_TIMED_OUT and (complaint := context.services.disk_space.complaint()):
            message = f"{message} {complaint}."  # which is the likely cause
        return CreatableTopicResult(name=outcome.name, error_code=outcome.error, error_message=message)
    return CreatableTopicResult(
        name=outcome.name,
        topic_id=outcome.topic_id,
        error_message=None,
        num_partitions=outcome.partition_count,
        replication_factor=outcome.replication_factor,
        configs=_configs(configs, context) if context.api_version >= CONFIGS_FROM_VERSION else [],
    )


def _configs(overrides: dict[str, str], context: RequestContext) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in context.services.topic_configs.created(overrides)
    ]


HANDLER: Handler[CreateTopicsRequest, CreateTopicsResponse] = Handler(
    key=19, min_version=2, max_version=7, handle=handle, has_large_replies=True, waits_for=WaitsFor.CONTROLLER
)
