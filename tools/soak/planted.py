"""The broker with a bug planted on purpose: `python -m tools.soak.planted BUG serve ...`.

The soak must find each of them.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.__main__ import main as barnabas

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from barnabas.broker.coordinators.groups.changes import Record
    from barnabas.broker.coordinators.groups.classic.state import Group
    from barnabas.broker.coordinators.groups.events import CommitOffsets
    from barnabas.broker.coordinators.transactions.markers import TransactionMarker
    from barnabas.wire.errors import ErrorCode
    from barnabas.wire.record_batch import RecordBatchHeader


def dedupe_off() -> None:
    """Retries of a batch are appended again."""
    from barnabas.storage.producer_state import ProducerState

    ProducerState.check = lambda self, header, origin: None  # type: ignore[method-assign]


def lso_is_high_watermark() -> None:
    """read_committed returns undecided records."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.last_stable_offset = property(lambda log: log.high_watermark)  # type: ignore[method-assign,assignment]


def aborted_index_empty() -> None:
    """Fetch responses do not list aborted transactions, so consumers return their records."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.aborted_transactions = lambda log, start, upper: []  # type: ignore[method-assign,assignment]


def abort_marker_skipped() -> None:
    """One partition does not get the markers of aborted transactions."""
    from barnabas.broker.coordinators.transactions.local_markers import LocalMarkers

    write = LocalMarkers.write

    def skip(
        self: LocalMarkers, topic: str, partition: int, marker: "TransactionMarker"
    ) -> "asyncio.Future[None] | None":
        return None if partition == 0 and not marker.is_commit else write(self, topic, partition, marker)

    LocalMarkers.write = skip  # type: ignore[method-assign]


def transactions_never_time_out() -> None:
    """Open transactions of producers are never aborted by the broker."""
    from barnabas.broker.coordinators.transactions.service import TransactionService

    async def forget(self: TransactionService) -> None: ...

    TransactionService.abort_timed_out = forget  # type: ignore[method-assign]


def crc_unchecked_in_recovery() -> None:
    """A torn batch whose header is whole stays in the log."""
    from barnabas.storage import scan

    scan.crc_is_valid = lambda buffer, header: True  # type: ignore[attr-defined]


def commits_answered_early() -> None:
    """A group's commit is acknowledged before it is in the log, where it is only written with the next commit."""
    from barnabas.broker.coordinators.effects import NO_PRODUCER
    from barnabas.broker.coordinators.groups.changes import OffsetRecord
    from barnabas.broker.coordinators.groups.service import GroupRunner

    append = GroupRunner._append
    held_back: dict[GroupRunner, Sequence[Record]] = {}

    def hold_back(self: GroupRunner, records: "Sequence[Record]", producer: tuple[int, int]) -> int:
        end_offset = self.shard.end_offset
        if earlier := held_back.pop(self, None):
            end_offset = append(self, earlier, NO_PRODUCER) + len(earlier)
        if producer != NO_PRODUCER or not all(isinstance(record, OffsetRecord) for record in records):
            return append(self, records, producer)
        held_back[self] = records
        return end_offset - len(records)  # so that no request waits for them

    GroupRunner._append = hold_back  # type: ignore[method-assign, assignment]


def producers_forgotten_in_recovery() -> None:
    """After a crash, the producers' last sequence numbers and the open transactions are unknown."""
    from barnabas.storage.producer_builder import ProducerBuilder
    from barnabas.storage.producer_state import ProducerState
    from barnabas.storage.recovery import log_loader as recovery

    def forget(producers: ProducerState, header: "RecordBatchHeader", *_: object) -> None:
        producers.end_offset = header.next_offset

    recovery.take_in = forget  # type: ignore[attr-defined,assignment]
    ProducerBuilder.build = lambda self, segments, snapshots, start, end: ProducerState(end, self._expiration_ms)  # type: ignore[method-assign,assignment]


def commits_of_old_generations_accepted() -> None:
    """A member's commit is accepted with any generation."""
    from barnabas.broker.coordinators.groups.classic import kind

    judge = kind.commit_error

    def accept(group: "Group", event: "CommitOffsets", **how: bool) -> "ErrorCode":
        return judge(group, event._replace(generation=group.generation), **how)

    kind.commit_error = accept


def index_names_the_batch_after() -> None:
    """A look-up of an offset returns a later batch."""
    from barnabas.storage.offset_index import OffsetIndex

    lookup = OffsetIndex.lookup

    def behind(self: OffsetIndex, offset: int) -> tuple[int, int]:
        slot = bisect_right(self.relative_offsets, offset - self.base_offset)
        if slot == len(self.positions):
            return lookup(self, offset)
        return self.base_offset + self.relative_offsets[slot], self.positions[slot]

    OffsetIndex.lookup = behind  # type: ignore[method-assign]


def compaction_drops_newest() -> None:
    """A pass discards the newest value of some keys."""
    from barnabas.storage.compaction.offset_map import KeyMap

    put = KeyMap.put

    def put_behind(self: KeyMap, key: bytes, offset: int) -> bool:
        is_noted = put(self, key, offset + key.endswith(b"7"))
        self.latest_offset = offset if is_noted else self.latest_offset
        return is_noted

    KeyMap.put = put_behind  # type: ignore[method-assign]


def deletions_supersede_nothing() -> None:
    """Deletions are removed after their time, but the deleted values stay."""
    from barnabas.storage.compaction.cleaner import _Pass

    records = _Pass._records
    _Pass._records = staticmethod(  # type: ignore[method-assign]
        lambda source, batch, header: (found for found in records(source, batch, header) if found.has_value)
    )


def compacted_log_cut_at_gap() -> None:
    """Recovery treats offsets removed by compaction as lost ones."""
    from barnabas.storage.recovery.log_loader import _Loader

    _Loader._lost_before = lambda self, segment, end_offset: segment.base_offset > end_offset  # type: ignore[method-assign]


def fsync_is_a_no_op() -> None:
    """Flushes of a log do not wait for the disk. Only a power cut can show it."""
    from barnabas.storage.os_files import OsFiles

    open_file, sync = OsFiles.open, OsFiles.sync
    segments: set[int] = set()

    def remember(self: OsFiles, path: str, *, create: bool = False, truncate: bool = False) -> int:
        descriptor = open_file(self, path, create=create, truncate=truncate)
        (segments.add if path.endswith(".log") else segments.discard)(descriptor)
        return descriptor

    def skip(self: OsFiles, descriptor: int) -> None:
        if descriptor not in segments:
            sync(self, descriptor)

    OsFiles.open = remember  # type: ignore[method-assign]
    OsFiles.sync = skip  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "dedupe-off": dedupe_off,
    "index-names-the-batch-after": index_names_the_batch_after,
    "lso-is-high-watermark": lso_is_high_watermark,
    "aborted-index-empty": aborted_index_empty,
    "abort-marker-skipped": abort_marker_skipped,
    "compacted-log-cut-at-gap": compacted_log_cut_at_gap,
    "compaction-drops-newest": compaction_drops_newest,
    "deletions-supersede-nothing": deletions_supersede_nothing,
    "commits-answered-early": commits_answered_early,
    "commits-of-old-generations-accepted": commits_of_old_generations_accepted,
    "crc-unchecked-in-recovery": crc_unchecked_in_recovery,
    "fsync-is-a-no-op": fsync_is_a_no_op,
    "producers-forgotten-in-recovery": producers_forgotten_in_recovery,
    "transactions-never-time-out": transactions_never_time_out,
}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    barnabas(sys.argv[2:])
