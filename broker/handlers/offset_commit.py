"""OffsetCommit (key 8): store a group's committed offsets.   Versions 2-10.

Behaviour: each partition succeeds or fails by itself; partitions that do not exist are refused. Members must be of the
current generation; without a generation the group must be empty, and is created if it does not exist. A commit counts
as a heartbeat. The response waits for replication.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID (version 10), OFFSET_METADATA_TOO_LARGE, and the same
for all others: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, GROUP_ID_NOT_FOUND
(version 9+, ILLEGAL_GENERATION before), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
UNKNOWN_SERVER_ERROR (too large to be stored).
Authorization: Read on Group: GROUP_AUTHORIZATION_FAILED for all partitions; Read on Topic: TOPIC_AUTHORIZATION_FAILED
per partition.
Versions: 2-4 retention time; 3 throttle time; 6 leader epoch (KIP-320); 7 group instance id (KIP-345); 8 flexible; 9
new group protocol's errors (KIP-848); 10 topic ids instead of names.
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from typing import NamedTuple

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import MetadataCache
from barnabas.broker.coordinators.groups.events import CommitOffsets, OffsetsReply, PartitionCommit, Reply
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from barnabas.wire.names import TopicId


class _Topic(NamedTuple):
    """The offsets to store for one topic, under the id that it had at the lookup, and the results for them. `missing`
    is the error if the topic does not exist.
    """

    name: str
    topic_id: TopicId
    missing: ErrorCode
    commits: list[PartitionCommit]
    answers: list[OffsetCommitResponsePartition]


def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    return in_turns(_commit(request, context))


def _commit(request: OffsetCommitRequest, context: RequestContext) -> InPieces[OffsetCommitResponse]:
    """Topics are looked up in slices; all offsets are decided and written in one step, as one batch."""
    metadata = context.services.metadata
    response = OffsetCommitResponse()
    found: list[_Topic] = []
    turns = Turns()
    may_use_group = context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    may_read = Decisions(context, Operation.READ, ResourceType.TOPIC)
    for asked in request.topics:
        topic = _topic(asked, context)
        refusal = _refusal(topic, may_read) if may_use_group else ErrorCode.GROUP_AUTHORIZATION_FAILED
        if refusal is not None:
            response.topics.append(_refused(asked, refusal))
            if turns.is_over(len(asked.partitions)):
                yield
            continue
        answers = OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id)
        for partition in asked.partitions:
            answers.partitions.append(_look_up(partition, topic, metadata))
            if turns.is_over():
                yield
        # a topic that exists is listed only if it has partitions in the request
        if answers.partitions or asked.name not in metadata:
            response.topics.append(answers)
        if topic.commits:
            found.append(topic)
    known: list[_Topic] = []
    for topic in found:
        if topic.topic_id == metadata.topic_id(topic.name):
            known.append(topic)
        else:  # deleted meanwhile: the next topic of that name would begin with these offsets
            _refuse(topic)
    if not known:
        return response
    return _store(request, response, known, context)


def _topic(asked: OffsetCommitRequestTopic, context: RequestContext) -> _Topic:
    metadata = context.services.metadata
    if context.api_version < 10:
        return _Topic(asked.name, metadata.topic_id(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [], [])
    topic_id = TopicId(asked.topic_id)
    return _Topic(metadata.topic_name(topic_id) or "", topic_id, ErrorCode.UNKNOWN_TOPIC_ID, [], [])


def _refusal(topic: _Topic, may_read: Decisions) -> ErrorCode | None:
    """The error if the client may not read a topic; an id that is unknown is no topic."""
    is_unknown_id = not topic.name and topic.missing is ErrorCode.UNKNOWN_TOPIC_ID
    return None if is_unknown_id or may_read(topic.name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refused(asked: OffsetCommitRequestTopic, error: ErrorCode) -> OffsetCommitResponseTopic:
    """The result of a topic whose offsets the client may not commit."""
    return OffsetCommitResponseTopic(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            for partition in asked.partitions
        ],
    )


def _look_up(
    asked: OffsetCommitRequestPartition, topic: _Topic, metadata: MetadataCache
) -> OffsetCommitResponsePartition:
    """The result for one partition; if the partition exists, it is noted in `topic` with the offset to store."""
    answer = OffsetCommitResponsePartition(partition_index=asked.partition_index)
    if metadata.has_partition(topic.name, asked.partition_index):
        topic.answers.append(answer)
        topic.commits.append(
            PartitionCommit(
                asked.partition_index,
                asked.committed_offset,
                asked.committed_leader_epoch,
                asked.committed_metadata or "",
            )
        )
    else:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic.name in metadata else topic.missing
    return answer


def _refuse(topic: _Topic) -> None:
    for answer in topic.answers:
        answer.error_code = topic.missing


def _store(
    request: OffsetCommitRequest, response: OffsetCommitResponse, topics: Collection[_Topic], context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    event = CommitOffsets(
        group_id=request.group_id,
        token=0,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id_or_member_epoch,
        retention_ms=request.retention_time_ms,
        topics=tuple((topic.name, topic.topic_id, tuple(topic.commits)) for topic in topics),
        unknown_group_error=(
            ErrorCode.GROUP_ID_NOT_FOUND if context.api_version >= 9 else ErrorCode.ILLEGAL_GENERATION
        ),
    )
    try:
        reply = context.services.groups.ask(event)
    except ApiError as error:
        reply = OffsetsReply(error.error)
    # The results that the coordinator decides, in the order of the event.
    undecided = [answer for topic in topics for answer in topic.answers]
    if isinstance(reply, asyncio.Future):
        return _answer_later(response, undecided, reply)
    return _answer(response, undecided, reply)


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


HANDLER: Handler[OffsetCommitRequest, OffsetCommitResponse] = Handler(
    key=8, min_version=2, max_version=10, handle=handle
)
