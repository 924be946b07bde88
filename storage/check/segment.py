"""Check one segment offline: its batches and, in the same pass, its indexes.

Log and indexes are sorted the same way, so one walk over the log reaches every index entry in turn: memory does not
grow with the files, whatever they contain. Nothing is repaired.

Source: Kafka `OffsetIndex`, `TimeIndex`, `TransactionIndex` for the meaning of indexes, `DumpLogSegments` for the
errors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from barnabas.storage.check.report import Report
from barnabas.storage.files import Files
from barnabas.wire.control_records import ControlRecordType, parse_end_txn_marker
from barnabas.wire.crc import crc32c
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    CompressionType,
    CorruptBatch,
    RecordBatchHeader,
    TimestampType,
    parse_header,
)
from barnabas.wire.records import iter_records

_CRC_START: Final = 21
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Bounds of the memory that a check uses at once, in bytes.

    Attributes:
        window_bytes: files are read in pieces of this size.
        opened_batch_bytes_max: records of larger batches are not decoded: no broker accepts such a batch, and it has
            to be in memory as a whole.
    """

    window_bytes: int = 1024 * 1024
    opened_batch_bytes_max: int = 64 * 1024 * 1024


DEFAULT_LIMITS: Final = CheckLimits()


class FileWindow:
    """Reads a file of any size in pieces of `window_bytes`, or larger ones on request. Blocking."""

    def __init__(self, files: Files, path: str, window_bytes: int) -> None:
        self._files = files
        self._window_bytes = window_bytes
        self._descriptor = files.open(path)
        self.size = files.stat(path).size
        self._start = 0
        self._window = memoryview(b"")

    def read(self, position: int, size: int) -> memoryview:
        """The bytes at `position`; fewer only at the end of the file. Valid until the next read."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            self._window = memoryview(self._files.pread(self._descriptor, max(size, self._window_bytes), position))
            self._start = position
            start = 0
        return self._window[start : start + size]

    def is_zero_from(self, position: int) -> bool:
        """Whether only zero bytes follow."""
        while position < self.size:
            piece = self.read(position, self._window_bytes)
            if not piece or any(piece):
                return False
            position += len(piece)
        return True

    def close(self) -> None:
        self._files.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that the walk has reached; `position` is its position in the file."""

    position: int
    header: RecordBatchHeader


class _IndexCheck:
    """The common part of the checks of the three index files. A subclass defines the order of entries (`follows`) and
    compares the entries with each batch, in log order (`meet`).

    `current` is the last entry read, None behind the last one; it is at byte `position` of `file`.
    """

    suffix = ""
    entry = struct.Struct("")

    def __init__(self, window: FileWindow, file: str, base_offset: int, report: Report) -> None:
        self.current: tuple[int, ...] | None = None
        self.base_offset = base_offset
        self.report = report
        self.file = file
        self._window = window
        self.position = 0
        self._entries = self._read_entries()
        if window.size % self.entry.size:
            report.error(file, f"{window.size} bytes are no whole number of entries of {self.entry.size} bytes")
        if window.size and window.is_zero_from(0):
            report.note(file, "is preallocated and empty")
        else:
            self.advance()

    def _read_entries(self) -> Iterator[tuple[int, ...]]:
        size = self.entry.size
        for position in range(0, self._window.size - size + 1, size):
            piece = self._window.read(position, size)
            if len(piece) < size:
                return
            self.position = position
            yield self.entry.unpack(piece)

    def advance(self) -> None:
        """Go to the next entry. An entry out of order ends the check, because everything behind it is meaningless."""
        previous = self.current
        self.current = next(self._entries, None)
        if self.current is None or self.follows(previous, self.current):
            return
        if self._window.is_zero_from(self.position):
            self.report.note(self.file, "the rest is preallocated", position=self.position)
        else:
            self.error(f"entry {self.current} may not follow {previous}")
        self.current = None
        self._entries = iter(())

    def error(self, message: str) -> None:
        """Report that the current entry is wrong."""
        self.report.error(self.file, message, position=self.position)

    def follows(self, previous: tuple[int, ...] | None, entry: tuple[int, ...]) -> bool:
        """Whether `entry` may stand behind `previous` (None: at the start)."""
        raise AssertionError("said by subclasses")

    def names(self, header: RecordBatchHeader) -> bool:
        """Whether this is a transaction index whose next entry is the marker with this header."""
        return False

    def meet(self, batch: Batch, aborted: bool) -> None:
        """Check the entries that are about this batch or, wrongly, about the bytes before it."""
        raise AssertionError("said by subclasses")

    def finish(self) -> None:
        """Report entries that point behind the last batch."""
        while self.current is not None:
            self.error(f"entry {self.current} points behind the last batch")
            self.advance()


