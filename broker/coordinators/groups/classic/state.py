"""The state of a classic consumer group, and `apply`, the only code that alters one.

The running coordinator and the loader both use `apply`: a GroupRecord replaces the durable state of the group and keeps
the volatile state of members that stay (their other protocols, waiting requests). Source: Kafka's ClassicGroup and
GroupMetadataManager.replay.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from barnabas.broker.coordinators.effects import Token
from barnabas.broker.coordinators.groups.changes import (
    DelayExtended,
    DelayOver,
    GenerationStarted,
    GroupChange,
    GroupRecord,
    GroupTombstone,
    LeaderElected,
    Member,
    MemberIdIssued,
    MemberJoined,
    MemberRecord,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    Protocol,
    RebalancePrepared,
    SyncArrived,
)
from barnabas.broker.coordinators.groups.memory import GROUP_BYTES, text_bytes

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of Kafka's consumers, the only one whose subscriptions the coordinator reads."""


MEMBER_BYTES: Final = 2_000
PENDING_MEMBER_BYTES: Final = 600
PROTOCOL_BYTES: Final = 200
"""The memory that each part of a group takes besides clients' texts and bytes, with its timers."""


class GroupState(Enum):
    """The state of a group; the values are the names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    """No members; kept for its committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for the members to join."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waiting for the leader's assignment."""
    STABLE = "Stable"
    """All members have, or can fetch, their assignments."""
    DEAD = "Dead"
    """Deleted; a deleted group has no state, and an unknown group is shown as dead."""


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE}),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.DEAD: frozenset(),
    }
)
"""The permitted next states of each state. A rewritten record of the same state (a static member rejoined) is no
transition.
"""


class Group:
    """One group; owned by its shard, altered by `apply` only.

    `waiting_joins` and `waiting_syncs` map member ids to their waiting requests. `pending_members` are ids of new
    members that have not joined yet, oldest first; `pending_syncs` are members of this generation that have not sent
    SyncGroup; `new_members` joined in this rebalance and do not know their id before it ends. `supporters` counts, per
    protocol name, the members that offer it. `held_bytes` is an estimate of the group's memory.
    """

    group_type: ClassVar = "classic"

    __slots__ = (
        "delay_left_ms",
        "generation",
        "group_id",
        "held_bytes",
        "leader_id",
        "members",
        "new_member_added",
        "new_members",
        "pending_members",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
        "supporters",
        "waiting_joins",
        "waiting_syncs",
    )

    def __init__(self, group_id: str, state_since_ms: int = -1) -> None:
        self.group_id = group_id
        self.held_bytes = GROUP_BYTES + text_bytes(group_id)
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_since_ms = state_since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, None] = {}
        self.pending_syncs: set[str] = set()
        self.new_members: set[str] = set()
        self.waiting_joins: dict[str, Token] = {}
        self.waiting_syncs: dict[str, Token] = {}
        self.supporters: dict[str, int] = {}
        self.new_member_added = False
        self.delay_left_ms: int | None = None

    def copy(self) -> "Group":
        """An independent group with the same content: O(members), no member is copied."""
        copy: Group = Group.__new__(Group)
        for name in Group.__slots__:
            value = getattr(self, name)
            setattr(copy, name, value.copy() if isinstance(value, (dict, set)) else value)
        return copy

    @property
    def is_put_off(self) -> bool:
        """Whether the rebalance is delayed for new members, though all members may have joined: a timer
        ends the delay."""
        return self.delay_left_ms is not None

    @property
    def is_initial_rebalance(self) -> bool:
        """Whether the group waits for the first members of an empty group."""
        return self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY

    @property
    def all_members_joined(self) -> bool:
        return len(self.members) == len(self.waiting_joins) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_known(self, member_id: str) -> bool:
        return member_id in self.members or member_id in self.pending_members

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols could share an assignment with the others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supporters.get(name, 0) == count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with the most votes among those that all members offer; in a tie, the one voted for first."""
        count = len(self.members)
        candidates = {name for name, supporters in self.supporters.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def to_record(self, assignments: Mapping[str, bytes]) -> GroupRecord:
        """The record of this generation, with the given assignment per member id (empty where one is missing)."""
        members = tuple(
            MemberRecord(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name) or b"",
                assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return GroupRecord(
            self.group_id,
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader_id,
            self.state_since_ms,
            members,
        )

    def move_to(self, state: GroupState, at_ms: int) -> None:
        assert state in TRANSITIONS[self.state], (self.group_id, self.state, state)
        self.previous_state, self.state, self.state_since_ms = self.state, state, at_ms

    def put(self, member: Member) -> None:
        """Add a member, or replace its former state, in the same place."""
        known = self.members.get(member.member_id)
        if known is not None:
            self._count(known, -1)
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._count(member, 1)

    def take(self, member_id: str) -> Member:
        """Remove a member."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        self._count(member, -1)
        return member

    def _count(self, member: Member, step: int) -> None:
        self.held_bytes += step * member_bytes(member)
        for name, _ in member.protocols:
            count = self.supporters.get(name, 0) + step
            if count:
                self.supporters[name] = count
            else:
                del self.supporters[name]


