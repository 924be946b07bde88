"""Rebuilds the state of a log's producers from a snapshot and the batches behind it.

Everything here blocks. Source: UnifiedLog.rebuildProducerState; the search for the four batches before the last one is
our own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

from barnabas.storage.errors import CorruptFile, CorruptLog
from barnabas.storage.files import Buffer, Files, read_file, unlink_if_exists
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.producer_snapshot import decode_snapshot
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.scan import OpenSegment
from barnabas.storage.segment import OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_name
from barnabas.storage.segment_reader import IndexMismatch, file_headers
from barnabas.storage.txn_index import AbortedTransaction
from barnabas.wire.record_batch import CONTROL_MASK, CorruptBatch, RecordBatchHeader

logger = logging.getLogger(__name__)

_TAIL_BYTES: Final = 4 << 20
_TAIL_HEADERS: Final = 10_000
_TAIL_CHUNK: Final = 64 * 1024


def take_in(
    producers: ProducerState, header: RecordBatchHeader, batch: Buffer, aborted: list[AbortedTransaction]
) -> None:
    """Update the producer state with a batch that is in the log already; adds aborted transactions to `aborted`."""
    if header.producer_id < 0:
        producers.end_offset = header.next_offset
    elif header.attributes & CONTROL_MASK:
        from barnabas.wire.control_records import parse_end_txn_marker
        from barnabas.wire.records import iter_records

        for record in iter_records(batch, header):
            marker = parse_end_txn_marker(record)
            if marker is not None:
                found = producers.record_marker(header, header.base_offset, marker)
                if found is not None:
                    aborted.append(found)
        producers.end_offset = header.next_offset
    else:
        producers.record(header, header.base_offset)


class ProducerBuilder:
    """Builds the producer state of a log from its newest usable snapshot and the batches behind it."""

    def __init__(self, files: Files, directory: str, expiration_ms: int, now_ms: int) -> None:
        self._files = files
        self._directory = directory
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms

    def build(
        self, segments: list[Segment], snapshots: list[int], log_start_offset: int, end_offset: int
    ) -> ProducerState:
        """The state at `end_offset`. Removes snapshots that are out of range or unreadable, also from `snapshots`."""
        state = self._from_snapshot(snapshots, log_start_offset, end_offset)
        self._replay(state, segments, end_offset, [])
        state.end_offset = max(state.end_offset, end_offset)
        if state.producers:
            self._complete_batches(state, segments, end_offset)
        return state

    def producer_ids(
        self, segments: list[Segment], snapshots: list[int], log_start_offset: int, end_offset: int
    ) -> list[int]:
        """The ids of all producers at `end_offset`."""
        state = self._from_snapshot(snapshots, log_start_offset, end_offset)
        self._replay(state, segments, end_offset, [])
        return list(state.producers)

    def aborted_in(
        self, segment: Segment, segments: list[Segment], snapshots: list[int], log_start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are in a segment; the segment ends at `end_offset`."""
        before = [offset for offset in snapshots if offset <= segment.base_offset]
        state = self._from_snapshot(before, log_start_offset, segment.base_offset)
        aborted: list[AbortedTransaction] = []
        self._replay(state, segments, end_offset, aborted)
        return [found for found in aborted if found.last_offset >= segment.base_offset]

    def _from_snapshot(self, snapshots: list[int], log_start_offset: int, end_offset: int) -> ProducerState:
        for offset in sorted(snapshots, reverse=True):
            path = f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
            if log_start_offset < offset <= end_offset:
                try:
                    entries = decode_snapshot(read_file(self._files, path))
                except (CorruptFile, FileNotFoundError) as error:
                    logger.warning("ignoring producer snapshot %s: %s", path, error)
                else:
                    state = ProducerState(offset, self._expiration_ms)
                    state.load(entries, offset, self._now_ms)
                    return state
            snapshots.remove(offset)
            unlink_if_exists(self._files, path)
        return ProducerState(log_start_offset, self._expiration_ms)

    def _replay(
        self, state: ProducerState, segments: list[Segment], end_offset: int, aborted: list[AbortedTransaction]
    ) -> None:
        for segment, following in zip_longest(segments, segments[1:]):
            if state.end_offset >= end_offset or segment.base_offset >= end_offset:
                return
            if following is not None and following.base_offset <= state.end_offset:
                continue
            with OpenSegment(self._files, segment.file.path) as read:
                start = self._replay_start(segment, state.end_offset)
                for header in file_headers(read, segment.file, start, segment.size):
                    if header.base_offset >= end_offset:
                        return
                    if header.last_offset < state.end_offset:
                        continue
                    is_control = header.producer_id >= 0 and header.attributes & CONTROL_MASK
                    batch = read(header.size_in_bytes, header.position) if is_control else b""
                    try:
                        take_in(state, header._replace(position=0), batch, aborted)
                    except CorruptBatch as error:
                        raise CorruptLog(segment.file.path, header.position, str(error)) from None

    def _replay_start(self, segment: Segment, offset: int) -> int:
        """The position of a batch at or before `offset`; uses only an index in memory, because this code does not check
        indexes.
        """
        if offset <= segment.base_offset or segment.offset_index is None:
            return 0
        return segment.offset_index.lookup(offset)[1]

    def _complete_batches(self, state: ProducerState, segments: list[Segment], end_offset: int) -> None:
        """Find the batches before the last one of each producer, backwards through the log's tail, within bounds."""
        bytes_left, headers_left = _TAIL_BYTES, _TAIL_HEADERS
        for segment in reversed(segments):
            if segment.base_offset >= end_offset:
                continue
            with OpenSegment(self._files, segment.file.path) as read:
                for start, end in self._chunks(segment):
                    try:
                        headers = list(file_headers(read, segment.file, start, end))
                    except (IndexMismatch, CorruptLog):
                        return
                    if state.restore_batches(header for header in reversed(headers) if header.base_offset < end_offset):
                        return
                    bytes_left -= end - start
                    headers_left -= len(headers)
                    if bytes_left <= 0 or headers_left <= 0:
                        return

    def _chunks(self, segment: Segment) -> Iterator[tuple[int, int]]:
        """Sections of whole batches, last first, split at entries of the offset index."""
        index = segment.offset_index
        if index is None:
            try:
                data = read_file(self._files, segment.path(OFFSET_INDEX_SUFFIX))
                index = OffsetIndex.from_bytes(segment.base_offset, data, segment.size)
            except (FileNotFoundError, CorruptFile):
                index = OffsetIndex(segment.base_offset)
        end = segment.size
        for position in reversed(index.positions):
            if end - position >= _TAIL_CHUNK:
                yield position, end
                end = position
        if end:
            yield 0, end
