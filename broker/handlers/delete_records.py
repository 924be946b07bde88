"""DeleteRecords (key 21): move the log start offset of partitions forward (KIP-107).   Versions 0-2.

Behaviour: everything below the offset is gone for readers at once, segments that lie below it are deleted; -1 means the
high watermark. The low watermark of the reply is the smallest log start offset of all replicas.
Errors per partition: OFFSET_OUT_OF_RANGE (negative or above the high watermark), UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION (the topic is compacted and not deleted from), INVALID_TOPIC_EXCEPTION
(internal topics), KAFKA_STORAGE_ERROR.
"""

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_delete(topic.name, partition, context) for partition in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _delete(topic: str, asked: DeleteRecordsPartition, context: RequestContext) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=INVALID_LOW_WATERMARK)
    try:
        partition = context.services.replicas.partition_or_error(topic, asked.partition_index)
        if topic in INTERNAL_TOPICS:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition.state.check_leader()
        log = partition.log
        if log.config.is_compacted and not log.config.deletes_by_retention:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        offset = log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        if not 0 <= offset <= log.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        context.services.replicas.delete_records(partition, offset)
        result.low_watermark = log.log_start_offset
    except Exception as error:  # noqa: BLE001 - one entry does not take the others with it
        result.error_code = context.services.unforeseen.refusal(error, topic, asked.partition_index).error
    return result


HANDLER = Handler(key=21, min_version=0, max_version=2, handle=handle)
