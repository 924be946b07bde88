"""A consumer group for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from barnabas.broker.client.group import describe_assignment
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.testing.contents.topic import topic_name
from barnabas.testing.waiting.timeouts import check_count
from barnabas.wire.errors import ApiError

if TYPE_CHECKING:
    from barnabas.testing.contents.topic import Topic

NO_GROUP_STATE = "Dead"
"""Kafka's name for the state of a group that does not exist."""

STATES = frozenset({"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", NO_GROUP_STATE})
WITHOUT_MEMBERS = frozenset({"Empty", NO_GROUP_STATE})
WITH_MEMBERS = frozenset({"CompletingRebalance", "Stable"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. `assignment` is the one that the group's leader sent for it, in the client's own format."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Group:
    """A group at one moment.

    `state` is Kafka's name: Empty, PreparingRebalance, CompletingRebalance, Stable or Dead (no such group). `offsets`
    are the committed ones by (topic, partition).

    `lag` is the sum of their distances from the ends of their partitions. An assigned partition without a committed
    offset counts from its first record on, as for a consumer with `auto.offset.reset=earliest`. It is None while a
    partition has no leader, as only the leader knows its end, and for a group that does not exist: one whose name is
    misspelt has not read everything.
    """

    group_id: str
    state: str
    protocol_name: str
    members: tuple[GroupMember, ...]
    offsets: dict[tuple[str, int], int]
    lag: int | None = None

    @classmethod
    def dead(cls, group_id: str) -> Self:
        """The group for an id that does not exist."""
        return cls(group_id, NO_GROUP_STATE, "", (), {})


Unread = Callable[[str, int, int | None], int | None]
"""The number of a partition's offsets from a committed one on, or of all for None; None while it has no leader."""


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """The expected state of a group. Errors: ValueError, TypeError for an impossible one."""

    state: str
    members: int | None
    offsets: dict[tuple[str, int], int]
    lag: int | None

    @classmethod
    def of(
        cls, state: str, members: int | None, offsets: Mapping[tuple[str | Topic, int], int] | None, lag: int | None
    ) -> Self:
        """The expectation of a test."""
        check_group_may_be(state, members)
        if lag is not None:
            check_count("lag", lag, 0)
        if state == NO_GROUP_STATE and (offsets or lag is not None):
            raise ValueError(f"a group that is {state} has committed nothing: wait for the state Empty, or Stable")
        return cls(state, members, _wanted_offsets(offsets or {}), lag)

    def is_met(self, group: Group) -> bool:
        """Whether the group meets it. Offsets and lag may be better than expected."""
        return (
            group.state == self.state
            and self.members in (None, len(group.members))
            and all(group.offsets.get(partition, -1) >= offset for partition, offset in self.offsets.items())
            and (self.lag is None or (group.lag is not None and group.lag <= self.lag))
        )

    def not_met(self, group: Group) -> str:
        """The actual state of the group."""
        is_so, wanted = [f"{len(group.members)} members"], [] if self.members is None else [str(self.members)]
        if self.lag is not None:
            is_so.append(f"lag {'unknown' if group.lag is None else group.lag}")
            wanted.append(f"lag {self.lag}")
        for (topic, partition), offset in self.offsets.items():
            is_so.append(f"{topic}-{partition} at {group.offsets.get((topic, partition), 'no offset')}")
            wanted.append(f"{topic}-{partition} at {offset}")
        told = f"group {group.group_id} is {group.state} with {', '.join(is_so)}, not {self.state}"
        return f"{told} with {', '.join(wanted)}" if wanted else told


def check_group_may_be(state: str, members: int | None) -> None:
    """Refuse impossible states. Errors: ValueError, TypeError."""
    if state not in STATES:
        raise ValueError(f"groups have the states {', '.join(sorted(STATES))}, not {state}")
    if members is None:
        return
    check_count("members", members, 0)
    if members > 0 and state in WITHOUT_MEMBERS:
        raise ValueError(f"a group that is {state} has no members: do not wait for {members}")
    if members == 0 and state in WITH_MEMBERS:
        raise ValueError(f"a group that is {state} has members: wait for the state Empty, or Dead, where none is left")


def _wanted_offsets(offsets: Mapping[tuple[str | Topic, int], int]) -> dict[tuple[str, int], int]:
    try:
        if any(isinstance(each, str) for each in offsets):  # two letters would be a topic and a partition
            raise TypeError
        wanted = {(topic_name(topic), partition): offset for (topic, partition), offset in offsets.items()}
    except (AttributeError, TypeError, ValueError):
        told = f'offsets are by topic and partition, as {{("orders", 0): 1}}, not {offsets!r:.100}'
        raise TypeError(told) from None
    for (_, partition), offset in wanted.items():
        check_count("partition", partition, 0)
        check_count("offset", offset, 0)
    return wanted


def find_group(groups: GroupService, group_id: str, unread: Unread) -> Group:
    """The group, "Dead" when it does not exist or its coordinator is not here yet. Broker's loop only."""
    try:
        found = groups.describe(group_id)
    except ApiError:
        return Group.dead(group_id)
    members = tuple(
        GroupMember(m.member_id, m.group_instance_id, m.client_id, m.client_host, bytes(m.assignment))
        for m in found.members
    )
    summary = next(summary for summary in groups.summaries()[0] if summary.group_id == group_id)
    offsets = {(topic, partition): offset for topic, partition, offset in summary.offsets}
    assigned = {partition for member in members for partition in describe_assignment(member.assignment)}
    behind = [unread(*partition, offsets.get(partition)) for partition in offsets.keys() | assigned]
    lag = None if None in behind else sum(filter(None, behind))
    return Group(group_id, found.state, found.protocol_name, members, offsets, lag)
