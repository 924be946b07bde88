"""Validation and rewriting of a batch by the leader, before the append.

There are two depths. The header and its CRC are always checked. The records are opened only if a feature needs them, or
if the header is suspicious; for all other batches header and CRC are trusted. Field by field, for a topic with
CreateTime and all settings at their defaults:

================= ====================================================================================================
field             checked against the records, which Kafka always opens
================= ====================================================================================================
max_timestamp     computed anew where it is less than the base timestamp, where the base timestamp of several records
                  is more than a minute old (`may_be_older`), and where a lone record has another one; a wrong one of
                  other batches is stored
base_timestamp    never changed: the records' timestamps are relative to it
timestamp deltas  not compared with the limits of the topic, nor with max_timestamp; where the records are opened, those
                  outside the limits are refused, as in Kafka
offset deltas     not read: wrong ones are stored, and give their records wrong offsets; where the records are opened,
                  the batch is rewritten with consecutive ones (Kafka does not compare those of uncompressed batches)
timestamp type    a batch that claims LogAppendTime is opened, and refused
record_count      compared with last_offset_delta, not with the records
attributes        a codec that is not the records' is stored, and no consumer can read them
keys              opened on compacted topics only
================= ====================================================================================================

`barnabas.validate.records` opens all records.

Nothing here depends on the log end offset, so a batch whose records have to be opened can be validated in a thread
before the append: `validate_batch` uses only its arguments. The log assigns base offset and leader epoch afterwards.

Source: Kafka 4.3 `ProduceRequest.validateRecords`, `ByteBufferLogInputStream`, `UnifiedLog.analyzeAndValidateRecords`
and `append`, `LogValidator`. The order of the checks is theirs, because the first failure determines the error code.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, NoReturn

from barnabas.storage.config import NO_LIMIT, LogConfig
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.primitives import new_tuple
from barnabas.wire.record_batch import (
    CODEC_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    CompressionType,
    CorruptBatch,
    ReadBuffer,
    RecordBatchHeader,
    TimestampType,
    WriteBuffer,
    crc_is_valid,
    parse_header,
    set_max_timestamp,
)

_ZSTD_MINIMUM_PRODUCE_VERSION: Final = 7
_MAGIC_POSITION: Final = 16
_HEADER_SIZE_UP_TO_MAGIC: Final = 17
_MINIMUM_LENGTH: Final = 14
_UNKNOWN_CODEC: Final = 5
PRESENT_MS: Final = 10**12
"""Timestamps have had thirteen digits since September 2001. Smaller ones are artificial, mostly from tests, and clients
that handle thirteen digits correctly may get these wrong: kafkajs sorts timestamps as text to find the largest.
"""
STALE_MS: Final = 60_000
"""The timestamps of a live producer's batch are of this minute. Where the first one is older, the largest one may be
wrong: kafkajs leaves out records without a timestamp, which get the present time; other clients send that of the last
record. Retention goes by the largest timestamp, so it is computed then.
"""
MAX_RECORD_ERRORS: Final = 1000
"""More per-record errors than this are counted but not listed: a response should not outgrow its request."""


CHEAP_RECORDS_MAX: Final = 256
CHEAP_BYTES_MAX: Final = 32 * 1024
"""Opening a record takes 1 to 2 us; a compressed batch may decompress to a thousand times its size."""

CHEAP_TIMESTAMPS_MAX: Final = 2_000
"""Reading the timestamp of an uncompressed record takes 0.3 to 0.5 us."""


RECORDS_MAX: Final = 100_000
"""The record count that any batch may have; a larger batch may have as many records as it has bytes. Compressed to
almost nothing, ten million records would fit into the default batch size, and opening them costs time for each.
"""

RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The limit of the decompressed bytes of one record; four times the size of its batch if that is more."""

REBUILT_BYTES_MAX: Final = 16 * 1024 * 1024
"""The limit of the decompressed bytes of a batch whose records have to be rewritten one by one."""

REBUILT_RECORDS_MAX: Final = 25_000
"""The limit of their number: rewriting one takes 3 to 4 us. No current client creates such batches."""


