"""One partition's log: appends are checked, reads bounded, old segments deleted, diverged ones cut.

How that is kept in files is `local_log`'s. Offsets obey log_start_offset <= last_stable_offset <= high_watermark <=
log_end_offset, and recovery_point <= log_end_offset.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from barnabas.storage import retention
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_FILE,
    encode_leader_epochs,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.files import Buffer, unlink_if_exists, write_file
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.leader_epochs_file import read_leader_epochs
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_reader import ReadRequest, nothing_at
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_state import BatchMetadata, ProducerEntry, ProducerState, encode_snapshot
from barnabas.storage.segment import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.segment_reader import FetchData
from barnabas.storage.segment_times import SegmentTimes
from barnabas.storage.timestamps import SegmentCapture, TimestampAndOffset, TimestampLookup
from barnabas.storage.validation import (
    AppendOrigin,
    ValidationResult,
    check_cost,
    parse_produced_batch,
    validate_batch,
)
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import (
    CONTROL_MASK,
    CorruptBatch,
    ReadBuffer,
    RecordBatchHeader,
    WriteBuffer,
    crc_is_valid,
    iter_headers,
    patch,
)

if TYPE_CHECKING:
    from barnabas.wire.records import EndTxnMarker

logger = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """What an append did.

    `log_append_time_ms` is -1 for CreateTime topics. A `duplicate` was not written again: the offsets are those of
    the first time, and `log_append_time_ms` is the batch's largest timestamp, as Kafka answers. `flush_required` asks
    for a flush before the append is acknowledged (`flush.messages`).
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    flush_required: bool = False


