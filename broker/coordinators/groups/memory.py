"""Estimates of the memory that an event would add to groups and offsets: pure, for `GroupService`, which refuses events
beyond its limits. (Kafka has no such limits: its coordinator grows until the heap is full.)
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.coordinators.groups.classic.state import GROUP_BYTES, MEMBER_BYTES, protocols_bytes, text_bytes
from barnabas.broker.coordinators.groups.events import CommitOffsets, JoinGroup, SyncGroup
from barnabas.broker.coordinators.groups.offsets import (
    OFFSET_BYTES,
    OFFSETS_OF_GROUP_BYTES,
    OFFSETS_OF_TOPIC_BYTES,
    PENDING_OFFSET_BYTES,
    PRODUCER_BYTES,
)
from barnabas.broker.coordinators.groups.shard import GroupShard


def added_bytes(shard: GroupShard, event: JoinGroup | SyncGroup | CommitOffsets) -> int:
    """The additional memory of the shard after the event: 0 or less when it replaces as much."""
    return _ADDED[type(event)](shard, event)


def _added_by_join(shard: GroupShard, event: JoinGroup) -> int:
    texts = (event.client_id, event.client_id, event.group_instance_id, event.group_instance_id, event.protocol_type)
    wanted = MEMBER_BYTES + sum(map(text_bytes, texts)) + protocols_bytes(event.protocols)
    group = shard.groups.get(event.group_id)
    if group is None:
        return wanted + GROUP_BYTES + text_bytes(event.group_id)
    member_id = event.member_id or group.static_members.get(event.group_instance_id or "", "")
    known = group.members.get(member_id)
    return wanted if known is None else protocols_bytes(event.protocols) - protocols_bytes(known.protocols)


def _added_by_sync(shard: GroupShard, event: SyncGroup) -> int:
    group = shard.groups.get(event.group_id)
    if group is None or group.leader_id != event.member_id:
        return 0  # nothing of it is stored
    known = sum(len(member.assignment) for member in group.members.values())
    return sum(len(assignment) for _, assignment in event.assignments) - known


def _added_by_commit(shard: GroupShard, event: CommitOffsets) -> int:
    offsets, group_id = shard.offsets, event.group_id
    pending = offsets.pending.get(event.producer_id, {})
    added = 0 if group_id in shard.groups else GROUP_BYTES + OFFSETS_OF_GROUP_BYTES + text_bytes(group_id)
    added += PRODUCER_BYTES if event.is_transactional and not pending else 0
    known_topics = offsets.by_group.get(group_id, {})
    for topic, _, partitions in event.topics:
        known_partitions = known_topics.get(topic, {})
        added += 0 if known_partitions or event.is_transactional else OFFSETS_OF_TOPIC_BYTES
        for partition, _, _, metadata in partitions:
            if event.is_transactional:
                known = pending.get((group_id, topic, partition))
                key_bytes = PENDING_OFFSET_BYTES + text_bytes(group_id)
            else:
                known = known_partitions.get(partition)
                key_bytes = 0
            if known is None:
                added += OFFSET_BYTES + key_bytes + text_bytes(metadata)
            elif metadata:
                added += text_bytes(metadata) - text_bytes(known.committed.metadata)
    return added


_ADDED: Final[Mapping[type, Callable[[GroupShard, Any], int]]] = {
    JoinGroup: _added_by_join,
    SyncGroup: _added_by_sync,
    CommitOffsets: _added_by_commit,
}
