"""DescribeTopicPartitions (key 75): leaders and replicas of partitions, a page at a time (KIP-966).   Version 0.

Behaviour: topics in the order of their names; all topics if the request names none. A response describes as many
partitions as the client requests, `max.request.partition.size.limit` (2,000) at most; its cursor names the first
missing partition, and a request with that cursor continues there. A topic that does not exist is never created. The
lists of eligible leader replicas are empty: only members of the ISR are eligible.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, and for all of them INVALID_REQUEST, when the
cursor names a topic that is not in the request, or a negative partition.
Authorization: Describe on Topic: TOPIC_AUTHORIZATION_FAILED per topic, left out where all are requested.
"""

from collections.abc import Awaitable, Generator, Iterable

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, PartitionMetadata
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.topics import is_valid_topic_name
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    RequestCursor,
    ResponseCursor,
)


def handle(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    asked = {topic.name for topic in request.topics}
    begin = request.cursor or RequestCursor()
    if begin.partition_index < 0 or (asked and request.cursor is not None and begin.topic_name not in asked):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
                for topic in request.topics
            ]
        )
    return in_turns(_page(asked, begin, request.response_partition_limit, context))


def _page(
    asked: set[str], begin: RequestCursor, limit: int, context: RequestContext
) -> InPieces[DescribeTopicPartitionsResponse]:
    """The partitions from `begin` on, `limit` of them at most; of all topics if none is named. Topics that the client
    may not describe come last, and take no room."""
    metadata = context.services.metadata
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    names: list[str] = []
    refused: list[str] = []
    turns = Turns()
    for name in sorted(asked or {topic.name for topic in metadata.topics()}):
        if name >= begin.topic_name:
            (names if may_describe(name) else refused).append(name)
        if turns.is_over():
            yield
    room = max(1, min(limit, context.services.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse()
    yield from _fill(response, names, begin, room, turns, context, is_asked=bool(asked))
    if asked:
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        response.topics += [DescribeTopicPartitionsResponseTopic(error_code=error, name=name) for name in refused]
    return response


def _fill(
    response: DescribeTopicPartitionsResponse,
    names: Iterable[str],
    begin: RequestCursor,
    room: int,
    turns: Turns,
    context: RequestContext,
    *,
    is_asked: bool,
) -> Generator[None, None, None]:
    """Add the partitions of topics, and the cursor if there is no room for all of them."""
    for name in names:
        if not room:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        topic = context.services.metadata.topic(name)
        if turns.is_over():
            yield
        if topic is None:
            if is_asked:
                response.topics.append(_missing(name, context))
            continue
        described = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            topic_authorized_operations=context.authorized_operations(ResourceType.TOPIC, name),
        )
        response.topics.append(described)
        first = begin.partition_index if name == begin.topic_name else 0
        for index in sorted(index for index in topic.partitions if index >= first):
            if not room:
                response.next_cursor = ResponseCursor(topic_name=name, partition_index=index)
                return
            described.partitions.append(_partition(index, topic.partitions[index], context))
            room -= 1
            if turns.is_over():
                yield


def _missing(name: str, context: RequestContext) -> DescribeTopicPartitionsResponseTopic:
    valid = is_valid_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=context.authorized_operations(ResourceType.TOPIC, name),
    )


def _partition(
    index: int, partition: PartitionMetadata, context: RequestContext
) -> DescribeTopicPartitionsResponsePartition:
    reachable = context.services.metadata.reachable(context.session.listener.name)
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=partition.leader if partition.leader in reachable else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=partition.unavailable_replicas(reachable),
    )


HANDLER: Handler[DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse] = Handler(
    key=75, min_version=0, max_version=0, handle=handle, has_large_replies=True
)
