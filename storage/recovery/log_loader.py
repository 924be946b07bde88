"""Loads an existing log: the short way after a clean shutdown, the long way after a crash.

Everything here blocks, and may run in threads, one log per thread: nothing is shared but `Files`, and the resulting log
belongs to the event loop.

Source: org.apache.kafka.storage.internals.log.LogLoader, LogSegment.recover, UnifiedLog.rebuildProducerState; if a
damage cannot be a torn write, this module refuses to open the log, and Kafka would truncate it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from barnabas.storage.checkpoints import (
    LEADER_EPOCH_FILE,
    LogCheckpoints,
    decode_leader_epochs,
    encode_leader_epochs,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import LogFile
from barnabas.storage.errors import CorruptFile, CorruptLog, is_passing, refusal
from barnabas.storage.files import TEMPORARY_SUFFIX, Buffer, read_file, replace_file, unlink_if_exists, write_file
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.loaded_log import LoadedLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.offset_index import OffsetIndex
from barnabas.storage.producer_builder import ProducerBuilder, take_in
from barnabas.storage.producer_snapshot import encode_snapshot
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.recovery.swaps import FILE_NAME, finish_interrupted_swaps, remove_segment_files
from barnabas.storage.scan import (
    SECTOR_BYTES,
    OpenSegment,
    find_batch_after,
    has_lost_sector,
    has_lost_start,
    scan_batches,
    why_bad,
)
from barnabas.storage.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.segment_reader import IndexMismatch, Read, file_headers
from barnabas.storage.txn_index import AbortedTransaction, TransactionIndex, TransactionIndexNote
from barnabas.wire.record_batch import HEADER_SIZE, CorruptBatch, crc_is_valid, parse_header

logger = logging.getLogger(__name__)

LARGE_SNAPSHOT_BYTES: Final = 128 * 1024
"""A snapshot of this size has 2,850 producers, which take 6 ms to read and to find in the log's tail."""


def load_log(
    context: LogContext,
    directory: str,
    config: LogConfig,
    checkpoints: LogCheckpoints,
    *,
    is_clean: bool,
    go_on: Callable[[], None] = lambda: None,
) -> LoadedLog:
    """Load the log of an existing directory. After a clean shutdown no file is opened unless the checkpoints are
    inconclusive, or the log has very many producers. Recovery calls `go_on` before it reads each piece of a log: an
    exception from it ends the recovery, as a crash may, and is raised.

    Raises:
        CorruptLog: a batch is damaged in a way that no crash explains.
        StorageError: the disk failed.
    """
    loader = _Loader(context, directory, config, checkpoints, go_on)
    try:
        return loader.load(is_clean=is_clean)
    except OSError as error:
        raise refusal(f"opening {directory}", error) from error


