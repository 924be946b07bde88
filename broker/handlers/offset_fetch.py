"""OffsetFetch (key 9): the committed offsets of groups.   Versions 1-10.

Behaviour: for a partition without an offset, and an unknown group, the offset is -1, without an error. Null topics
(version 2+) request all offsets of the group, from version 10 on only of topics that exist. A request by topic id does
not return offsets that were committed for an earlier topic of the name. The response waits until the offsets in it are
replicated.
Errors per partition: UNSTABLE_OFFSET_COMMIT (an open transaction may change the offset, and the client requires stable
ones), UNKNOWN_TOPIC_ID (version 10). Per group, in version 1 per partition: NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: Describe on Group: GROUP_AUTHORIZATION_FAILED per group (version 1: per partition); Describe on Topic:
TOPIC_AUTHORIZATION_FAILED per partition, left out where all are requested.
Versions: 2 all topics, top-level error; 3 throttle time; 5 leader epoch (KIP-320); 6 flexible; 7 require stable
(KIP-447); 8 several groups (KIP-709); 9 member id and epoch of the new group protocol (KIP-848; classic groups ignore
them); 10 topic ids instead of names.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom, text_bytes
from barnabas.broker.coordinators.groups.events import FetchedOffset
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import Turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

NO_OFFSET = -1
OFFSET_BYTES = 24
TOPIC_BYTES = 26
GROUP_BYTES = 20
"""The size of a partition, a topic and a group in a response, besides metadata and names."""


class _Topic(NamedTuple):
    """A topic of the request: before version 10 the id is zero; in version 10 the name is empty if the topic does not
    exist."""

    name: str
    topic_id: TopicId
    partitions: tuple[int, ...]


_Offsets = list[tuple[_Topic, list[FetchedOffset]]]
_Question = tuple[str, tuple[_Topic, ...] | None]


class _Fetched(NamedTuple):
    """A group's offsets by topic, as requested, or the error of all of them."""

    topics: _Offsets
    error: ErrorCode


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    room: ReplyRoom[_Question, _Fetched] = ReplyRoom(_reply_bytes, context.services.reply_bytes_max)
    turns = Turns()
    if context.api_version >= 8:
        response = OffsetFetchResponse()
        for group in request.groups:
            fetched = await _fetch(group.group_id, group.topics, request.require_stable, context, room, turns)
            response.groups.append(await _group(group.group_id, fetched, turns))
            await turns.after(weight_of(group.group_id))
        return response
    fetched = await _fetch(request.group_id, request.topics, request.require_stable, context, room, turns)
    if fetched.error is not ErrorCode.NONE and context.api_version < 2:
        topics = [_topic(topic, context) for topic in request.topics or ()]
        fetched = _Fetched([_all_failed(topic, fetched.error) for topic in topics], fetched.error)
    return OffsetFetchResponse(error_code=fetched.error, topics=await _topics_before_8(fetched.topics, turns))


async def _fetch(
    group_id: str,
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    require_stable: bool,
    context: RequestContext,
    room: ReplyRoom[_Question, _Fetched],
    turns: Turns,
) -> _Fetched:
    if not context.authorize(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _Fetched([], ErrorCode.GROUP_AUTHORIZATION_FAILED)
    asked = None if topics is None else tuple(_topic(topic, context) for topic in topics)
    try:
        known = room.again((group_id, asked))
        if known is not None:
            return known
        found = await _offsets(group_id, asked, require_stable, context, turns)
        return room.first((group_id, asked), _Fetched(found, ErrorCode.NONE))
    except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
        return _Fetched([], context.services.unforeseen.refusal(error, f"group {group_id!r}").error)


def _topic(asked: OffsetFetchRequestTopic | OffsetFetchRequestTopics, context: RequestContext) -> _Topic:
    partitions = tuple(asked.partition_indexes)
    if isinstance(asked, OffsetFetchRequestTopic) or context.api_version < 10:
        return _Topic(asked.name, ZERO_TOPIC_ID, partitions)
    topic_id = TopicId(asked.topic_id)
    return _Topic(context.services.metadata.topic_name(topic_id) or "", topic_id, partitions)


async def _offsets(
    group_id: str, asked: tuple[_Topic, ...] | None, require_stable: bool, context: RequestContext, turns: Turns
) -> _Offsets:
    """Topics and partitions in the order of the request, each looked up once. Errors: as
    `GroupService.fetch_offsets`.
    """
    groups = context.services.groups
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    if asked is None:
        every = _every(await groups.fetch_offsets(group_id, None, require_stable=require_stable), context)
        return every if context.authorizer is None else await _shown(every, may_describe, turns)
    errors: list[ErrorCode] = []
    wanted: dict[str, dict[int, None]] = {}
    for topic in asked:
        errors.append(_error_of(topic, may_describe, context))
        if errors[-1] is ErrorCode.NONE:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions))
        await turns.after(max(1, len(topic.partitions)))
    found: dict[str, dict[int, FetchedOffset]] = {}
    for name, offsets in (await groups.fetch_offsets(group_id, wanted, require_stable=require_stable)).items():
        found[name] = {offset.partition: offset for offset in offsets}
        await turns.after(len(offsets))
    topics: _Offsets = []
    for topic, error in zip(asked, errors, strict=True):
        if error is ErrorCode.NONE:
            offsets = [_unless_earlier(found[topic.name][partition], topic.topic_id) for partition in topic.partitions]
            topics.append((topic, offsets))
        else:
            topics.append(_all_failed(topic, error))
        await turns.after(len(topic.partitions))
    return topics


