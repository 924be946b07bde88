"""What the group machine is told, and what it answers: plain values without API versions or connections."""

from typing import Final, NamedTuple

from barnabas.broker.coordinators.effects import Effects as CoordinatorEffects
from barnabas.broker.coordinators.effects import Token
from barnabas.broker.coordinators.groups.changes import Change, CommittedOffset, Protocol
from barnabas.wire.errors import ErrorCode

SESSION: Final = "session"
"""Timer kind: a member has not been heard of for its session timeout."""
JOIN: Final = "join"
"""Timer kind: the members had their time to join."""
NEWCOMERS: Final = "newcomers"
"""Timer kind: newcomers had their time to come before the rebalance goes on."""
SYNC: Final = "sync"
"""Timer kind: the members had their time to send SyncGroup."""


class TimerKey(NamedTuple):
    """Names one timer of a group; `member_id` is set for session timers."""

    kind: str
    member_id: str = ""


class JoinGroup(NamedTuple):
    """A client wants to be, or stay, a member.

    `fresh_id` is a new UUID in text, used when the member needs an id. `member_id_required` says that a newcomer
    without instance id must come back with the id it is given (JoinGroup v4+); `can_skip_assignment` that the client
    understands the flag of that name (v9+).
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
    """A member asks for its assignment; the leader brings everyone's (member id, assignment)."""

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Heartbeat(NamedTuple):
    """A member says that it is alive."""

    group_id: str
    token: Token
    member_id: str
    group_instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    """One entry of a LeaveGroup; an empty `member_id` with an instance id removes whoever holds that instance id."""

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
    """The group was read from the log: its members' sessions start now."""

    group_id: str


class StoreRefused(NamedTuple):
    """The log refused the assignment that the leader sent; nothing was written."""

    group_id: str
    error: ErrorCode


class PartitionCommit(NamedTuple):
    """One position to store."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """Store positions: (topic, topic id, partitions) each.

    `retention_ms` is -1 for the broker's own retention (OffsetCommit v5+). `unknown_group_error` is the answer to a
    member of a group that does not exist, which depends on what the client understands. With a producer id the
    positions are part of its transaction, and count when that is committed.
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
    """Forget the positions of (topic, partitions)."""

    group_id: str
    token: Token
    topics: tuple[tuple[str, tuple[int, ...]], ...]


class DeleteGroup(NamedTuple):
    """Forget an empty group and its positions."""

    group_id: str
    token: Token


class ExpireOffsets(NamedTuple):
    """Forget what outlived its retention, and the group once nothing is left of it."""

    group_id: str


class ForgetTopics(NamedTuple):
    """Drop the offsets of topics that were deleted."""

    group_id: str
    topics: frozenset[str]


OffsetEvent = CommitOffsets | DeleteOffsets | DeleteGroup | ExpireOffsets | ForgetTopics

GroupEvent = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | TimerFired | Loaded | StoreRefused


class JoinedMember(NamedTuple):
    """A member as the leader is told about it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    """Answers JoinGroup; `members` is filled for the leader only."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncReply(NamedTuple):
    """Answers SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    """Answers Heartbeat."""

    error: ErrorCode


class LeaverReply(NamedTuple):
    """What became of one leaver."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveReply(NamedTuple):
    """Answers LeaveGroup, entry by entry."""

    members: tuple[LeaverReply, ...]


class OffsetsReply(NamedTuple):
    """Answers CommitOffsets and DeleteOffsets: one error for all (then no topics), or one per partition."""

    error: ErrorCode
    topics: tuple[tuple[str, tuple[tuple[int, ErrorCode], ...]], ...] = ()


class FetchedOffset(NamedTuple):
    """What OffsetFetch tells of one partition; `committed` is None when nothing is stored."""

    partition: int
    committed: CommittedOffset | None
    error: ErrorCode = ErrorCode.NONE


class FetchReply(NamedTuple):
    """The committed offsets that were asked for, by topic."""

    topics: dict[str, list[FetchedOffset]]


class DeleteGroupReply(NamedTuple):
    """Answers DeleteGroup."""

    error: ErrorCode


Reply = FetchReply | OffsetsReply | DeleteGroupReply | JoinReply | SyncReply | HeartbeatReply | LeaveReply


class Effects(CoordinatorEffects[Change, Reply]):
    """What a decision about a group asks of the shell."""

    __slots__ = ()