class _Loader:
    """The steps of opening one log, and their shared state."""

    def __init__(
        self,
        context: LogContext,
        directory: str,
        config: LogConfig,
        checkpoints: LogCheckpoints,
        go_on: Callable[[], None],
    ) -> None:
        self.context = context
        self.files = context.cache.files
        self.directory = directory
        self.config = config
        self.checkpoints = checkpoints
        self.go_on = go_on
        self.now_ms = context.clock.now_ms()
        self.segments: list[Segment] = []
        self.snapshots: list[int] = []
        self.may_have_gaps = checkpoints.may_have_gaps or checkpoints.clean_offset is not None or config.is_compacted

    def load(self, *, is_clean: bool) -> LoadedLog:
        self._list(finish_interrupted_swaps(self.files, self.directory))
        end_offset = self._clean_end() if is_clean else -1
        self._require_what_there_was(end_offset)
        if 0 <= end_offset < self.checkpoints.log_start_offset:
            # No shutdown leaves it so, and trusting the checkpoint would delete the log's records.
            logger.error("%s ends at %d, before the log start offset %d of its checkpoint: the checkpoint is ignored",
                         self.directory, end_offset, self.checkpoints.log_start_offset)  # fmt: skip
            self.checkpoints = replace(self.checkpoints, log_start_offset=0)
        self._remove_stray_snapshots()
        if is_clean and end_offset >= max(self.checkpoints.log_start_offset, 0):
            self._restore_txn_indexes(self.segments, end_offset)
            return self._loaded(end_offset, end_offset, None, self._producers_if_many(end_offset))
        return self._recover()

    def _require_what_there_was(self, clean_end: int) -> None:
        """Refuse a log that is shorter than at its last clean shutdown, or has lost all segments. If the segments of a
        log are removed while its broker is down, but not its directory, or emptied after a clean shutdown, the log
        looks empty, and followers would truncate theirs to it. No crash leaves it so: a segment is on the disk before a
        checkpoint says that the log has records, and a log that is to start anew is checkpointed as empty before its
        segments are removed. (`_recover` detects a missing end of a log.)

        If there are segments, two checkpoints have to agree on the loss, as one may be damaged.

        Raises: CorruptLog.
        """
        known = self.checkpoints
        if not self.segments and max(known.recovery_point, known.high_watermark) > max(known.log_start_offset, 0):
            problem = "its segments are missing: put them back, or remove the directory to abandon them"
            raise CorruptLog(self.directory, 0, problem)
        if 0 <= clean_end < min(known.recovery_point, known.high_watermark):
            active = self.segments[-1]
            problem = f"its clean stop was at a later offset, after {known.high_watermark} committed offsets"
            raise CorruptLog(active.file.path, active.size, problem)

    def _list(self, names: list[str]) -> None:
        """Find segments, their sizes, and snapshots by file name."""
        found = [match for match in map(FILE_NAME.fullmatch, names) if match and match[3] is None]
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
        self.snapshots = sorted(int(match[1]) for match in found if match[2] == SNAPSHOT_SUFFIX)

    def _remove_stray_snapshots(self) -> None:
        """Unlink snapshots that are not at the start of a segment behind the log start offset, except the last one: it
        may be at the log end offset, where a clean shutdown writes it.
        """
        snapshots, bases = self.snapshots, {segment.base_offset for segment in self.segments}
        last_base = max(bases, default=0)
        self.snapshots = [
            offset
            for offset in snapshots
            if offset > self.checkpoints.log_start_offset
            and (offset in bases or (offset == snapshots[-1] and offset > last_base))
        ]
        for offset in snapshots:
            if offset not in self.snapshots:
                unlink_if_exists(self.files, f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}")

    # --- transaction indexes

    def _restore_txn_indexes(self, segments: list[Segment], end_offset: int) -> None:
        """Rebuild transaction indexes that differ from their notes, or, without a note, violate their format: for
        `segments`, whose batches are not checked otherwise, and which end at `end_offset`.
        """
        ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
        for segment, end in zip(segments, ends, strict=False):
            if not self._txn_index_is_right(segment, end):
                logger.warning("building the transaction index of %s anew", segment.file.path)
                builder = self._producer_builder()
                aborted = builder.aborted_in(
                    segment, self.segments, self.snapshots, self.checkpoints.log_start_offset, end
                )
                self._write_txn_index(segment, aborted)
                self.files.sync_directory(self.directory)

    def _txn_index_is_right(self, segment: Segment, end_offset: int) -> bool:
        noted = self.checkpoints.txn_indexes.get(segment.base_offset)
        if not segment.has_txn_index:
            return noted is None
        data = read_file(self.files, segment.path(TXN_INDEX_SUFFIX))
        if noted is not None:
            if segment is not self.segments[-1]:
                segment.txn_index_note = noted
            return noted == TransactionIndexNote.of(data)
        try:
            return bool(TransactionIndex.from_bytes(segment.base_offset, data, end_offset).entries)
        except CorruptFile:
            return False

    def _write_txn_index(self, segment: Segment, aborted: list[AbortedTransaction]) -> None:
        path = segment.path(TXN_INDEX_SUFFIX)
        if aborted:
            write_file(self.files, path, TransactionIndex(aborted).to_bytes(), sync=True)
        elif segment.has_txn_index:
            unlink_if_exists(self.files, path)
        segment.has_txn_index = bool(aborted)
        segment.txn_index_note = None

    def _producer_builder(self) -> ProducerBuilder:
        return ProducerBuilder(self.files, self.directory, self.context.producer_id_expiration_ms, self.now_ms)

    # --- after a clean shutdown

    def _clean_end(self) -> int:
        """The log end offset; -1 if the log has to be recovered after all.

        Two sources are trusted: an empty last segment ends at its base offset; and the recovery point, if there is a
        producer snapshot at it, because a clean shutdown writes both at the log end offset.
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

    def _producers_if_many(self, end_offset: int) -> ProducerState | None:
        """The producer state, if loading it later would block the event loop too long because there are many producers;
        other logs load it when it is first needed (`LogProducers.load`).
        """
        if not self.snapshots or self.snapshots[-1] != end_offset:
            return None
        path = f"{self.directory}/{file_name(end_offset, SNAPSHOT_SUFFIX)}"
        if self.files.stat(path).size < LARGE_SNAPSHOT_BYTES:
            return None
        log_start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        return self._producer_builder().build(self.segments, self.snapshots, log_start_offset, end_offset)

    def _read_end(self, segment: Segment) -> int:
        """The offset after a segment's last batch, from its index and the batches behind the last entry; -1 if they do
        not match.
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

    def _recover(self) -> LoadedLog:
        """Check every batch from the recovery point on, rebuild the state that is derived from them, and flush it all
        to the disk (R7, R8, R9).
        """
        epochs = self._read_epochs()
        first = self._first_unflushed()
        scanned = self.segments[first:]
        if scanned:
            self._restore_txn_indexes(self.segments[:first], scanned[0].base_offset)
        producers = self._producers_until(self.segments[first].base_offset if scanned else 0)
        end_offset = self.segments[first].base_offset if scanned else self.checkpoints.log_start_offset
        for number, segment in enumerate(scanned):
            if number and self._lost_before(segment, end_offset):
                self._drop_after(scanned[number - 1])
                break
            self._write_snapshot(segment.base_offset, producers)
            end_offset, is_whole = self._recover_segment(
                segment, max(end_offset, segment.base_offset), epochs, producers
            )
            if not is_whole:
                self._drop_after(segment)
                break
        self._require_what_was_flushed(end_offset)
        if end_offset < self.checkpoints.log_start_offset or not self.segments:
            return self._start_anew(max(end_offset, self.checkpoints.log_start_offset))
        log_start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        epochs.truncate_from_start(log_start_offset)
        epochs.truncate_from_end(end_offset)
        self._sync(epochs, producers, end_offset)
        if end_offset < self.checkpoints.high_watermark:
            logger.warning(
                "%s ends at %d, but records before %d were committed: the machine lost records that were not flushed",
                self.directory, end_offset, self.checkpoints.high_watermark,
            )  # fmt: skip
        return self._loaded(end_offset, end_offset, epochs, producers)

    def _require_what_was_flushed(self, end_offset: int) -> None:
        """Refuse a log that ends before its recovery point. The recovery point is never beyond the flushed part, and is
        lowered before a truncation: such a log has lost segments. Two checkpoints have to agree, as one may be damaged.
        (Kafka continues with the remaining segments.)

        Raises: CorruptLog.
        """
        known = self.checkpoints
        if self.segments and end_offset < min(known.recovery_point, known.high_watermark):
            active = self.segments[-1]
            problem = f"its records before {known.recovery_point} were flushed: segments are missing"
            raise CorruptLog(active.file.path, active.size, problem)

    def _first_unflushed(self) -> int:
        """The index of the segment that contains the recovery point."""
        first = 0
        for number, segment in enumerate(self.segments):
            if segment.base_offset <= self.checkpoints.recovery_point:
                first = number
        return first

    def _lost_before(self, segment: Segment, end_offset: int) -> bool:
        """Whether the end of the segment before this one never reached the disk, though this one did."""
        if segment.base_offset <= end_offset or end_offset < self.checkpoints.recovery_point or self.may_have_gaps:
            return False
        logger.warning(
            "%s: the machine lost offsets %d to %d, which were not flushed",
            self.directory, end_offset, segment.base_offset - 1,
        )  # fmt: skip
        return True

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
        """The producer state at the start of the first segment that will be scanned; removes later snapshots, which may
        not match the recovered batches.
        """
        for snapshot in [found for found in self.snapshots if found > offset]:
            self.snapshots.remove(snapshot)
            unlink_if_exists(self.files, f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}")
        return self._producer_builder().build(self.segments, self.snapshots, self.checkpoints.log_start_offset, offset)

    def _recover_segment(
        self, segment: Segment, expected_offset: int, epochs: LeaderEpochs, producers: ProducerState
    ) -> tuple[int, bool]:
        """Check one segment; returns the offset after its last valid batch, and whether the whole segment was valid.
        Truncates a torn tail.
        """
        aborted: list[AbortedTransaction] = []
        segment.reset_indexes()
        with self._open(segment) as read:
            position, reason = 0, ""

            def read_on(size: int, position: int) -> Buffer:
                self.go_on()
                return read(size, position)

            for header, batch in scan_batches(read_on, segment.size):
                reason = why_bad(header, batch, expected_offset, segment.base_offset)
                if header is None or batch is None or reason:
                    break
                self.may_have_gaps |= header.base_offset > (expected_offset if position else segment.base_offset)
                segment.add_batch(
                    header.last_offset,
                    header.max_timestamp,
                    position,
                    header.size_in_bytes,
                    self.config.index_interval_bytes,
                )
                if header.partition_leader_epoch > epochs.latest_epoch:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
                if header.last_offset >= self.checkpoints.log_start_offset:
                    # As in ProducerBuilder and Kafka: producers known by deleted records alone are dropped.
                    take_in(producers, header, batch, aborted)
                expected_offset = header.next_offset
                position += header.size_in_bytes
            if position < segment.size:
                is_valid = header is not None and batch is not None and crc_is_valid(batch, header)
                # A partial write leaves no valid batch, unless only bytes without a checksum are missing: a header
                # whose base offset ends its sector.
                if is_valid and not has_lost_start(read, position, expected_offset):
                    raise CorruptLog(segment.file.path, position, reason)
                self._judge_damage(segment, position, expected_offset, reason or "it is not whole", read)
        is_whole = position == segment.size
        self._write_recovered(segment, position, aborted)
        return expected_offset, is_whole

    def _judge_damage(self, segment: Segment, position: int, expected_offset: int, reason: str, read: Read) -> None:
        """Distinguish the remains of unflushed writes after a crash, which are truncated, from corruption, which is
        refused.
        """
        path = segment.file.path
        if expected_offset < self.checkpoints.recovery_point:
            raise CorruptLog(path, position, f"{reason}; this part was flushed")
        follower = find_batch_after(read, position, segment.size, expected_offset)
        later = [found for found in self.segments if found.base_offset > segment.base_offset]
        if follower is not None or any(self._has_valid_batch(found) for found in later):
            end = segment.size if follower is None else follower
            is_short = follower is None and segment.size % SECTOR_BYTES == 0
            if not is_short and not has_lost_sector(read, position, end, expected_offset):
                where = "in later segments" if follower is None else f"at byte {follower}"
                raise CorruptLog(path, position, f"{reason}; whole batches follow {where}")
            logger.warning("%s: the machine lost records that were not flushed, from offset %d on; later records are "
                           "deleted too", path, expected_offset)  # fmt: skip
        elif expected_offset < self.checkpoints.high_watermark and not _may_be_torn(
            read, position, segment.size, expected_offset
        ):
            raise CorruptLog(path, position, f"{reason}; this part was committed")
        logger.warning("truncating %d bytes of a torn write from %s: %s", segment.size - position, path, reason)

    def _has_valid_batch(self, segment: Segment) -> bool:
        with self._open(segment) as read:
            for header, batch in scan_batches(read, segment.size):
                return header is not None and batch is not None and crc_is_valid(batch, header)
        return False

    def _write_recovered(self, segment: Segment, size: int, aborted: list[AbortedTransaction]) -> None:
        """Truncate the segment to its valid part, write its indexes, and flush all of it to the disk."""
        descriptor = self.files.open(segment.file.path)
        try:
            if size < segment.size:
                self.files.truncate(descriptor, size)
                segment.size = segment.warm_from = size
            self.files.sync(descriptor)
        finally:
            self.files.close(descriptor)
        self._write_txn_index(segment, aborted)
        paths = (segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX))
        with self._room_for(*paths):
            segment.write_indexes(self.files)
            for path in paths:
                descriptor = self.files.open(path)
                try:
                    self.files.sync(descriptor)
                finally:
                    self.files.close(descriptor)
        if segment is not self.segments[-1]:
            segment.unload()

    def _drop_after(self, segment: Segment) -> None:
        """Remove later segments: batches behind a loss belong to nothing."""
        number = self.segments.index(segment)
        for later in self.segments[number + 1 :]:
            logger.warning("deleting segment %s, which follows the lost records", later.file.path)
            remove_segment_files(self.files, later)
        del self.segments[number + 1 :]

    def _start_anew(self, offset: int) -> LoadedLog:
        """Continue at the log start offset with an empty log, if nothing is at or after it."""
        if self.segments:
            logger.warning("%s ends before its log start offset %d: removing all segments", self.directory, offset)
        old, snapshots = self.segments, self.snapshots
        path = f"{self.directory}/{file_name(offset, LOG_SUFFIX)}"
        write_file(self.files, path, b"")
        segment = Segment(offset, LogFile(path), 0, self.now_ms)
        segment.reset_indexes()
        self.segments, self.snapshots = [segment], []
        self._write_recovered(segment, 0, [])
        self.files.sync_directory(self.directory)  # first of all: without any segment the log would count as damaged
        for gone in old:
            remove_segment_files(self.files, gone)
        for snapshot in snapshots:
            unlink_if_exists(self.files, f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}")
        epochs = LeaderEpochs()
        producers = ProducerState(offset, self.context.producer_id_expiration_ms)
        self._sync(epochs, producers, offset)
        return self._loaded(offset, offset, epochs, producers)

    def _sync(self, epochs: LeaderEpochs, producers: ProducerState, end_offset: int) -> None:
        """Flush epochs, producers and names to the disk."""
        path, epochs.dirty = f"{self.directory}/{LEADER_EPOCH_FILE}", True
        with self._room_for(path + TEMPORARY_SUFFIX):
            replace_file(self.files, path, encode_leader_epochs(epochs.entries))
            epochs.dirty = False
        self._write_snapshot(end_offset, producers)
        self.files.sync_directory(self.directory)

    @contextmanager
    def _room_for(self, *paths: str) -> Iterator[None]:
        """A context for writing files that can be rebuilt from the batches. If the disk has no space for them, `paths`
        are unlinked, since a partial file could be trusted, and the log is opened without them.
        """
        try:
            yield
        except OSError as error:
            if not is_passing(error):
                raise
            logger.warning("%s is loaded without %s, for lack of room: %s", self.directory, ", ".join(paths), error)
            for path in paths:
                unlink_if_exists(self.files, path)

    def _write_snapshot(self, offset: int, producers: ProducerState) -> None:
        """Write a snapshot at the start of a segment or at the log end offset, unless there is one."""
        start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        if offset <= start_offset or offset in self.snapshots:
            return
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        with self._room_for(path):
            write_file(self.files, path, encode_snapshot(producers.producers.values()), sync=True)
            self.snapshots.append(offset)

    def _loaded(
        self, end_offset: int, recovery_point: int, epochs: LeaderEpochs | None, producers: ProducerState | None
    ) -> LoadedLog:
        log_start_offset = max(self.checkpoints.log_start_offset, self.segments[0].base_offset)
        if producers is not None:
            producers.end_offset = end_offset
        return LoadedLog(
            self.directory,
            self.segments,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            recovery_point=recovery_point,
            high_watermark=self.checkpoints.high_watermark,
            clean_offset=self.checkpoints.clean_offset,
            snapshots=self.snapshots,
            leader_epochs=epochs,
            producers=producers,
        )

    def _open(self, segment: Segment) -> OpenSegment:
        return OpenSegment(self.files, segment.file.path)


def _may_be_torn(read: Read, position: int, size: int, expected_offset: int) -> bool:
    """Whether the last batch of a log can be a torn write: it is incomplete, or sectors of it are missing."""
    try:
        header = parse_header(read(HEADER_SIZE, position))
    except CorruptBatch:
        is_whole = size - position >= HEADER_SIZE
    else:
        is_whole = position + header.size_in_bytes <= size
    return not is_whole or has_lost_sector(read, position, size, expected_offset)
