"""The events of the group machine, and its replies: plain values without API versions or connections."""

from typing import Final, NamedTuple

from barnabas.broker.coordinators.effects import Effects as CoordinatorEffects
from barnabas.broker.coordinators.effects import Token
from barnabas.broker.coordinators.groups.changes import Change, CommittedOffset, Protocol
from barnabas.wire.errors import ErrorCode

SESSION: Final = "session"
"""Timer kind: a member's session timeout without a request."""
JOIN: Final = "join"
"""Timer kind: the members' time to join."""
NEWCOMERS: Final = "newcomers"
"""Timer kind: the delay of a rebalance for new members."""
SYNC: Final = "sync"
"""Timer kind: the members' time to send SyncGroup."""


class TimerKey(NamedTuple):
    """Names one timer of a group; `member_id` is set for session timers."""

    kind: str
    member_id: str = ""


class JoinGroup(NamedTuple):
    """A client joins, or stays in, a group.

    `fresh_id` is a new UUID as text, used when the member needs an id. With `member_id_required` a new member without
    instance id must join again with the id it receives (JoinGroup v4+); with `can_skip_assignment` the client supports
    the flag of that name (v9+).
    """

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    reason: str
    fresh_id: str
    member_id_required: bool
    can_skip_assignment: bool


class SyncGroup(NamedTuple):
    """A member requests its assignment; the leader sends the assignment of all members as (member id, assignment)."""

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Heartbeat(NamedTuple):
    """A member's heartbeat."""

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """One entry of a LeaveGroup; an empty `member_id` with an instance id removes the static member of that instance
    id."""

    member_id: str
    group_instance_id: str | None
    reason: str


class LeaveGroup(NamedTuple):
    """Members leave, or an administrator removes them."""

    group_id: str
    token: Token
    leavers: tuple[Leaver, ...]


class TimerFired(NamedTuple):
    """A timer that the machine scheduled has run out."""

    group_id: str
    key: TimerKey


class Loaded(NamedTuple):
    """The group was loaded from the log: its members' sessions start now."""

    group_id: str


class StoreRefused(NamedTuple):
    """The log refused the leader's assignment; nothing was written."""

    group_id: str
    error: ErrorCode


class PartitionCommit(NamedTuple):
    """One offset to commit."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """Commit offsets, given as (topic, topic id, partitions).

    `retention_ms` is -1 for the broker's own retention (OffsetCommit v5+). `unknown_group_error` is the error for a
    member of a group that does not exist, which depends on the request's version. With a producer id the offsets are
    part of its transaction, and take effect when that is committed.
    """

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    generation: int
    retention_ms: int
    topics: tuple[tuple[str, bytes, tuple[PartitionCommit, ...]], ...]
    unknown_group_error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= 0


class DeleteOffsets(NamedTuple):
    """Delete the offsets of (topic, partitions)."""

    group_id: str
    token: Token
    topics: tuple[tuple[str, tuple[int, ...]], ...]


class DeleteGroup(NamedTuple):
    """Delete an empty group and its offsets."""

    group_id: str
    token: Token


class ExpireOffsets(NamedTuple):
    """Delete offsets that have outlived their retention, and the group once nothing is left of it."""

    group_id: str


class ForgetTopics(NamedTuple):
    """Delete the offsets of topics that were deleted."""

    group_id: str
    topics: frozenset[str]


OffsetEvent = CommitOffsets | DeleteOffsets | DeleteGroup | ExpireOffsets | ForgetTopics

GroupEvent = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | TimerFired | Loaded | StoreRefused


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    """The reply to JoinGroup; `members` is set for the leader only."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncReply(NamedTuple):
    """The reply to SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    """The reply to Heartbeat."""

    error: ErrorCode


class LeaverReply(NamedTuple):
    """The result of one leaver."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveReply(NamedTuple):
    """The reply to LeaveGroup, entry by entry."""

    members: tuple[LeaverReply, ...]


class OffsetsReply(NamedTuple):
    """The reply to CommitOffsets and DeleteOffsets: one error for all (then no topics), or one per partition."""

    error: ErrorCode
    topics: tuple[tuple[str, tuple[tuple[int, ErrorCode], ...]], ...] = ()


class FetchedOffset(NamedTuple):
    """The OffsetFetch result of one partition; `committed` is None if there is no offset."""

    partition: int
    committed: CommittedOffset | None
    error: ErrorCode = ErrorCode.NONE


class FetchReply(NamedTuple):
    """The requested committed offsets, by topic."""

    topics: dict[str, list[FetchedOffset]]


class DeleteGroupReply(NamedTuple):
    """The reply to DeleteGroup."""

    error: ErrorCode


Reply = FetchReply | OffsetsReply | DeleteGroupReply | JoinReply | SyncReply | HeartbeatReply | LeaveReply


class Effects(CoordinatorEffects[Change, Reply]):
    """The effects of a decision about a group."""

    __slots__ = ()