class AppendOrigin(Enum):
    """The source of an append."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """The broker itself: batches that it has built, including control batches."""
    REPLICATION = "replication"


class RecordErrors(ApiError):
    """Some records of a batch were refused, and therefore the whole batch.

    `record_errors` lists them for Produce v8 and above (KIP-467): index in the batch, and message.
    """

    def __init__(self, error: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(error, message)
        self.record_errors = record_errors


class ValidationResult(NamedTuple):
    """A batch that may be appended.

    `batch` contains exactly this one batch: the given bytes, changed in place, or new ones if `rewritten`. `header` is
    that of `batch`. `log_append_time_ms` is -1 for CreateTime topics.
    """

    batch: WriteBuffer
    header: RecordBatchHeader
    max_timestamp: int
    log_append_time_ms: int
    rewritten: bool


def parse_produced_batch(records: ReadBuffer, produce_version: int) -> RecordBatchHeader:
    """Parse the one batch that a produce request may have for a partition; an incomplete second one is ignored.

    Raises:
        ApiError: INVALID_RECORD (no whole batch, another format, a second batch), CORRUPT_MESSAGE (impossible length or
            magic), UNSUPPORTED_COMPRESSION_TYPE (zstd before Produce v7).
    """
    size = len(records)
    try:
        header = parse_header(records)
    except CorruptBatch as error:
        _refuse_first_batch(records, str(error))
    end = LOG_OVERHEAD + header.batch_length
    if end > size:
        raise ApiError(ErrorCode.INVALID_RECORD, f"Record batch of {end} bytes is truncated to {size}")
    if produce_version < _ZSTD_MINIMUM_PRODUCE_VERSION and header.codec == CompressionType.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs version {_ZSTD_MINIMUM_PRODUCE_VERSION} of Produce, this is version {produce_version}",
        )
    if end < size and _whole_batch_follows(records, end):
        raise ApiError(ErrorCode.INVALID_RECORD, "Only one record batch is allowed per partition")
    return header


def _refuse_first_batch(records: ReadBuffer, reason: str) -> NoReturn:
    """Raise the error for bytes that do not start with a header of our format."""
    if _whole_batch_follows(records, 0):
        if records[_MAGIC_POSITION] != MAGIC:
            raise ApiError(ErrorCode.INVALID_RECORD, reason)
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, reason)
    raise ApiError(ErrorCode.INVALID_RECORD, "At least one whole record batch per partition is needed")


def _whole_batch_follows(records: ReadBuffer, position: int) -> bool:
    """Whether a whole batch of any known format starts at `position`.

    Raises:
        ApiError: CORRUPT_MESSAGE, if the bytes can never become a batch.
    """
    remaining = len(records) - position
    if remaining < LOG_OVERHEAD:
        return False
    length = int.from_bytes(records[position + 8 : position + LOG_OVERHEAD], signed=True)
    if length < _MINIMUM_LENGTH:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Record batch has a length of {length}")
    if remaining < _HEADER_SIZE_UP_TO_MAGIC:
        return False
    magic = records[position + _MAGIC_POSITION]
    if magic > MAGIC:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Record batch has magic {magic}")
    return remaining >= LOG_OVERHEAD + length


def validate_produced_batch(
    batch: WriteBuffer, config: LogConfig, topic: str, now_ms: int, produce_version: int
) -> ValidationResult:
    """Validate a client's batch, which may open its records. Any thread. Raises as the two steps do."""
    header = parse_produced_batch(batch, produce_version)
    return validate_batch(batch, header, config, now_ms, topic_partition=topic)


