"""The history of a log, and checks of its content after a fault: no flushed record is missing, every served record was
written, and data derived from the batches agrees with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.log import PartitionLog
from barnabas.storage.producer_builder import take_in
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.storage.txn_index import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType, control_record_type
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.record_batch import RecordBatchHeader, crc_is_valid, iter_headers, parse_header
from barnabas.wire.records import iter_records

Served = list[tuple[RecordBatchHeader, bytes]]
"""Batches in the order of their offsets, with their bytes; headers have position 0."""


class KeyedRecord(NamedTuple):
    """One record; `value` is None for a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class Untrue(AssertionError):
    """A log contradicts its history."""


@dataclass(slots=True)
class LogHistory:
    """The history of one log. `moment` is the number of operations that the disk had seen at an event.

    A compacted log may lack batches, and has rewritten ones: the last record of each key must be there. Its
    transactions must be on the disk before it is compacted.
    """

    batches: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    durable: list[tuple[int, int]] = field(default_factory=list)
    """(moment, end offset): from this moment on, everything before the offset is on the disk."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(moment, offset): from this moment on, the log starts at this offset or later."""
    truncated: list[tuple[int, int, frozenset[bytes]]] = field(default_factory=list)
    """(moment, offset, batches): from this moment on, these batches are deleted."""
    gone: list[int] = field(default_factory=list)
    """The moments from which on the log does not exist."""
    is_compacted: bool = False
    epochs_durable: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    """(moment, entries): from this moment on, the log has at least these leader epochs."""
    start_max: int = 0
    topic_id: bytes = ZERO_TOPIC_ID

    def wrote(self, data: bytes | bytearray) -> None:
        """A batch was appended, with these bytes after offset and epoch were patched."""
        for header in iter_headers(data):
            self.batches[header.base_offset].append(bytes(data[header.position : header.end_position]))

    def flushed(self, moment: int, end_offset: int) -> None:
        """Everything before `end_offset` is on the disk."""
        self.durable.append((moment, end_offset))

    def starts_at(self, moment: int, offset: int) -> None:
        """Everything before `offset` is deleted, and the deletion is on the disk."""
        self.starts.append((moment, offset))

    def may_start_at(self, offset: int) -> None:
        """Deletion of everything before `offset` begins."""
        self.start_max = max(self.start_max, offset)

    def cuts(self, moment: int, offset: int) -> None:
        """A truncation begins: from here on batches that reach to `offset` may be missing."""
        self.durable.append((moment, -offset - 1))

    def cut(self, moment: int, offset: int) -> None:
        """The truncation is on the disk."""
        old = [
            data
            for found in self.batches.values()
            for data in found
            for header in iter_headers(data)
            if header.last_offset >= offset
        ]
        self.truncated.append((moment, offset, frozenset(old)))

    def end_min(self, moment: int) -> int:
        """The minimum end offset of the log if the disk stopped after `moment` operations."""
        end = 0
        for when, offset in self.durable:
            if when <= moment:
                end = max(end, offset) if offset >= 0 else min(end, -offset - 1)
        return end

    def start_min(self, moment: int) -> int:
        """The minimum start offset of the log."""
        return max((offset for when, offset in self.starts if when <= moment), default=0)

    def records(self, end_offset: int) -> Iterator[KeyedRecord]:
        """The records that were written before `end_offset` and not aborted before it, in no order."""
        pending: dict[int, list[KeyedRecord]] = defaultdict(list)
        for _, versions in sorted(self.batches.items()):
            data = versions[-1]
            header = parse_header(data)
            if header.next_offset > end_offset:
                continue
            if header.is_control:
                ended = pending.pop(header.producer_id, [])
                (record,) = iter_records(data, header)
                if control_record_type(record) is ControlRecordType.COMMIT:
                    yield from ended
            elif header.is_transactional:
                pending[header.producer_id] += _keyed_records(data, header)
            else:
                yield from _keyed_records(data, header)
        for records in pending.values():
            yield from records

    def latest(self, end_offset: int) -> dict[bytes, KeyedRecord]:
        """The last record of each key before `end_offset`, tombstones too."""
        found = sorted(self.records(end_offset), key=lambda record: record.offset)
        return {record.key: record for record in found}


def _keyed_records(data: bytes, header: RecordBatchHeader) -> list[KeyedRecord]:
    return [
        KeyedRecord(record.offset, bytes(record.key or b""), None if record.value is None else bytes(record.value))
        for record in iter_records(data, header)
    ]


