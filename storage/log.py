"""One partition's log: append, read, roll, truncate, delete, flush.

The files of the directory `TOPIC-PARTITION` are described in `segment`; `leader-epoch-checkpoint` and
`partition.metadata` in `checkpoints`. Offsets obey log_start_offset <= last_stable_offset <= high_watermark <=
log_end_offset, and recovery_point <= log_end_offset.

Source: org.apache.kafka.storage.internals.log.UnifiedLog, LocalLog.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from barnabas.storage import retention
from barnabas.storage.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    decode_leader_epochs,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_partition_metadata,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptFile, StorageError
from barnabas.storage.files import Buffer, DescriptorCache, Files, read_file, replace_file, write_file, write_fully
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.log_context import DoomedFiles, LogContext
from barnabas.storage.log_reader import LogReader, ReadRequest, nothing_at
from barnabas.storage.producer_builder import ProducerBuilder
from barnabas.storage.producer_state import BatchMetadata, ProducerState, encode_snapshot
from barnabas.storage.read import FetchData, file_headers
from barnabas.storage.scan import OpenSegment
from barnabas.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from barnabas.storage.timestamps import SegmentCapture, TimestampAndOffset, TimestampLookup
from barnabas.storage.txn_index import AbortedTransaction, encode_entry
from barnabas.storage.validation import (
    AppendOrigin,
    ValidationResult,
    check_cost,
    parse_produced_batch,
    validate_batch,
)
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId
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


class ProducerDescription(NamedTuple):
    """One producer of a log, as DescribeProducers shows it; -1 stands for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class PartitionLog:
    """One partition's log.

    Ownership: the event loop. What may run in a thread is captured in an object of its own: `ColdRead`, `FlushTask`,
    `TimestampLookup`.
    After a clean start nothing is read until it is needed: the first append reads two small index files and a
    producer snapshot.

    Raises:
        StorageError (KAFKA_STORAGE_ERROR): from every method that touches the disk, once the log has failed. That is
        final (see `fail`).
    """

    __slots__ = (
        "_failure",
        "_flushing",
        "_last_flush_ms",
        "_leader_epochs",
        "_names_dirty",
        "_producers",
        "_reader",
        "_segments",
        "_snapshots",
        "_topic_id",
        "_unsynced_files",
        "config",
        "context",
        "directory",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "recovery_point",
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
        snapshots: list[int] | None = None,
        leader_epochs: LeaderEpochs | None = None,
        producers: ProducerState | None = None,
    ) -> None:
        self.context = context
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.config = config
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.high_watermark = max(log_start_offset, min(high_watermark, log_end_offset))
        self._segments = segments
        self._snapshots = snapshots if snapshots is not None else []
        self._leader_epochs = leader_epochs
        self._producers = producers
        self._topic_id: TopicId | None = None
        self._failure: StorageError | None = None
        self._flushing: FlushTask | None = None
        self._last_flush_ms = context.clock.now_ms()
        self._names_dirty = False
        self._unsynced_files: list[str] = []
        self._reader = LogReader(context, segments)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.topic}-{self.partition} [{self.log_start_offset}, {self.log_end_offset})>"

    # --- what is known about it

    @property
    def topic_id(self) -> TopicId:
        """From `partition.metadata`; ZERO_TOPIC_ID if there is none. Blocking the first time."""
        if self._topic_id is None:
            try:
                data = read_file(self.context.cache.files, f"{self.directory}/{PARTITION_METADATA_FILE}")
                # A crash right after the file was created may leave it empty: then it says nothing.
                self._topic_id = decode_partition_metadata(data) if data else ZERO_TOPIC_ID
            except FileNotFoundError:
                self._topic_id = ZERO_TOPIC_ID
            except CorruptFile as error:
                raise StorageError(f"{self.directory}: {error}") from None
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Note the topic's id, durably with the next flush.

        Raises:
            ApiError: INCONSISTENT_TOPIC_ID, if the log belongs to another topic of the same name.
        """
        known = self.topic_id
        if known == topic_id:
            return
        if known != ZERO_TOPIC_ID:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} belongs to another topic named {self.topic}"
            )
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        replace_file(self.context.cache.files, path, encode_partition_metadata(topic_id), sync=False)
        self._topic_id = TopicId(bytes(topic_id))
        self._unsynced_files.append(path)
        self._mark_names_dirty()

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Which leader wrote what. Blocking the first time."""
        if self._leader_epochs is None:
            self._leader_epochs = self._read_leader_epochs()
        return self._leader_epochs

    def _read_leader_epochs(self) -> LeaderEpochs:
        """From the checkpoint, or from the batches if that is missing or unusable; nothing outside the log."""
        path = f"{self.directory}/{LEADER_EPOCH_FILE}"
        try:
            entries = decode_leader_epochs(read_file(self.context.cache.files, path))
        except FileNotFoundError:
            entries = []
        except CorruptFile as error:
            logger.warning("rebuilding %s: %s", path, error)
            entries = []
        try:
            epochs = LeaderEpochs(entries or self._scan_leader_epochs())
        except OSError as error:
            raise StorageError(f"reading the epochs of {self.directory} failed: {error}") from error
        epochs.dirty = not entries and len(epochs) > 0
        epochs.truncate_from_end(self.log_end_offset)
        epochs.truncate_from_start(self.log_start_offset)
        return epochs

    def _scan_leader_epochs(self) -> list[tuple[int, int]]:
        """Epochs and where each starts, from the headers of all batches. Blocking, slow."""
        found: list[tuple[int, int]] = []
        for segment in self._segments:
            if segment.size:
                with OpenSegment(self.context.cache.files, segment.file.path) as read:
                    for header in file_headers(read, segment.file, 0, segment.size):
                        if header.partition_leader_epoch > (found[-1][0] if found else -1):
                            found.append((header.partition_leader_epoch, header.base_offset))
        return found

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
                raise StorageError(f"reading the producers of {self.directory} failed: {error}") from error
            self._producers.forget_replicated(self.high_watermark)
        return self._producers

    @property
    def size_in_bytes(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last one is active."""
        return tuple(self._segments)

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

    def active_producers(self) -> list[ProducerDescription]:
        """All producers with state on this log."""
        return [
            ProducerDescription(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
            for entry in self.producer_state.producers.values()
        ]

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that have not written for producer.id.expiration.ms."""
        if self._producers is not None:
            self._producers.remove_expired(now_ms)

    # --- settings and failure

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on."""
        self.config = config

    @property
    def failure(self) -> StorageError | None:
        """Why the log is offline; None while it works."""
        return self._failure

    def fail(self, error: StorageError) -> None:
        """Take the log offline: nothing is acknowledged, read or retried any more until a restart finds out what is
        on the disk.
        """
        if self._failure is None:
            self._failure = error
            logger.error("%s-%d is offline: %s", self.topic, self.partition, error.message)
            self.context.on_failure(self, error)

    def _check(self) -> None:
        if self._failure is not None:
            raise StorageError(self._failure.message)

    def mark_new(self) -> None:
        """The log was just created: put it in line for a flush, and its first file with it."""
        self._unsynced_files.append(self._segments[-1].file.path)
        self._mark_names_dirty()

    def _mark_names_dirty(self) -> None:
        """New names in the directory (or of it) are not on the disk yet: ask for a flush."""
        self._names_dirty = True
        self.context.unflushed[self] = None

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
            self._check()
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
        epochs = self._leader_epochs or self.leader_epochs
        if epochs.latest_epoch != leader_epoch:
            self.assign_leader_epoch(leader_epoch, base_offset)
        last_offset = base_offset + header.last_offset_delta
        patch(batch, 0, base_offset, leader_epoch)
        self._append(batch, header, base_offset, last_offset, max_timestamp, marker, now_ms)
        return LogAppendInfo(
            base_offset,
            last_offset,
            log_append_time_ms,
            self.log_start_offset,
            False,
            last_offset + 1 - self.recovery_point >= config.flush_messages,
        )

    def validate(self, batch: WriteBuffer, *, now_ms: int, produce_version: int) -> ValidationResult:
        """The checks of `append_as_leader` for a client's batch, which may open its records. Any thread.

        Raises:
            RecordErrors, ApiError: as `append_as_leader`.
        """
        header = parse_produced_batch(batch, produce_version)
        return validate_batch(batch, header, self.config, now_ms, topic_partition=self.topic)

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
        self._check()
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
        config = self.config
        segment = self._segments[-1]
        if segment.offset_index is None:
            self._load_active(segment)
        if self._producers is None:
            # Now, because taking in the batches on the disk and then this one must not count it twice.
            _ = self.producer_state
        size = len(batch)
        if segment.should_roll(size, max_timestamp, last_offset, config, now_ms):
            segment = self._roll(max(base_offset, self.log_end_offset), now_ms)
        position = segment.size
        descriptor = segment.file.descriptor
        if descriptor < 0:
            descriptor = self._open_for_append(segment)
        segment.file.recently_used = True
        try:
            if self.context.cache.files.pwrite(descriptor, batch, position) != size:
                write_fully(self.context.cache.files, descriptor, batch, position)
        except OSError as error:
            raise self._roll_back(segment, descriptor, error) from error
        segment.size = position + size
        segment.add_batch(last_offset, max_timestamp, position, size, config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        self._reader.add_batch(base_offset, position)
        if header.producer_id >= 0:
            if marker is not None:
                self._record_marker(segment, header, base_offset, marker)
            elif not header.attributes & CONTROL_MASK:
                self.producer_state.record(header, base_offset)

    def _load_active(self, segment: Segment) -> None:
        """Prepare the active segment for the first append since the start. Blocking, small files."""
        _ = self.producer_state, self.leader_epochs
        try:
            segment.load(self.context.cache, self.config.index_interval_bytes)
            segment.read_first_timestamp(self.context.cache)
        except OSError as error:
            raise StorageError(f"reading {segment.file.path} failed: {error}") from error
        self.context.indexes.drop(segment.file)

    def _open_for_append(self, segment: Segment) -> int:
        try:
            return self.context.cache.descriptor(segment.file)
        except OSError as error:
            raise StorageError(f"opening {segment.file.path} failed: {error}") from error

    def _roll_back(self, segment: Segment, descriptor: int, error: OSError) -> StorageError:
        """Cut what a failed write left behind; if even that fails, nobody knows what is in the file."""
        failure = StorageError(f"appending to {segment.file.path} failed: {error}")
        try:
            self.context.cache.files.truncate(descriptor, segment.size)
        except OSError as second:
            self.fail(StorageError(f"{failure.message}; and cutting the file back failed: {second}"))
        return failure

    def _record_marker(
        self, segment: Segment, header: RecordBatchHeader, base_offset: int, marker: EndTxnMarker
    ) -> None:
        aborted = self.producer_state.record_marker(header, base_offset, marker)
        if aborted is not None:
            try:
                append_aborted(self.context.cache, segment, aborted)
            except OSError as error:
                self.fail(StorageError(f"writing {segment.path(TXN_INDEX_SUFFIX)} failed: {error}"))
                raise StorageError(str(error)) from error

    def assign_leader_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """Note that `epoch` writes from the log's end on; durable with the next flush, and after a crash rebuilt from
        the batches.
        """
        if self.leader_epochs.assign(epoch, self.log_end_offset if start_offset is None else start_offset):
            self.context.unflushed[self] = None

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and start a new one at the log's end. An empty one stays."""
        self._check()
        segment = self._segments[-1]
        if segment.size:
            if segment.offset_index is None:
                self._load_active(segment)
            self._roll(self.log_end_offset, self.context.clock.now_ms())

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Seal the active segment: its indexes and the producers' state go to files, the disk gets them with the next
        flush.
        """
        cache = self.context.cache
        old = self._segments[-1]
        if old.base_offset == base_offset:
            # Empty, but too old or unable to express the offset: as good as a new one.
            old.created_ms = now_ms
            return old
        try:
            old.write_indexes(cache.files)
            self._take_snapshot(base_offset)
            segment = Segment.create(cache, self.directory, base_offset, now_ms, self.context.jitter(self.config))
        except OSError as error:
            raise StorageError(f"rolling {self.directory} at offset {base_offset} failed: {error}") from error
        index = old.unload()
        if index is not None:
            self.context.indexes.put(old.file, index)
        self._segments.append(segment)
        self._reader.forget_recent()
        self._mark_names_dirty()
        return segment

    def _take_snapshot(self, offset: int) -> None:
        """Write the producers' state as of `offset`, unless there is a snapshot of it. Page cache only."""
        if offset <= self.log_start_offset or (self._snapshots and self._snapshots[-1] >= offset):
            return
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        write_file(self.context.cache.files, path, encode_snapshot(self.producer_state.producers.values()))
        self._snapshots.append(offset)
        self._unsynced_files.append(path)

    # --- reading

    def read(
        self, start_offset: int, max_bytes: int, *, max_offset: int | None = None, min_one_message: bool = True
    ) -> FetchData:
        """Read whole batches of one segment, from the one that contains `start_offset` on.

        Batches that reach to `max_offset` or beyond (by default the log's end) are left out, and so are those that do
        not fit into `max_bytes`; but with `min_one_message` the first one is returned however large it is.

        Raises:
            ApiError: OFFSET_OUT_OF_RANGE.
            ColdRead: the disk would have to be waited for; `load` it in a thread.
        """
        self._check()
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
        return self._reader.read(
            ReadRequest(
                start_offset, max_bytes, max_offset, min_one_message, end_offset, self.config.index_interval_bytes
            )
        )

    def readable_bytes(self, start_offset: int, max_offset: int, limit: int) -> int:
        """About how many bytes a read could return, at most `limit`; no I/O.

        Segments, index entries and recent batches are exact starts; anything else counts from the one before it.
        """
        if start_offset >= max_offset or start_offset < self.log_start_offset:
            return 0
        return self._reader.readable_bytes(start_offset, max_offset, self.log_end_offset, limit)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that overlap [start_offset, upper_offset). Blocking the
        first time, if some segment has any.
        """
        self._check()
        found: list[AbortedTransaction] = []
        for segment in self._segments[self._reader.slot(start_offset) :]:
            if segment.has_txn_index:
                entries, complete = segment.aborted_transactions(self.context.cache.files, start_offset, upper_offset)
                found += entries
                if complete:
                    break
        return [(entry.producer_id, entry.first_offset) for entry in found]

    # --- offsets by time and epoch

    def timestamp_lookup(self) -> TimestampLookup:
        """Capture the log for a search by timestamp, which blocks and belongs into a thread."""
        self._check()
        captures = []
        for slot in range(self._reader.slot(self.log_start_offset), len(self._segments)):
            segment = self._segments[slot]
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
        self._check()
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

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention: by log start offset always, by size and time if cleanup.policy says delete. Returns how
        many segments went.

        May read the last bytes of time indexes, or file times, the first time. Their files are renamed now and
        unlinked later.
        """
        self._check()
        deleted = self._delete_segments(
            retention.breached_by_start((segment.base_offset for segment in self._segments[1:]), self.log_start_offset),
            "log start offset",
        )
        if self.config.deletes_by_retention:
            sizes = [segment.size for segment in self._segments]
            deleted += self._delete_segments(
                retention.breached_by_size(sizes, self.config.retention_bytes), "retention.bytes"
            )
            cache = self.context.cache
            timestamps = (lambda segment=segment: segment.largest_timestamp(cache) for segment in self._segments)
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
        doomed = self._segments[:count]
        self.increment_log_start_offset(self._segments[count].base_offset)
        del self._segments[:count]
        self._reader.forget_all()
        logger.info("%s-%d: deleting %d segments up to offset %d by %s", self.topic, self.partition, count,
                    self.log_start_offset, reason)  # fmt: skip
        self._doom(doomed)
        return count

    def _doom(self, segments: list[Segment], *, kept_snapshot: int = -1) -> None:
        """Rename the files of segments that are no longer part of the log, and have them unlinked later. A snapshot at
        `kept_snapshot` stays.
        """
        cache, files = self.context.cache, self.context.cache.files
        logs, others = [], []
        try:
            for segment in segments:
                paths = [segment.path(suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
                if segment.has_txn_index:
                    paths.append(segment.path(TXN_INDEX_SUFFIX))
                if segment.base_offset in self._snapshots and segment.base_offset != kept_snapshot:
                    self._snapshots.remove(segment.base_offset)
                    paths.append(segment.path(SNAPSHOT_SUFFIX))
                cache.close(segment.file)
                self.context.indexes.drop(segment.file)
                suffix = _unused_suffix(files, segment.file.path)
                files.rename(segment.file.path, segment.file.path + suffix)
                segment.file.path += suffix
                logs.append(segment.file)
                for path in paths:
                    if files.exists(path):
                        files.rename(path, path + suffix)
                        others.append(path + suffix)
        except OSError as error:
            self.fail(StorageError(f"deleting segments of {self.directory} failed: {error}"))
            raise StorageError(str(error)) from error
        due_ms = self.context.clock.monotonic_ms() + self.config.file_delete_delay_ms
        self.context.doomed.append(DoomedFiles(due_ms, logs, others))

    # --- compaction

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put one cleaned segment, whose files are there as `.swap`, in the place of neighbours below the active one.

        From now on a crash is followed by what `swaps` does at the start: the old files go, the new ones stay. Reads
        of the old segments that are under way find their files under other names.
        """
        self._check()
        slot = self._segments.index(old[0])
        self._doom(old, kept_snapshot=new.base_offset)
        files = self.context.cache.files
        try:
            # The log first: while it waits, the start removes what is there of the indexes.
            for path in [new.path(suffix) for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES)]:
                if files.exists(path):
                    files.rename(path, path.removesuffix(SWAP_SUFFIX))
        except OSError as error:
            self.fail(StorageError(f"swapping cleaned segments of {self.directory} failed: {error}"))
            raise StorageError(str(error)) from error
        new.file.path = new.file.path.removesuffix(SWAP_SUFFIX)
        self._segments[slot : slot + len(old)] = [new]
        self._reader.forget_all()
        self._mark_names_dirty()

    # --- truncating

    def truncate_to(self, offset: int) -> bool:
        """Remove all batches that reach to `offset` or beyond (a follower that diverged); whether there were any.
        Blocking.
        """
        self._check()
        self.leader_epochs.truncate_from_end(min(offset, self.log_end_offset))
        if offset >= self.log_end_offset:
            return False
        if offset < self._segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        logger.info("%s-%d: truncating from %d to %d", self.topic, self.partition, self.log_end_offset, offset)
        slot = self._reader.slot(offset)
        doomed = self._segments[slot + 1 :]
        del self._segments[slot + 1 :]
        self._doom(doomed)
        self._truncate_active(self._segments[-1], offset)
        self._forget_beyond(offset)
        return True

    def _truncate_active(self, segment: Segment, offset: int) -> None:
        """Cut the batches at or beyond `offset` off the last segment, on the disk too."""
        cache = self.context.cache
        files, descriptor = cache.files, cache.descriptor(segment.file)

        def read(size: int, position: int) -> Buffer:
            return files.pread(descriptor, size, position)

        try:
            end, end_offset = segment.size, self.log_end_offset
            keep_offset = segment.base_offset
            for header in file_headers(read, segment.file, 0, segment.size):
                if header.last_offset >= offset:
                    end = header.position
                    break
                keep_offset = header.next_offset
            end_offset = min(offset, max(keep_offset, segment.base_offset)) if end < segment.size else offset
            files.truncate(descriptor, end)
            files.sync(descriptor)
            segment.size = end
            segment.warm_from = min(segment.warm_from, end)
            if segment.has_txn_index:
                index = segment.read_txn_index(files)
                index.truncate_to(offset)
                write_file(files, segment.path(TXN_INDEX_SUFFIX), index.to_bytes(), sync=True)
                segment.txn_index = None
            segment.rebuild_indexes(read, self.config.index_interval_bytes)
        except OSError as error:
            self.fail(StorageError(f"truncating {segment.file.path} failed: {error}"))
            raise StorageError(str(error)) from error
        self.context.indexes.drop(segment.file)
        self.log_end_offset = end_offset

    def _forget_beyond(self, offset: int) -> None:
        """Bring everything else back to the log's new end."""
        files = self.context.cache.files
        for snapshot in [found for found in self._snapshots if found > self.log_end_offset]:
            self._snapshots.remove(snapshot)
            path = f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}"
            if files.exists(path):
                files.unlink(path)
        self._reader.forget_all()
        self._producers = None
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self._limit_flushed()
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        self.leader_epochs.truncate_from_end(offset)
        self._mark_names_dirty()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and go on at `offset` (a follower whose leader no longer has what it needs). Blocking."""
        self._check()
        logger.info("%s-%d: starting anew at %d", self.topic, self.partition, offset)
        doomed = list(self._segments)
        snapshots, self._snapshots = self._snapshots, []
        now_ms = self.context.clock.now_ms()
        files = self.context.cache.files
        self._doom(doomed)
        try:
            for snapshot in snapshots:
                path = f"{self.directory}/{file_name(snapshot, SNAPSHOT_SUFFIX)}"
                if files.exists(path):
                    files.unlink(path)
            self._segments[:] = [
                Segment.create(self.context.cache, self.directory, offset, now_ms, self.context.jitter(self.config))
            ]
        except OSError as error:
            self.fail(StorageError(f"starting {self.directory} anew failed: {error}"))
            raise StorageError(str(error)) from error
        self.leader_epochs.clear()
        self._producers = ProducerState(offset, self.context.producer_id_expiration_ms)
        self._reader.forget_all()
        self.log_start_offset = self.log_end_offset = self.recovery_point = self.high_watermark = offset
        if self._flushing is not None:
            self._flushing.end_offset = 0
        self._mark_names_dirty()

    def _limit_flushed(self) -> None:
        """After a truncation, neither the recovery point nor a flush under way covers what will be appended next."""
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        if self._flushing is not None:
            self._flushing.end_offset = min(self._flushing.end_offset, self.log_end_offset)

    # --- flushing

    def flush_is_due(self, now_ms: int) -> bool:
        """Whether flush.ms has passed since the last flush and there is something to flush."""
        return self.recovery_point < self.log_end_offset and now_ms - self._last_flush_ms >= self.config.flush_ms

    def prepare_flush(self) -> FlushTask | None:
        """Capture a flush of everything up to the log's end; None if there is nothing to do or a flush is under way.

        Segments below the recovery point are on the disk already. The active segment's index files are hints that are
        not worth a write.
        """
        self._check()
        epochs = self._leader_epochs
        epochs_dirty = epochs is not None and epochs.dirty
        has_data = self.recovery_point < self.log_end_offset
        if self._flushing is not None or not (has_data or epochs_dirty or self._names_dirty):
            return None
        segments, others = [], self._unsynced_files
        if has_data:
            for segment in self._segments[self._reader.slot(self.recovery_point) :]:
                segments.append(segment.file)
                self.context.cache.hold(segment.file)
                if segment is not self._segments[-1]:
                    others += [segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)]
                if segment.has_txn_index:
                    others.append(segment.path(TXN_INDEX_SUFFIX))
        task = FlushTask(self.context.cache, self.directory, self.log_end_offset, segments, others, [])
        if epochs is not None and epochs_dirty:
            task.leader_epochs = (f"{self.directory}/{LEADER_EPOCH_FILE}", encode_leader_epochs(epochs.entries))
            epochs.dirty = False
        if self._names_dirty:
            task.directories += [self.directory, self.directory.rpartition("/")[0]]
        self._unsynced_files = []
        self._names_dirty = False
        self._flushing = task
        self.context.unflushed.pop(self, None)
        return task

    def complete_flush(self, task: FlushTask) -> None:
        """Take in the outcome of a flush that has run; a failed one takes the log offline, unless its directory was
        moved away under it.
        """
        self._flushing = None
        if task.error is not None:
            if task.directory == self.directory:
                self.fail(task.error)
            return
        self._last_flush_ms = self.context.clock.now_ms()
        self.recovery_point = max(self.recovery_point, task.end_offset)

    def flush(self) -> None:
        """Flush everything. Blocking.

        Raises:
            StorageError: it failed; the log is offline now.
        """
        task = self.prepare_flush()
        if task is not None:
            task.run()
            self.complete_flush(task)
            self._check()

    # --- closing, moving away

    def close(self) -> None:
        """Bring everything to the disk so that the next start need not look at it. Blocking. Nothing is written if
        nothing was ever loaded.
        """
        segment = self._segments[-1]
        if self._failure is None and (segment.offset_index is not None or self.recovery_point < self.log_end_offset):
            try:
                if segment.offset_index is None:
                    self._load_active(segment)
                segment.write_indexes(self.context.cache.files)
                self._take_snapshot(self.log_end_offset)
                self._unsynced_files += [segment.path(OFFSET_INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)]
            except OSError as error:
                self.fail(StorageError(f"closing {self.directory} failed: {error}"))
            self._names_dirty = True
        if self._failure is None:
            self.flush()
        self.close_files()

    def close_files(self) -> None:
        """Give up all descriptors; nothing is written."""
        for segment in self._segments:
            self.context.cache.close(segment.file)
            self.context.indexes.drop(segment.file)
        self.context.unflushed.pop(self, None)

    def move_to(self, directory: str) -> None:
        """Rename the log's directory; reads and flushes under way find their files again. Blocking."""
        self.context.cache.files.rename(self.directory, directory)
        for segment in self._segments:
            segment.file.path = directory + segment.file.path[len(self.directory) :]
        self._unsynced_files = []
        self.directory = directory


def _unused_suffix(files: Files, path: str) -> str:
    """`.deleted`, or where a file of that name still waits to be unlinked (compaction replaces a segment of the same
    name again and again), `.1.deleted` and so on.
    """
    suffix, number = DELETED_SUFFIX, 0
    while files.exists(path + suffix):
        number += 1
        suffix = f".{number}{DELETED_SUFFIX}"
    return suffix


def append_aborted(cache: DescriptorCache, segment: Segment, aborted: AbortedTransaction) -> None:
    """Add an entry to a segment's transaction index file. Page cache only."""
    path = segment.path(TXN_INDEX_SUFFIX)
    entry = encode_entry(aborted)
    descriptor = cache.files.open(path, create=True, truncate=not segment.has_txn_index)
    try:
        write_fully(cache.files, descriptor, entry, cache.files.stat(path).size)
    finally:
        cache.files.close(descriptor)
    if segment.txn_index is not None:
        segment.txn_index += entry
    elif not segment.has_txn_index:
        segment.txn_index = bytearray(entry)
    segment.has_txn_index = True


def _read_marker(batch: ReadBuffer, header: RecordBatchHeader) -> EndTxnMarker | None:
    """What a control batch says about a transaction; None for an emptied one or one of another type."""
    from barnabas.wire.records import iter_records, parse_end_txn_marker

    for record in iter_records(batch, header):
        return parse_end_txn_marker(record)
    return None
