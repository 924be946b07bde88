"""One partition's log: validates appends, bounds reads, keeps the offsets.

`local_log` stores the batches in files. `truncation`, `segment_removal` and `log_closing` change the log as a whole.
Offsets obey log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, and
recovery_point <= log_end_offset.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from barnabas.storage.checkpoints import LEADER_EPOCH_FILE, TopicPartition, encode_leader_epochs
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.files import Buffer
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.leader_epochs_file import read_leader_epochs
from barnabas.storage.loaded_log import LoadedLog
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_producers import LogProducers
from barnabas.storage.log_reader import ReadRequest, nothing_at
from barnabas.storage.partition_metadata import read_topic_id, write_topic_id
from barnabas.storage.producer_state import BatchMetadata, ProducerState
from barnabas.storage.replicated_batches import check_replicated, check_rising, replicated_headers
from barnabas.storage.segment import Segment
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.storage.timestamps import TimestampLookup
from barnabas.storage.validation import AppendOrigin, ValidationResult, check_cost, parse_produced_batch, validate_batch
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import CONTROL_MASK, ReadBuffer, RecordBatchHeader, WriteBuffer, patch

if TYPE_CHECKING:
    from barnabas.wire.control_records import EndTxnMarker


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
    """One partition's log: the rules for appends and reads, on top of the files of a `LocalLog`.

    Its parts are `producers` and `local`. `local` is the files, their health and their durability; only files of
    `storage/` use it.

    After a clean start nothing is read before it is needed: the first append reads a few small files.

    Ownership: the event loop. Work for a thread is captured in an object of its own: `ColdRead`, `FlushTask`,
    `TimestampLookup`, `SegmentTimes`.

    Raises:
        StorageError (KAFKA_STORAGE_ERROR): from every method that accesses the disk, once the log has failed. That is
            final (see `LogHealth.fail`).
    """

    __slots__ = (
        "_durability",
        "_first_counted",
        "_health",
        "_topic_id",
        "clean_offset",
        "config",
        "context",
        "cut_count",
        "high_watermark",
        "known_epochs",
        "local",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "topic",
    )

    def __init__(self, context: LogContext, key: TopicPartition, config: LogConfig, loaded: LoadedLog) -> None:
        self.context = context
        self.topic, self.partition = key
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = end_offset = loaded.log_end_offset
        self.high_watermark = max(loaded.log_start_offset, min(loaded.high_watermark, end_offset))
        self.clean_offset = None if loaded.clean_offset is None else min(loaded.clean_offset, end_offset)
        """The offset at which the last compaction pass ended. None if the log was never compacted: then none of its
        offsets should be missing.
        """
        self.cut_count = 0
        """The number of truncations since the log was opened."""
        self.local = LocalLog(context, loaded.directory, loaded.segments, recovery_point=loaded.recovery_point)
        self.producers = LogProducers(context, self.local, loaded.snapshots, loaded.producers)
        self._health, self._durability = self.local.health, self.local.durability
        self.known_epochs = loaded.leader_epochs
        """`leader_epochs`; None before they are first needed."""
        self._topic_id: TopicId | None = None
        self._first_counted = end_offset
        """The log end offset when the log was opened, less the number of offsets that were truncated since."""
        if loaded.producers is not None:
            loaded.producers.forget_replicated(self.high_watermark)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # --- its state

    @property
    def directory(self) -> str:
        """The path of the log's directory."""
        return self.local.directory

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(self.local.segments)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return self.local.size_in_bytes

    @property
    def appended(self) -> tuple[int, int]:
        """The number of records, and of bytes of batches, appended since the log was opened. It is derived from the end
        of the log, so that appends need no counter.
        """
        return self.log_end_offset - self._first_counted, self.local.appended_bytes

    @property
    def sent_records(self) -> int:
        """The number of records sent from files, as far as regions could count them (`FileRegion`)."""
        return self.local.reader.sent_records.count

    @property
    def recovery_point(self) -> int:
        """The offset up to which everything is flushed."""
        return self._durability.recovery_point

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The leader epochs. Blocking the first time."""
        if self.known_epochs is None:
            local, files = self.local, self.context.cache.files
            with self._health.refusing_if(f"reading the epochs of {local.directory}"):
                self.known_epochs = read_leader_epochs(
                    files, local.directory, local.segments, self.log_start_offset, self.log_end_offset
                )
        return self.known_epochs

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

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config

    # --- its health

    @property
    def failure(self) -> StorageError | None:
        """The reason why the log is offline, LogDeleted if it was deleted; None while it works."""
        return self._health.failure

    def check(self) -> None:
        """Raises StorageError if the log is offline, LogDeleted if it was deleted."""
        self._health.check()

    # --- its producers

    @property
    def producer_state(self) -> ProducerState:
        """The state of the producers.

        Blocking the first time: a few small reads after a clean start, the last segment's headers after a truncation.
        """
        return self.producers.state or self.producers.load(
            self.log_start_offset, self.log_end_offset, self.high_watermark
        )

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed consumers may read. Blocking the first time."""
        producers = self.producers.state
        if producers is None:
            if not self.producers.snapshots and not self.log_end_offset:
                return self.high_watermark
            producers = self.producer_state
        if not producers.ongoing and not producers.unreplicated:
            return self.high_watermark
        first_unstable = producers.first_unstable_offset
        assert first_unstable is not None
        return min(self.high_watermark, max(first_unstable, self.log_start_offset))

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

        `batch` is not kept, so the caller may reuse the buffer. `validated` is the result of
        `validate_produced_batch`, `transaction_version` the version of the transaction that a marker ends.

        Raises:
            ExpensiveBatch: validation would take long; validate the batch in a thread and call again. Nothing was
                written.
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
                known = (self.producers.state or self.producer_state).check(header, origin)
                if known is not None:
                    return self._duplicate(known)
        epochs = self.known_epochs
        if epochs is None:
            epochs = self.leader_epochs
        if epochs.latest_epoch != leader_epoch:
            epochs.assign(leader_epoch, base_offset)
        last_offset = base_offset + header.last_offset_delta
        patch(batch, 0, base_offset, leader_epoch)
        self._append(batch, header, base_offset, last_offset, max_timestamp, marker, now_ms)
        flush_required = self.log_end_offset - self._durability.recovery_point >= config.flush_messages
        return new_tuple(
            LogAppendInfo,
            (base_offset, last_offset, log_append_time_ms, self.log_start_offset, False, flush_required),
        )

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

        Batches with an epoch above `leader_epoch` are left out: this replica does not follow their leader, or not yet.

        Raises:
            ApiError: by `check_replicated`, after the batches before the refused one were appended; by `check_rising`,
                before any batch was appended.
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
            self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        if header.base_offset != self.log_end_offset:
            # After a gap left by compaction, the positions of recent batches cannot locate offsets.
            self.local.reader.forget_recent()
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
        segment = self.local.segments[-1]
        if segment.offset_index is None:
            self._load_active()
        # Load the state first: loading it after the write would count this batch twice.
        producers = self.producers.state or self.producer_state
        bytes_min = self.context.segment_bytes_min
        if segment.should_roll(len(batch), max_timestamp, last_offset, self.config, now_ms, bytes_min):
            segment = self._roll(max(base_offset, self.log_end_offset), now_ms)
        if marker is not None and header.producer_id >= 0:
            aborted = producers.aborted_by(header.producer_id, base_offset, marker)
            self.local.write_marker(
                segment, batch, base_offset, last_offset, max_timestamp, self.config.index_interval_bytes, aborted
            )
            self.log_end_offset = last_offset + 1
            producers.record_marker(header, base_offset, marker)
            return
        self.local.write(segment, batch, base_offset, last_offset, max_timestamp, self.config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        if header.producer_id >= 0 and not header.attributes & CONTROL_MASK:
            producers.record(header, base_offset)

    def _load_active(self) -> None:
        """Prepare for the first append since the start. Blocking, small files."""
        _ = self.producer_state, self.leader_epochs
        self.local.load_active(self.config.index_interval_bytes)

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and create a new one at the log end offset. An empty active segment stays active."""
        self.check()
        segment = self.local.segments[-1]
        if segment.size:
            if segment.offset_index is None:
                self._load_active()
            self._roll(self.log_end_offset, self.context.clock.now_ms())

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Continue in a new segment, which starts with a producer snapshot."""
        active = self.local.segments[-1]
        if active.base_offset == base_offset:
            # The active segment is empty and begins at this offset: reuse it.
            active.created_ms = now_ms
            return active
        if self.producers.lacks_snapshot(base_offset, self.log_start_offset):
            self.producers.take_snapshot(base_offset, self.producer_state)
        return self.local.roll(base_offset, self.config, now_ms)

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
        """Read whole batches of one segment, from the batch with `start_offset` on.

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
            return nothing_at(start_offset, self.local.segments[-1])
        return self.local.reader.read(
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

        It is exact at the starts of segments, recent batches and index entries. Other offsets are rounded down to
        these.
        """
        if start_offset >= max_offset or start_offset < self.log_start_offset:
            return 0
        if limit <= 1:
            return limit  # there is something to read, and the caller needs no number
        return self.local.reader.readable_bytes(start_offset, max_offset, self.log_end_offset, limit)

    def has_all_of(self, read: ColdRead) -> bool:
        """Whether the log still contains everything that a read returns: the read is of this log, and since it was
        planned no batches were deleted, compacted or truncated. Otherwise `aborted_transactions` may lack transactions
        of these batches.
        """
        return self.local.reader.has_all_of(read)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that overlap [start_offset, upper_offset). Blocking the
        first time, if some segment has any.
        """
        if self._health.failure is not None:
            self._health.check()
        local, found = self.local, []
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
        segments = self.local.segments[self.local.reader.slot(self.log_start_offset) :]
        return TimestampLookup(self.context.cache, self.context.indexes, self.log_start_offset, segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The last epoch up to `epoch`, and its end offset; (-1, -1) beyond the latest one."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # --- changing offsets

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, bounded by the log's offsets; returns it."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.high_watermark = offset
        producers = self.producers.state
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
        if self.producers.state is not None:
            self.producers.state.forget_replicated(offset)
        return True

    def end_at(self, offset: int, *, is_empty: bool) -> None:
        """Set the log end offset after a truncation, and remove the leader epochs of the truncated batches. `is_empty`
        says that the truncation removed all batches.
        """
        self._first_counted -= self.log_end_offset - offset
        self.log_end_offset = offset
        if is_empty:
            self.known_epochs = LeaderEpochs()
        else:
            self.leader_epochs.truncate_from_end(offset)

    @property
    def local_log_start_offset(self) -> int:
        """The first offset whose record this disk has; records before it may be elsewhere (KIP-405)."""
        return max(self.log_start_offset, self.local.start_offset)

    # --- flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether a flush is due: a leader epoch is not on the disk, or `Durability.is_due`."""
        return self._dirty_epochs is not None or self._durability.is_due(
            now_ms, self.log_end_offset, self.config.flush_ms
        )

    @property
    def _dirty_epochs(self) -> LeaderEpochs | None:
        """The leader epochs, if they have to be flushed. The epochs of a log without records need no flush: the next
        start drops epochs without records.
        """
        epochs = self.known_epochs
        return epochs if epochs is not None and epochs.dirty and self.log_start_offset < self.log_end_offset else None

    def active_segment_is_due(self, now_ms: int) -> bool:
        """Whether a due flush has to include the active segment; see `prepare_flush`."""
        return self._durability.active_segment_is_due(now_ms, self.log_end_offset, self.config.flush_ms)

    def prepare_flush(self, *, includes_active_segment: bool = True) -> FlushTask | None:
        """Capture a flush up to the log end offset; None if there is nothing to flush or a flush is under way.

        Without `includes_active_segment` the flush leaves the active segment's records to the kernel, as Kafka does
        after sealing a segment or starting a leader epoch, because a sync of a file delays appends to that file.
        """
        self.check()
        local, durability, content = self.local, self._durability, None
        if durability.is_flushing:
            return None
        epochs = self._dirty_epochs
        if epochs is not None:
            epochs.dirty = False
            content = (f"{local.directory}/{LEADER_EPOCH_FILE}", encode_leader_epochs(epochs.entries))
        unflushed, end_offset = local.segments[local.reader.slot(durability.recovery_point) :], self.log_end_offset
        if not includes_active_segment:
            unflushed, end_offset = unflushed[:-1], max(durability.recovery_point, local.segments[-1].base_offset)
        return durability.prepare_flush(
            local.directory, end_offset, unflushed, content, includes_active_segment=includes_active_segment
        )

    def complete_flush(self, task: FlushTask) -> None:
        """Process the outcome of a flush that has run, see `Durability.complete`."""
        self._durability.complete(task, self.local.directory)
        unwritten = task.may_be_repeated or task.moved
        if unwritten and task.leader_epochs is not None and self.known_epochs is not None:
            self.known_epochs.dirty = True


def _read_marker(batch: ReadBuffer, header: RecordBatchHeader) -> EndTxnMarker | None:
    """The transaction marker in a control batch; None for an emptied batch or another control record type."""
    from barnabas.wire.control_records import parse_end_txn_marker
    from barnabas.wire.records import iter_records

    for record in iter_records(batch, header):
        return parse_end_txn_marker(record)
    return None
