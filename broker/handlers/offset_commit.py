"""OffsetCommit (key 8): store how far a group has read.   Versions 2-9.

Behaviour: each partition is answered for itself; those that do not exist are refused, the others stored. Members must
be of the current generation; without a generation the group must be empty, and comes into being if it does not exist.
A commit counts as a heartbeat. The answer waits for replication.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, and the same for all others:
UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, GROUP_ID_NOT_FOUND (version 9+,
ILLEGAL_GENERATION before), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
UNKNOWN_SERVER_ERROR (too large to be stored).
Versions: 2-4 retention time; 3 throttle time; 6 leader epoch (KIP-320); 7 group instance id (KIP-345); 8 flexible; 9
new group protocol's errors (KIP-848).
"""

import asyncio
from collections.abc import Awaitable, Iterable

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.coordinators.groups.events import CommitOffsets, OffsetsReply, PartitionCommit, Reply
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_Commits = tuple[str, bytes, tuple[PartitionCommit, ...]]


def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    response = OffsetCommitResponse()
    commits: list[_Commits] = []
    # The answers that the coordinator decides, in the order of what it is asked.
    undecided: list[OffsetCommitResponsePartition] = []
    for topic in request.topics:
        answers, stored = _look_up(topic, context.broker.metadata)
        response.topics.append(answers)
        if stored[2]:
            commits.append(stored)
            undecided.extend(answer for answer in answers.partitions if answer.error_code == ErrorCode.NONE)
    if not commits:
        return response
    event = CommitOffsets(
        group_id=request.group_id,
        token=0,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        topics=tuple(commits),
        unknown_group_error=(
            ErrorCode.GROUP_ID_NOT_FOUND if context.api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
        ),
    )
    try:
        reply = context.broker.groups.ask(event)
    except ApiError as error:
        reply = OffsetsReply(error.error)
    if isinstance(reply, asyncio.Future):
        return _answer_later(response, undecided, reply)
    return _answer(response, undecided, reply)


def _look_up(topic: OffsetCommitRequestTopic, metadata: MetadataCache) -> tuple[OffsetCommitResponseTopic, _Commits]:
    known = metadata.topic(topic.name)
    answers = OffsetCommitResponseTopic(name=topic.name)
    commits = []
    for partition in topic.partitions:
        exists = known is not None and partition.partition_index in known.partitions
        error = ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers.partitions.append(
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
        )
        if exists:
            commits.append(
                PartitionCommit(
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )
            )
    return answers, (topic.name, metadata.topic_id(topic.name), tuple(commits))


async def _answer_later(
    response: OffsetCommitResponse, undecided: Iterable[OffsetCommitResponsePartition], future: asyncio.Future[Reply]
) -> OffsetCommitResponse:
    try:
        reply = await future
    except ApiError as error:
        reply = OffsetsReply(error.error)
    return _answer(response, undecided, reply)


def _answer(
    response: OffsetCommitResponse, undecided: Iterable[OffsetCommitResponsePartition], reply: Reply
) -> OffsetCommitResponse:
    assert isinstance(reply, OffsetsReply), reply
    if reply.error is not ErrorCode.NONE:
        for answer in undecided:
            answer.error_code = reply.error
        return response
    errors = (error for _, partitions in reply.topics for _, error in partitions)
    for answer, error in zip(undecided, errors, strict=True):
        answer.error_code = error
    return response


HANDLER = Handler(key=8, min_version=2, max_version=9, handle=handle)