class OffsetIndexCheck(_IndexCheck):
    """`.index`: each entry is the position of a batch and the last offset of that batch."""

    suffix = ".index"
    entry = struct.Struct(">ii")

    def follows(self, previous: tuple[int, ...] | None, entry: tuple[int, ...]) -> bool:
        if previous is None:
            return entry[0] >= 0 and entry[1] >= 0
        return entry[0] > previous[0] and entry[1] > previous[1]

    def meet(self, batch: Batch, aborted: bool) -> None:
        while self.current is not None and self.current[1] <= batch.position:
            offset = self.base_offset + self.current[0]
            if self.current[1] < batch.position:
                self.error(f"position {self.current[1]} is not the start of a batch")
            elif offset < batch.header.base_offset:
                self.error(f"batch at position {self.current[1]} starts behind offset {offset}")
            elif offset != batch.header.last_offset:
                self.report.warning(
                    self.file, f"offset {offset} is not the last of its batch", position=self.position, offset=offset
                )
            self.advance()


class TimeIndexCheck(_IndexCheck):
    """`.timeindex`: each entry is the largest timestamp up to an offset, which lies in the batch that has it."""

    suffix = ".timeindex"
    entry = struct.Struct(">qi")
    _max_timestamp = -1

    def follows(self, previous: tuple[int, ...] | None, entry: tuple[int, ...]) -> bool:
        if previous is None:
            return entry[0] >= 0 and entry[1] >= 0
        return entry[0] > previous[0] and entry[1] > previous[1]

    def meet(self, batch: Batch, aborted: bool) -> None:
        header = batch.header
        while self.current is not None and self.base_offset + self.current[1] <= header.last_offset:
            timestamp, offset = self.current[0], self.base_offset + self.current[1]
            if offset < header.base_offset:
                self.error(f"offset {offset} is in no batch")
            elif header.max_timestamp != timestamp:
                self.error(f"batch of offset {offset} has the max timestamp {header.max_timestamp}, not {timestamp}")
            elif timestamp < self._max_timestamp:
                self.error(f"records before offset {offset} are later than {timestamp}")
            self.advance()
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)


class TransactionIndexCheck(_IndexCheck):
    """`.txnindex`: each entry is an aborted transaction, by the offset of its abort marker."""

    suffix = ".txnindex"
    entry = struct.Struct(">hqqqq")

    def follows(self, previous: tuple[int, ...] | None, entry: tuple[int, ...]) -> bool:
        version, _, first_offset, last_offset, _ = entry
        last_before = self.base_offset - 1 if previous is None else previous[3]
        return version == 0 and 0 <= first_offset <= last_offset and last_offset > last_before

    def names(self, header: RecordBatchHeader) -> bool:
        return self.current is not None and self.current[3] == header.last_offset

    def meet(self, batch: Batch, aborted: bool) -> None:
        header = batch.header
        while self.current is not None and self.current[3] <= header.last_offset:
            _, producer_id, _, last_offset, _ = self.current
            if last_offset < header.base_offset or not aborted or producer_id != header.producer_id:
                self.error(f"offset {last_offset} is no abort marker of producer {producer_id}")
            self.advance()


_INDEX_CHECKS: Final = (OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck)