def protocols_bytes(protocols: tuple[Protocol, ...]) -> int:
    """An estimate of the memory of a member's protocols."""
    return sum(PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)


def member_bytes(member: Member) -> int:
    """An estimate of the memory of a member."""
    texts = (member.member_id, member.group_instance_id, member.client_id, member.protocol_type)
    return MEMBER_BYTES + sum(map(text_bytes, texts)) + protocols_bytes(member.protocols) + len(member.assignment)


def pending_member_bytes(member_id: str) -> int:
    """An estimate of the memory of an id that was assigned, but not used yet."""
    return PENDING_MEMBER_BYTES + text_bytes(member_id)


def apply(group: Group | None, change: GroupChange) -> Group | None:
    """Apply one change and return the changed group (None: it no longer exists); the only mutator of a group, and its
    loader.
    """
    if isinstance(change, GroupTombstone):
        return None
    if isinstance(change, GroupRecord):
        group = group or Group(change.group_id)
        _apply_record(group, change)
        return group
    assert group is not None, change
    _APPLIERS[type(change)](group, change)
    return group


def _apply_record(group: Group, record: GroupRecord) -> None:
    group.protocol_type = record.protocol_type or None
    group.protocol_name = record.protocol_name
    group.generation = record.generation
    group.leader_id = record.leader_id
    known = dict(group.members)
    for member_id in known:
        group.take(member_id)
    for entry in record.members:
        group.put(_member_of(record, entry, known.get(entry.member_id)))
    group.pending_syncs.intersection_update(group.members)
    group.new_members.intersection_update(group.members)
    group.waiting_syncs.clear()
    group.delay_left_ms = None
    group.new_member_added = False
    state = GroupState.STABLE if record.members else GroupState.EMPTY
    if state is not group.state:
        # Not `move_to`: a log has a group only after each rebalance, so its loader goes from Empty to Stable.
        group.previous_state, group.state = group.state, state
    group.state_since_ms = record.state_since_ms


def _member_of(record: GroupRecord, entry: MemberRecord, known: Member | None) -> Member:
    protocols: tuple[Protocol, ...] = ((record.protocol_name or "", entry.subscription),)
    if known is not None and known.metadata(record.protocol_name) == entry.subscription:
        protocols = known.protocols
    return Member(
        entry.member_id,
        entry.group_instance_id,
        entry.client_id,
        entry.client_host,
        entry.rebalance_timeout_ms,
        entry.session_timeout_ms,
        record.protocol_type,
        protocols,
        entry.assignment,
    )


def _issue_member_id(group: Group, change: MemberIdIssued) -> None:
    group.pending_members[change.member_id] = None
    group.held_bytes += pending_member_bytes(change.member_id)


