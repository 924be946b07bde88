"""Serves a log's reads on the event loop: locates an offset in the files with state in memory.

Source: org.apache.kafka.storage.internals.log.LocalLog.read, LogSegment.read.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from barnabas.storage.errors import ReadWouldBlock, refusal
from barnabas.storage.file_records import REGION_BYTES_MIN, FileRegion, SentRecords
from barnabas.storage.files import Buffer
from barnabas.storage.log_context import LogContext
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.segment import Segment
from barnabas.storage.segment_reader import (
    ColdRead,
    FetchData,
    IndexMismatch,
    Read,
    ReadPlan,
    batch_size,
    execute,
    find_batch,
)
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import HEADER_SIZE, LOG_OVERHEAD, CorruptBatch, parse_header

logger = logging.getLogger(__name__)

_RECENT_BATCHES: Final = 128
_HINTS: Final = 64
_WARM_BYTES: Final = 8 * 1024 * 1024


class ReadRequest(NamedTuple):
    """A read: whole batches from `start_offset` on, all below `max_offset`. `end_offset` is the current log end offset.
    With `may_stay_in_file` the result may be a region.
    """

    start_offset: int
    max_bytes: int
    max_offset: int
    min_one_message: bool
    end_offset: int
    index_interval_bytes: int
    may_stay_in_file: bool = False


class LogReader:
    """Finds batches in a log's segments.

    Besides the indexes it keeps the positions of the latest batches of the active segment, so that a read at the log's
    tail needs no look-up, and the ends of the latest reads, so that a consumer that catches up needs none either.

    Ownership: the event loop. `segments` is the log's own list.
    """

    __slots__ = ("_context", "_hints", "_offsets", "_positions", "segments", "sent_records")

    def __init__(self, context: LogContext, segments: list[Segment]) -> None:
        self.segments = segments
        self.sent_records = SentRecords()
        self._context = context
        # Offset after a read -> (base offset of its segment, position). Threads add to it after cold reads.
        self._hints: dict[int, tuple[int, int]] = {}
        self._offsets = array("q")
        self._positions = array("i")

    def add_batch(self, base_offset: int, position: int) -> None:
        """Record the position of a batch that was appended to the active segment, contiguous with the one before it."""
        offsets = self._offsets
        offsets.append(base_offset)
        self._positions.append(position)
        if len(offsets) > _RECENT_BATCHES:
            del offsets[: _RECENT_BATCHES // 2], self._positions[: _RECENT_BATCHES // 2]

    def forget_recent(self) -> None:
        """Drop the positions that `add_batch` has recorded: between them and the next batch is a gap of offsets, or the
        end of a segment.
        """
        del self._offsets[:], self._positions[:]

    def forget_all(self) -> None:
        """Drop all positions after batches were removed, and ignore those of reads that are under way."""
        self.forget_recent()
        self._hints = {}

    def has_all_of(self, read: ColdRead) -> bool:
        """Whether a read is of this log, and no batches were removed since it was planned."""
        return read.adds_to(self._hints)

    def slot(self, offset: int) -> int:
        """The index of the last segment that starts at or before `offset`."""
        if offset >= self.segments[-1].base_offset:
            return len(self.segments) - 1
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def read(self, request: ReadRequest) -> FetchData:
        """Read from the segment that contains the start offset.

        Raises:
            ColdRead: the read would block for the disk.
            StorageError: the disk failed.
        """
        for slot in range(self.slot(request.start_offset), len(self.segments)):
            if not self.segments[slot].size and slot + 1 < len(self.segments):
                continue  # compaction emptied it
            found = self._read_segment(slot, request)
            if found is not None:
                return found
        return nothing_at(request.start_offset, self.segments[-1])

    def _read_segment(self, slot: int, request: ReadRequest) -> FetchData | None:
        plan = self._plan(slot, request)
        if not plan.has_index:
            raise self._cold_read(plan, slot, request)
        try:
            if request.may_stay_in_file and min(plan.max_bytes, plan.limit - plan.position) >= REGION_BYTES_MIN:
                region = self._region(plan, slot, request)
                if region is not None:
                    return region
            found = execute(plan, self._cached_reader(self.segments[slot]))
        except ReadWouldBlock:
            raise self._cold_read(plan, slot, request) from None
        except IndexMismatch:
            self._distrust_index(slot, request.index_interval_bytes)
            raise self._cold_read(plan, slot, request) from None
        except OSError as error:
            raise refusal(f"reading {plan.file.path}", error) from error
        if found is not None and found.next_offset > request.start_offset:
            if len(self._hints) >= _HINTS:
                self._hints.clear()
            self._hints[found.next_offset] = (found.segment_base_offset, found.position + len(found.records))
        return found

    def _region(self, plan: ReadPlan, slot: int, request: ReadRequest) -> FetchData | None:
        """A large read as a region, if the index names a batch's end; may raise the errors of `execute`. `next_offset`
        is that of the next batch in the file, or later. The sender of a region has to check whether it is in the page
        cache, which not every file system supports.
        """
        if not self._context.reads_cached:
            return None
        segment = self.segments[slot]
        read = self._cached_reader(segment)
        start = plan.position if plan.is_exact else find_batch(plan, read)
        if start < 0:
            return None
        end, next_offset, last_offset = plan.limit, plan.limit_offset, -1
        if next_offset < 0 or end - start > plan.max_bytes:
            index = self._index(segment)
            if index is None:  # a segment from before the start, say: the next read will have the index
                raise self._cold_read(plan._replace(has_index=False, is_exact=False, position=0), slot, request)
            last_offset, end = index.last_before(min(start + plan.max_bytes, plan.limit), plan.max_offset)
            next_offset = last_offset
        if end - start < REGION_BYTES_MIN or self._is_cut_off(start, end, read):
            return None
        descriptor = self._context.cache.lend(segment.file)
        if descriptor < 0:
            return None
        region = FileRegion(self._context.cache, descriptor, start, end - start)
        if last_offset >= 0:
            if len(self._hints) >= _HINTS:
                self._hints.clear()
            try:
                header = parse_header(read(HEADER_SIZE, end), 0)
                if header.last_offset == last_offset:  # the index is only a hint
                    next_offset = header.base_offset
                    self._hints[next_offset] = (segment.base_offset, end)
            except ReadWouldBlock:
                region.tell_end(self._hints, segment.base_offset, last_offset, plan.start_offset, self.sent_records)
            except CorruptBatch:
                pass
        return FetchData(b"", plan.start_offset, next_offset, plan.base_offset, start, end < plan.limit, region)

    def _is_cut_off(self, start: int, end: int, read: Read) -> bool:
        """Whether the first batch is longer than the region, because the index is wrong: such a response would be
        useless. A region that was sent once is in the page cache, so the client makes progress.
        """
        try:
            return batch_size(read(LOG_OVERHEAD, start)) > end - start
        except ReadWouldBlock:
            return False

    def _plan(self, slot: int, request: ReadRequest) -> ReadPlan:
        """Determine, without any I/O, where the read starts and stops."""
        segment = self.segments[slot]
        limit, limit_offset = self._limit(slot, request.max_offset, request.end_offset)
        position, is_exact, has_index, index_offset = self._start(slot, request.start_offset)
        return new_tuple(
            ReadPlan,
            (
                segment.file,
                segment.base_offset,
                request.start_offset,
                request.max_offset,
                request.max_bytes,
                request.min_one_message,
                segment.size,
                limit,
                limit_offset,
                position,
                is_exact,
                has_index,
                index_offset,
                request.index_interval_bytes,
            ),
        )

    def _limit(self, slot: int, max_offset: int, end_offset: int) -> tuple[int, int]:
        """The position of `max_offset` in a segment, and that offset; (size, -1) if memory does not contain it."""
        segment = self.segments[slot]
        if slot + 1 < len(self.segments):
            next_offset = self.segments[slot + 1].base_offset
            return segment.size, next_offset if max_offset >= next_offset else -1
        if max_offset >= end_offset:
            return segment.size, end_offset
        recent = bisect_left(self._offsets, max_offset)
        if recent < len(self._offsets) and self._offsets[recent] == max_offset:
            return self._positions[recent], max_offset
        return segment.size, -1

    def _start(self, slot: int, start_offset: int) -> tuple[int, bool, bool, int]:
        """The position to start the search for an offset at, whether it is exact, whether the index is in memory, and
        the offset of the index entry.
        """
        segment = self.segments[slot]
        if start_offset <= segment.base_offset:
            return 0, True, True, -1
        if slot + 1 == len(self.segments):
            recent = bisect_right(self._offsets, start_offset) - 1
            if recent >= 0:
                return self._positions[recent], True, True, -1
        hint = self._hints.get(start_offset)
        if hint is not None and hint[0] == segment.base_offset and hint[1] < segment.size:
            return hint[1], True, True, -1
        index = self._index(segment)
        if index is None:
            return 0, False, False, -1
        index_offset, position = index.lookup(start_offset)
        return position, False, True, index_offset

    def _index(self, segment: Segment) -> OffsetIndex | None:
        """The segment's offset index, if it is in memory. The one of an active segment is used even if it is empty: its
        file is outdated.
        """
        return self._context.indexes.get(segment.file) if segment.offset_index is None else segment.offset_index

    def _cached_reader(self, segment: Segment) -> Read:
        """A reader that never waits for the disk (except to open a file whose descriptor was closed)."""
        files = self._context.cache.files
        descriptor = self._context.cache.descriptor(segment.file)
        if self._context.reads_cached:

            def read(size: int, position: int) -> Buffer:
                data = files.pread_cached(descriptor, size, position)
                if len(data) < size:
                    raise ReadWouldBlock
                return data

            return read
        warm_from = max(segment.warm_from, segment.size - _WARM_BYTES)

        def read_warm(size: int, position: int) -> Buffer:
            if position < warm_from:
                raise ReadWouldBlock
            return files.pread(descriptor, size, position)

        return read_warm

    def _cold_read(self, plan: ReadPlan, slot: int, request: ReadRequest) -> ColdRead:
        plans = [plan]
        if plan.limit_offset >= 0:
            # Compaction may have removed everything at or after the offset in this segment, and all of the next ones.
            for following in range(slot + 1, len(self.segments)):
                if self.segments[following].size:
                    plans.append(self._plan(following, request))
                    break
        if len(self._hints) >= _HINTS:
            self._hints.clear()
        return ColdRead(self._context.cache, self._context.indexes, self._hints, plans)

    def _distrust_index(self, slot: int, index_interval_bytes: int) -> None:
        """Rebuild a wrong index. Blocking for an active segment; for a sealed one the cold read does it."""
        segment = self.segments[slot]
        logger.warning("offset index of %s is wrong, building it anew", segment.file.path)
        if segment.offset_index is None:
            self._context.indexes.drop(segment.file)
            return
        files, descriptor = self._context.cache.files, self._context.cache.descriptor(segment.file)
        segment.rebuild_indexes(lambda size, position: files.pread(descriptor, size, position), index_interval_bytes)

    def readable_bytes(self, start_offset: int, max_offset: int, end_offset: int, limit: int) -> int:
        """An estimate of the bytes between two offsets, at most `limit`, at least 1; no I/O."""
        end = self.slot(min(max_offset, end_offset))
        total = 0
        for slot in range(self.slot(start_offset), end + 1):
            segment = self.segments[slot]
            start = self._start(slot, start_offset)[0]
            stop = segment.size if slot < end else self._position_near(slot, max_offset, end_offset)
            total += max(0, stop - start)
            if total >= limit:
                return limit
        return max(total, 1)

    def _position_near(self, slot: int, offset: int, end_offset: int) -> int:
        limit, limit_offset = self._limit(slot, offset, end_offset)
        if limit_offset >= 0:
            return limit
        return self._start(slot, offset)[0]


def nothing_at(offset: int, segment: Segment) -> FetchData:
    """The empty result of a read at the log end offset."""
    return FetchData(b"", offset, offset, segment.base_offset, segment.size)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
