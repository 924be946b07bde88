"""The interface between the code that all groups share (offsets, records in `__consumer_offsets`, responses to
administrators) and the kinds of groups.

Classic groups (`classic/`) are the only kind so far. Another kind, such as the consumer groups of KIP-848 or the share
groups of KIP-932, needs a class that is a `Group`, a module with the functions of `GroupKind`, its own events, changes
and records, and an entry in `KINDS` of `shard.py`.

Source: Kafka's interface Group, whose methods these functions are.
"""

from collections.abc import Container, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from barnabas.broker.coordinators.groups.changes import GroupChange
from barnabas.broker.coordinators.groups.events import CommitOffsets, Effects, GroupEvent, JoinGroup, SyncGroup
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ErrorCode


class Group(Protocol):
    """A group of any kind; owned by its shard, altered by `apply` of its kind only. `held_bytes` is an estimate of its
    memory.
    """

    group_type: ClassVar[str]
    """The name of the kind (ListGroups v5+)."""
    group_id: str
    generation: int
    protocol_type: str | None
    held_bytes: int

    @property
    def state(self) -> Enum:
        """The state; its value is the name in ListGroups."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The members, by id."""


class Usage(NamedTuple):
    """The offsets that a group still needs.

    `topics` are the topics that the members read: their offsets do not expire. `expire` says whether the offsets of
    other topics do. The retention of an offset begins at `idle_since_ms`, or, if that is negative, with the offset's
    commit. A group that `is_unused` is deleted with its last offset.
    """

    topics: Container[str]
    expire: bool
    idle_since_ms: int
    is_unused: bool


class DescribedMember(NamedTuple):
    """A member in DescribeGroups; `metadata` is set only while the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group in DescribeGroups."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


KindOfGroup = TypeVar("KindOfGroup")


class GroupKind(Protocol[KindOfGroup]):
    """The functions of one kind of groups. They do no I/O, and only `apply` changes a group. The group is None if it
    does not exist.
    """

    def decide(self, group: KindOfGroup | None, event: GroupEvent, now_ms: int, settings: GroupSettings, /) -> Effects:
        """The effects of a member's request or a timer; `now_ms` is wall-clock time."""

    def apply(self, group: KindOfGroup | None, change: GroupChange, /) -> KindOfGroup | None:
        """Apply one change; returns the changed group."""

    def added_bytes(self, group: KindOfGroup | None, event: JoinGroup | SyncGroup, /) -> int:
        """The memory that the event adds to the group: 0 or less if it replaces as much as it adds."""

    def commit_error(self, group: KindOfGroup, event: CommitOffsets, /, *, is_transactional: bool) -> ErrorCode:
        """The error of a commit, NONE if the group accepts it."""

    def extend_session(self, group: KindOfGroup, member_id: str, effects: Effects, /) -> None:
        """Count an accepted commit as the member's heartbeat, if it is one in this kind."""

    def delete_offsets_error(self, group: KindOfGroup, /) -> ErrorCode:
        """The error of a deletion of offsets; NONE if offsets of topics that members do not read may be deleted."""

    def usage(self, group: KindOfGroup, /) -> Usage:
        """The offsets that the group needs."""

    def is_empty(self, group: KindOfGroup, /) -> bool:
        """Whether the group has no members, so that it can be deleted."""

    def bury(self, group: KindOfGroup, effects: Effects, /) -> None:
        """Delete the group, without its offsets."""

    def describe(self, group: KindOfGroup, /) -> DescribedGroup:
        """The group in DescribeGroups."""
