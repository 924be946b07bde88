"""The views of groups for administrators."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from barnabas.broker.coordinators.groups.classic.state import Group, GroupState
from barnabas.broker.coordinators.groups.offsets import Offsets

CLASSIC: Final = "classic"
"""The only type of group (ListGroups v5+)."""

LINE_BYTES: Final = 100
"""The size of a line about a group on a page, besides names."""


class ListedGroup(NamedTuple):
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC


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


class GroupSummary(NamedTuple):
    """A group in figures, for metrics: the offsets are (topic, partition, offset)."""

    group_id: str
    state: GroupState
    member_count: int
    offsets: tuple[tuple[str, int, int], ...]


def describe(group: Group) -> DescribedGroup:
    """The description of a group and its members."""
    is_stable = group.state is GroupState.STABLE
    protocol_name = group.protocol_name if is_stable else None
    return DescribedGroup(
        group.group_id,
        group.state.value,
        group.protocol_type or "",
        protocol_name or "",
        tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                (member.metadata(protocol_name) or b"") if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ),
    )


def list_groups(groups: Collection[Group], states: Collection[str], types: Collection[str]) -> Iterator[ListedGroup]:
    """The groups in one of the states and of one of the types, case-insensitively; an empty filter matches all, an
    unknown name none.
    """
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {group_type.strip().lower() for group_type in types}
    if wanted_types and CLASSIC not in wanted_types:
        return
    for group in groups:
        if not wanted_states or group.state.value.lower() in wanted_states:
            yield ListedGroup(group.group_id, group.protocol_type or "", group.state.value)


def page_bytes(group_id: str, offsets: Offsets) -> int:
    """The maximum length of a page's lines about a group: one, and two for each offset. Quotes, backslashes and line
    ends are escaped there."""
    line = LINE_BYTES + len(group_id.encode()) + sum(map(group_id.count, '"\\\n'))
    topics = offsets.by_group.get(group_id, {})
    return line + sum(2 * len(partitions) * (line + len(topic)) for topic, partitions in topics.items())


def summarize(group: Group, offsets: Offsets) -> GroupSummary:
    """State, size and offsets of a group."""
    positions = tuple(
        (topic, partition, committed.offset) for topic, partition, committed in offsets.of_group(group.group_id)
    )
    return GroupSummary(group.group_id, group.state, len(group.members), positions)
