"""The changes of a consumer group: every mutation of its state, as a value.

A *record* is durable: it is written to `__consumer_offsets`, and applying a partition's records in order rebuilds the
state. The other changes are volatile: a member waits for its response, a rebalance began. They are lost with the
coordinator, and clients recover by rejoining.
"""

from typing import NamedTuple

from barnabas.broker.coordinators.effects import Token
from barnabas.wire.names import ZERO_TOPIC_ID

Protocol = tuple[str, bytes]
"""An assignment strategy that a member offers and the member's metadata for it (for consumers, the subscription)."""


class MemberRecord(NamedTuple):
    """One member inside a GroupRecord; `subscription` is its metadata for the protocol that the group chose."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupRecord(NamedTuple):
    """A generation of a group (Kafka's GroupMetadataValue); without members the group is empty.

    `protocol_type` is "" for a group that never had a member. `state_since_ms` is the wall-clock time at which the
    group entered its state, -1 if an old log does not have it.
    """

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_since_ms: int
    members: tuple[MemberRecord, ...]


class GroupTombstone(NamedTuple):
    """The group was deleted."""

    group_id: str


class CommittedOffset(NamedTuple):
    """A committed offset of a group for a partition.

    `leader_epoch` is -1 when the client did not send one. `expire_at_ms` is -1 unless the commit had its own retention
    (OffsetCommit v2-4).
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    topic_id: bytes = ZERO_TOPIC_ID


class OffsetRecord(NamedTuple):
    """A group committed an offset (Kafka's OffsetCommitValue)."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class OffsetTombstone(NamedTuple):
    """A group's committed offset for the partition was deleted or has expired."""

    group_id: str
    topic: str
    partition: int


Record = GroupRecord | GroupTombstone | OffsetRecord | OffsetTombstone


class Member(NamedTuple):
    """A member of a group; replaced, never altered, so that a group is copied without copying its members."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def metadata(self, protocol_name: str | None) -> bytes | None:
        """The member's metadata for a protocol, None when it does not offer it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return None

    def vote(self, candidates: set[str]) -> str:
        """The member's most preferred protocol among those that every member offers."""
        return next(name for name, _ in self.protocols if name in candidates)


class MemberIdIssued(NamedTuple):
    """A new member received this id and has to join again with it (KIP-394)."""

    member_id: str


class MemberJoined(NamedTuple):
    """A new member has joined, and its JoinGroup waits for the rebalance."""

    member: Member
    token: Token


class MemberRejoined(NamedTuple):
    """A known member sent JoinGroup again; with a token the request waits for the rebalance."""

    member_id: str
    protocols: tuple[Protocol, ...]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    token: Token | None


class MemberReplaced(NamedTuple):
    """A static member has rejoined: its old member id is fenced, and a new one takes its place (KIP-345)."""

    old_member_id: str
    member_id: str


class MemberRemoved(NamedTuple):
    """A member, or an id that was not used yet, has been removed."""

    member_id: str


class LeaderElected(NamedTuple):
    """Another member computes the assignment from now on."""

    member_id: str


class RebalancePrepared(NamedTuple):
    """The group waits for its members to join; waiting SyncGroup requests have been answered.

    `delay_left_ms` is how much longer the rebalance may be delayed for new members; None without a delay.
    """

    at_ms: int
    delay_left_ms: int | None


class DelayExtended(NamedTuple):
    """New members arrived during the delay of the rebalance, which is extended."""

    left_ms: int


class DelayOver(NamedTuple):
    """The delay for new members is over: the rebalance ends when all members have joined."""


class GenerationStarted(NamedTuple):
    """Every waiting JoinGroup was answered; the group waits for its leader's assignment."""

    generation: int
    protocol_name: str
    at_ms: int


class SyncArrived(NamedTuple):
    """A member sent SyncGroup; with a token the request waits for the leader's assignment."""

    member_id: str
    token: Token | None


GroupChange = (
    GroupRecord
    | GroupTombstone
    | MemberIdIssued
    | MemberJoined
    | MemberRejoined
    | MemberReplaced
    | MemberRemoved
    | LeaderElected
    | RebalancePrepared
    | DelayExtended
    | DelayOver
    | GenerationStarted
    | SyncArrived
)

Change = GroupChange | OffsetRecord | OffsetTombstone