class PartitionLog(LocalLog):
    """One partition's log: what `LocalLog` keeps as files, with the producers, leader epochs and offsets it implies.

    After a clean start nothing is read until it is needed: the first append reads two small index files and a
    producer snapshot.
    """

    __slots__ = ("_leader_epochs", "_producers", "_snapshots", "clean_offset", "high_watermark", "log_start_offset")

    def __init__(
        self,
        context: LogContext,
        topic: str,
        partition: int,
        directory: str,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        high_watermark: int = 0,
        clean_offset: int | None = None,
        snapshots: list[int] | None = None,
        leader_epochs: LeaderEpochs | None = None,
        producers: ProducerState | None = None,
    ) -> None:
        super().__init__(
            context,
            topic,
            partition,
            directory,
            config,
            segments,
            log_end_offset=log_end_offset,
            recovery_point=recovery_point,
        )
        self.log_start_offset = log_start_offset
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        self.clean_offset = None if clean_offset is None else min(clean_offset, log_end_offset)
        """Up to where the last compaction looked; None if there was none ever, so that no offset may be missing."""
        self._snapshots = snapshots if snapshots is not None else []
        self._leader_epochs = leader_epochs
        self._producers = producers
        if producers is not None:
            producers.forget_replicated(self.high_watermark)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # --- what is known about it

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Which leader wrote what. Blocking the first time."""
        if self._leader_epochs is None:
            files, directory = self.context.cache.files, self.directory
            try:
                self._leader_epochs = read_leader_epochs(
                    files, directory, self._segments, self.log_start_offset, self.log_end_offset
                )
            except OSError as error:
                raise self._refused(f"reading the epochs of {directory}", error) from error
        return self._leader_epochs

    @property
    def producer_state(self) -> ProducerState:
        """What is known of the producers.

        Blocking the first time: a few small reads after a clean start, the last segment's headers after a truncation.
        """
        if self._producers is None:
            context = self.context
            builder = ProducerBuilder(
                context.cache.files, self.directory, context.producer_id_expiration_ms, context.clock.now_ms()
            )
            try:
                self._producers = builder.build(
                    self._segments, self._snapshots, self.log_start_offset, self.log_end_offset
                )
            except OSError as error:
                raise self._refused(f"reading the producers of {self.directory}", error) from error
            self._producers.forget_replicated(self.high_watermark)
        return self._producers

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which readers of committed data may read. Blocking the first time."""
        producers = self._producers
        if producers is None:
            if not self._snapshots and not self.log_end_offset:
                return self.high_watermark
            producers = self.producer_state
        if not producers.ongoing and not producers.unreplicated:
            return self.high_watermark
        first_unstable = producers.first_unstable_offset
        assert first_unstable is not None
        return min(self.high_watermark, max(first_unstable, self.log_start_offset))

    def active_producers(self) -> list[ProducerEntry]:
        """All producers with state on this log. Blocking the first time."""
        return list(self.producer_state.producers.values())

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for producer.id.expiration.ms, as it is now."""
        if self._producers is not None:
            self._producers.expiration_ms = self.context.producer_id_expiration_ms
            self._producers.remove_expired(now_ms)

    @property
    def remembered_producers(self) -> ProducerState | None:
        """Of `producer_state`, what is in memory: None until somebody needed it."""
        return self._producers

    def producer_ids(self) -> list[int]:
        """The ids that producers of this log have, or had a while ago. Blocking; any thread."""
        if self._producers is not None:
            return list(self._producers.producers)
        # Nothing that the event loop goes by is touched, and no snapshot is newer than the end.
        log_start_offset, snapshots, segments = self.log_start_offset, list(self._snapshots), list(self._segments)
        never_expire = 1 << 63
        builder = ProducerBuilder(self.context.cache.files, self.directory, never_expire, self.context.clock.now_ms())
        return builder.producer_ids(segments, snapshots, log_start_offset, self.log_end_offset)

    # --- appending

    def append_as_leader(
        self,
        batch: WriteBuffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        produce_version: int = 13,
        validated: ValidationResult | None = None,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Check one batch, give it offsets and the leader's epoch in place, and write it with one call.

        `batch` is not kept, so the caller may use the buffer again. `validated` is what `validate` returned for it,
        `transaction_version` the version of the transaction that a marker ends.

        Raises:
            ExpensiveBatch: checking would take long; `validate` it in a thread and come back. Nothing was written.
            RecordErrors, ApiError: what `validation` and `ProducerState` say; nothing was written.
            StorageError: the disk refused. A full disk or a short write is rolled back, so that a later append may
            succeed.
        """
        if self._failure is not None:
            self.check()
        config = self.config
        if validated is None:
            header = parse_produced_batch(batch, produce_version)
            if origin is AppendOrigin.CLIENT:
                check_cost(header, config, now_ms)
            validated = validate_batch(batch, header, config, now_ms, origin=origin, topic_partition=self.topic)
        batch, header, max_timestamp, log_append_time_ms, _ = validated
        base_offset = self.log_end_offset
        marker: EndTxnMarker | None = None
        if header.producer_id >= 0:
            if header.attributes & CONTROL_MASK:
                marker = _read_marker(batch, header)
                if marker is not None:
                    self.producer_state.check_marker(header, marker, origin, transaction_version)
            else:
                known = (self._producers or self.producer_state).check(header, origin)
                if known is not None:
                    return self._duplicate(known)
        epochs = self._leader_epochs if self._leader_epochs is not None else self.leader_epochs
        if epochs.latest_epoch != leader_epoch:
            self.assign_leader_epoch(leader_epoch, base_offset)
        last_offset = base_offset + header.last_offset_delta
        patch(batch, 0, base_offset, leader_epoch)
        self._append(batch, header, base_offset, last_offset, max_timestamp, marker, now_ms)
        flush_required = last_offset + 1 - self.recovery_point >= config.flush_messages
        return new_tuple(
            LogAppendInfo,
            (base_offset, last_offset, log_append_time_ms, self.log_start_offset, False, flush_required),
        )

    def validate(self, batch: WriteBuffer, config: LogConfig, *, now_ms: int, produce_version: int) -> ValidationResult:
        """The checks of `append_as_leader` for a client's batch, which may open its records. Any thread.

        Raises:
            RecordErrors, ApiError: as `append_as_leader`.
        """
        header = parse_produced_batch(batch, produce_version)
        return validate_batch(batch, header, config, now_ms, topic_partition=self.topic)

    def _duplicate(self, known: BatchMetadata) -> LogAppendInfo:
        """The answer to a batch that was appended before; if just before, it may still have to be flushed."""
        unflushed = self.log_end_offset - self.recovery_point
        flush_required = known.last_offset >= self.recovery_point and unflushed >= self.config.flush_messages
        return LogAppendInfo(
            known.first_offset, known.last_offset, known.timestamp, self.log_start_offset, True, flush_required
        )

    def append_as_follower(
        self, batches: ReadBuffer, *, now_ms: int, leader_epoch: int | None = None
    ) -> LogAppendInfo | None:
        """Append what the leader sent, with its offsets and epochs; None if there is no whole batch.

        Batches of an epoch above `leader_epoch` are left out: they were sent by a leader this replica does not follow
        (yet).

        Raises:
            ApiError: CORRUPT_MESSAGE for a bad CRC or format, OFFSET_OUT_OF_RANGE for offsets below the log's end,
            RECORD_LIST_TOO_LARGE.
                The batches before the refused one are in the log.
        """
        self.check()
        first_offset = last_offset = -1
        with memoryview(batches) as view:
            try:
                for header in iter_headers(view):
                    if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
                        break
                    self._append_replicated(view, header, now_ms)
                    first_offset = header.base_offset if first_offset < 0 else first_offset
                    last_offset = header.last_offset
            except CorruptBatch as error:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if last_offset < 0:
            return None
        flush_required = self.log_end_offset - self.recovery_point >= self.config.flush_messages
        return LogAppendInfo(first_offset, last_offset, -1, self.log_start_offset, False, flush_required)

    def _append_replicated(self, view: memoryview, header: RecordBatchHeader, now_ms: int) -> None:
        if not crc_is_valid(view, header):
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} from the leader is corrupt"
            )
        if header.base_offset < self.log_end_offset or header.last_offset < header.base_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The leader sent offset {header.base_offset} where {self.log_end_offset} follows",
            )
        if header.size_in_bytes > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"A batch of {header.size_in_bytes} bytes is larger than a segment"
            )
        if header.partition_leader_epoch > self.leader_epochs.latest_epoch:
            self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
        if header.base_offset != self.log_end_offset:
            # Compaction left a gap: the batches before it no longer tell where an offset is by themselves.
            self._reader.forget_recent()
        start, end = header.position, header.end_position
        with view[start:end] as batch:
            marker = _read_marker(batch, header._replace(position=0)) if header.is_control else None
            self._append(batch, header, header.base_offset, header.last_offset, header.max_timestamp, marker, now_ms)

    def _append(
        self,
        batch: Buffer,
        header: RecordBatchHeader,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        marker: EndTxnMarker | None,
        now_ms: int,
    ) -> None:
        """Write a batch that is ready, and take it into everything that is kept in memory."""
        segment = self._segments[-1]
        if segment.offset_index is None:
            self._load_active(segment)
        # Now, because taking in the batches on the disk and then this one must not count it twice.
        producers = self._producers or self.producer_state
        if segment.should_roll(len(batch), max_timestamp, last_offset, self.config, now_ms):
            segment = self._roll(max(base_offset, self.log_end_offset), now_ms)
        if marker is not None and header.producer_id >= 0:
            self._write_marker(segment, batch, header, base_offset, last_offset, max_timestamp, marker)
            return
        self._write(segment, batch, base_offset, last_offset, max_timestamp)
        if header.producer_id >= 0 and not header.attributes & CONTROL_MASK:
            producers.record(header, base_offset)

    def _load_active(self, segment: Segment) -> None:
        """Prepare for the first append since the start. Blocking, small files."""
        _ = self.producer_state, self.leader_epochs
        self._load_indexes(segment)

    def _write_marker(
        self,
        segment: Segment,
        batch: Buffer,
        header: RecordBatchHeader,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        marker: EndTxnMarker,
    ) -> None:
        """Write a marker, and the transaction that it aborts into the transaction index. A full disk takes both or
        none: the transaction stays open, and its coordinator tries again.
        """
        files, what = self.context.cache.files, f"writing the transaction index of {segment.file.path}"
        aborted = self.producer_state.aborted_by(header.producer_id, base_offset, marker)
        position = 0
        if aborted is not None:
            try:
                position = segment.append_aborted(files, aborted)
            except OSError as error:
                raise self._refused(what, error) from error
        try:
            self._write(segment, batch, base_offset, last_offset, max_timestamp)
        except StorageError:
            if aborted is not None:
                with self._failing_if(what):
                    segment.forget_aborted(files, position)
            raise
        self.producer_state.record_marker(header, base_offset, marker)

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Note that `epoch` writes from the log's end on; durable with the next flush, and after a crash rebuilt from
        the batches.
        """
        self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset)

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and start a new one at the log's end. An empty one stays."""
        self.check()
        segment = self._segments[-1]
        if segment.size:
            if segment.offset_index is None:
                self._load_active(segment)
            self._roll(self.log_end_offset, self.context.clock.now_ms())

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Go on in a new segment, which starts with a snapshot of the producers' state."""
        active = self._segments[-1]
        if active.base_offset == base_offset:
            # Empty, but too old or unable to express the offset: as good as a new one.
            active.created_ms = now_ms
            return active
        self._take_snapshot(base_offset)
        return self._start_segment(base_offset, now_ms)

    def _take_snapshot(self, offset: int) -> None:
        """Write the producers' state as of `offset`, unless there is a snapshot of it. Page cache only."""
        if offset <= self.log_start_offset or (self._snapshots and self._snapshots[-1] >= offset):
            return
        path = self._snapshot_path(offset)
        try:
            write_file(self.context.cache.files, path, encode_snapshot(self.producer_state.producers.values()))
        except OSError as error:
            raise self._refused(f"writing {path}", error) from error
        self._snapshots.append(offset)
        if self.producer_state.producers:
            self._unsynced_files.append(path)
            self._names_dirty = True

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def _remove_snapshots(self, from_offset: int) -> None:
        """Unlink the snapshots from an offset on."""
        for offset in [found for found in self._snapshots if found >= from_offset]:
            self._snapshots.remove(offset)
            with self._failing_if(f"removing a producer snapshot of {self.directory}"):
                unlink_if_exists(self.context.cache.files, self._snapshot_path(offset))

    # --- reading

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        max_offset: int | None = None,
        min_one_message: bool = True,
        may_stay_in_file: bool = False,
    ) -> FetchData:
        """Read whole batches of one segment, from the one that contains `start_offset` on.

        Batches that reach to `max_offset` or beyond (by default the log's end) are left out, and so are those that do
        not fit into `max_bytes`; but with `min_one_message` the first one is returned however large it is. With
        `may_stay_in_file` many batches come as a region of their file, for `sendfile`.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE.
            ColdRead: the disk would have to be waited for; `load` it in a thread.
        """
        if self._failure is not None:
            self.check()
        end_offset = self.log_end_offset
        if not self.log_start_offset <= start_offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {start_offset} is not within [{self.log_start_offset}, {end_offset}]",
            )
        if max_offset is None or max_offset > end_offset:
            max_offset = end_offset
        if start_offset >= max_offset:
            return nothing_at(start_offset, self._segments[-1])
        index_interval_bytes = self.config.index_interval_bytes
        return self._reader.read(
            new_tuple(
                ReadRequest,
                (
                    start_offset,
                    max_bytes,
                    max_offset,
                    min_one_message,
                    end_offset,
                    index_interval_bytes,
                    may_stay_in_file,
                ),
            )
        )

    def readable_bytes(self, start_offset: int, max_offset: int, limit: int) -> int:
        """About how many bytes a read could return, at most `limit`; no I/O.

        Segments, index entries and recent batches are exact starts; anything else counts from the one before it.
        """
        if start_offset >= max_offset or start_offset < self.log_start_offset:
            return 0
        if limit <= 1:
            return limit  # there is something, and nobody asks how much
        return self._reader.readable_bytes(start_offset, max_offset, self.log_end_offset, limit)

    # --- offsets by time and epoch

    def timestamp_lookup(self) -> TimestampLookup:
        """Capture the log for a search by timestamp, which blocks and belongs into a thread."""
        self.check()
        captures = []
        for segment in self._segments[self._reader.slot(self.log_start_offset) :]:
            known = segment.max_timestamp if segment.max_timestamp >= -1 else None
            captures.append(SegmentCapture(segment.file, segment.base_offset, segment.size, known, -1))
        return TimestampLookup(self.context.cache, self.context.indexes, self.log_start_offset, captures)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record that is not earlier than `timestamp`. Blocking; in a thread use `timestamp_lookup`."""
        return self.timestamp_lookup().first_at_or_after(timestamp)

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The first record that has the largest timestamp. Blocking; in a thread use `timestamp_lookup`."""
        return self.timestamp_lookup().largest()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The last known epoch not above `epoch` and where it ended; (-1, -1) if that cannot be said."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- offsets that move

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, kept within the log; returns it."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.high_watermark = offset
        if self._producers is not None and self._producers.unreplicated:
            self._producers.forget_replicated(offset)
        return offset

    def increment_log_start_offset(self, offset: int) -> bool:
        """Make everything before `offset` unreadable (DeleteRecords, retention); whether that moved the log start
        offset.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE, if `offset` lies beyond the high watermark.
        """
        self.check()
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start offset cannot become {offset}, beyond the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        if self._producers is not None:
            self._producers.forget_replicated(offset)
        return True

    # --- deleting

    def times_for_retention(self, now_ms: int) -> SegmentTimes:
        """What `delete_old_segments` needs to know of the segments' times: to be read in a thread."""
        config, segments = self.config, self._segments
        if not config.deletes_by_retention or config.retention_ms < 0:
            segments = []
        elif not segments[-1].size:
            segments = segments[:-1]  # an empty one stays, however old it is
        return SegmentTimes(
            self.context.cache,
            largest_of=segments,
            is_enough=lambda timestamp: not retention.is_breached_by_time(timestamp, config.retention_ms, now_ms),
        )

    def delete_old_segments(self, now_ms: int, times: SegmentTimes | None = None) -> int:
        """Apply retention: by log start offset always, by size and time if cleanup.policy says delete. Returns how
        many segments went.

        `times` is what was read in a thread; segments that it does not know stay. Without it this may read the last
        bytes of time indexes, or file times, the first time. Their files are renamed now and unlinked later.

        Raises:
            StorageError: the disk refused. What passes leaves the rest for the next time, after anything else the log
            is offline.
        """
        self.check()
        with self._refusing_if(f"deleting segments of {self.directory}"):
            return self._delete_old_segments(now_ms, times)

    def _delete_old_segments(self, now_ms: int, times: SegmentTimes | None) -> int:
        deleted = self._delete_segments(
            retention.breached_by_start((segment.base_offset for segment in self._segments[1:]), self.log_start_offset),
            "log start offset",
        )
        if self.config.deletes_by_retention:
            sizes = [segment.size for segment in self._segments]
            deleted += self._delete_segments(
                retention.breached_by_size(sizes, self.config.retention_bytes), "retention.bytes"
            )
            if times is not None and isinstance(times.error, OSError):
                if isinstance(times.error, FileNotFoundError):
                    return deleted  # a swap gave it another name while it was looked at
                raise times.error
            cache = self.context.cache
            timestamps = (
                segment.largest_timestamp(cache) if times is None else times.largest(segment)
                for segment in self._segments
            )
            deleted += self._delete_segments(
                retention.breached_by_time(timestamps, self.config.retention_ms, now_ms), "retention.ms"
            )
        return deleted

    def _delete_segments(self, count: int, reason: str) -> int:
        """Delete the oldest `count` segments, as far as they are replicated; the active one is rolled first if it
        goes too.
        """
        bounds = [segment.base_offset for segment in self._segments[1:]] + [self.log_end_offset]
        count = min(count, retention.count_replicated(bounds, self.high_watermark))
        if count == len(self._segments):
            if not self._segments[-1].size:
                count -= 1
            else:
                self.roll()
        if count <= 0:
            return 0
        count, failure = self._doom(self._segments[:count], self._snapshots)
        if count:
            self.increment_log_start_offset(self._segments[count].base_offset)
            self._forget_snapshots(self._segments[:count])
            del self._segments[:count]
            self._reader.forget_all()
            logger.info("%s-%d: deleting %d segments up to offset %d by %s", self.topic, self.partition, count,
                        self.log_start_offset, reason)  # fmt: skip
        if failure is not None:
            raise failure
        return count

    def _forget_snapshots(self, doomed: list[Segment], kept: int = -1) -> None:
        """The snapshots at the start of segments went with them, but for the one at `kept`."""
        bases = {segment.base_offset for segment in doomed} - {kept}
        self._snapshots[:] = [offset for offset in self._snapshots if offset not in bases]

    # --- compaction

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put one cleaned segment, whose files are there as `.swap`, in the place of neighbours below the active one.

        From now on a crash is followed by what `swaps` does at the start: the old files go, the new ones stay. Reads
        of the old segments that are under way find their files under other names.

        Raises:
            StorageError: the disk refused. Unless the log is offline now, nothing has changed.
        """
        self.check()
        slot = self._segments.index(old[0])
        count, failure = self._doom(old, {offset for offset in self._snapshots if offset != new.base_offset})
        if failure is not None:
            if count:
                self.fail(failure)  # the next start finishes it
            raise failure
        self._forget_snapshots(old, kept=new.base_offset)
        self._swap_in(new, slot, len(old))

    # --- truncating

    def truncate_to(self, offset: int) -> bool:
        """Remove all batches that reach to `offset` or beyond (a follower that diverged); whether there were any.
        Blocking.
        """
        self.check()
        self.leader_epochs.truncate_from_end(min(offset, self.log_end_offset))
        if offset >= self.log_end_offset:
            return False
        if offset < self._segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        logger.info("%s-%d: truncating from %d to %d", self.topic, self.partition, self.log_end_offset, offset)
        self._truncate_segments(offset)
        self._remove_snapshots(self.log_end_offset + 1)
        self._producers = None
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self._limit_clean_offset()
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and go on at `offset` (a follower whose leader no longer has what it needs). Blocking."""
        self.check()
        logger.info("%s-%d: starting anew at %d", self.topic, self.partition, offset)
        self._remove_snapshots(0)
        self._start_anew(offset)
        self.leader_epochs.clear()
        self._producers = ProducerState(offset, self.context.producer_id_expiration_ms)
        self.log_start_offset = self.high_watermark = offset
        self._limit_clean_offset()

    def _limit_clean_offset(self) -> None:
        """Nothing that takes the place of what was removed is clean."""
        if self.clean_offset is not None:
            self.clean_offset = min(self.clean_offset, self.log_end_offset)

    # --- flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether there is a leader epoch that the disk does not know, or another reason, as `LocalLog` says."""
        return self._dirty_epochs is not None or super().flush_is_due(now_ms)

    @property
    def _dirty_epochs(self) -> LeaderEpochs | None:
        """The leader epochs, if the disk has to know them. Those of a log without records it need not: the next start
        forgets epochs that nothing was written in.
        """
        epochs = self._leader_epochs
        return epochs if epochs is not None and epochs.dirty and self.log_start_offset < self.log_end_offset else None

    def prepare_flush(self) -> FlushTask | None:
        """Capture a flush of everything up to the log's end; None if there is nothing to do or a flush is under way."""
        self.check()
        if self._flushing is not None:
            return None
        epochs = self._dirty_epochs
        if epochs is None:
            return self._prepare_flush(None)
        epochs.dirty = False
        return self._prepare_flush((f"{self.directory}/{LEADER_EPOCH_FILE}", encode_leader_epochs(epochs.entries)))

    def complete_flush(self, task: FlushTask) -> None:
        """As `LocalLog.complete_flush`."""
        super().complete_flush(task)
        unwritten = task.may_be_repeated or task.moved
        if unwritten and task.leader_epochs is not None and self._leader_epochs is not None:
            self._leader_epochs.dirty = True

    def flush(self) -> None:
        """Flush everything. Blocking.

        Raises:
            StorageError: it failed; the log is offline now, unless the flush may be repeated.
        """
        task = self.prepare_flush()
        if task is not None:
            task.run()
            self.complete_flush(task)
            self.check()
            if task.error is not None:
                raise task.error

    # --- closing

    def prepare_close(self) -> FlushTask | None:
        """Write what the next start would otherwise have to find out from the batches, and capture the flush that makes
        a clean shutdown of it; None if there is nothing to do. After `complete_flush` the log is not used any more.
        Where there is no room for the former, the flush is made all the same. Blocking.
        """
        self.check()
        segment = self._segments[-1]
        if segment.offset_index is not None or self.recovery_point < self.log_end_offset:
            try:
                self._write_hints(segment)
            except StorageError:
                self.check()
                self._lacks_hints = True
        return self.prepare_flush()

    def _write_hints(self, segment: Segment) -> None:
        with self._refusing_if(f"closing {self.directory}"):
            if segment.size:
                self._write_active_indexes(segment)
            else:
                self._write_empty_files(segment)
        self._take_snapshot(self.log_end_offset)

    def _write_empty_files(self, segment: Segment) -> None:
        """What Kafka misses beside a segment without records; nobody has to find it on the disk after a power cut."""
        files = self.context.cache.files
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            write_file(files, segment.path(suffix), b"")
        epochs, path = self._leader_epochs, f"{self.directory}/{LEADER_EPOCH_FILE}"
        if epochs is not None and not files.exists(path):
            write_file(files, path, encode_leader_epochs(epochs.entries))

    def _write_active_indexes(self, segment: Segment) -> None:
        if segment.offset_index is None:
            self._load_active(segment)
        segment.write_indexes(self.context.cache.files)
        # Contents, not names: an index that is missing is built anew, an old one would be believed.
        self._unsynced_files += [segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)]


def _read_marker(batch: ReadBuffer, header: RecordBatchHeader) -> EndTxnMarker | None:
    """What a control batch says about a transaction; None for an emptied one or one of another type."""
    from barnabas.wire.records import iter_records, parse_end_txn_marker

    for record in iter_records(batch, header):
        return parse_end_txn_marker(record)
    return None
