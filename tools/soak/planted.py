"""The broker with a bug planted on purpose: `python -m tools.soak.planted BUG serve ...`.

A harness that does not find it is worth nothing.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.__main__ import main as barnabas

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from barnabas.broker.coordinator.changes import Record
    from barnabas.broker.transactions.markers import TransactionMarker


def dedupe_off() -> None:
    """Retries of a batch are appended again."""
    from barnabas.storage.producer_state import ProducerState

    ProducerState.check = lambda self, header, origin: None  # type: ignore[method-assign]


def lso_is_high_watermark() -> None:
    """read_committed shows what is not decided yet."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.last_stable_offset = property(lambda log: log.high_watermark)  # type: ignore[method-assign,assignment]


def aborted_index_empty() -> None:
    """Fetches do not name aborted transactions, so consumers take their records for good."""
    from barnabas.storage.log import PartitionLog

    PartitionLog.aborted_transactions = lambda log, start, upper: []  # type: ignore[method-assign,assignment]


def abort_marker_skipped() -> None:
    """One partition does not get the markers of aborted transactions."""
    from barnabas.broker.transactions.local_markers import LocalMarkers

    write = LocalMarkers.write

    def skip(
        self: LocalMarkers, topic: str, partition: int, marker: "TransactionMarker"
    ) -> "asyncio.Future[None] | None":
        return None if partition == 0 and not marker.is_commit else write(self, topic, partition, marker)

    LocalMarkers.write = skip  # type: ignore[method-assign]


def crc_unchecked_in_recovery() -> None:
    """A torn batch whose header is whole stays in the log."""
    from barnabas.storage import scan

    scan.crc_is_valid = lambda buffer, header: True  # type: ignore[attr-defined]


def commits_answered_early() -> None:
    """A group's commit is answered before it is in the log, where only the next write brings it."""
    from barnabas.broker.coordinator.changes import OffsetRecord
    from barnabas.broker.coordinator.offsets import NO_PRODUCER_ID
    from barnabas.broker.coordinator.runner import NO_PRODUCER_EPOCH, GroupRunner

    append = GroupRunner._append
    held_back: dict[GroupRunner, Sequence[Record]] = {}

    def hold_back(
        self: GroupRunner,
        records: "Sequence[Record]",
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> int:
        end_offset = self.shard.end_offset
        if earlier := held_back.pop(self, None):
            end_offset = append(self, earlier)
        if producer_id != NO_PRODUCER_ID or not all(isinstance(record, OffsetRecord) for record in records):
            return append(self, records, producer_id, producer_epoch)
        held_back[self] = records
        return end_offset

    GroupRunner._append = hold_back  # type: ignore[method-assign]


def fsync_is_a_no_op() -> None:
    """Flushes of a log do not wait for the disk. Only a power cut can show it."""
    from barnabas.storage.files import OsFiles

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
    "lso-is-high-watermark": lso_is_high_watermark,
    "aborted-index-empty": aborted_index_empty,
    "abort-marker-skipped": abort_marker_skipped,
    "commits-answered-early": commits_answered_early,
    "crc-unchecked-in-recovery": crc_unchecked_in_recovery,
    "fsync-is-a-no-op": fsync_is_a_no_op,
}

if __name__ == "__main__":
    BUGS[sys.argv[1]]()
    barnabas(sys.argv[2:])