def validate_batch(
    batch: WriteBuffer,
    header: RecordBatchHeader,
    config: LogConfig,
    now_ms: int,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    topic_partition: str = "",
) -> ValidationResult:
    """Validate a batch for an append by the leader, and set its timestamps or recompress it as the topic requires.

    Args:
        batch: starts with the batch at `header.position`; changed in place where the topic requires it.
        header: the result of `parse_produced_batch`.
        topic_partition: for messages.

    Raises:
        RecordErrors: INVALID_RECORD or INVALID_TIMESTAMP, if single records are at fault.
        ApiError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD,
            UNSUPPORTED_COMPRESSION_TYPE.
    """
    from_client = origin is AppendOrigin.CLIENT
    size = LOG_OVERHEAD + header.batch_length
    if from_client and header.base_offset != 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"Base offset of a produced batch is {header.base_offset} instead of 0"
        )
    if size > config.max_message_bytes:
        raise _too_large(size, config)
    if not crc_is_valid(batch, header):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Record batch does not match its checksum {header.crc}")
    if header.attributes & CODEC_MASK >= _UNKNOWN_CODEC:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression type {header.codec}")
    if from_client:
        _check_client_header(header)
    if len(batch) != size:
        batch = memoryview(batch)[header.position : header.end_position]
        header = header._replace(position=0)
    if from_client and needs_record_validation(header, config, now_ms):
        found = _RecordCheck(header, config, now_ms, topic_partition).run(batch)
        result = _assign(batch, header, config, now_ms, found.max_timestamp, rebuild=not found.has_consecutive_offsets)
    elif header.record_count > 1 and from_client and header.base_timestamp < now_ms - STALE_MS:  # `may_be_older`
        largest = _largest_timestamp(batch, header)
        if largest - now_ms > config.message_timestamp_after_max_ms:
            largest = _RecordCheck(header, config, now_ms, topic_partition).run(batch).max_timestamp  # raises
        result = _assign(batch, header, config, now_ms, largest, rebuild=False)
    elif config.compression_type is not None or config.uses_log_append_time:
        result = _assign(batch, header, config, now_ms, header.max_timestamp, rebuild=False)
    else:
        result = new_tuple(ValidationResult, (batch, header, header.max_timestamp, NO_TIMESTAMP, False))
    size = len(result.batch)
    if size > config.segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"Record batch of {size} bytes is larger than a segment of {config.segment_bytes}",
        )
    return result


def _too_large(size: int, config: LogConfig) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"Record batch of {size} bytes is larger than the allowed {config.max_message_bytes}",
    )


def _check_client_header(header: RecordBatchHeader) -> None:
    """The checks that apply only to batches from clients. Source: `LogValidator.validateBatch`."""
    count = header.record_count
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Record batch counts {count} records, its last offset delta is {header.last_offset_delta}",
        )
    if count > RECORDS_MAX and count > header.batch_length:
        raise ApiError(ErrorCode.INVALID_RECORD, f"Record batch of {header.size_in_bytes} bytes counts {count} records")
    if header.attributes & CONTROL_MASK:
        raise ApiError(ErrorCode.INVALID_RECORD, "Clients may not write control records")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"Record batch of producer {header.producer_id} has sequence {header.base_sequence}",
        )