class SegmentCheck:
    """Walks over one segment.

    Args:
        path: of the log directory's partition, for opening; `folder` is the same for messages.
        names: the file names in it.
        may_be_torn: the last segment of a log that was not shut down cleanly: recovery cuts off what is behind its last
            whole batch.
        deep: decode records too, and compare them with what their batch says.
        last_epoch: leader epoch of the last batch before this segment.
        ongoing: where the transactions start that are open before this segment, by producer; carried on.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        folder: str,
        names: frozenset[str],
        base_offset: int,
        report: Report,
        *,
        may_be_torn: bool,
        deep: bool,
        limits: CheckLimits,
        last_epoch: int,
        ongoing: dict[int, int],
    ) -> None:
        stem = f"{base_offset:020d}"
        self._ongoing = ongoing
        self._limits = limits
        self.epochs: list[tuple[int, int]] = []
        """Leader epochs that begin in this segment, with the offset where they do."""
        self.last_epoch = last_epoch
        self.next_offset = base_offset
        self._base_offset = base_offset
        self._report = report
        self._file = f"{folder}{stem}.log"
        self._may_be_torn = may_be_torn
        self._deep = deep
        self._opened = ExitStack()
        self._window = self._open(files, f"{path}/{stem}.log")
        self._indexes = [
            check(
                self._open(files, f"{path}/{stem}{check.suffix}"), f"{folder}{stem}{check.suffix}", base_offset, report
            )
            for check in _INDEX_CHECKS
            if stem + check.suffix in names
        ]

    def _open(self, files: Files, path: str) -> FileWindow:
        """Open a file and keep it open until the end of `run`."""
        try:
            window = FileWindow(files, path, self._limits.window_bytes)
        except OSError:
            self._opened.close()
            raise
        self._opened.callback(window.close)
        return window

    def run(self) -> None:
        """Check everything. Raises OSError if the disk fails."""
        with self._opened:
            position = 0
            while position < self._window.size:
                header = self._read_header(position)
                if header is None:
                    break
                self._check_batch(Batch(position, header))
                position += header.size_in_bytes
            self._report.bytes_checked += position
            self._report.segments += 1
            for index in self._indexes:
                index.finish()

    def _read_header(self, position: int) -> RecordBatchHeader | None:
        """The header of the whole batch at `position`; None, after reporting, if there is none and the walk ends."""
        left = self._window.size - position
        data = self._window.read(position, HEADER_SIZE)
        try:
            header = parse_header(data)
        except CorruptBatch as error:
            if len(data) < HEADER_SIZE:
                self._torn(position, f"{left} bytes are too few for a batch")
            elif self._window.is_zero_from(position):
                self._torn(position, f"{left} zero bytes follow the last batch")
            else:
                self._error(position, f"no batch: {error}")
            return None
        if header.size_in_bytes > left:
            self._torn(position, f"batch of {header.size_in_bytes} bytes, of which {left} are there")
            return None
        return header

    def _torn(self, position: int, message: str) -> None:
        """Report an incomplete end, which an unclean shutdown explains."""
        if self._may_be_torn:
            self._report.warning(self._file, f"{message}; the next start cuts them off", position=position)
        else:
            self._error(position, message)

    def _error(self, position: int, message: str, offset: int | None = None) -> None:
        self._report.error(self._file, message, position=position, offset=offset)

    def _check_batch(self, batch: Batch) -> None:
        header = batch.header
        self._report.batches += 1
        crc_is_right = self._crc(batch) == header.crc
        if not crc_is_right:
            is_last = batch.position + header.size_in_bytes == self._window.size
            if is_last and self._may_be_torn:
                self._torn(batch.position, "the last batch does not match its CRC")
            else:
                self._error(batch.position, "batch does not match its CRC", header.base_offset)
            return
        self._report.records += max(header.record_count, 0)
        self._check_header(batch)
        aborted = self._check_records(batch) if self._deep or header.is_control else False
        self._follow_transaction(header, aborted)
        for index in self._indexes:
            index.meet(batch, aborted)

    def _follow_transaction(self, header: RecordBatchHeader, aborted: bool) -> None:
        """Report an abort marker whose transaction has data and is missing in the transaction index: read_committed
        consumers would receive aborted records.
        """
        if not header.is_transactional or header.producer_id < 0:
            return
        if not header.is_control:
            self._ongoing.setdefault(header.producer_id, header.base_offset)
            return
        first_offset = self._ongoing.pop(header.producer_id, None)
        if aborted and first_offset is not None and not any(index.names(header) for index in self._indexes):
            message = f"the transaction index lacks what producer {header.producer_id} aborted from {first_offset} on"
            if self._may_be_torn:
                self._report.warning(self._file, f"{message}; the next start adds it", offset=header.base_offset)
            else:
                self._report.error(self._file, message, offset=header.base_offset)

    def _crc(self, batch: Batch) -> int:
        """The CRC-32C of the batch, read in pieces: a batch may be as large as the file."""
        crc = 0
        position = batch.position + _CRC_START
        end = batch.position + batch.header.size_in_bytes
        while position < end:
            piece = self._window.read(position, min(end - position, self._limits.window_bytes))
            if not piece:
                break
            crc = crc32c(piece, crc)
            position += len(piece)
        return crc

    def _check_header(self, batch: Batch) -> None:
        """Check that offsets ascend and fit the segment, and that leader epochs never decrease."""
        header = batch.header
        position = batch.position
        if header.base_offset < self.next_offset:
            self._error(position, f"offset {header.base_offset} follows {self.next_offset - 1}", header.base_offset)
        if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
            self._error(
                position,
                f"{header.record_count} records in offsets {header.base_offset} to {header.last_offset}",
                header.base_offset,
            )
        if header.last_offset - self._base_offset > _INT32_MAX:
            self._error(
                position, f"offset {header.last_offset} is too far from the segment's first", header.base_offset
            )
        if header.codec not in CompressionType._value2member_map_:
            self._error(position, f"unknown compression type {header.codec}", header.base_offset)
        epoch = header.partition_leader_epoch
        if epoch < self.last_epoch:
            self._error(position, f"leader epoch {epoch} follows {self.last_epoch}", header.base_offset)
        elif epoch > self.last_epoch:
            self.epochs.append((epoch, header.base_offset))
            self.last_epoch = epoch
        self.next_offset = max(self.next_offset, header.next_offset)

    def _check_records(self, batch: Batch) -> bool:
        """Decode the records; returns whether the batch is an abort marker."""
        header = batch.header
        if header.size_in_bytes > self._limits.opened_batch_bytes_max:
            self._report.warning(
                self._file,
                f"batch of {header.size_in_bytes} bytes is too large to be opened",
                position=batch.position,
                offset=header.base_offset,
            )
            return False
        data = self._window.read(batch.position, header.size_in_bytes)
        aborted = False
        try:
            aborted = self._decode(data, header)
        except CorruptBatch as error:
            self._error(batch.position, f"records contradict their batch: {error}", header.base_offset)
        return aborted

    def _decode(self, data: memoryview, header: RecordBatchHeader) -> bool:
        """Compare the records with the header; returns whether one is an abort marker. Raises CorruptBatch."""
        last_offset = header.base_offset - 1
        max_timestamp = -1
        aborted = False
        for record in iter_records(data, header):
            if not last_offset < record.offset <= header.last_offset:
                raise CorruptBatch(f"record of offset {record.offset} behind {last_offset}")
            last_offset = record.offset
            max_timestamp = max(max_timestamp, record.timestamp)
            if header.is_control:
                marker = parse_end_txn_marker(record)
                aborted = aborted or (marker is not None and marker.control_type is ControlRecordType.ABORT)
        if (
            header.record_count
            and header.timestamp_type is TimestampType.CREATE_TIME
            and max_timestamp != header.max_timestamp
        ):
            raise CorruptBatch(f"max timestamp is {max_timestamp}, the header says {header.max_timestamp}")
        return aborted
