"""Opening a log that exists: the short way after a clean shutdown, the long way after a crash.

Everything here blocks, and may run in threads, one log per thread: nothing is shared but `Files`, and the log that
comes out belongs to the event loop.

Source: org.apache.kafka.storage.internals.log.LogLoader, LogSegment.recover, UnifiedLog.rebuildProducerState; where a
damage cannot be a torn write
this module refuses to open the log, and Kafka would cut it there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from barnabas.storage.checkpoints import LEADER_EPOCH_FILE, decode_leader_epochs, encode_leader_epochs
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptFile, CorruptLog, StorageError
from barnabas.storage.files import Buffer, Files, LogFile, read_file, replace_file, unlink_if_exists, write_file
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.log import LogContext, PartitionLog
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.producer_state import ProducerState, decode_snapshot, encode_snapshot
from barnabas.storage.read import IndexMismatch, Read, file_headers
from barnabas.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.txn_index import AbortedTransaction, TransactionIndex
from barnabas.wire.record_batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    CorruptBatch,
    RecordBatchHeader,
    crc_is_valid,
    parse_header,
)

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""`progress(directory, segments_done, segments_to_do)`, called from the thread that recovers."""

_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?")
_SCAN_CHUNK: Final = 1 << 20
_TAIL_BYTES: Final = 4 << 20
_TAIL_HEADERS: Final = 10_000
_TAIL_CHUNK: Final = 64 * 1024
_MAX_OFFSET_STEP: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class LogCheckpoints:
    """What the checkpoints of the log directory say about one log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0


def open_log(
    context: LogContext,
    topic: str,
    partition: int,
    directory: str,
    config: LogConfig,
    checkpoints: LogCheckpoints,
    *,
    is_clean: bool,
    progress: Progress | None = None,
) -> PartitionLog:
    """Open the log of an existing directory. After a clean shutdown no file is opened unless the checkpoints leave a
    doubt.

    Raises:
        CorruptLog: a batch is damaged that no crash can have left so.
        StorageError: the disk failed.
    """
    loader = _Loader(context, topic, partition, directory, config, checkpoints, progress)
    try:
        return loader.load(is_clean=is_clean)
    except OSError as error:
        raise StorageError(f"opening {directory} failed: {error}") from error


class _Loader:
    """The steps of opening one log, and what they pass on to each other."""

    def __init__(
        self,
        context: LogContext,
        topic: str,
        partition: int,
        directory: str,
        config: LogConfig,
        checkpoints: LogCheckpoints,
        progress: Progress | None,
    ) -> None:
        self.context = context
        self.files = context.cache.files
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.config = config
        self.checkpoints = checkpoints
        self.progress = progress
        self.now_ms = context.clock.now_ms()
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []

    def load(self, *, is_clean: bool) -> PartitionLog:
        self._list(finish_interrupted_swaps(self.files, self.directory))
        if is_clean:
            end_offset = self._clean_end()
            if end_offset >= max(self.checkpoints.log_start_offset, 0):
                return self._log(end_offset, end_offset, None, None)
        return self._recover()

    def _list(self, names: list[str]) -> None:
        """Find segments, their sizes and snapshots by name."""
        found = [match for match in map(_NAME.fullmatch, names) if match and match[3] is None]
        bases = {int(match[1]) for match in found if match[2] == LOG_SUFFIX}
        with_txn_index = {int(match[1]) for match in found if match[2] == TXN_INDEX_SUFFIX}
        for match in found:
            if match[2] in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX) and int(match[1]) not in bases:
                logger.warning("removing index %s/%s, which has no segment", self.directory, match[0])
                unlink_if_exists(self.files, f"{self.directory}/{match[0]}")
        for base_offset in sorted(bases):
            file = LogFile(f"{self.directory}/{file_name(base_offset, LOG_SUFFIX)}")
            segment = Segment(base_offset, file, self.files.stat(file.path).size, self.now_ms)
            segment.jitter_ms = self.context.jitter(self.config)
            segment.has_txn_index = base_offset in with_txn_index
            self.segments.append(segment)
        self.snapshots = self._remove_stray_snapshots(
            sorted(int(match[1]) for match in found if match[2] == SNAPSHOT_SUFFIX), bases
        )

    def _remove_stray_snapshots(self, snapshots: list[int], bases: set[int]) -> list[int]:
        """Snapshots belong to the start of a segment; only the last may be one that a clean shutdown left at the
        log's end.
        """
        last_base = max(bases, default=0)
        kept = [offset for offset in snapshots if offset in bases or (offset == snapshots[-1] and offset > last_base)]
        for offset in snapshots:
            if offset not in kept:
                unlink_if_exists(self.files, f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")
        return kept

    # --- after a clean shutdown

    def _clean_end(self) -> int:
        """The log's end; -1 if the log has to be recovered after all.

        Believed without a look: that an empty last segment ends where it starts, and the recovery point, if a
        producer snapshot confirms it, because a clean shutdown writes both at the log's end.
        """
        if not self.segments:
            return -1
        active = self.segments[-1]
        if not active.size:
            return active.base_offset
        recovery_point = self.checkpoints.recovery_point
        if recovery_point > active.base_offset and self.snapshots and self.snapshots[-1] == recovery_point:
            return recovery_point
        return self._read_end(active)

    def _read_end(self, segment: Segment) -> int:
        """The offset after a segment's last batch, from its index and the batches behind the last entry; -1 if they
        do not fit.
        """
        try:
            data = read_file(self.files, segment.path(OFFSET_INDEX_SUFFIX))
            index = OffsetIndex.from_bytes(segment.base_offset, data, segment.size)
            start = index.positions[-1] if len(index) else 0
        except (FileNotFoundError, CorruptFile):
            start = 0
        end_offset, position = -1, 0
        try:
            with self._open(segment) as read:
                for header in file_headers(read, segment.file, start, segment.size):
                    end_offset, position = header.next_offset, header.end_position
        except (CorruptLog, IndexMismatch):
            return -1
        return end_offset if position == segment.size else -1

    # --- after a crash

    def _recover(self) -> PartitionLog:
        """Check every batch from the recovery point on, rebuild what is derived from them, and bring it all to the
        disk (R7, R8, R9).
        """
        epochs = self._read_epochs()
        first = self._first_unflushed()
        scanned = self.segments[first:]
        producers = self._producers_until(self.segments[first].base_offset if scanned else 0)
        end_offset = self.segments[first].base_offset if scanned else self.checkpoints.log_start_offset
        for number, segment in enumerate(scanned):
            if self.progress is not None:
                self.progress(self.directory, number, len(scanned))
            self._write_snapshot(segment.base_offset, producers)
            end_offset, is_whole = self._recover_segment(
                segment, max(end_offset, segment.base_offset), epochs, producers
            )
            if not is_whole:
                self._drop_after(segment)
                break
        if end_offset < self.checkpoints.log_start_offset or not self.segments:
            return self._start_anew(max(end_offset, self.checkpoints.log_start_offset))
        log_start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        epochs.truncate_from_end(end_offset)
        epochs.truncate_from_start(log_start_offset)
        self._sync(epochs, producers, end_offset)
        if end_offset < self.checkpoints.high_watermark:
            logger.warning(
                "%s ends at %d, though records up to %d had been committed: the machine lost what was not flushed",
                self.directory, end_offset, self.checkpoints.high_watermark,
            )  # fmt: skip
        if self.progress is not None:
            self.progress(self.directory, len(scanned), len(scanned))
        return self._log(end_offset, end_offset, epochs, producers)

    def _first_unflushed(self) -> int:
        """The index of the segment that the recovery point lies in."""
        first = 0
        for number, segment in enumerate(self.segments):
            if segment.base_offset <= self.checkpoints.recovery_point:
                first = number
        return first

    def _read_epochs(self) -> LeaderEpochs:
        try:
            return LeaderEpochs(decode_leader_epochs(read_file(self.files, f"{self.directory}/{LEADER_EPOCH_FILE}")))
        except FileNotFoundError:
            return LeaderEpochs()
        except CorruptFile as error:
            logger.warning("%s/%s is unusable (%s): epochs before the recovery point are lost",
                           self.directory, LEADER_EPOCH_FILE, error)  # fmt: skip
            return LeaderEpochs()

    def _producers_until(self, offset: int) -> ProducerState:
        """The producers' state at the start of the first segment that will be scanned; later snapshots may not match
        what is kept.
        """
        for snapshot in [found for found in self.snapshots if found > offset]:
            self.snapshots.remove(snapshot)
            unlink_if_exists(self.files, f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}")
        builder = ProducerBuilder(self.files, self.directory, self.context.producer_id_expiration_ms, self.now_ms)
        return builder.build(self.segments, self.snapshots, self.checkpoints.log_start_offset, offset)

    def _recover_segment(
        self, segment: Segment, expected_offset: int, epochs: LeaderEpochs, producers: ProducerState
    ) -> tuple[int, bool]:
        """Check one segment; (the offset after its last good batch, whether all was good). A torn tail is cut off."""
        aborted: list[AbortedTransaction] = []
        segment.reset_indexes()
        with self._open(segment) as read:
            position, reason = 0, ""
            for header, batch in scan_batches(read, segment.size):
                reason = _why_bad(header, batch, expected_offset, segment.base_offset)
                if header is None or batch is None or reason:
                    break
                segment.add_batch(
                    header.last_offset,
                    header.max_timestamp,
                    position,
                    header.size_in_bytes,
                    self.config.index_interval_bytes,
                )
                if header.partition_leader_epoch > epochs.latest_epoch:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
                take_in(producers, header, batch, aborted)
                expected_offset = header.next_offset
                position += header.size_in_bytes
            if position < segment.size:
                self._judge_damage(segment, position, expected_offset, reason or "it is not whole", read)
        is_whole = position == segment.size
        self._write_recovered(segment, position, aborted)
        return expected_offset, is_whole

    def _judge_damage(self, segment: Segment, position: int, expected_offset: int, reason: str, read: Read) -> None:
        """Tell a torn tail, which is cut, from corruption, which is not."""
        if expected_offset < self.checkpoints.recovery_point:
            raise CorruptLog(segment.file.path, position, f"{reason}; the disk had this part for certain")
        later = [found for found in self.segments if found.base_offset > segment.base_offset]
        if any(self._has_valid_batch(found) for found in later):
            raise CorruptLog(segment.file.path, position, f"{reason}; whole batches follow in later segments")
        follower = find_batch_after(read, position, segment.size, expected_offset)
        if follower is not None:
            raise CorruptLog(segment.file.path, position, f"{reason}; whole batches follow at byte {follower}")
        logger.warning(
            "cutting %d bytes of a torn write off %s: %s", segment.size - position, segment.file.path, reason
        )

    def _has_valid_batch(self, segment: Segment) -> bool:
        with self._open(segment) as read:
            for header, batch in scan_batches(read, segment.size):
                return header is not None and batch is not None and crc_is_valid(batch, header)
        return False

    def _write_recovered(self, segment: Segment, size: int, aborted: list[AbortedTransaction]) -> None:
        """Cut the segment to what was good, write its indexes, and bring all of it to the disk."""
        descriptor = self.files.open(segment.file.path)
        try:
            if size < segment.size:
                self.files.truncate(descriptor, size)
                segment.size = segment.warm_from = size
            self.files.sync(descriptor)
        finally:
            self.files.close(descriptor)
        segment.write_indexes(self.files)
        paths = [segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)]
        if aborted:
            write_file(self.files, segment.path(TXN_INDEX_SUFFIX), TransactionIndex(aborted).to_bytes())
            paths.append(segment.path(TXN_INDEX_SUFFIX))
        elif segment.has_txn_index:
            unlink_if_exists(self.files, segment.path(TXN_INDEX_SUFFIX))
        segment.has_txn_index = bool(aborted)
        for path in paths:
            descriptor = self.files.open(path)
            try:
                self.files.sync(descriptor)
            finally:
                self.files.close(descriptor)
        if segment is not self.segments[-1]:
            segment.unload()

    def _drop_after(self, segment: Segment) -> None:
        """Remove later segments, which have no valid batch: they were created just before the crash."""
        number = self.segments.index(segment)
        for later in self.segments[number + 1 :]:
            logger.warning("removing segment %s, which has no valid batch", later.file.path)
            remove_segment_files(self.files, later)
        del self.segments[number + 1 :]

    def _start_anew(self, offset: int) -> PartitionLog:
        """There is nothing at or after the log start offset: go on there with an empty log."""
        if self.segments:
            logger.warning("%s ends before its log start offset %d: removing all segments", self.directory, offset)
        for segment in self.segments:
            remove_segment_files(self.files, segment)
        for snapshot in self.snapshots:
            unlink_if_exists(self.files, f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}")
        self.segments, self.snapshots = [], []
        path = f"{self.directory}/{file_name(offset, LOG_SUFFIX)}"
        write_file(self.files, path, b"")
        self.segments = [Segment(offset, LogFile(path), 0, self.now_ms)]
        epochs = LeaderEpochs()
        producers = ProducerState(offset, self.context.producer_id_expiration_ms)
        self._sync(epochs, producers, offset)
        return self._log(offset, offset, epochs, producers)

    def _sync(self, epochs: LeaderEpochs, producers: ProducerState, end_offset: int) -> None:
        """Bring epochs, producers and names to the disk."""
        replace_file(self.files, f"{self.directory}/{LEADER_EPOCH_FILE}", encode_leader_epochs(epochs.entries))
        epochs.dirty = False
        self._write_snapshot(end_offset, producers)
        self.files.sync_directory(self.directory)

    def _write_snapshot(self, offset: int, producers: ProducerState) -> None:
        """Note the producers' state at the start of a segment or at the log's end, unless that was done."""
        if offset <= self.segments[0].base_offset or offset in self.snapshots:
            return
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        write_file(self.files, path, encode_snapshot(producers.producers.values()), sync=True)
        self.snapshots.append(offset)

    def _log(
        self, end_offset: int, recovery_point: int, epochs: LeaderEpochs | None, producers: ProducerState | None
    ) -> PartitionLog:
        log_start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        if producers is not None:
            producers.end_offset = end_offset
        return PartitionLog(
            self.context,
            self.topic,
            self.partition,
            self.directory,
            self.config,
            self.segments,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            recovery_point=recovery_point,
            high_watermark=self.checkpoints.high_watermark,
            snapshots=self.snapshots,
            leader_epochs=epochs,
            producers=producers,
        )

    def _open(self, segment: Segment) -> _OpenSegment:
        return _OpenSegment(self.files, segment.file.path)


class _OpenSegment:
    """A segment file that is open for reading in one thread."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> Read:
        self._descriptor = self._files.open(self._path)
        return self._read

    def _read(self, size: int, position: int) -> Buffer:
        return self._files.pread(self._descriptor, size, position)

    def __exit__(self, *_: object) -> None:
        self._files.close(self._descriptor)