def _join(group: Group, change: MemberJoined) -> None:
    member = change.member
    if group.is_put_off:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = member.protocol_type
    if group.leader_id is None:
        group.leader_id = member.member_id
    group.put(member)
    _forget_pending(group, member.member_id)
    group.new_members.add(member.member_id)
    group.waiting_joins[member.member_id] = change.token


def _forget_pending(group: Group, member_id: str) -> None:
    if member_id in group.pending_members:
        del group.pending_members[member_id]
        group.held_bytes -= pending_member_bytes(member_id)


def _rejoin(group: Group, change: MemberRejoined) -> None:
    group.put(
        group.members[change.member_id]._replace(
            protocols=change.protocols,
            rebalance_timeout_ms=change.rebalance_timeout_ms,
            session_timeout_ms=change.session_timeout_ms,
        )
    )
    if change.token is not None:
        group.waiting_joins[change.member_id] = change.token


def _replace(group: Group, change: MemberReplaced) -> None:
    old = group.take(change.old_member_id)
    assert old.group_instance_id is not None, change
    group.put(old._replace(member_id=change.member_id))
    group.waiting_joins.pop(change.old_member_id, None)
    group.waiting_syncs.pop(change.old_member_id, None)
    group.new_members.discard(change.old_member_id)
    if change.old_member_id in group.pending_syncs:
        group.pending_syncs.discard(change.old_member_id)
        group.pending_syncs.add(change.member_id)
    if group.leader_id == change.old_member_id:
        group.leader_id = change.member_id


def _remove(group: Group, change: MemberRemoved) -> None:
    member_id = change.member_id
    _forget_pending(group, member_id)
    if member_id not in group.members:
        return
    group.take(member_id)
    group.waiting_joins.pop(member_id, None)
    group.waiting_syncs.pop(member_id, None)
    group.pending_syncs.discard(member_id)
    group.new_members.discard(member_id)
    if group.leader_id == member_id:
        group.leader_id = next(iter(group.members), None)


def _elect(group: Group, change: LeaderElected) -> None:
    group.leader_id = change.member_id


def _prepare(group: Group, change: RebalancePrepared) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The assignments of a generation that was never stored would make DescribeGroups misleading.
        for member in [member for member in group.members.values() if member.assignment]:
            group.put(member._replace(assignment=b""))
    group.move_to(GroupState.PREPARING_REBALANCE, change.at_ms)
    group.pending_syncs.clear()
    group.waiting_syncs.clear()
    group.new_member_added = False
    group.delay_left_ms = change.delay_left_ms


def _extend_delay(group: Group, change: DelayExtended) -> None:
    group.new_member_added = False
    group.delay_left_ms = change.left_ms


def _end_delay(group: Group, _: DelayOver) -> None:
    group.delay_left_ms = None


def _start_generation(group: Group, change: GenerationStarted) -> None:
    group.generation = change.generation
    group.protocol_name = change.protocol_name
    group.move_to(GroupState.COMPLETING_REBALANCE, change.at_ms)
    group.waiting_joins.clear()
    group.new_members.clear()
    group.new_member_added = False
    group.delay_left_ms = None
    group.pending_syncs = set(group.members)


def _sync(group: Group, change: SyncArrived) -> None:
    group.pending_syncs.discard(change.member_id)
    if change.token is not None:
        group.waiting_syncs[change.member_id] = change.token


_APPLIERS: Final[Mapping[type, Callable[[Group, Any], None]]] = {
    MemberIdIssued: _issue_member_id,
    MemberJoined: _join,
    MemberRejoined: _rejoin,
    MemberReplaced: _replace,
    MemberRemoved: _remove,
    LeaderElected: _elect,
    RebalancePrepared: _prepare,
    DelayExtended: _extend_delay,
    DelayOver: _end_delay,
    GenerationStarted: _start_generation,
    SyncArrived: _sync,
}
