"""OffsetFetch (key 9): how far groups have read.   Versions 1-9.

Behaviour: a partition without an offset, and an unknown group, are answered with offset -1 and no error. Null topics
(version 2+) ask for everything the group has. The answer waits until the offsets it tells of are replicated.
Errors per partition: UNSTABLE_OFFSET_COMMIT (an open transaction may change the offset, and the client asked for
stable ones). Per group, in version 1 per partition: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION (a reply of more than 32 MiB).
Versions: 2 all topics, top-level error; 3 throttle time; 5 leader epoch (KIP-320); 6 flexible; 7 require stable
(KIP-447); 8 several groups (KIP-709); 9 member id and epoch of the new group protocol (KIP-848; classic groups do not
look at them).
"""

from collections.abc import Iterable
from typing import NamedTuple

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom, text_bytes
from barnabas.broker.coordinators.groups.events import FetchedOffset
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

NO_OFFSET = -1
OFFSET_BYTES = 24
TOPIC_BYTES = 10
GROUP_BYTES = 20
"""Of a partition, a topic and a group in a reply, besides metadata and names."""


_Topics = list[tuple[str, list[FetchedOffset]]]
_Question = tuple[str, tuple[tuple[str, tuple[int, ...]], ...] | None]


class _Fetched(NamedTuple):
    """A group's offsets by topic, as asked for, or the error that stands for all of them."""

    topics: _Topics
    error: ErrorCode


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    room: ReplyRoom[_Question, _Fetched] = ReplyRoom(_reply_bytes)
    turns = Turns()
    if context.api_version >= 8:
        response = OffsetFetchResponse()
        for group in request.groups:
            fetched = await _fetch(group.group_id, group.topics, request.require_stable, context, room, turns)
            response.groups.append(await _group(group.group_id, fetched, turns))
            await turns.after_one()
        return response
    fetched = await _fetch(request.group_id, request.topics, request.require_stable, context, room, turns)
    if fetched.error is not ErrorCode.NONE and context.api_version < 2:
        topics = [(topic.name, _all_failed(topic.partition_indexes, fetched.error)) for topic in request.topics or ()]
        fetched = _Fetched(topics, fetched.error)
    return OffsetFetchResponse(error_code=fetched.error, topics=await _topics_before_8(fetched.topics, turns))


async def _fetch(
    group_id: str,
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    require_stable: bool,
    context: RequestContext,
    room: ReplyRoom[_Question, _Fetched],
    turns: Turns,
) -> _Fetched:
    asked = None if topics is None else tuple((topic.name, tuple(topic.partition_indexes)) for topic in topics)
    try:
        known = room.again((group_id, asked))
        if known is not None:
            return known
        found = await _offsets(group_id, asked, require_stable, context, turns)
        return room.first((group_id, asked), _Fetched(found, ErrorCode.NONE))
    except Exception as error:  # noqa: BLE001 - one entry does not take the others with it
        return _Fetched([], context.services.unforeseen.refusal(error, f"group {group_id!r}").error)


async def _offsets(
    group_id: str,
    asked: tuple[tuple[str, tuple[int, ...]], ...] | None,
    require_stable: bool,
    context: RequestContext,
    turns: Turns,
) -> _Topics:
    """Topics and partitions as they are named, each looked up once. Errors: as `GroupService.fetch_offsets`."""
    groups = context.services.groups
    if asked is None:
        return list((await groups.fetch_offsets(group_id, None, require_stable=require_stable)).items())
    wanted: dict[str, dict[int, None]] = {}
    for topic, partitions in asked:
        wanted.setdefault(topic, {}).update(dict.fromkeys(partitions))
        await turns.after(len(partitions))
    found: dict[str, dict[int, FetchedOffset]] = {}
    for topic, offsets in (await groups.fetch_offsets(group_id, wanted, require_stable=require_stable)).items():
        found[topic] = {offset.partition: offset for offset in offsets}
        await turns.after(len(offsets))
    topics: _Topics = []
    for topic, partitions in asked:
        topics.append((topic, [found[topic][partition] for partition in partitions]))
        await turns.after(len(partitions))
    return topics


def _reply_bytes(fetched: _Fetched) -> int:
    return GROUP_BYTES + sum(
        TOPIC_BYTES
        + len(topic)
        + sum(OFFSET_BYTES + (text_bytes(offset.committed.metadata) if offset.committed else 0) for offset in offsets)
        for topic, offsets in fetched.topics
    )


def _all_failed(partitions: Iterable[int], error: ErrorCode) -> list[FetchedOffset]:
    return [FetchedOffset(partition, None, error) for partition in partitions]


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
        response.topics.append(OffsetFetchResponseTopics(name=topic, partitions=answers))
        await turns.after(len(answers))
    return response


async def _topics_before_8(fetched: _Topics, turns: Turns) -> list[OffsetFetchResponseTopic]:
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
        topics.append(OffsetFetchResponseTopic(name=topic, partitions=answers))
        await turns.after(len(answers))
    return topics


HANDLER = Handler(key=9, min_version=1, max_version=9, handle=handle)
