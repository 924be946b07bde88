"""DeleteRecords (key 21): move the log start offset of partitions forward (KIP-107).   Versions 0-2.

Behaviour: all records below the offset become invisible to readers at once, and segments entirely below it are deleted;
-1 means the high watermark. The low watermark in the response is the smallest log start offset of the live replicas;
the response waits until it has reached the offset, at most `timeout_ms`.
Errors per partition: OFFSET_OUT_OF_RANGE (negative or above the high watermark), UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION (the topic is compacted and not deleted from), INVALID_TOPIC_EXCEPTION
(internal topics), REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Authorization: Delete on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
"""

import asyncio
from collections.abc import Awaitable

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.broker.replication.delayed_reply import once_committed
from barnabas.broker.replication.partition import Partition
from barnabas.broker.security.operations import Operation, ResourceType
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


_Entry = tuple[DeleteRecordsPartitionResult, Partition]
_Pending = list[tuple[_Entry, "asyncio.Future[None]"]]
"""Partitions whose followers still have the records, each with the future that is done once they have deleted them."""


def handle(
    request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]:
    pending: _Pending = []
    may_delete = Decisions(context, Operation.DELETE, ResourceType.TOPIC)
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete(topic.name, partition, pending, may_delete, context) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    return _when_deleted(response, pending, request.timeout_ms, context) if pending else response


async def _when_deleted(
    response: DeleteRecordsResponse, pending: _Pending, timeout_ms: int, context: RequestContext
) -> DeleteRecordsResponse:
    await once_committed(response, pending, _fail, context.services.timers, timeout_ms)
    for (result, partition), _ in pending:
        if not result.error_code:
            result.low_watermark = partition.low_watermark
    return response


def _fail(entry: _Entry, error: ErrorCode) -> None:
    result, _ = entry
    result.error_code = error
    if error is not ErrorCode.REQUEST_TIMED_OUT:
        result.low_watermark = INVALID_LOW_WATERMARK


def _delete(
    topic: str, asked: DeleteRecordsPartition, pending: _Pending, may_delete: Decisions, context: RequestContext
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=INVALID_LOW_WATERMARK)
    try:
        if not may_delete(topic):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
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
        result.low_watermark = partition.low_watermark
        deleted = None if partition.leadership is None else partition.leadership.deleted(offset)
        if deleted is not None:
            pending.append(((result, partition), deleted))
    except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
        result.error_code = context.services.unforeseen.refusal(error, topic, asked.partition_index).error
    return result


HANDLER: Handler[DeleteRecordsRequest, DeleteRecordsResponse] = Handler(
    key=21, min_version=0, max_version=2, handle=handle
)
