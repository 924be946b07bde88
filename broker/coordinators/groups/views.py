"""The views of groups for administrators."""

from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

from barnabas.broker.coordinators.groups.kinds import Group
from barnabas.broker.coordinators.groups.offsets import Offsets

DEAD: Final = "Dead"
"""The state that is shown of a group that does not exist."""

LINE_BYTES: Final = 100
"""The size of a line about a group on a page, besides names."""


class ListedGroup(NamedTuple):
    """One line of ListGroups."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class GroupSummary(NamedTuple):
    """A group in figures, for metrics: the offsets are (topic, partition, offset)."""

    group_id: str
    state: Enum
    member_count: int
    offsets: tuple[tuple[str, int, int], ...]


def list_groups(groups: Collection[Group], states: Collection[str], types: Collection[str]) -> Iterator[ListedGroup]:
    """The groups in one of the states and of one of the types, case-insensitively; an empty filter matches all, an
    unknown name none.
    """
    wanted_states = {state.strip().lower() for state in states}
    wanted_types = {group_type.strip().lower() for group_type in types}
    for group in groups:
        if wanted_types and group.group_type not in wanted_types:
            continue
        if not wanted_states or group.state.value.lower() in wanted_states:
            yield ListedGroup(group.group_id, group.protocol_type or "", group.state.value, group.group_type)


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
