"""A member of a classic consumer group, for the command line: joins, assigns partitions by range, commits, leaves.

Works together with members of other clients, if they support the assignor `range`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import Positions, TopicPartition
from barnabas.broker.client.errors import ClientError, ResponseError, check
from barnabas.broker.client.patience import Patience, TellDelay, patiently, tell_nobody
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode, ProtocolError
from barnabas.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from barnabas.wire.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic
from barnabas.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from barnabas.wire.messages.heartbeat import HeartbeatRequest
from barnabas.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from barnabas.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from barnabas.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from barnabas.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from barnabas.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

RANGE: Final = "range"
SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 60_000
HEARTBEAT_INTERVAL_S: Final = 3.0
COORDINATOR_TIMEOUT_S: Final = 60.0
"""The time for which a coordinator may be unavailable while offsets are looked up, or committed for the last time."""

REJOIN_BACKOFF_S: Final = 0.1

# From version 10 on topics are named by id; names suffice here.
OFFSETS_BY_NAME_MAX: Final = 9

_REJOIN: Final = frozenset((ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID))


def assign_range(
    subscriptions: Mapping[str, Sequence[str]], partitions: Sequence[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    """Each member's partitions: topic by topic, contiguous, members in order of their ids (RangeAssignor)."""
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        indexes = sorted(index for name, index in partitions if name == topic)
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        share, extra = divmod(len(indexes), len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + share + (number < extra)
            assignment[member] += [(topic, index) for index in indexes[start:end]]
            start = end
    return assignment


class GroupMember:
    """One member; call `join` first, and again when `must_rejoin`. Owned by one task.

    `on_delay` is called once with the error that keeps it from joining, which is retried for ever.
    """

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        topics: Sequence[str],
        positions: Positions,
        *,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        on_delay: TellDelay = tell_nobody,
    ) -> None:
        self.must_rejoin = False
        self._client = client
        self.group = group
        self._topics = topics
        self._positions = positions
        self._heartbeat_interval_s = heartbeat_interval_s
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._on_delay = on_delay
        self._member_id = ""
        self._generation = -1
        self._heartbeats: asyncio.Task[None] | None = None

    async def join(self) -> list[TopicPartition]:
        """Take part in a rebalance; returns the assigned partitions. Errors: ClientError."""
        await self._stop_heartbeats()
        patience = Patience(None, self._on_delay)
        while True:
            try:
                partitions = await self._rebalance()
            except ClientError as error:
                if not isinstance(error, ResponseError) or error.error not in _REJOIN:
                    await patience.after(error)
                    continue
                if error.error is ErrorCode.UNKNOWN_MEMBER_ID:
                    self._member_id = ""
                await asyncio.sleep(REJOIN_BACKOFF_S)
            else:
                self.must_rejoin = False
                self._heartbeats = asyncio.create_task(self._beat(), name=f"heartbeats of {self.group}")
                return partitions

    async def _rebalance(self) -> list[TopicPartition]:
        node_id = await self._client.coordinator(self.group, timeout_s=0)  # `join` retries, and reports the error
        joined = await self._join(node_id)
        self._generation = joined.generation_id
        protocol_name = joined.protocol_name or RANGE
        assignments = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            subscriptions = {member.member_id: _subscribed_topics(member.metadata) for member in joined.members}
            await self._positions.refresh({topic for topics in subscriptions.values() for topic in topics})
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=_encode_assignment(partitions))
                for member, partitions in assign_range(subscriptions, self._positions.partitions()).items()
            ]
        response: SyncGroupResponse = await self._client.send(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name=protocol_name,
                assignments=assignments,
            ),
            node_id,
            wait_s=self._rebalance_timeout_ms / 1000,
        )
        check(response.error_code, f"cannot get the assignment of group {self.group}")
        return _decode_assignment(response.assignment)

    async def _join(self, node_id: int) -> JoinGroupResponse:
        subscription = ConsumerProtocolSubscription(topics=list(self._topics))
        metadata = b"\0\1" + codec.encode(subscription, 1)
        while True:
            response: JoinGroupResponse = await self._client.send(
                JoinGroupRequest(
                    group_id=self.group,
                    session_timeout_ms=self._session_timeout_ms,
                    rebalance_timeout_ms=self._rebalance_timeout_ms,
                    member_id=self._member_id,
                    protocol_type="consumer",
                    protocols=[JoinGroupRequestProtocol(name=RANGE, metadata=metadata)],
                ),
                node_id,
                wait_s=self._rebalance_timeout_ms / 1000,
            )
            self._member_id = response.member_id or self._member_id
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue  # KIP-394: join again with the id just received
            check(response.error_code, f"cannot join group {self.group}")
            return response

    async def _beat(self) -> None:
        while not self.must_rejoin:
            await asyncio.sleep(self._heartbeat_interval_s)
            try:
                node_id = await self._client.coordinator(self.group)
                response = await self._client.send(
                    HeartbeatRequest(group_id=self.group, generation_id=self._generation, member_id=self._member_id),
                    node_id,
                )
            except ClientError:
                continue  # the next one may succeed; if not, the session ends and a commit will fail
            self.must_rejoin = response.error_code in _REJOIN

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of the group, without partitions that have none. Errors: ClientError."""
        return await patiently(lambda: fetch_committed(self._client, self.group, partitions), COORDINATOR_TIMEOUT_S)

    async def commit(self, offsets: Mapping[TopicPartition, int], timeout_s: float = COORDINATOR_TIMEOUT_S) -> None:
        """Commit offsets; while the coordinator is unavailable, retry for `timeout_s`.

        Errors: ClientError, except for a rebalance: `must_rejoin` is set.
        """
        if offsets:
            await patiently(lambda: self._commit(offsets), timeout_s)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.must_rejoin:
            return
        node_id = await self._client.coordinator(self.group)
        request = commit_request(self.group, offsets, self._generation, self._member_id)
        response: OffsetCommitResponse = await self._client.send(request, node_id, max_version=OFFSETS_BY_NAME_MAX)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code in _REJOIN:
                    self.must_rejoin = True
                else:
                    check(partition.error_code, f"cannot commit {topic.name}-{partition.partition_index}")

    async def forget(self) -> None:
        """Stop being a member without a LeaveGroup request: the session expires."""
        await self._stop_heartbeats()

    async def leave(self) -> None:
        """Leave the group, so that others get its partitions at once. Never fails: the session would expire anyway."""
        await self._stop_heartbeats()
        request = LeaveGroupRequest(group_id=self.group)
        try:
            node_id = await self._client.coordinator(self.group)
            request.members = [MemberIdentity(member_id=self._member_id)]
            await self._client.send(request, node_id)
        except (ClientError, ValueError):
            return

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None


async def fetch_committed(
    client: KafkaClient, group: str, partitions: Sequence[TopicPartition] | None
) -> dict[TopicPartition, int]:
    """The committed offsets of a group, of all partitions if `partitions` is None. Errors: ClientError."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions or ():
        by_topic.setdefault(topic, []).append(index)
    node_id = await client.coordinator(group)
    single = OffsetFetchRequest(
        group_id=group,
        topics=None
        if partitions is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()],
    )
    batched = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if partitions is None
                else [
                    OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()
                ],
            )
        ]
    )
    is_batched = await client.supports(OffsetFetchRequest, 8, node_id)
    response = await client.send(batched if is_batched else single, node_id, max_version=OFFSETS_BY_NAME_MAX)
    answer = response.groups[0] if is_batched else response
    check(answer.error_code, f"cannot get the offsets of group {group}")
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            check(partition.error_code, f"cannot get the offset of {topic.name}-{partition.partition_index}")
            if partition.committed_offset >= 0:
                found[topic.name, partition.partition_index] = partition.committed_offset
    return found


