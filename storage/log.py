"""One partition's log: validates appends, bounds reads, deletes old segments, truncates diverged ones.

`local_log` stores it in files. Offsets obey log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset,
and recovery_point <= log_end_offset.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from barnabas.storage import retention
from barnabas.storage.checkpoints import LEADER_EPOCH_FILE, encode_leader_epochs
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import LogDeleted, StorageError
from barnabas.storage.files import Buffer, write_file
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.leader_epochs_file import read_leader_epochs
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_producers import LogProducers
from barnabas.storage.log_reader import ReadRequest, nothing_at
from barnabas.storage.partition_metadata import read_topic_id, write_topic_id
from barnabas.storage.producer_state import BatchMetadata, ProducerEntry, ProducerState
from barnabas.storage.replicated_batches import check_replicated, check_rising, replicated_headers
from barnabas.storage.segment import Segment
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.storage.segment_times import SegmentTimes
from barnabas.storage.timestamps import SegmentCapture, TimestampAndOffset, TimestampLookup
from barnabas.storage.truncation import Marks, TruncationTask
from barnabas.storage.validation import (
    AppendOrigin,
    ValidationResult,
    check_cost,
    parse_produced_batch,
    validate_batch,
)
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import (
    CONTROL_MASK,
    ReadBuffer,
    RecordBatchHeader,
    WriteBuffer,
    patch,
)

if TYPE_CHECKING:
    from barnabas.wire.records import EndTxnMarker

logger = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """The result of an append.

    `log_append_time_ms` is -1 for CreateTime topics. A `duplicate` was not written again: the offsets are those of the
    first append, and `log_append_time_ms` is the batch's largest timestamp, as in Kafka's response. `flush_required`
    asks for a flush before the append is acknowledged (`flush.messages`).
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
    flush_required: bool = False