def _error_of(topic: _Topic, may_describe: Decisions, context: RequestContext) -> ErrorCode:
    """The error of a topic whose offsets are not looked up, else NONE."""
    if not topic.name and context.api_version >= 10:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.NONE if may_describe(topic.name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _shown(topics: _Offsets, may_describe: Decisions, turns: Turns) -> _Offsets:
    """The topics that the client may describe."""
    shown: _Offsets = []
    for topic, offsets in topics:
        if may_describe(topic.name):
            shown.append((topic, offsets))
        await turns.after_one()
    return shown


def _every(found: Mapping[str, list[FetchedOffset]], context: RequestContext) -> _Offsets:
    """All offsets of a group; from version 10 on without topics that do not exist, which have no id for
    the response.
    """
    topics = [(_Topic(name, context.services.metadata.topic_id(name), ()), offsets) for name, offsets in found.items()]
    return [each for each in topics if context.api_version < 10 or each[0].topic_id != ZERO_TOPIC_ID]


def _unless_earlier(offset: FetchedOffset, topic_id: TopicId) -> FetchedOffset:
    """No offset if it was committed for an earlier topic of the name (OffsetMetadataManager.isMismatchedTopicId)."""
    committed = offset.committed
    if committed is None or ZERO_TOPIC_ID in (topic_id, committed.topic_id) or topic_id == committed.topic_id:
        return offset
    return offset._replace(committed=None)


def _reply_bytes(fetched: _Fetched) -> int:
    return GROUP_BYTES + sum(
        TOPIC_BYTES
        + text_bytes(topic.name)
        + sum(OFFSET_BYTES + (text_bytes(offset.committed.metadata) if offset.committed else 0) for offset in offsets)
        for topic, offsets in fetched.topics
    )


def _all_failed(topic: _Topic, error: ErrorCode) -> tuple[_Topic, list[FetchedOffset]]:
    return topic, [FetchedOffset(partition, None, error) for partition in topic.partitions]


async def _group(group_id: str, fetched: _Fetched, turns: Turns) -> OffsetFetchResponseGroup:
    response = OffsetFetchResponseGroup(group_id=group_id, error_code=fetched.error)
    for topic, offsets in fetched.topics:
        answers = [
            OffsetFetchResponsePartitions(
                partition_index=offset.partition,
                committed_offset=offset.committed.offset if offset.committed else NO_OFFSET,
                committed_leader_epoch=offset.committed.leader_epoch if offset.committed else -1,
                metadata=offset.committed.metadata if offset.committed else "",
                error_code=offset.error,
            )
            for offset in offsets
        ]
        response.topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        await turns.after(len(answers))
    return response


async def _topics_before_8(fetched: _Offsets, turns: Turns) -> list[OffsetFetchResponseTopic]:
    topics = []
    for topic, offsets in fetched:
        answers = [
            OffsetFetchResponsePartition(
                partition_index=offset.partition,
                committed_offset=offset.committed.offset if offset.committed else NO_OFFSET,
                committed_leader_epoch=offset.committed.leader_epoch if offset.committed else -1,
                metadata=offset.committed.metadata if offset.committed else "",
                error_code=offset.error,
            )
            for offset in offsets
        ]
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=answers))
        await turns.after(len(answers))
    return topics


HANDLER: Handler[OffsetFetchRequest, OffsetFetchResponse] = Handler(
    key=9, min_version=1, max_version=10, handle=handle, has_large_replies=True
)
