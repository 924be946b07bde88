"""A consumer group as a test sees it."""

from dataclasses import dataclass

from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.testing.waiting import wait_until, with_timeout
from barnabas.wire.errors import ApiError

NO_GROUP_STATE = "Dead"
"""Kafka's name for the state of a group that does not exist."""

STATES = frozenset({"Empty", "PreparingRebalance", "CompletingRebalance", "Stable", NO_GROUP_STATE})


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


def find_group(groups: GroupService, group_id: str) -> Group:
    """The group, "Dead" when there is none or its coordinator is not here yet. Broker's loop only."""
    try:
        found = groups.describe(group_id)
    except ApiError:
        return Group(group_id, NO_GROUP_STATE, "", (), {})
    members = tuple(
        GroupMember(m.member_id, m.group_instance_id, m.client_id, m.client_host, bytes(m.assignment))
        for m in found.members
    )
    summary = next(summary for summary in groups.summaries()[0] if summary.group_id == group_id)
    offsets = {(topic, partition): offset for topic, partition, offset in summary.offsets}
    return Group(group_id, found.state, found.protocol_name, members, offsets)


async def wait_for_group(
    groups: GroupService, group_id: str, state: str, member_count: int | None, timeout_s: float
) -> Group:
    """Wait until the group has that state and so many members (None: any number); raises TimeoutError. Broker's loop
    only."""

    def reached() -> Group | None:
        group = find_group(groups, group_id)
        return group if group.state == state and member_count in (None, len(group.members)) else None

    def found() -> str:
        group = find_group(groups, group_id)
        wanted = state if member_count is None else f"{state} with {member_count}"
        return f"group {group_id} is {group.state} with {len(group.members)} members, not {wanted}"

    return await with_timeout(wait_until(reached, groups.runtime.listeners), timeout_s, found)
