"""DescribeProducers (key 61): the active producers of a partition, from its leader (KIP-664).   Version 0.

Errors per partition: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR,
POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: Read on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
"""

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.controller.topics import is_valid_topic_name
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PARTITION_BYTES = 60
PRODUCER_BYTES = 40
"""The size of a partition and a producer in a response."""

_Room = ReplyRoom[tuple[str, int], PartitionResponse]


def handle(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    room: _Room = ReplyRoom(_reply_bytes, context.services.reply_bytes_max)
    may_read = Decisions(context, Operation.READ, ResourceType.TOPIC)
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _partition(topic.name, index, may_read, context, room) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _reply_bytes(answer: PartitionResponse) -> int:
    return PARTITION_BYTES + PRODUCER_BYTES * len(answer.active_producers)


def _partition(topic: str, index: int, may_read: Decisions, context: RequestContext, room: _Room) -> PartitionResponse:
    try:
        known = room.again((topic, index))
        return room.first((topic, index), _producers(topic, index, may_read, context)) if known is None else known
    except ApiError as error:
        return PartitionResponse(partition_index=index, error_code=error.error, error_message=error.message)


def _producers(topic: str, index: int, may_read: Decisions, context: RequestContext) -> PartitionResponse:
    answer = PartitionResponse(partition_index=index)
    try:
        if not is_valid_topic_name(topic):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic!r} is no name of a topic.")
        if not may_read(topic):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic not in context.services.metadata:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no such topic.")
    except ApiError as error:
        answer.error_code, answer.error_message = error.error, error.message
        return answer
    try:
        partition = context.services.replicas.partition_or_error(topic, index)
        partition.state.check_leader()
        answer.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer in partition.log.producer_state.producers.values()
        ]
    except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
        answer.error_code = context.services.unforeseen.refusal(
            error, topic, index
        ).error  # Kafka has no message for these
    return answer


HANDLER: Handler[DescribeProducersRequest, DescribeProducersResponse] = Handler(
    key=61, min_version=0, max_version=0, handle=handle, has_large_replies=True
)