def scan_batches(read: Read, size: int) -> Iterator[tuple[RecordBatchHeader | None, Buffer | None]]:
    """Read a segment's batches with their bytes. The last pair has None where there is no whole batch, and ends the
    scan.

    The header's position is 0: it belongs to the bytes that come with it.
    """
    position = chunk_start = 0
    chunk: Buffer = b""
    while position < size:
        rest = chunk_start + len(chunk) - position
        if rest < HEADER_SIZE:
            chunk, chunk_start = read(min(_SCAN_CHUNK, size - position), position), position
            rest = len(chunk)
        try:
            header = parse_header(chunk, position - chunk_start)
        except CorruptBatch:
            yield None, None
            return
        if position + header.size_in_bytes > size:
            yield header, None
            return
        if rest < header.size_in_bytes:
            chunk = read(max(min(_SCAN_CHUNK, size - position), header.size_in_bytes), position)
            chunk_start = position
        start = position - chunk_start
        yield header._replace(position=0), memoryview(chunk)[start : start + header.size_in_bytes]
        position += header.size_in_bytes


def _why_bad(header: RecordBatchHeader | None, batch: Buffer | None, expected_offset: int, base_offset: int) -> str:
    """What is wrong with a batch that was read from a segment; empty if nothing is."""
    if header is None:
        return "there is no batch header"
    if batch is None:
        return f"a batch of {header.size_in_bytes} bytes is not whole"
    if not crc_is_valid(batch, header):
        return "the checksum of a batch is wrong"
    if header.base_offset < expected_offset or header.last_offset < header.base_offset:
        return f"a batch has offset {header.base_offset} where {expected_offset} follows"
    if header.last_offset - base_offset >= _MAX_OFFSET_STEP:
        return f"a batch has offset {header.last_offset}, too far from the segment's start"
    return ""