def read_log(log: PartitionLog) -> Served:
    """All batches that the log serves, read like a consumer, from every offset in turn until the end."""
    served: Served = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = _read(log, offset)
        headers = list(iter_headers(data.records)) if data.records else []
        if not headers:
            break
        if headers[0].last_offset < offset:
            raise Untrue(f"a read of {offset} starts with the batch that ends at {headers[0].last_offset}")
        for header in headers:
            served.append((header._replace(position=0), bytes(data.records[header.position : header.end_position])))
        offset = headers[-1].next_offset
    return served


def _read(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> FetchData:
    try:
        return log.read(offset, max_bytes)
    except ColdRead as cold:
        return cold.load()


def check_log(log: PartitionLog, history: LogHistory, moment: int, *, derived: bool = True) -> Served:
    """Check a log that was recovered after the disk stopped at `moment`, and return the served batches. With `derived`,
    the data derived from the batches is checked, too. Raises Untrue.
    """
    if any(when <= moment for when in history.gone):
        raise Untrue(f"{log} was deleted")
    served = read_log(log)
    _check_extent(log, history, moment, served)
    for header, data in served:
        if not crc_is_valid(data, header):
            raise Untrue(f"{log} serves a damaged batch at {header.base_offset}")
    if history.is_compacted:
        _check_keys(log, history, moment, served)
    else:
        _check_batches(log, history, moment, served)
    if derived:
        check_derived(log, served)
    known = [entries for when, entries in history.epochs_durable if when <= moment]
    start = log.log_start_offset
    expected = LeaderEpochs(known[-1]) if known else LeaderEpochs()
    expected.truncate_from_start(start)
    expected.truncate_from_end(log.log_end_offset)  # an epoch without batches is removed
    if [entry for entry in expected.entries if entry not in log.leader_epochs.entries]:
        raise Untrue(f"{log} has leader epochs {log.leader_epochs.entries}, and {known[-1]} were on the disk")
    return served


def _check_extent(log: PartitionLog, history: LogHistory, moment: int, served: Served) -> None:
    start, end = log.log_start_offset, log.log_end_offset
    if end < history.end_min(moment):
        raise Untrue(f"{log} lost records before {history.end_min(moment)} that were on the disk")
    if not history.start_min(moment) <= start <= max(history.start_max, history.start_min(moment)):
        raise Untrue(f"{log} starts outside [{history.start_min(moment)}, {history.start_max}]")
    if not start <= log.high_watermark <= end:
        raise Untrue(f"{log} has high watermark {log.high_watermark}")
    readable_end = served[-1][0].next_offset if served else start
    # For a compacted log, it is unknown whether offsets before an empty last segment were lost.
    if readable_end != end and not (history.is_compacted and readable_end >= history.end_min(moment)):
        raise Untrue(f"{log} ends with the batch before {readable_end}")


def _check_batches(log: PartitionLog, history: LogHistory, moment: int, served: Served) -> None:
    """Check a log without compaction: each batch was written there, and none is missing in between."""
    gone = {data for when, _, old in history.truncated if when <= moment for data in old}
    following = served[0][0].base_offset if served else 0
    for header, data in served:
        if header.base_offset != following:
            raise Untrue(f"{log} serves {header.base_offset} after {following - 1}")
        if data not in history.batches[header.base_offset]:
            raise Untrue(f"{log} serves a batch at {header.base_offset} that was never written there")
        if data in gone:
            raise Untrue(f"{log} serves a batch at {header.base_offset} that was truncated")
        following = header.next_offset
        if _first_offset(log, header.last_offset) != header.base_offset:
            raise Untrue(f"{log} finds another batch for {header.last_offset}")


def _first_offset(log: PartitionLog, offset: int) -> int:
    return next(iter_headers(_read(log, offset, 1).records)).base_offset


def _check_keys(log: PartitionLog, history: LogHistory, moment: int, served: Served) -> None:
    """Check a compacted log: each served record was written there, the last record of each key is not older than the
    last one on the disk (a tombstone may be gone), and all reads agree.
    """
    written = {record.offset: record for record in history.records(1 << 62)}
    found: dict[bytes, KeyedRecord] = {}
    following = 0
    for header, _ in served:
        if header.base_offset < following:
            raise Untrue(f"{log} serves {header.base_offset} after {following - 1}")
        following = header.next_offset
        for offset in (header.base_offset, header.last_offset):
            if _first_offset(log, offset) != header.base_offset:
                raise Untrue(f"{log} finds another batch for {offset}")
    for record in committed_records(log, served):
        if written.get(record.offset) != record:
            raise Untrue(f"{log} serves {record}, which was never written there, or aborted")
        found[record.key] = record
    for key, durable in history.latest(history.end_min(moment)).items():
        last = found.get(key)
        if durable.offset < log.log_start_offset:
            continue
        if (last is None and durable.value is not None) or (last is not None and last.offset < durable.offset):
            raise Untrue(f"{log} has {last} where {durable} was on the disk")
    is_whole = log.log_start_offset == log.segments[0].base_offset
    if is_whole and sum(segment.size for segment in log.segments) != sum(len(data) for _, data in served):
        raise Untrue(f"{log} has segments that overlap")


def committed_records(log: PartitionLog, served: Served) -> Iterator[KeyedRecord]:
    """The records that a client accepts of the served ones: data that was not aborted."""
    aborted = _Aborted(log)
    for header, data in served:
        if not aborted.has(header) and not header.is_control:
            yield from _keyed_records(data, header)


class _Aborted:
    """A client's knowledge of aborted transactions."""

    def __init__(self, log: PartitionLog) -> None:
        self._starts = set(log.aborted_transactions(log.log_start_offset, log.log_end_offset))
        self._open: set[int] = set()

    def has(self, header: RecordBatchHeader) -> bool:
        started = {start for start in self._starts if start[0] == header.producer_id and start[1] <= header.base_offset}
        self._starts -= started
        self._open |= {producer_id for producer_id, _ in started}
        if header.is_control:
            self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


def check_derived(log: PartitionLog, served: Served) -> None:
    """Check epochs, producers, aborted transactions and timestamps against the batches. Raises Untrue."""
    epochs = LeaderEpochs()
    producers = ProducerState(log.log_start_offset, 1 << 60)
    aborted: list[AbortedTransaction] = []
    for header, data in served:
        if header.partition_leader_epoch > epochs.latest_epoch:
            epochs.assign(header.partition_leader_epoch, max(header.base_offset, log.log_start_offset))
        take_in(producers, header, data, aborted)
    known = log.leader_epochs.entries
    if [epoch for epoch, start in epochs.entries if not any(epoch == e and s <= start for e, s in known)]:
        raise Untrue(f"{log} has the leader epochs {known}, its batches {epochs.entries}")
    if any(start_offset > log.log_end_offset for _, start_offset in known):
        raise Untrue(f"{log} has leader epochs beyond its end: {known}")
    for producer_id, entry in producers.producers.items():
        found = log.producer_state.producers.get(producer_id)
        if found is None or found.epoch != entry.epoch or found.last_sequence < entry.last_sequence:
            raise Untrue(f"{log} does not know producer {producer_id} as of its last batch")
        if found.transaction_first_offset != entry.transaction_first_offset:
            raise Untrue(f"{log} has a transaction of {producer_id} open from {found.transaction_first_offset}")
    missing = {(entry.producer_id, entry.first_offset) for entry in aborted} - set(
        log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    )
    if missing:
        raise Untrue(f"{log} does not name the aborted transactions {missing}")
    _check_timestamps(log, served)


def _check_timestamps(log: PartitionLog, served: Served) -> None:
    largest: dict[int, int] = {}
    latest = -1
    bases = [segment.base_offset for segment in log.segments]
    for header, data in served:
        base = max(found for found in bases if found <= header.base_offset)
        for record in iter_records(data, header):
            largest[base] = max(largest.get(base, -1), record.timestamp)
            if record.timestamp > latest and record.offset >= log.log_start_offset:
                # No earlier record is as late: a search must find this one.
                latest = record.timestamp
                found = log.timestamp_lookup().first_at_or_after(latest)
                if not header.is_control and (found is None or found.offset != record.offset):
                    raise Untrue(f"{log} finds {found} at the time {latest}, and {record.offset} is the first")
    for segment in log.segments:
        if segment.base_offset in largest:
            stamp = segment.read_max_timestamp(log.context.cache)
            if stamp < largest[segment.base_offset]:
                raise Untrue(f"{segment} has a record of {largest[segment.base_offset]}, and {stamp} as its latest")
