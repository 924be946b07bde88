"""Checks of a follower on the batches that its leader sent, before they are appended with their offsets and leader
epochs.

Source: UnifiedLog.appendAsFollower, analyzeAndValidateRecords; AbstractFetcherThread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import CorruptBatch, RecordBatchHeader, crc_is_valid, iter_headers


def replicated_headers(batches: memoryview, leader_epoch: int | None) -> Iterator[RecordBatchHeader]:
    """The headers of the whole batches in a fetch response, up to the first of an epoch above `leader_epoch` (None:
    all): later batches come from a leader that this replica does not follow, or not yet.

    Raises:
        ApiError: CORRUPT_MESSAGE if the bytes are no batch.
    """
    try:
        for header in iter_headers(batches):
            if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
                return
            yield header
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None


def check_rising(headers: Iterable[RecordBatchHeader]) -> None:
    """Check that the batches of one response have ascending offsets. If not, one offset is wrong, which no CRC covers,
    and it is unknown which.

    Source: UnifiedLog.analyzeAndValidateRecords, OffsetsOutOfOrderException.

    Raises:
        ApiError: OFFSET_OUT_OF_RANGE.
    """
    end_offset = 0
    for header in headers:
        if header.base_offset < end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The leader sent offset {header.base_offset} after {end_offset - 1} in one response",
            )
        end_offset = header.next_offset


def check_replicated(batches: memoryview, header: RecordBatchHeader, log_end_offset: int, segment_bytes: int) -> None:
    """Check whether a batch can be appended to a log that ends at `log_end_offset`.

    Raises:
        ApiError: CORRUPT_MESSAGE for a bad CRC, OFFSET_OUT_OF_RANGE for offsets below the log's end,
            RECORD_LIST_TOO_LARGE if it does not fit into a segment of `segment_bytes`.
    """
    if not crc_is_valid(batches, header):
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"The batch at offset {header.base_offset} from the leader is corrupt"
        )
    if header.base_offset < log_end_offset or header.last_offset < header.base_offset:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"The leader sent offset {header.base_offset} where {log_end_offset} follows",
        )
    if header.size_in_bytes > segment_bytes:
        raise ApiError(
            ErrorCode.RECORD_LIST_TOO_LARGE, f"A batch of {header.size_in_bytes} bytes is larger than a segment"
        )


def start_around(batches: memoryview, log_end_offset: int) -> int | None:
    """The first batch's base offset, if an empty log's end offset lies inside that batch: the leader's log begins
    there, as after DeleteRecords, and leaders send whole batches. None in all other cases. The log has to start anew at
    the batch's base offset.

    Source: Partition.appendRecordsToFollowerOrFutureReplica, UnexpectedAppendOffsetException.

    Raises:
        ApiError: CORRUPT_MESSAGE if the bytes are no batch.
    """
    for header in replicated_headers(batches, None):
        return header.base_offset if header.base_offset < log_end_offset <= header.last_offset else None
    return None