def needs_record_validation(header: RecordBatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Whether the records of a produced batch have to be opened: that costs microseconds per record, not per batch.

    `message.timestamp.before.max.ms` bounds every record, and the header does not contain the oldest timestamp, so any
    value but the default opens the records. `message.timestamp.after.max.ms` bounds the newest, which the header
    contains: the records are opened only if it is too large, so that the error names them, or if the timestamps are not
    of the present.
    """
    return bool(
        config.validate_records
        or config.is_compacted
        or config.uses_log_append_time
        or config.message_timestamp_before_max_ms < NO_LIMIT
        or header.max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or header.base_timestamp < PRESENT_MS
        or header.max_timestamp < header.base_timestamp
        or (header.record_count == 1 and header.max_timestamp != header.base_timestamp)
        or header.attributes & TIMESTAMP_TYPE_MASK
        or (config.compression_type is not None and config.compression_type != header.attributes & CODEC_MASK)
    )


def may_be_older(header: RecordBatchHeader, now_ms: int) -> bool:
    """Whether the largest timestamp of a produced batch is computed from its records, as it may not be the header's."""
    return header.base_timestamp < now_ms - STALE_MS and header.record_count > 1


def _largest_timestamp(batch: ReadBuffer, header: RecordBatchHeader) -> int:
    from barnabas.wire.record_timestamps import largest_timestamp

    try:
        return largest_timestamp(batch, header)
    except CorruptBatch as error:
        raise _unreadable(error) from None


def _unreadable(error: CorruptBatch) -> ApiError:
    return ApiError(ErrorCode.INVALID_RECORD, f"Records of the batch cannot be read: {error}")


class ExpensiveBatch(Exception):
    """Validating this batch means opening many records, or many bytes: too slow for the event loop."""


def check_cost(header: RecordBatchHeader, config: LogConfig, now_ms: int) -> None:
    """Raises ExpensiveBatch if `validate_batch` would take more than about a millisecond."""
    if header.record_count > CHEAP_RECORDS_MAX or header.batch_length > CHEAP_BYTES_MAX:
        if needs_record_validation(header, config, now_ms):
            raise ExpensiveBatch
        if header.record_count > CHEAP_TIMESTAMPS_MAX and may_be_older(header, now_ms):
            raise ExpensiveBatch
    # However small a compressed batch is, it may decompress to a thousand times its size.
    if header.attributes & CODEC_MASK and may_be_older(header, now_ms):
        raise ExpensiveBatch


class _RecordCheck:
    """One pass over the records of one batch. Source: `LogValidator.validateRecord`, `processRecordErrors`."""

    def __init__(self, header: RecordBatchHeader, config: LogConfig, now_ms: int, topic_partition: str) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.has_consecutive_offsets = True
        self._header = header
        self._topic_partition = topic_partition
        self._needs_keys = config.is_compacted
        self._is_create_time = not config.uses_log_append_time
        self._has_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._oldest = now_ms - config.message_timestamp_before_max_ms
        self._newest = now_ms + config.message_timestamp_after_max_ms
        self._errors: list[tuple[int, str]] = []
        self._error_count = 0
        self._has_timestamp_error = False

    def run(self, batch: ReadBuffer) -> _RecordCheck:
        """Read all records. Raises `RecordErrors` if any is refused, `ApiError` (INVALID_RECORD) if they cannot be
        read.
        """
        from barnabas.wire.records import iter_checked

        base_offset = self._header.base_offset
        max_timestamp = NO_TIMESTAMP
        needs_keys = self._needs_keys
        # The bounds of typical timestamps; others are checked individually.
        oldest, newest = (max(0, self._oldest), self._newest) if self._is_create_time else (0, NO_LIMIT)
        if self._has_append_time:
            oldest, newest = 0, -1
        try:
            limit = max(RECORD_BYTES_MAX, 4 * self._header.size_in_bytes)
            records = iter_checked(batch, self._header, max_record_bytes=limit)
            for index, (offset, timestamp, has_key) in enumerate(records):
                if offset != base_offset + index:
                    self.has_consecutive_offsets = False
                if needs_keys and not has_key:
                    self._add(index, self._key_message())
                elif not oldest <= timestamp <= newest and not self._accepts_timestamp(timestamp):
                    self._has_timestamp_error = True
                    self._add(index, self._timestamp_message(offset, timestamp))
                if timestamp > max_timestamp:
                    max_timestamp = timestamp
        except CorruptBatch as error:
            raise _unreadable(error) from None
        self.max_timestamp = max_timestamp
        self._raise_errors()
        return self

    def _accepts_timestamp(self, timestamp: int) -> bool:
        if self._is_create_time and timestamp != NO_TIMESTAMP:
            return self._oldest <= timestamp <= self._newest
        return not self._has_append_time

    def _key_message(self) -> str:
        return f"A compacted topic takes no record without a key ({self._topic_partition})."

    def _timestamp_message(self, offset: int, timestamp: int) -> str:
        if self._is_create_time and timestamp != NO_TIMESTAMP:
            return (
                f"Timestamp {timestamp} of message with offset {offset} is out of range. "
                f"The timestamp should be within [{self._oldest}, {self._newest}]"
            )
        return "Invalid timestamp type in message. Producer should not set timestamp type to LogAppendTime."

    def _add(self, index: int, message: str) -> None:
        self._error_count += 1
        if len(self._errors) < MAX_RECORD_ERRORS:
            self._errors.append((index, message))

    def _raise_errors(self) -> None:
        if not self._errors:
            return
        if self._has_timestamp_error:
            raise RecordErrors(
                ErrorCode.INVALID_TIMESTAMP,
                "One or more records have been rejected due to invalid timestamp",
                self._errors,
            )
        shown = ", ".join(f"RecordError(batchIndex={i}, message={message!r})" for i, message in self._errors[:3])
        raise RecordErrors(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {self._error_count} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]",
            self._errors,
        )


