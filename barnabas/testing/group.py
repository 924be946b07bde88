"""A consumer group as a test sees it."""

from dataclasses import dataclass
from typing import Self

from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.testing.waiting import check_count
from barnabas.wire.errors import ApiError

NO_GROUP_STATE = "Dead"
"""Kafka's name for the state of a group that does not exist."""

STATES = frozenset({"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", NO_GROUP_STATE})
WITHOUT_MEMBERS = frozenset({"Empty", NO_GROUP_STATE})
WITH_MEMBERS = frozenset({"CompletingRebalance", "Stable"})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. `assignment` is what the group's leader sent for it, in the client's own format."""

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
    """

    group_id: str
    state: str
    protocol_name: str
    members: tuple[GroupMember, ...]
    offsets: dict[tuple[str, int], int]

    @classmethod
    def dead(cls, group_id: str) -> Self:
        """What is told of a group that does not exist."""
        return cls(group_id, NO_GROUP_STATE, "", (), {})


def check_group_may_be(state: str, members: int | None) -> None:
    """Refuse what no group ever is. Errors: ValueError, TypeError."""
    if state not in STATES:
        raise ValueError(f"groups have the states {', '.join(sorted(STATES))}, not {state}")
    if members is None:
        return
    check_count("members", members, 0)
    if members > 0 and state in WITHOUT_MEMBERS:
        raise ValueError(f"a group that is {state} has no members: {members} are waited for in vain")
    if members == 0 and state in WITH_MEMBERS:
        raise ValueError(f"a group that is {state} has members: wait for the state Empty, or Dead, where none is left")


def find_group(groups: GroupService, group_id: str) -> Group:
    """The group, "Dead" when there is none or its coordinator is not here yet. Broker's loop only."""
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
    return Group(group_id, found.state, found.protocol_name, members, offsets)