def commit_request(
    group: str, offsets: Mapping[TopicPartition, int], generation: int = -1, member_id: str = ""
) -> OffsetCommitRequest:
    """An OffsetCommit request of these offsets; without generation and member it is an administrator's."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, index), offset in offsets.items():
        entry = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic))
        entry.partitions.append(OffsetCommitRequestPartition(partition_index=index, committed_offset=offset))
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=list(topics.values()),
    )


def _subscribed_topics(metadata: bytes) -> list[str]:
    version = int.from_bytes(metadata[:2], "big", signed=True)
    try:
        return codec.decode(ConsumerProtocolSubscription, max(0, min(version, 3)), metadata, 2).topics
    except ProtocolError as error:
        raise ClientError(f"another member of the group sent a subscription that cannot be read: {error}") from error


def _encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    assigned = [AssignedTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
    return b"\0\1" + codec.encode(ConsumerProtocolAssignment(assigned_partitions=assigned), 1)


def _decode_assignment(assignment: bytes) -> list[TopicPartition]:
    if not assignment:
        return []
    version = int.from_bytes(assignment[:2], "big", signed=True)
    decoded = codec.decode(ConsumerProtocolAssignment, max(0, min(version, 3)), assignment, 2)
    return [(topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions]


def describe_assignment(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a member's assignment in DescribeGroups; empty if it cannot be decoded."""
    try:
        return _decode_assignment(assignment)
    except (ProtocolError, ValueError):
        return []