def _assign(
    batch: WriteBuffer,
    header: RecordBatchHeader,
    config: LogConfig,
    now_ms: int,
    max_timestamp: int,
    *,
    rebuild: bool,
) -> ValidationResult:
    """Set the batch's timestamp type and codec to the topic's: in place if only its header changes, else as a new
    batch.
    """
    timestamp_type = TimestampType.CREATE_TIME
    log_append_time_ms = NO_TIMESTAMP
    if config.uses_log_append_time:
        timestamp_type = TimestampType.LOG_APPEND_TIME
        max_timestamp = log_append_time_ms = now_ms
    source = CompressionType(header.codec)
    target = source if config.compression_type is None else config.compression_type
    if source is CompressionType.NONE and header.attributes & CONTROL_MASK:
        target = source
    if target is source and not rebuild:
        header = set_max_timestamp(batch, header, timestamp_type, max_timestamp)
        return ValidationResult(batch, header, max_timestamp, log_append_time_ms, rewritten=False)
    # Records that claimed append time get it as their own timestamps once they are rewritten.
    rebuild = rebuild or header.timestamp_type is TimestampType.LOG_APPEND_TIME
    rewritten = _rewrite(batch, header, config, target, rebuild=rebuild)
    new_header = parse_header(rewritten)
    if new_header.size_in_bytes > config.max_message_bytes:
        raise _too_large(new_header.size_in_bytes, config)
    new_header = set_max_timestamp(rewritten, new_header, timestamp_type, max_timestamp)
    return ValidationResult(rewritten, new_header, max_timestamp, log_append_time_ms, rewritten=True)


def _rewrite(
    batch: WriteBuffer, header: RecordBatchHeader, config: LogConfig, target: CompressionType, *, rebuild: bool
) -> bytearray:
    """Rewrite the batch with another codec, or (`rebuild`) record by record with consecutive offsets.

    With another codec the bytes of the records do not change. Offsets that are not consecutive are assigned anew, as in
    Kafka, which does it for some old clients.

    Raises:
        ApiError: INVALID_RECORD, if the records cannot be decompressed within the limit, or are too many to be
            rewritten one by one; MESSAGE_TOO_LARGE.
    """
    from barnabas.wire.compression import compress_chunks, iter_decompressed
    from barnabas.wire.record_bodies import DEFAULT_MAX_DECOMPRESSED_BYTES
    from barnabas.wire.records import assemble_batch, build_batch, iter_records

    level = _level(config, target)
    try:
        if rebuild:
            if header.record_count > REBUILT_RECORDS_MAX:
                raise ApiError(
                    ErrorCode.INVALID_RECORD,
                    f"{header.record_count} records would have to be written again, at most {REBUILT_RECORDS_MAX} are",
                )
            records = iter_records(batch, header, max_decompressed_bytes=REBUILT_BYTES_MAX)
            return build_batch(
                (record._replace(offset=index) for index, record in enumerate(records)),
                compression=target,
                compression_level=level,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.is_transactional,
            )
        view = memoryview(batch)[header.position + HEADER_SIZE : header.end_position]
        payload = bytearray()
        chunks = iter_decompressed(CompressionType(header.codec), view, DEFAULT_MAX_DECOMPRESSED_BYTES)
        for piece in compress_chunks(target, chunks, level):
            payload += piece
            if len(payload) > config.max_message_bytes:
                raise _too_large(HEADER_SIZE + len(payload), config)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, f"Records of the batch cannot be read: {error}") from None
    attributes = target | (header.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK))
    return assemble_batch(header._replace(attributes=attributes), payload)


def _level(config: LogConfig, target: CompressionType) -> int | None:
    """The topic's compression level for a codec that has levels."""
    if target is CompressionType.GZIP:
        return config.compression_gzip_level
    if target is CompressionType.LZ4:
        return config.compression_lz4_level
    if target is CompressionType.ZSTD:
        return config.compression_zstd_level
    return None
