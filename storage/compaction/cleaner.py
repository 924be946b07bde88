"""Compaction of one log: keep the last record of each key, remove the others.

A pass reads the dirty section of a log (offsets that no pass has read yet) into a map of keys, then copies all segments
below the end of the map's section without the records that the map supersedes. Segments that have become small are
joined. The output is `.cleaned` files, flushed to the disk; `segment_removal.replace_segments` takes them into the log.

A pass works on paths and numbers that were captured before (`CleaningJob`), so that it can run in a thread or in
another process. It blocks. It may be cancelled at any point: `.cleaned` files have no meaning for the log.

Source: org.apache.kafka.storage.internals.log.Cleaner.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from barnabas.storage.compaction.offset_map import KeyMap
from barnabas.storage.compaction.record_filter import (
    RawRecord,
    emptied_batch,
    iter_raw_records,
    payload_of,
    rebuilt_batch,
)
from barnabas.storage.compaction.transaction_filter import TransactionFilter
from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import CorruptLog
from barnabas.storage.files import Buffer, Files, read_file, unlink_if_exists, write_file, write_fully
from barnabas.storage.scan import OpenSegment, scan_batches, why_bad
from barnabas.storage.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.segment_reader import file_headers
from barnabas.storage.txn_index import ENTRY_SIZE, AbortedTransaction, TransactionIndex
from barnabas.wire.record_batch import NO_TIMESTAMP, CorruptBatch, RecordBatchHeader, parse_header

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_WRITE_CHUNK: Final = 1 << 20
_SYNC_BYTES: Final = 32 << 20
"""Written data is flushed in pieces of this size, so that no single flush keeps the disk busy for long."""

Pause = Callable[[int], None]
"""Called between batches with the bytes read and written since the last call: yields to other work, or throttles."""


class SourceSegment(NamedTuple):
    """A segment to be cleaned, in its state at the creation of the job."""

    base_offset: int
    path: str
    size: int


class LastRecord(NamedTuple):
    """The batch of an active producer that must be retained: the one with its last data, or, if it has none (-1), the
    marker with its epoch.
    """

    last_data_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """The input of a pass over one log. Offsets, bytes and milliseconds.

    `segments` are those below `first_uncleanable_offset`, `txn_indexes` the paths of all transaction index files of the
    log: a transaction of a cleaned segment may end in a later one.
    """

    directory: str
    segments: Sequence[SourceSegment]
    txn_indexes: Sequence[str]
    first_dirty_offset: int
    first_uncleanable_offset: int
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_slots: int
    map_load_factor: float = 0.9
    log_start_offset: int = 0


class CleanedSegment(NamedTuple):
    """A segment that is complete as `.cleaned` files, and the base offsets of the segments that it replaces."""

    base_offset: int
    replaces: list[int]
    size: int
    has_txn_index: bool
    max_timestamp: int
    max_timestamp_offset: int


class PassEnd(NamedTuple):
    """The result of a pass: everything below `end_offset` is clean."""

    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    batches_unopened: int = 0
    """Batches retained unchanged because they cannot be decompressed, or decompress to too many bytes."""


# --- plans


def group_segments(
    sizes: Sequence[tuple[int, int, int, int]], max_bytes: int, max_index_bytes: int, first_uncleanable_offset: int
) -> list[list[int]]:
    """Group neighbouring segments that are joined into one. Input: base offset, bytes, offset index bytes and time
    index bytes of each; output: base offsets.

    Source: Cleaner.groupSegmentsBySize.
    """
    groups: list[list[int]] = []
    total = index_total = time_total = 0
    for slot, (base_offset, size, index_size, time_size) in enumerate(sizes):
        last_offset = (sizes[slot + 1][0] if slot + 1 < len(sizes) else first_uncleanable_offset) - 1
        if (
            groups
            and total + size <= max_bytes
            and index_total + index_size <= max_index_bytes
            and time_total + time_size <= max_index_bytes
            and (size == 0 or last_offset - groups[-1][0] <= _MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(base_offset)
            total, index_total, time_total = total + size, index_total + index_size, time_total + time_size
        else:
            groups.append([base_offset])
            total, index_total, time_total = size, index_size, time_size
    return groups


class Retention(Enum):
    """The fate of a batch: removed; removed if no record is retained; retained, even if empty."""

    DELETE = auto()
    DELETE_EMPTY = auto()
    RETAIN_EMPTY = auto()


@dataclass(slots=True)
class BatchFilter:
    """Computes the part of each batch of a log that is retained.

    Source: Cleaner.cleanInto, Cleaner.shouldRetainRecord.
    """

    job: CleaningJob
    keys: KeyMap
    transactions: TransactionFilter
    records_read: int = 0
    records_kept: int = 0
    batches_unopened: int = 0

    def filter(self, batch: Buffer, header: RecordBatchHeader) -> Buffer | None:
        """The retained part of a batch: the batch itself, a smaller one, or None. Raises CorruptBatch."""
        is_needless = False
        if header.is_control:
            is_needless = self.transactions.is_needless_marker(header, batch)
            horizon_ms = header.delete_horizon_ms
            drops_records = is_needless and horizon_ms is not None and horizon_ms <= self.job.now_ms
        else:
            drops_records = self.transactions.is_aborted(header)
        retention = self._retention(header, drops_records=drops_records)
        self.records_read += header.record_count
        if retention is Retention.DELETE:
            return None
        kept: list[RawRecord] = []
        payload = b""
        if not drops_records and header.record_count:
            try:
                payload = payload_of(batch, header)
            except CorruptBatch:
                # The checksum is right, so the batch was written like this. Its keys are unknown.
                self.batches_unopened += 1
                self.records_kept += header.record_count
                return batch
            kept = self._kept_records(payload, header)
            self.records_kept += len(kept)
        if not kept:
            return emptied_batch(header) if retention is Retention.RETAIN_EMPTY else None
        horizon_ms = header.delete_horizon_ms
        needs_horizon = horizon_ms is None and (is_needless or not all(record.has_value for record in kept))
        if len(kept) == header.record_count and not needs_horizon:
            return batch
        if needs_horizon:
            horizon_ms = self.job.now_ms + self.job.delete_retention_ms
        return rebuilt_batch(header, payload, kept, horizon_ms)

    def _retention(self, header: RecordBatchHeader, *, drops_records: bool) -> Retention:
        last = self.job.producers.get(header.producer_id) if header.has_producer_id else None
        if last is not None:
            if last.last_data_offset >= 0:
                is_last = header.last_offset == last.last_data_offset
            else:
                is_last = header.is_control and header.producer_epoch == last.epoch
            if is_last:
                return Retention.RETAIN_EMPTY
        if header.next_offset == self.job.first_uncleanable_offset:
            # Without the last batch, the log would no longer show that its offset was used.
            return Retention.RETAIN_EMPTY
        return Retention.DELETE if drops_records else Retention.DELETE_EMPTY

    def _kept_records(self, payload: bytes, header: RecordBatchHeader) -> list[RawRecord]:
        records = iter_raw_records(payload, header.record_count)
        if header.is_control:
            return list(records)
        base_offset, find, latest_offset = header.base_offset, self.keys.get, self.keys.latest_offset
        horizon_ms = header.delete_horizon_ms
        keeps_tombstones = horizon_ms is None or self.job.now_ms < horizon_ms
        kept = []
        for record in records:
            offset = base_offset + record.offset_delta
            if offset > latest_offset or (
                record.key is not None and (record.has_value or keeps_tombstones) and offset >= find(record.key)
            ):
                kept.append(record)
        return kept


# --- the pass


def run_pass(files: Files, job: CleaningJob, pause: Pause) -> Iterator[CleanedSegment | PassEnd]:
    """Clean a log: yields each `CleanedSegment`, then the `PassEnd`. The consumer may stop at any point.

    Raises:
        CorruptLog: a batch cannot be read; nothing of its segment is complete then.
        OSError: the disk failed, or a file is gone (retention deleted the segment, or the log was deleted).
    """
    cleaning = _Pass(files, job, pause)
    keys = cleaning.build_map()
    transactions = TransactionFilter(cleaning.aborted, job.log_start_offset)
    batches = BatchFilter(job, keys, transactions)
    end_offset = keys.latest_offset + 1
    sources = [source for source in job.segments if source.base_offset < end_offset]
    by_base_offset = {source.base_offset: source for source in sources}
    groups = group_segments(
        [cleaning.sizes(source) for source in sources],
        job.segment_bytes,
        job.segment_index_bytes,
        job.first_uncleanable_offset,
    )
    for group in groups:
        yield cleaning.clean([by_base_offset[base_offset] for base_offset in group], batches)
    yield PassEnd(
        end_offset,
        cleaning.bytes_read,
        cleaning.bytes_written,
        batches.records_read,
        batches.records_kept,
        batches.batches_unopened,
    )


@dataclass(slots=True)
class _Pass:
    """The disk I/O of one pass."""

    files: Files
    job: CleaningJob
    pause: Pause
    aborted: list[AbortedTransaction] = field(init=False)
    bytes_read: int = 0
    bytes_written: int = 0

    def __post_init__(self) -> None:
        self.aborted = [
            found
            for path in self.job.txn_indexes
            for found in self._read_txn_index(path)
            if self.job.segments and found.last_offset >= self.job.segments[0].base_offset
        ]

    def _read_txn_index(self, path: str) -> list[AbortedTransaction]:
        """The entries of a transaction index, without a partial last entry of an index that is being appended to."""
        data = read_file(self.files, path)
        return TransactionIndex.from_bytes(0, data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]).entries

    def sizes(self, source: SourceSegment) -> tuple[int, int, int, int]:
        """Base offset, bytes, offset index bytes and time index bytes of a segment, for `group_segments`."""
        index_sizes = []
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = source.path[: -len(LOG_SUFFIX)] + suffix
            index_sizes.append(self.files.stat(path).size if self.files.exists(path) else 0)
        return source.base_offset, source.size, index_sizes[0], index_sizes[1]

    def _batches(self, source: SourceSegment) -> Iterator[tuple[RecordBatchHeader, Buffer]]:
        """The batches of a segment, checked: a batch that cannot be read must not be discarded."""
        position, expected_offset = 0, source.base_offset
        with OpenSegment(self.files, source.path) as read:
            for header, batch in scan_batches(read, source.size):
                problem = why_bad(header, batch, expected_offset, source.base_offset)
                if problem:
                    raise CorruptLog(source.path, position, problem)
                assert header is not None
                assert batch is not None
                yield header, batch
                position += header.size_in_bytes
                expected_offset = header.next_offset
                self.bytes_read += header.size_in_bytes
                self.pause(header.size_in_bytes)

    # --- the map

    def build_map(self) -> KeyMap:
        """Read the keys of the dirty section, as many as fit.

        Source: Cleaner.buildOffsetMap.
        """
        segments, start = self.job.segments, self.job.first_dirty_offset
        first = max(0, bisect_left(segments, start + 1, key=lambda source: source.base_offset) - 1)
        dirty = segments[first:]
        ends = [source.base_offset for source in dirty[1:]] + [self.job.first_uncleanable_offset]
        keys = KeyMap(self._slots(dirty), self.job.map_load_factor)
        transactions = TransactionFilter([found for found in self.aborted if found.last_offset >= start], start)
        for source, end_offset in zip(dirty, ends, strict=True):
            if not self._map_segment(source, keys, transactions):
                return keys
            keys.latest_offset = end_offset - 1
        return keys

    def _slots(self, dirty: Sequence[SourceSegment]) -> int:
        """The number of slots of the map: as many as memory allows, but no more than needed for the records."""
        records = 0
        for source in dirty:
            with OpenSegment(self.files, source.path) as read:
                for header in file_headers(read, LogFile(source.path), 0, source.size):
                    records += max(header.record_count, 0)
            self.pause(0)
        return min(self.job.map_slots, int(records / self.job.map_load_factor) + 3)

    def _map_segment(self, source: SourceSegment, keys: KeyMap, transactions: TransactionFilter) -> bool:
        """Add one segment to the map; returns False once the map is full."""
        start, put = self.job.first_dirty_offset, keys.put
        for header, batch in self._batches(source):
            if header.is_control:
                try:
                    transactions.is_needless_marker(header, batch)
                except CorruptBatch as error:
                    raise _corrupt(source, header, error) from None
            elif not transactions.is_aborted(header) and header.last_offset >= start:
                base_offset = header.base_offset
                for record in self._records(source, batch, header):
                    offset = base_offset + record.offset_delta
                    if record.key is not None and offset >= start and not put(record.key, offset):
                        return False
            if header.last_offset >= start:
                keys.latest_offset = header.last_offset
        return True

    @staticmethod
    def _records(source: SourceSegment, batch: Buffer, header: RecordBatchHeader) -> Iterator[RawRecord]:
        try:
            payload = payload_of(batch, header)
        except CorruptBatch:
            return  # retained unchanged, see `BatchFilter.filter`
        try:
            yield from iter_raw_records(payload, header.record_count)
        except CorruptBatch as error:
            raise _corrupt(source, header, error) from None

    # --- copying

    def clean(self, group: Sequence[SourceSegment], batches: BatchFilter) -> CleanedSegment:
        """Copy the retained part of a group of segments into one segment, and flush it."""
        path = f"{self.job.directory}/{file_name(group[0].base_offset, LOG_SUFFIX)}{CLEANED_SUFFIX}"
        cleaned = Segment(group[0].base_offset, LogFile(path), 0, 0)
        cleaned.reset_indexes()
        batches.transactions.retained = []
        descriptor = self.files.open(path, create=True, truncate=True)
        try:
            self._copy(group, batches, cleaned, descriptor)
            self.files.sync(descriptor)
        finally:
            self.files.close(descriptor)
        self._write_indexes(cleaned, batches.transactions.retained)
        return CleanedSegment(
            cleaned.base_offset,
            [source.base_offset for source in group],
            cleaned.size,
            cleaned.has_txn_index,
            cleaned.max_timestamp,
            cleaned.max_timestamp_offset,
        )

    def _copy(self, group: Sequence[SourceSegment], batches: BatchFilter, cleaned: Segment, descriptor: int) -> None:
        chunk = bytearray()
        synced = 0
        for source in group:
            for header, batch in self._batches(source):
                try:
                    kept = batches.filter(batch, header)
                except CorruptBatch as error:
                    raise _corrupt(source, header, error) from None
                if kept is None:
                    continue
                max_timestamp = _max_timestamp(kept)
                position = cleaned.size + len(chunk)
                cleaned.add_batch(header.last_offset, max_timestamp, position, len(kept), self.job.index_interval_bytes)
                chunk += kept
                if len(chunk) >= _WRITE_CHUNK:
                    self._write(chunk, cleaned, descriptor)
                    chunk = bytearray()
                    if cleaned.size - synced >= _SYNC_BYTES:
                        self.files.sync(descriptor)
                        synced = cleaned.size
        if chunk:
            self._write(chunk, cleaned, descriptor)

    def _write(self, chunk: bytearray, cleaned: Segment, descriptor: int) -> None:
        write_fully(self.files, descriptor, chunk, cleaned.size)
        cleaned.size += len(chunk)
        self.bytes_written += len(chunk)
        self.pause(len(chunk))

    def _write_indexes(self, cleaned: Segment, aborted: Sequence[AbortedTransaction]) -> None:
        offset_index, time_index = cleaned.offset_index, cleaned.time_index
        assert offset_index is not None
        assert time_index is not None
        time_index.append(cleaned.max_timestamp, cleaned.max_timestamp_offset)
        write_file(self.files, cleaned.path(OFFSET_INDEX_SUFFIX), offset_index.to_bytes(), sync=True)
        write_file(self.files, cleaned.path(TIME_INDEX_SUFFIX), time_index.to_bytes(), sync=True)
        if aborted:
            write_file(self.files, cleaned.path(TXN_INDEX_SUFFIX), TransactionIndex(aborted).to_bytes(), sync=True)
            cleaned.has_txn_index = True
        else:
            unlink_if_exists(self.files, cleaned.path(TXN_INDEX_SUFFIX))


def _corrupt(source: SourceSegment, header: RecordBatchHeader, error: CorruptBatch) -> CorruptLog:
    return CorruptLog(source.path, 0, f"batch at offset {header.base_offset}: {error}")


def _max_timestamp(batch: Buffer) -> int:
    """The timestamp that a batch adds to the time index: none for an emptied batch, since no search could find it."""
    header = parse_header(batch)
    return header.max_timestamp if header.record_count else NO_TIMESTAMP


def remove_cleaned_files(files: Files, directory: str) -> None:
    """Remove the files that a cancelled pass left behind. Blocking."""
    for entry in files.list(directory):
        if entry.name.endswith(CLEANED_SUFFIX):
            unlink_if_exists(files, f"{directory}/{entry.name}")
