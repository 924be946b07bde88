"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch, by which clients detect truncation (KIP-320).
Versions 2-4.

Behaviour: the largest epoch not above the requested one, and the offset at which the next one starts (the log end
offset for the current epoch); (-1, -1) when the epoch is unknown.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
KAFKA_STORAGE_ERROR.
Authorization: ClusterAction on Cluster or Describe on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
Versions: 2 current leader epoch; 3 replica id; 4 flexible.
"""

from barnabas.broker.api.authorization import Decisions, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    is_broker = may_on_cluster(context, Operation.CLUSTER_ACTION)
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_offset(topic.topic, partition, is_broker or may_describe(topic.topic), context)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_offset(
    topic: str, asked: OffsetForLeaderPartition, is_allowed: bool, context: RequestContext
) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    try:
        if not is_allowed:
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = context.services.replicas.partition_or_error(topic, asked.partition)
        partition.state.check_leader(asked.current_leader_epoch)
        answer.leader_epoch, answer.end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
        answer.error_code = context.services.unforeseen.refusal(error, topic, asked.partition).error
    return answer


HANDLER: Handler[OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse] = Handler(
    key=23, min_version=2, max_version=4, handle=handle
)