def find_batch_after(read: Read, position: int, size: int, expected_offset: int) -> int | None:
    """Look for a whole valid batch anywhere behind a damaged one: what tells corruption from a torn write."""
    start = position + 1
    while start + HEADER_SIZE <= size:
        chunk = bytes(read(min(_SCAN_CHUNK, size - start), start))
        magic = chunk.find(b"\x02", 16)
        while magic >= 0:
            found = magic - 16
            if len(chunk) - found >= HEADER_SIZE and _is_batch(read, chunk, found, start, size, expected_offset):
                return start + found
            magic = chunk.find(b"\x02", magic + 1)
        if start + len(chunk) >= size:
            return None
        start += len(chunk) - HEADER_SIZE + 1
    return None


def _is_batch(read: Read, chunk: bytes, position: int, chunk_start: int, size: int, expected_offset: int) -> bool:
    try:
        header = parse_header(chunk, position)
    except CorruptBatch:
        return False
    if not expected_offset <= header.base_offset < expected_offset + _MAX_OFFSET_STEP:
        return False
    if chunk_start + position + LOG_OVERHEAD + header.batch_length > size:
        return False
    batch = read(header.size_in_bytes, chunk_start + position)
    return crc_is_valid(batch, header._replace(position=0))


def take_in(
    producers: ProducerState, header: RecordBatchHeader, batch: Buffer, aborted: list[AbortedTransaction]
) -> None:
    """Let the producers' state see a batch that is in the log already; aborted transactions are added to `aborted`."""
    if header.producer_id < 0:
        producers.end_offset = header.next_offset
    elif header.attributes & CONTROL_MASK:
        from barnabas.wire.records import iter_records, parse_end_txn_marker

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
    """Builds the producers' state of a log from its newest usable snapshot and the batches behind it."""

    def __init__(self, files: Files, directory: str, expiration_ms: int, now_ms: int) -> None:
        self._files = files
        self._directory = directory
        self._expiration_ms = expiration_ms
        self._now_ms = now_ms

    def build(
        self, segments: list[Segment], snapshots: list[int], log_start_offset: int, end_offset: int
    ) -> ProducerState:
        """The state at `end_offset`. Snapshots that are out of range or unreadable are removed, also from
        `snapshots`.
        """
        state = self._from_snapshot(snapshots, log_start_offset, end_offset)
        self._replay(state, segments, end_offset)
        state.end_offset = max(state.end_offset, end_offset)
        if state.producers:
            self._complete_batches(state, segments, end_offset)
        return state

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

    def _replay(self, state: ProducerState, segments: list[Segment], end_offset: int) -> None:
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if state.end_offset >= end_offset or segment.base_offset >= end_offset:
                return
            if following is not None and following.base_offset <= state.end_offset:
                continue
            with _OpenSegment(self._files, segment.file.path) as read:
                start = self._replay_start(segment, state.end_offset)
                for header in file_headers(read, segment.file, start, segment.size):
                    if header.base_offset >= end_offset:
                        return
                    if header.last_offset < state.end_offset:
                        continue
                    is_control = header.producer_id >= 0 and header.attributes & CONTROL_MASK
                    batch = read(header.size_in_bytes, header.position) if is_control else b""
                    take_in(state, header._replace(position=0), batch, [])

    def _replay_start(self, segment: Segment, offset: int) -> int:
        """A batch at or before `offset`; only the index in memory is asked, for it is checked nowhere here."""
        if offset <= segment.base_offset or segment.offset_index is None:
            return 0
        return segment.offset_index.lookup(offset)[1]

    def _complete_batches(self, state: ProducerState, segments: list[Segment], end_offset: int) -> None:
        """Find the batches before the last one of each producer, backwards through the log's tail, within bounds."""
        bytes_left, headers_left = _TAIL_BYTES, _TAIL_HEADERS
        for segment in reversed(segments):
            if segment.base_offset >= end_offset:
                continue
            with _OpenSegment(self._files, segment.file.path) as read:
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
        """Stretches of whole batches, last first, as the offset index cuts them."""
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