class PartitionLog:
    """One partition's log: the rules for appends, reads and removal, on top of the files of a `LocalLog`.

    After a clean start nothing is read before it is needed: the first append reads two small index files and a producer
    snapshot.

    Ownership: the event loop. Work for a thread is captured in an object of its own: `ColdRead`, `FlushTask`,
    `TimestampLookup`, `SegmentTimes`.

    Raises:
        StorageError (KAFKA_STORAGE_ERROR): from every method that accesses the disk, once the log has failed. That is
            final (see `fail`).
    """

    __slots__ = (
        "_durability",
        "_health",
        "_leader_epochs",
        "_local",
        "_producers",
        "_topic_id",
        "_uncounted",
        "clean_offset",
        "config",
        "context",
        "cut_count",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "topic",
    )

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
        self.context = context
        self.topic = topic
        self.partition = partition
        self.config = config
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        self.clean_offset = None if clean_offset is None else min(clean_offset, log_end_offset)
        """The end of the last compaction pass; None if the log was never compacted, so that no offset may be missing.
        """
        self.cut_count = 0
        """The number of truncations since the log was opened."""
        self._uncounted = log_end_offset, segments[-1].size
        """The values that `appended` subtracts from the log end offset and from the size of the active segment."""
        self._local = LocalLog(context, directory, segments, recovery_point=recovery_point)
        self._health, self._durability = self._local.health, self._local.durability
        self._producers = LogProducers(context, self._local, snapshots if snapshots is not None else [], producers)
        self._leader_epochs = leader_epochs
        self._topic_id: TopicId | None = None
        if producers is not None:
            producers.forget_replicated(self.high_watermark)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # --- its state

    @property
    def directory(self) -> str:
        """The path of the log's directory."""
        return self._local.directory

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(self._local.segments)

    @property
    def segment_count(self) -> int:
        """The number of segments."""
        return len(self._local.segments)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return self._local.size_in_bytes

    @property
    def appended(self) -> tuple[int, int]:
        """The number of records, and of bytes of batches, appended since the log was opened. Derived from the log's end
        now and then: appends need no counter.
        """
        records, size = self._uncounted
        return self.log_end_offset - records, self._local.segments[-1].size - size

    @property
    def sent_records(self) -> int:
        """The number of records that were sent from files, by regions that count themselves (`FileRegion`)."""
        return self._local.reader.sent_records.count

    def _go_on_counting(self, appended: tuple[int, int]) -> None:
        """Rebase the counters after a roll or truncation; `appended` is their value before it."""
        records, size = appended
        self._uncounted = self.log_end_offset - records, self._local.segments[-1].size - size

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything is flushed."""
        return self._durability.recovery_point

    @property
    def recovery_point_to_write(self) -> int:
        """The recovery point for the checkpoint, see `Durability.recovery_point_to_write`."""
        return self._durability.recovery_point_to_write

    @property
    def high_watermark_to_write(self) -> int:
        """The high watermark for the checkpoint: 0 while the names of segments may not be on the disk. A start treats a
        log that is shorter than its checkpointed values as damaged, and begins at the log start offset if the value is
        lower.
        """
        return 0 if self._durability.is_unnamed else self.high_watermark

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The leader epochs. Blocking the first time."""
        if self._leader_epochs is None:
            local, files = self._local, self.context.cache.files
            with self._health.refusing_if(f"reading the epochs of {local.directory}"):
                self._leader_epochs = read_leader_epochs(
                    files, local.directory, local.segments, self.log_start_offset, self.log_end_offset
                )
        return self._leader_epochs

    @property
    def topic_id(self) -> TopicId:
        """The id of the topic, from `partition.metadata`; ZERO_TOPIC_ID if there is none. Blocking the first time."""
        if self._topic_id is None:
            self._topic_id = read_topic_id(self.context.cache.files, self.directory)
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Store the topic's id; the next flush makes it durable.

        Raises:
            ApiError: INCONSISTENT_TOPIC_ID, if the log belongs to another topic of the same name.
            OSError: the disk refused.
        """
        known = self.topic_id
        if known == topic_id:
            return
        if known != ZERO_TOPIC_ID:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} belongs to another topic named {self.topic}"
            )
        path = write_topic_id(self.context.cache.files, self.directory, topic_id)
        self._topic_id = TopicId(bytes(topic_id))
        self._durability.note_names(path)

    def mark_new(self) -> None:
        """Note that the log was created: a flush is due, and includes its first file."""
        self._durability.note_directory(self._local.segments[-1].file.path)

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config

    # --- its health

    @property
    def failure(self) -> StorageError | None:
        """The reason why the log is offline, LogDeleted if it was deleted; None while it works."""
        return self._health.failure

    @property
    def is_deleted(self) -> bool:
        """Whether the log was deleted. Every call on a log that was deleted meanwhile raises an error that says so."""
        return isinstance(self._health.failure, LogDeleted)

    def fail(self, error: StorageError) -> None:
        """Take the log offline: no append is acknowledged, no read served and nothing retried before a restart has
        checked the disk.
        """
        self._health.fail(error)

    def check(self) -> None:
        """Raises StorageError if the log is offline, LogDeleted if it was deleted."""
        self._health.check()

    # --- its producers

    @property
    def producer_state(self) -> ProducerState:
        """The state of the producers.

        Blocking the first time: a few small reads after a clean start, the last segment's headers after a truncation.
        """
        return self._producers.state or self._producers.load(
            self.log_start_offset, self.log_end_offset, self.high_watermark
        )

    @property
    def remembered_producers(self) -> ProducerState | None:
        """`producer_state` if it is in memory; None before it is first needed."""
        return self._producers.state

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed consumers may read. Blocking the first time."""
        producers = self._producers.state
        if producers is None:
            if not self._producers.snapshots and not self.log_end_offset:
                return self.high_watermark
            producers = self.producer_state
        if not producers.ongoing and not producers.unreplicated:
            return self.high_watermark
        first_unstable = producers.first_unstable_offset
        assert first_unstable is not None
        return min(self.high_watermark, max(first_unstable, self.log_start_offset))

    def active_producers(self) -> list[ProducerEntry]:
        """All producers with state in this log. Blocking the first time."""
        return list(self.producer_state.producers.values())

    def remove_expired_producers(self, now_ms: int) -> None:
        """Remove producers that have not written for the current producer.id.expiration.ms."""
        self._producers.remove_expired(now_ms)

    def producer_ids(self) -> list[int]:
        """The ids of the log's producers, including some that have expired. Blocking; any thread."""
        return self._producers.read_ids(self.log_start_offset, self.log_end_offset)

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
        """Validate one batch, assign its offsets and leader epoch in place, and write it with one call.

        `batch` is not kept, so the caller may reuse the buffer. `validated` is the result of `validate`,
        `transaction_version` the version of the transaction that a marker ends.

        Raises:
            ExpensiveBatch: validation would take long; `validate` it in a thread and call again. Nothing was written.
            RecordErrors, ApiError: as in `validation` and `ProducerState`; nothing was written.
            StorageError: the disk refused. A full disk or a short write is rolled back, so that a later append may
                succeed.
        """
        if self._health.failure is not None:
            self._health.check()
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
                known = (self._producers.state or self.producer_state).check(header, origin)
                if known is not None:
                    return self._duplicate(known)
        epochs = self._leader_epochs
        if epochs is None:
            epochs = self.leader_epochs
        if epochs.latest_epoch != leader_epoch:
            self.assign_leader_epoch(leader_epoch, base_offset)
        last_offset = base_offset + header.last_offset_delta
        patch(batch, 0, base_offset, leader_epoch)
        self._append(batch, header, base_offset, last_offset, max_timestamp, marker, now_ms)
        flush_required = self.log_end_offset - self._durability.recovery_point >= config.flush_messages
        return new_tuple(
            LogAppendInfo,
            (base_offset, last_offset, log_append_time_ms, self.log_start_offset, False, flush_required),
        )

    def validate(self, batch: WriteBuffer, config: LogConfig, *, now_ms: int, produce_version: int) -> ValidationResult:
        """The validation of `append_as_leader` for a client's batch, which may open the records. Any thread.

        Raises:
            RecordErrors, ApiError: as `append_as_leader`.
        """
        header = parse_produced_batch(batch, produce_version)
        return validate_batch(batch, header, config, now_ms, topic_partition=self.topic)

    def _duplicate(self, known: BatchMetadata) -> LogAppendInfo:
        """The result for a duplicate batch; if it was appended just before, it may still have to be flushed."""
        unflushed = self.log_end_offset - self.recovery_point
        flush_required = known.last_offset >= self.recovery_point and unflushed >= self.config.flush_messages
        return LogAppendInfo(
            known.first_offset, known.last_offset, known.timestamp, self.log_start_offset, True, flush_required
        )

    def append_as_follower(
        self, batches: ReadBuffer, *, now_ms: int, leader_epoch: int | None = None
    ) -> LogAppendInfo | None:
        """Append batches from the leader, with their offsets and epochs; None if there is no whole batch.

        Batches of an epoch above `leader_epoch` are left out: their leader is not the one that this replica follows
        (yet).

        Raises:
            ApiError: as `check_replicated`, with the batches before the refused one in the log; as `check_rising`, with
                none of them.
        """
        self.check()
        first_offset = last_offset = -1
        with memoryview(batches) as view:
            headers = list(replicated_headers(view, leader_epoch))
            check_rising(headers)
            for header in headers:
                self._append_replicated(view, header, now_ms)
                first_offset = header.base_offset if first_offset < 0 else first_offset
                last_offset = header.last_offset
        if last_offset < 0:
            return None
        flush_required = self.log_end_offset - self.recovery_point >= self.config.flush_messages
        return LogAppendInfo(first_offset, last_offset, -1, self.log_start_offset, False, flush_required)

    def _append_replicated(self, view: memoryview, header: RecordBatchHeader, now_ms: int) -> None:
        check_replicated(view, header, self.log_end_offset, self.config.segment_bytes)
        if header.partition_leader_epoch > self.leader_epochs.latest_epoch:
            self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
        if header.base_offset != self.log_end_offset:
            # Compaction left a gap: the recent batches before it no longer suffice to locate an offset.
            self._local.reader.forget_recent()
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
        """Write a validated batch, and update the state in memory."""
        segment = self._local.segments[-1]
        if segment.offset_index is None:
            self._load_active()
        # Load the state first: loading it after the write would count this batch twice.
        producers = self._producers.state or self.producer_state
        bytes_min = self.context.segment_bytes_min
        if segment.should_roll(len(batch), max_timestamp, last_offset, self.config, now_ms, bytes_min):
            segment = self._roll(max(base_offset, self.log_end_offset), now_ms)
        if marker is not None and header.producer_id >= 0:
            self._write_marker(segment, batch, header, base_offset, last_offset, max_timestamp, marker)
            return
        self._local.write(segment, batch, base_offset, last_offset, max_timestamp, self.config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0 and not header.attributes & CONTROL_MASK:
            producers.record(header, base_offset)

    def _load_active(self) -> None:
        """Prepare for the first append since the start. Blocking, small files."""
        _ = self.producer_state, self.leader_epochs
        self._local.load_active(self.config.index_interval_bytes)

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
        """Write a marker and, if it aborts a transaction, the entry of the transaction index. On a full disk both or
        none are written: the transaction stays open, and its coordinator retries.
        """
        files, what = self.context.cache.files, f"writing the transaction index of {segment.file.path}"
        aborted = self.producer_state.aborted_by(header.producer_id, base_offset, marker)
        position = 0
        if aborted is not None:
            with self._health.refusing_if(what):
                position = segment.append_aborted(files, aborted)
        try:
            self._local.write(segment, batch, base_offset, last_offset, max_timestamp, self.config.index_interval_bytes)
        except StorageError:
            if aborted is not None:
                with self._health.failing_if(what):
                    segment.forget_aborted(files, position)
            raise
        self.log_end_offset = last_offset + 1
        self.producer_state.record_marker(header, base_offset, marker)

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Record that `epoch` starts at the log end offset; the next flush makes it durable, and after a crash it is
        rebuilt from the batches.
        """
        self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset)

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and create a new one at the log end offset. An empty one stays."""
        self.check()
        segment = self._local.segments[-1]
        if segment.size:
            if segment.offset_index is None:
                self._load_active()
            self._roll(self.log_end_offset, self.context.clock.now_ms())

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Continue in a new segment, which starts with a producer snapshot."""
        active = self._local.segments[-1]
        if active.base_offset == base_offset:
            # The active segment is empty, but too old or unable to express the offset: reuse it as a new one.
            active.created_ms = now_ms
            return active
        self._take_snapshot(base_offset)
        appended = self.appended
        segment = self._local.roll(base_offset, self.config, now_ms)
        self._go_on_counting(appended)
        return segment

    def _take_snapshot(self, offset: int) -> None:
        """Write a producer snapshot at `offset`, the log end offset. Page cache only."""
        snapshots = self._producers.snapshots
        if offset > self.log_start_offset and not (snapshots and snapshots[-1] >= offset):
            self._producers.take_snapshot(offset, self.producer_state)

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

        Batches that reach to `max_offset` or beyond (by default the log end offset) are left out, and so are batches
        that do not fit into `max_bytes`; with `min_one_message` the first one is returned however large it is. With
        `may_stay_in_file` large reads return a region of the file, for `sendfile`.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE.
            ColdRead: the read would block for the disk; `load` it in a thread.
        """
        if self._health.failure is not None:
            self._health.check()
        end_offset = self.log_end_offset
        if not self.log_start_offset <= start_offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {start_offset} is not within [{self.log_start_offset}, {end_offset}]",
            )
        if max_offset is None or max_offset > end_offset:
            max_offset = end_offset
        if start_offset >= max_offset:
            return nothing_at(start_offset, self._local.segments[-1])
        return self._local.reader.read(
            new_tuple(
                ReadRequest,
                (
                    start_offset,
                    max_bytes,
                    max_offset,
                    min_one_message,
                    end_offset,
                    self.config.index_interval_bytes,
                    may_stay_in_file,
                ),
            )
        )

    def readable_bytes(self, start_offset: int, max_offset: int, limit: int) -> int:
        """An estimate of the bytes that a read could return, at most `limit`; no I/O.

        Exact at the starts of segments, index entries and recent batches; other offsets count from the one before them.
        """
        if start_offset >= max_offset or start_offset < self.log_start_offset:
            return 0
        if limit <= 1:
            return limit  # there is something to read, and the caller needs no number
        return self._local.reader.readable_bytes(start_offset, max_offset, self.log_end_offset, limit)

    def has_all_of(self, read: ColdRead) -> bool:
        """Whether the log still contains everything that a read returns: the read is of this log, and since it was
        planned no batches were deleted, compacted or truncated. Otherwise `aborted_transactions` may lack transactions
        of these batches.
        """
        return self._local.reader.has_all_of(read)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that overlap [start_offset, upper_offset). Blocking the
        first time, if some segment has any.
        """
        if self._health.failure is not None:
            self._health.check()
        local, found = self._local, []
        for segment in local.segments[local.reader.slot(start_offset) :]:
            if segment.has_txn_index:
                entries, complete = segment.aborted_transactions(self.context.cache.files, start_offset, upper_offset)
                found += entries
                if complete:
                    break
        return [(entry.producer_id, entry.first_offset) for entry in found]

    # --- offsets by time and epoch

    def timestamp_lookup(self) -> TimestampLookup:
        """Capture the log for a search by timestamp, which blocks and has to run in a thread."""
        self.check()
        local, captures = self._local, []
        for segment in local.segments[local.reader.slot(self.log_start_offset) :]:
            known = segment.max_timestamp if segment.max_timestamp >= -1 else None
            captures.append(SegmentCapture(segment.file, segment.base_offset, segment.size, known, -1))
        return TimestampLookup(self.context.cache, self.context.indexes, self.log_start_offset, captures)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record at or after `timestamp`. Blocking; in a thread use `timestamp_lookup`."""
        return self.timestamp_lookup().first_at_or_after(timestamp)

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """The first record with the largest timestamp. Blocking; in a thread use `timestamp_lookup`."""
        return self.timestamp_lookup().largest()

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and its end offset; (-1, -1) if that is unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- changing offsets

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by the log's offsets; returns it."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.high_watermark = offset
        producers = self._producers.state
        if producers is not None and producers.unreplicated:
            producers.forget_replicated(offset)
        return offset

    def increment_log_start_offset(self, offset: int) -> bool:
        """Make everything before `offset` unreadable (DeleteRecords, retention); returns whether the log start offset
        moved.

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
        if self._producers.state is not None:
            self._producers.state.forget_replicated(offset)
        return True

    # --- deleting

    def times_for_retention(self, now_ms: int) -> SegmentTimes:
        """The segments' timestamps that `delete_old_segments` needs: to be read in a thread."""
        return retention.times_needed(self.config, self._local.segments, self.context.cache, now_ms)

    def delete_old_segments(self, now_ms: int, times: SegmentTimes | None = None) -> int:
        """Apply retention: by log start offset always, by size and time if cleanup.policy includes delete. Returns the
        number of deleted segments: if it is `retention.SEGMENTS_AT_ONCE` or more, others may be due.

        `times` was read in a thread; segments without a known time stay. Without `times` this may read the last bytes
        of time indexes, or file times, the first time. The files are renamed now and unlinked later.

        Raises:
            StorageError: the disk refused. After a transient error the rest is deleted the next time, after any other
                the log is offline.
        """
        self.check()
        segments, cache, deleted = self._local.segments, self.context.cache, 0
        with self._health.refusing_if(f"deleting segments of {self.directory}"):
            for rule in retention.breached_rules(self.config, segments, self.log_start_offset, cache, times, now_ms):
                deleted += self._delete_segments(rule.segment_count, rule.name)
        return deleted

    def _delete_segments(self, count: int, reason: str) -> int:
        """Delete the oldest `count` segments, as far as they are replicated, and not too many at once; the active
        segment is rolled first if it is among them.
        """
        local, snapshots = self._local, self._producers.snapshots
        bounds = [segment.base_offset for segment in local.segments[1:]] + [self.log_end_offset]
        count = min(count, retention.SEGMENTS_AT_ONCE, retention.count_replicated(bounds, self.high_watermark))
        if count == len(local.segments):
            if not local.segments[-1].size:
                count -= 1
            else:
                self.roll()
        if count <= 0:
            return 0
        count, failure = local.doom(local.segments[:count], snapshots, self.config.file_delete_delay_ms)
        if count:
            self.increment_log_start_offset(local.segments[count].base_offset)
            self._producers.forget_snapshots(local.segments[:count])
            local.forget_oldest(count)
            logger.info("%s-%d: deleting %d segments up to offset %d by %s", self.topic, self.partition, count,
                        self.log_start_offset, reason)  # fmt: skip
        if failure is not None:
            raise failure
        return count

    # --- compaction

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Replace neighbouring segments below the active one by one cleaned segment, whose files are there as `.swap`.

        After a crash from now on, the next start completes the swap (`swaps`): the old files are removed, the new ones
        stay. Reads of the old segments that are under way find their files under other names.

        Raises:
            StorageError: the disk refused. Unless the log is offline now, nothing has changed.
        """
        self.check()
        local, producers = self._local, self._producers
        slot = local.segments.index(old[0])
        superseded = {offset for offset in producers.snapshots if offset != new.base_offset}
        count, failure = local.doom(old, superseded, self.config.file_delete_delay_ms)
        if failure is not None:
            if count:
                self.fail(failure)  # the next start completes the deletion
            raise failure
        producers.forget_snapshots(old, kept=new.base_offset)
        local.swap_in(new, slot, len(old))

    # --- truncating

    def prepare_truncation(self, offset: int, *, starts_anew: bool = False) -> TruncationTask | None:
        """Begin to remove all batches that reach to `offset` or beyond (a follower that diverged), or, with
        `starts_anew`, all batches, so that the log continues at `offset` (a follower whose leader has deleted the next
        offsets); None if there is nothing to remove. The log refuses all use until
        `complete_truncation` or `cancel_truncation`.

        The values for the checkpoints are true before and after; they have to be written before the task runs, and
        after it, before anything is appended (`LogManager.truncations` does it).

        Raises:
            StorageError: as every method; LogBusy if the log is being truncated already.
        """
        self.check()
        starts_anew = starts_anew or offset <= self.log_start_offset
        if not starts_anew:
            epochs = self.leader_epochs  # which `complete_truncation` cuts, and can no longer read
            if offset >= self.log_end_offset:
                epochs.truncate_from_end(self.log_end_offset)
                return None
        logger.info("%s: %s %d, from %d", self, "starting anew at" if starts_anew else "truncating to", offset,
                    self.log_end_offset)  # fmt: skip
        local, slot = self._local, 0 if starts_anew else self._local.reader.slot(offset) + 1
        kept = local.segments[:slot]
        before = Marks(
            self.log_start_offset, self.high_watermark, self._durability.recovery_point, self.clean_offset
        )  # fmt: skip
        if kept:
            self.context.cache.hold(kept[-1].file)
        # For a log that starts anew, only a lower bound of its start is true both before and after.
        least = kept[-1].base_offset if kept else min(self.log_start_offset, offset)
        self._durability.truncates_to(0 if starts_anew else least, starts_anew=starts_anew)
        self.high_watermark = min(self.high_watermark, least if starts_anew else offset)
        self.log_start_offset = min(self.log_start_offset, self.high_watermark)
        if self.clean_offset is not None:
            self.clean_offset = min(self.clean_offset, least)
        self.cut_count += 1
        self._health.hold(f"{self.directory} is being truncated")
        return TruncationTask(
            self.context.cache, local.directory, kept, list(self._producers.snapshots), offset, self.log_start_offset,
            before, self.config.index_interval_bytes,
            local.prepare_dooming(slot, self.config.file_delete_delay_ms), self._producers.builder(),
        )  # fmt: skip

    def ends_as_cut(self, task: TruncationTask) -> None:
        """Set the offsets of the log after the task has run, before the checkpoints are written. Any thread, as the log
        refuses all use.
        """
        if task.last_segment is None:
            self.log_start_offset = self.high_watermark = task.end_offset
        self.high_watermark = min(self.high_watermark, task.end_offset)
        if task.before.clean_offset is not None:
            # No pass has read the batches that will replace the truncated ones.
            self.clean_offset = min(task.before.clean_offset, task.end_offset)

    def cancel_truncation(self, task: TruncationTask) -> None:
        """Restore the log to its state before a task that has not run and never will: it can be used again.

        Raises:
            StorageError: the log is offline, or was deleted meanwhile.
        """
        self._health.release()
        self.check()
        self.log_start_offset, self.high_watermark, self._durability.recovery_point, self.clean_offset = task.before

    def complete_truncation(self, task: TruncationTask) -> None:
        """Process the outcome of a truncation that has run: the log can be used again.

        Raises:
            StorageError: it failed, and the log is offline. LogDeleted: the log was deleted meanwhile.
        """
        self._health.release()
        if task.error is not None:
            self.fail(task.error)
        self.check()
        appended = self.appended
        if task.last_segment is not None:
            self._local.cut_to(len(task.kept) - 1, task.last_segment)
        else:
            self._local.start_anew_at(task.offset, self.config)
            self._leader_epochs = LeaderEpochs()
        self.log_end_offset = task.end_offset
        self.leader_epochs.truncate_from_end(task.end_offset)
        self._go_on_counting(appended)
        self.ends_as_cut(task)
        self._durability.truncated_to(
            task.end_offset if task.last_segment is None else min(task.before.recovery_point, task.end_offset)
        )
        producers = task.producers or ProducerState(task.offset, self.context.producer_id_expiration_ms)
        producers.forget_replicated(self.high_watermark)
        self._producers.replace(producers, task.snapshots)

    def truncate_to(self, offset: int) -> bool:
        """Remove all batches that reach to `offset` or beyond, without writing checkpoints; returns whether there were
        any. Blocking.
        """
        return self._truncate(self.prepare_truncation(offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches and continue at `offset`, without writing checkpoints. Blocking."""
        self._truncate(self.prepare_truncation(offset, starts_anew=True))

    def _truncate(self, task: TruncationTask | None) -> bool:
        if task is None:
            return False
        task.run()
        self.complete_truncation(task)
        return True

    # --- flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether there is a leader epoch that is not on the disk, or another reason of `Durability.is_due`."""
        return self._dirty_epochs is not None or self._durability.is_due(
            now_ms, self.log_end_offset, self.config.flush_ms
        )

    @property
    def _dirty_epochs(self) -> LeaderEpochs | None:
        """The leader epochs, if they have to be flushed. Those of a log without records need not be: the next start
        drops epochs without records.
        """
        epochs = self._leader_epochs
        return epochs if epochs is not None and epochs.dirty and self.log_start_offset < self.log_end_offset else None

    def all_is_due(self, now_ms: int) -> bool:
        """Whether a due flush has to include the active segment; see `prepare_flush`."""
        return self._durability.all_is_due(now_ms, self.log_end_offset, self.config.flush_ms)

    def prepare_flush(self, *, is_of_all: bool = True) -> FlushTask | None:
        """Capture a flush up to the log end offset; None if there is nothing to flush or a flush is under way.

        Without `is_of_all` the flush leaves the active segment's records to the kernel, as Kafka does after sealing a
        segment or starting a leader epoch: a sync of a file delays appends to it.
        """
        self.check()
        local, durability, content = self._local, self._durability, None
        if durability.is_flushing:
            return None
        epochs = self._dirty_epochs
        if epochs is not None:
            epochs.dirty = False
            content = (f"{local.directory}/{LEADER_EPOCH_FILE}", encode_leader_epochs(epochs.entries))
        unflushed, end_offset = local.segments[local.reader.slot(durability.recovery_point) :], self.log_end_offset
        if not is_of_all:
            unflushed, end_offset = unflushed[:-1], max(durability.recovery_point, local.segments[-1].base_offset)
        return durability.prepare_flush(local.directory, end_offset, unflushed, content, is_of_all=is_of_all)

    def complete_flush(self, task: FlushTask) -> None:
        """Process the outcome of a flush that has run, see `Durability.complete`."""
        self._durability.complete(task, self._local.directory)
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

    # --- closing, moving away

    def prepare_close(self) -> FlushTask | None:
        """Write index files and snapshot, which the next start would otherwise rebuild from the batches, and capture
        the flush for a clean shutdown; None if there is nothing to flush. After `complete_flush` the log must not be
        used. If the disk has no space for these files, the flush takes place nevertheless. Blocking.
        """
        self.check()
        if self._local.segments[-1].offset_index is not None or self.recovery_point < self.log_end_offset:
            try:
                self._write_hints()
            except StorageError:
                self.check()
                self._durability.lacks_hints = True
        return self.prepare_flush()

    def _write_hints(self) -> None:
        self._local.write_active_indexes(self.config.index_interval_bytes)
        if not self._local.segments[-1].size:
            self._write_missing_epochs()
        self._take_snapshot(self.log_end_offset)

    def _write_missing_epochs(self) -> None:
        """Write `leader-epoch-checkpoint` if it is missing: Kafka expects it beside a segment without records. It is
        not synced, as it is not needed after a power cut.
        """
        files, path, epochs = self.context.cache.files, f"{self.directory}/{LEADER_EPOCH_FILE}", self._leader_epochs
        with self._health.refusing_if(f"closing {self.directory}"):
            if epochs is not None and not files.exists(path):
                write_file(files, path, encode_leader_epochs(epochs.entries))

    @property
    def is_on_disk(self) -> bool:
        """Whether everything written is flushed, so that the next start need not check the log."""
        return self.failure is None and self._durability.is_complete(self.log_end_offset)

    def close_files(self) -> None:
        """Close all descriptors; nothing is written."""
        self._local.close_files()

    def move_to(self, directory: str) -> None:
        """Rename the directory of the log, which is deleted: see `LocalLog.move_to`. Blocking. Raises OSError."""
        self._local.move_to(directory)


def _read_marker(batch: ReadBuffer, header: RecordBatchHeader) -> EndTxnMarker | None:
    """The transaction marker in a control batch; None for an emptied batch or another control record type."""
    from barnabas.wire.records import iter_records, parse_end_txn_marker

    for record in iter_records(batch, header):
        return parse_end_txn_marker(record)
    return None
