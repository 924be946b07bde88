"""One partition of `__consumer_offsets` in memory: its groups and their offsets. Pure, like what it is made of."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from barnabas.broker.coordinators.groups import offsets as offset_machine
from barnabas.broker.coordinators.groups.changes import (
    Change,
    GroupChange,
    GroupRecord,
    GroupTombstone,
    OffsetRecord,
    OffsetTombstone,
    Record,
)
from barnabas.broker.coordinators.groups.classic import group as group_machine
from barnabas.broker.coordinators.groups.classic.state import Group, apply
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Effects,
    ExpireOffsets,
    ForgetTopics,
    GroupEvent,
    OffsetEvent,
)
from barnabas.broker.coordinators.groups.offsets import NO_PRODUCER_ID, Offsets
from barnabas.broker.coordinators.groups.records import UnknownRecordType, decode_record
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.wire.errors import ProtocolError
from barnabas.wire.record_batch import RecordBatchHeader, iter_headers
from barnabas.wire.records import ControlRecordType, iter_records, parse_end_txn_marker

_OFFSET_EVENTS: Final = (CommitOffsets, DeleteOffsets, DeleteGroup, ExpireOffsets, ForgetTopics)
_OFFSET_RECORDS: Final = (OffsetRecord, OffsetTombstone)
_RECORDS: Final = (OffsetRecord, OffsetTombstone, GroupRecord, GroupTombstone)


def records_of(changes: Iterable[Change]) -> list[Record]:
    """The changes that are written to the log, in order."""
    return [change for change in changes if isinstance(change, _RECORDS)]


class Shard:
    """Groups by id, and offsets; owned by one runner (or by the thread that loads it).

    A group exists for every group id that has offsets. `skipped` counts what loading left out, by reason.
    `end_offset` is the offset after the last record that is applied.
    """

    __slots__ = ("_groups_bytes", "end_offset", "groups", "offsets", "skipped")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.end_offset = 0
        self._groups_bytes = 0
        self.skipped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def held_bytes(self) -> int:
        """About how much memory the groups and the offsets take."""
        return self._groups_bytes + self.offsets.held_bytes

    def decide(self, event: GroupEvent | OffsetEvent, now_ms: int, settings: GroupSettings) -> Effects:
        """What the event means; alters nothing."""
        group = self.groups.get(event.group_id)
        if isinstance(event, _OFFSET_EVENTS):
            return offset_machine.decide(group, self.offsets, event, now_ms, settings)
        return group_machine.decide(group, event, now_ms, settings)

    def apply(
        self,
        group_id: str,
        changes: Iterable[Change],
        end_offset: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Bring the changes of one decision about; `end_offset` is the log's end after its records, None if it has
        none; `producer_id` that of the transaction they are part of.
        """
        changes = list(changes)
        if end_offset is not None:
            self.end_offset = end_offset
        record_offset = self.end_offset - len(records_of(changes))
        for change in changes:
            if isinstance(change, _OFFSET_RECORDS):
                self._apply_offset(change, record_offset, producer_id)
            else:
                self._apply_group(group_id, change)
            if isinstance(change, _RECORDS):
                record_offset += 1

    def end_transaction(self, producer_id: int, end_offset: int, *, is_commit: bool) -> None:
        """A marker was appended; `end_offset` is the log's end after it."""
        self.offsets.end_transaction(producer_id, is_commit=is_commit)
        self.end_offset = end_offset

    def load(self, chunk: bytes | bytearray | memoryview) -> None:
        """Apply whole batches as the log holds them. What is not understood is left out and counted: one odd record
        must not take all groups of the partition down.

        Errors: CorruptBatch when the chunk is no sequence of batches.
        """
        for header in iter_headers(chunk):
            if header.is_control:
                self._load_marker(chunk, header)
            else:
                producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
                for record in iter_records(chunk, header):
                    self._load_record(record.offset, producer_id, record.key, record.value)
            self.end_offset = header.next_offset

    def _load_record(self, record_offset: int, producer_id: int, key: bytes | None, value: bytes | None) -> None:
        try:
            record = decode_record(key or b"", value)
        except UnknownRecordType as error:
            self.skipped[str(error)] += 1
            return
        except ProtocolError as error:
            self.skipped[f"unreadable: {error}"] += 1
            return
        if isinstance(record, _OFFSET_RECORDS):
            self._apply_offset(record, record_offset, producer_id)
        else:
            self._apply_group(record.group_id, record)

    def _load_marker(self, chunk: bytes | bytearray | memoryview, header: RecordBatchHeader) -> None:
        for record in iter_records(chunk, header):
            marker = parse_end_txn_marker(record)
            if marker is not None:
                is_commit = marker.control_type is ControlRecordType.COMMIT
                self.offsets.end_transaction(header.producer_id, is_commit=is_commit)

    def _apply_offset(self, record: OffsetRecord | OffsetTombstone, record_offset: int, producer_id: int) -> None:
        self.offsets.apply(record, record_offset, producer_id)
        if isinstance(record, OffsetRecord) and record.group_id not in self.groups:
            group = self.groups[record.group_id] = Group(record.group_id, record.committed.commit_timestamp_ms)
            self._groups_bytes += group.held_bytes

    def _apply_group(self, group_id: str, change: GroupChange) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            self._groups_bytes -= group.held_bytes
        group = apply(group, change)
        if group is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = group
            self._groups_bytes += group.held_bytes
