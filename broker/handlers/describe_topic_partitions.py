"""DescribeTopicPartitions (key 75): leaders and replicas of partitions, a page at a time (KIP-966).   Version 0.

Behaviour: topics in the order of their names; all topics if the request names none. A response describes as many
partitions as the client requests, `max.request.partition.size.limit` (2,000) at most; its cursor names the first
missing partition, and a request with that cursor continues there. A topic that does not exist is never created. The
lists of eligible leader replicas are empty: only members of the ISR are eligible.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, and for all of them INVALID_REQUEST, when the
cursor names a topic that is not in the request, or a negative partition.
"""

from collections.abc import Awaitable

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS, NO_LEADER, PartitionMetadata
from barnabas.broker.security.operations import TOPIC_OPERATIONS
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
    """The partitions from `begin` on, `limit` of them at most; of all topics if none is named."""
    metadata = context.services.metadata
    room = max(1, min(limit, context.services.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse()
    turns = Turns()
    names = asked or {topic.name for topic in metadata.topics()}
    for name in sorted(name for name in names if name >= begin.topic_name):
        if not room:
            response.next_cursor = ResponseCursor(topic_name=name, partition_index=0)
            break
        topic = metadata.topic(name)
        if turns.is_over():
            yield
        if topic is None:
            if asked:
                response.topics.append(_missing(name))
            continue
        described = DescribeTopicPartitionsResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            topic_authorized_operations=TOPIC_OPERATIONS,
        )
        response.topics.append(described)
        first = begin.partition_index if name == begin.topic_name else 0
        for index in sorted(index for index in topic.partitions if index >= first):
            if not room:
                response.next_cursor = ResponseCursor(topic_name=name, partition_index=index)
                return response
            described.partitions.append(_partition(index, topic.partitions[index], context))
            room -= 1
            if turns.is_over():
                yield
    return response


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    valid = is_valid_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
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
