"""Classic groups as a kind of groups (`GroupKind`): what offsets, the shard and administrators need to know of them."""

from collections.abc import Container
from typing import Final

from barnabas.broker.coordinators.effects import Cancel, Schedule
from barnabas.broker.coordinators.groups.changes import GroupTombstone
from barnabas.broker.coordinators.groups.classic.draft import member_error
from barnabas.broker.coordinators.groups.classic.group import decide
from barnabas.broker.coordinators.groups.classic.state import (
    CONSUMER_PROTOCOL_TYPE,
    MEMBER_BYTES,
    Group,
    GroupState,
    apply,
    protocols_bytes,
)
from barnabas.broker.coordinators.groups.classic.subscriptions import subscribed_topics
from barnabas.broker.coordinators.groups.events import SESSION, CommitOffsets, Effects, JoinGroup, SyncGroup, TimerKey
from barnabas.broker.coordinators.groups.kinds import DescribedGroup, DescribedMember, Usage
from barnabas.broker.coordinators.groups.memory import GROUP_BYTES, text_bytes
from barnabas.wire.errors import ErrorCode

__all__ = [
    "Group",
    "added_bytes",
    "apply",
    "bury",
    "commit_error",
    "decide",
    "delete_offsets_error",
    "describe",
    "extend_session",
    "is_empty",
    "usage",
]


class _EveryTopic(Container[str]):
    def __contains__(self, topic: object) -> bool:
        return True


_EVERY_TOPIC: Final = _EveryTopic()
"""The topics of a group of consumers whose subscriptions cannot be read: it may read any."""


def added_bytes(group: Group | None, event: JoinGroup | SyncGroup) -> int:
    if isinstance(event, SyncGroup):
        if group is None or group.leader_id != event.member_id:
            return 0  # nothing of it is stored
        known_bytes = sum(len(member.assignment) for member in group.members.values())
        return sum(len(assignment) for _, assignment in event.assignments) - known_bytes
    texts = (event.client_id, event.client_id, event.group_instance_id, event.group_instance_id, event.protocol_type)
    wanted = MEMBER_BYTES + sum(map(text_bytes, texts)) + protocols_bytes(event.protocols)
    if group is None:
        return wanted + GROUP_BYTES + text_bytes(event.group_id)
    member_id = event.member_id or group.static_members.get(event.group_instance_id or "", "")
    known = group.members.get(member_id)
    return wanted if known is None else protocols_bytes(event.protocols) - protocols_bytes(known.protocols)


def commit_error(group: Group, event: CommitOffsets, *, is_transactional: bool) -> ErrorCode:
    """The error of a commit, NONE if it is accepted (ClassicGroup.validateOffsetCommit).

    A generation below 0 comes from an administrator or a consumer that assigns its partitions itself: accepted while
    the group has no members. Producers before KIP-447 commit for a group without a member id, and others commit while
    it rebalances.
    """
    member_id, group_instance_id, generation = event.member_id, event.group_instance_id, event.generation
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if is_transactional and generation < 0 and not member_id and group_instance_id is None:
        return ErrorCode.NONE
    error = member_error(group, member_id, group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
        # The member knows the new generation, so it has joined: it must send SyncGroup before it commits.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def extend_session(group: Group, member_id: str, effects: Effects) -> None:
    effects.timers.append(Schedule(TimerKey(SESSION, member_id), group.members[member_id].session_timeout_ms))


def delete_offsets_error(group: Group) -> ErrorCode:
    """Members of other protocols than the consumers' have subscriptions that the coordinator does not know
    (ClassicGroup.validateOffsetDelete).
    """
    is_possible = group.state is GroupState.EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE
    return ErrorCode.NONE if is_possible else ErrorCode.NON_EMPTY_GROUP


def usage(group: Group) -> Usage:
    """Offsets are kept for `retention_ms` after the group lost its last member or, in simple groups and of topics that
    the members no longer read, after the commit (ClassicGroup.offsetExpirationCondition).
    """
    is_empty = group.state is GroupState.EMPTY
    subscribed = subscribed_topics(group)
    topics: Container[str] = () if subscribed is None else subscribed
    if subscribed is None and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        topics = _EVERY_TOPIC
    is_simple = group.protocol_type is None
    return Usage(
        topics,
        expire=is_simple or is_empty or (group.state is GroupState.STABLE and subscribed is not None),
        idle_since_ms=group.state_since_ms if is_empty and not is_simple else -1,
        is_unused=is_empty and not group.pending_members,
    )


def is_empty(group: Group) -> bool:
    return group.state is GroupState.EMPTY


def bury(group: Group, effects: Effects) -> None:
    effects.changes.append(GroupTombstone(group.group_id))
    effects.timers.extend(Cancel(TimerKey(SESSION, member_id)) for member_id in group.pending_members)


def describe(group: Group) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    protocol_name = group.protocol_name if is_stable else None
    return DescribedGroup(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        protocol_name or "",
        tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                (member.metadata(protocol_name) or b"") if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ),
    )