def rebuild_producers(log: PartitionLog) -> ProducerState:
    """The state of a log's producers as of its end. Blocking: a few small reads after a clean start, the active
    segment's headers otherwise.
    """
    context = log.context
    builder = ProducerBuilder(
        context.cache.files, log.directory, context.producer_id_expiration_ms, context.clock.now_ms()
    )
    try:
        return builder.build(list(log.segments), log.snapshot_offsets, log.log_start_offset, log.log_end_offset)
    except OSError as error:
        raise StorageError(f"reading the producers of {log.directory} failed: {error}") from error


def finish_interrupted_swaps(files: Files, directory: str) -> list[str]:
    """Finish or undo what a compaction left half done, and remove what was about to be deleted; the names that remain.

    A `.swap` file replaces the segments it spans, unless a `.cleaned` file at or before it says that the replacement
    was not complete.
    """
    names = [entry.name for entry in files.list(directory) if not entry.is_directory]
    matches = [match for match in map(_NAME.fullmatch, names) if match and match[3]]
    if not matches:
        return names
    cleaned = [int(match[1]) for match in matches if match[3] == CLEANED_SUFFIX]
    first_cleaned = min(cleaned, default=1 << 63)
    swaps = []
    for match in matches:
        if match[3] == SWAP_SUFFIX and int(match[1]) < first_cleaned:
            swaps.append(match)
        else:
            unlink_if_exists(files, f"{directory}/{match[0]}")
    spans = [_span(files, directory, match) for match in swaps if match[2] == LOG_SUFFIX]
    if spans:
        start, end = min(span[0] for span in spans), max(span[1] for span in spans)
        for match in filter(None, map(_NAME.fullmatch, names)):
            if match[3] is None and match[2] != SNAPSHOT_SUFFIX and start <= int(match[1]) < end:
                unlink_if_exists(files, f"{directory}/{match[0]}")
    for match in swaps:
        files.rename(f"{directory}/{match[0]}", f"{directory}/{match[1]}{match[2]}")
    files.sync_directory(directory)
    return [entry.name for entry in files.list(directory) if not entry.is_directory]


def _span(files: Files, directory: str, match: re.Match[str]) -> tuple[int, int]:
    """The offsets that a swapped-in segment covers."""
    path = f"{directory}/{match[0]}"
    end_offset = int(match[1])
    with _OpenSegment(files, path) as read:
        for header in file_headers(read, LogFile(path), 0, files.stat(path).size):
            end_offset = header.next_offset
    return int(match[1]), end_offset


def remove_segment_files(files: Files, segment: Segment) -> None:
    """Unlink a segment and its indexes."""
    for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        unlink_if_exists(files, segment.path(suffix))


__all__ = ["DELETED_SUFFIX", "LogCheckpoints", "Progress", "open_log", "rebuild_producers"]
