"""One partition of `__consumer_offsets` in memory: its groups and their offsets. Pure, like its parts."""

from collections.abc import Container, Mapping
from typing import Any, ClassVar, Final

from barnabas.broker.coordinators.effects import NO_PRODUCER_ID
from barnabas.broker.coordinators.groups import records
from barnabas.broker.coordinators.groups.changes import (
    Change,
    GroupRecord,
    GroupTombstone,
    OffsetRecord,
    OffsetTombstone,
    Record,
)
from barnabas.broker.coordinators.groups.classic import kind as classic
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Effects,
    ExpireOffsets,
    ForgetTopics,
    GroupEvent,
    JoinGroup,
    Loaded,
    OffsetEvent,
    Reply,
    StoreRefused,
    SyncGroup,
    TimerFired,
    TimerKey,
)
from barnabas.broker.coordinators.groups.kinds import Group, GroupKind
from barnabas.broker.coordinators.groups.offsets import DECIDERS, Offsets
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.shard import Shard
from barnabas.wire.errors import ApiError

_OFFSET_EVENTS: Final = (CommitOffsets, DeleteOffsets, DeleteGroup, ExpireOffsets, ForgetTopics)
_OFFSET_RECORDS: Final = (OffsetRecord, OffsetTombstone)

KINDS: Final[Mapping[str, GroupKind[Any]]] = {classic.Group.group_type: classic}
"""The kinds of groups, by `Group.group_type`."""

KIND_OF_NEW_GROUPS: Final[GroupKind[Any]] = classic
"""The kind of a group that does not exist yet: so far all events and records but those of offsets are of classic ones.
"""


class GroupShard(Shard[GroupEvent | OffsetEvent, Change, Reply]):
    """Groups by id, and offsets. A group exists for every group id that has offsets."""

    RECORDS: ClassVar = (OffsetRecord, OffsetTombstone, GroupRecord, GroupTombstone)

    __slots__ = ("_groups_bytes", "groups", "offsets")

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self._groups_bytes = 0

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def held_bytes(self) -> int:
        """An estimate of the memory of the groups and the offsets."""
        return self._groups_bytes + self.offsets.held_bytes

    @staticmethod
    def decode_record(key: bytes, value: bytes | None) -> Record:
        return records.decode_record(key, value)

    def decide(
        self,
        event: GroupEvent | OffsetEvent,
        now_ms: int,
        settings: GroupSettings,
        uncommitted: Container[str] = (),
    ) -> Effects:
        group = self.groups.get(event.group_id)
        kind = KIND_OF_NEW_GROUPS if group is None else KINDS[group.group_type]
        if isinstance(event, _OFFSET_EVENTS):
            return DECIDERS[type(event)](kind, group, self.offsets, event, now_ms, settings)
        return kind.decide(group, event, now_ms, settings)

    def added_bytes(self, event: JoinGroup | SyncGroup | CommitOffsets) -> int:
        """The additional memory after an event: 0 or less when it replaces as much."""
        group = self.groups.get(event.group_id)
        if isinstance(event, CommitOffsets):
            return self.offsets.added_bytes(event, is_of_new_group=group is None)
        kind = KIND_OF_NEW_GROUPS if group is None else KINDS[group.group_type]
        return kind.added_bytes(group, event)

    def commit_timeout_ms(self, key: str, settings: GroupSettings) -> int:
        return settings.offsets_commit_timeout_ms

    def events_at_start(self) -> list[GroupEvent | OffsetEvent]:
        return [Loaded(group.group_id) for group in self.groups.values() if group.members]

    def timer_fired(self, key: str, timer_key: TimerKey) -> TimerFired:
        return TimerFired(key, timer_key)

    def after_refusal(self, event: GroupEvent | OffsetEvent, error: ApiError) -> StoreRefused | None:
        return StoreRefused(event.group_id, error.error) if isinstance(event, SyncGroup) else None

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        self.offsets.end_transaction(producer_id, is_commit=is_commit)

    def _apply(self, key: str, change: Change, record_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        if isinstance(change, _OFFSET_RECORDS):
            self.offsets.apply(change, record_offset, producer_id)
            if isinstance(change, OffsetRecord) and key not in self.groups:
                group = self.groups[key] = classic.Group(key, change.committed.commit_timestamp_ms)
                self._groups_bytes += group.held_bytes
            return
        known = self.groups.get(key)
        kind = KIND_OF_NEW_GROUPS if known is None else KINDS[known.group_type]
        if known is not None:
            self._groups_bytes -= known.held_bytes
        changed = kind.apply(known, change)
        if changed is None:
            self.groups.pop(key, None)
        else:
            self.groups[key] = changed
            self._groups_bytes += changed.held_bytes
