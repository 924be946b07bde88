"""ListOffsets (key 2): offsets by time: the first record at or after a timestamp, or a special one.   Versions 1-11.

Behaviour: -1 latest (high watermark, or last stable offset for read_committed), -2 earliest, -3 the record with the
largest timestamp (version 7+), -4 earliest local (8+), -5 latest tiered (9+) and -6 earliest pending upload (11+): both
unknown, as there is no tiered storage, and the timeout of version 10+ has nothing to bound. For a timestamp that no
committed record reaches the offset is -1, without an error.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
OFFSET_NOT_AVAILABLE (LEADER_NOT_AVAILABLE before version 5), INVALID_REQUEST (partition named twice),
UNSUPPORTED_VERSION (unknown special timestamp), KAFKA_STORAGE_ERROR.
Authorization: Describe on Topic: TOPIC_AUTHORIZATION_FAILED per partition; ClusterAction on Cluster (requests with a
replica id): TOPIC_AUTHORIZATION_FAILED for all partitions.
Deviations: Kafka does not ask for ClusterAction, and tells the log end offset to a client that claims to be a replica.
Versions: 2 isolation level; 4 leader epoch (KIP-320); 6 flexible; 7 max timestamp (KIP-734); 8, 9 tiered storage
(KIP-405, KIP-1005); 10 timeout (KIP-1075); 11 earliest pending upload (KIP-1023).
"""

from collections import Counter
from functools import partial

from barnabas.broker.api.authorization import Decisions, may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
FIRST_VERSION_OF = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

CONSUMER_REPLICA_ID = -1
READ_COMMITTED = 1
UNKNOWN = -1


async def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    asked = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    refused: set[tuple[str, int]] = set()
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    is_refused = request.replica_id != CONSUMER_REPLICA_ID and not may_on_cluster(context, Operation.CLUSTER_ACTION)
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answers)
        if is_refused or not may_describe(topic.name):
            answers.partitions = [_answer(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in topic.partitions]
            continue
        for partition in topic.partitions:
            if asked[topic.name, partition.partition_index] > 1:
                if (topic.name, partition.partition_index) not in refused:
                    answers.partitions.append(_answer(partition, ErrorCode.INVALID_REQUEST))
                    refused.add((topic.name, partition.partition_index))
                continue
            try:
                answer = await _look_up(topic.name, partition, request, context)
            except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                refusal = context.services.unforeseen.refusal(error, topic.name, partition.partition_index)
                answer = _answer(partition, _error_of(refusal, context.api_version))
            if context.api_version < 4:
                answer.leader_epoch = UNKNOWN
            answers.partitions.append(answer)
    return response


async def _look_up(
    topic: str, asked: ListOffsetsPartition, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsPartitionResponse:
    timestamp = asked.timestamp
    if timestamp < 0 and context.api_version < FIRST_VERSION_OF.get(timestamp, 2**15):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    partition = context.services.replicas.partition_or_error(topic, asked.partition_index)
    partition.state.check_leader(asked.current_leader_epoch)
    log = partition.log
    is_client = request.replica_id == CONSUMER_REPLICA_ID
    if not is_client:
        last_fetchable = log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        last_fetchable = log.last_stable_offset
    else:
        last_fetchable = log.high_watermark
    # A new leader does not know the high watermark until its own has passed the start of its epoch.
    lagging = is_client and partition.state.leader_epoch_start_offset > log.high_watermark
    if timestamp == LATEST:
        if lagging:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return _answer(asked, offset=last_fetchable, leader_epoch=partition.state.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        offset = log.log_start_offset if timestamp == EARLIEST else log.local_log_start_offset
        return _answer(asked, offset=offset, leader_epoch=log.leader_epochs.epoch_for(offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _answer(asked)
    searched_from = log.log_start_offset
    lookup = log.timestamp_lookup()
    search = lookup.largest if timestamp == MAX_TIMESTAMP else partial(lookup.first_at_or_after, timestamp)
    found = await context.services.replicas.read_records(search)
    partition.state.check_leader(asked.current_leader_epoch)  # the leadership may be lost by now
    if found is not None and found.offset < log.log_start_offset and searched_from < log.log_start_offset:
        # The found record was deleted during the search. Without a deletion, a record below the log start offset has
        # the largest timestamp but was deleted from the front of its batch, or has an offset of its own: it is
        # returned, as by Kafka.
        return await _look_up(topic, asked, request, context)
    if found is None or found.offset >= last_fetchable:
        if lagging:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return _answer(asked)
    return _answer(asked, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch)


def _answer(
    asked: ListOffsetsPartition,
    error: ErrorCode = ErrorCode.NONE,
    *,
    timestamp: int = UNKNOWN,
    offset: int = UNKNOWN,
    leader_epoch: int = UNKNOWN,
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _error_of(error: ApiError, version: int) -> ErrorCode:
    if error.error == ErrorCode.OFFSET_NOT_AVAILABLE and version < 5:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return error.error


HANDLER: Handler[ListOffsetsRequest, ListOffsetsResponse] = Handler(key=2, min_version=1, max_version=11, handle=handle)
