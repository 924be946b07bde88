"""The removal of segments from a log: retention deletes the oldest ones, compaction replaces neighbouring ones.

`retention` decides how many are deleted. Files are renamed at once, and unlinked when `file.delete.delay.ms` has passed
(`deletions`).

Source: UnifiedLog.deleteOldSegments, deleteSegments, replaceSegments.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from barnabas.storage.errors import StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.retention import SEGMENTS_AT_ONCE, breached_rules, count_replicated, times_needed
from barnabas.storage.segment import Segment
from barnabas.storage.segment_times import SegmentTimes

logger = logging.getLogger(__name__)


def times_for_retention(log: PartitionLog, now_ms: int) -> SegmentTimes:
    """The segments' timestamps that `delete_old_segments` needs: to be read in a thread."""
    return times_needed(log.config, log.local.segments, log.context.cache, now_ms)


def retain(log: PartitionLog, now_ms: int, times: SegmentTimes | None = None) -> int:
    """Delete old segments of a log, unless it is offline or deleted; returns their number. After a disk failure the log
    goes offline; after a transient error the next run retries. `times`: as in `delete_old_segments`.
    """
    if log.failure is None:
        with suppress(StorageError):  # the error is logged already
            return delete_old_segments(log, now_ms, times)
    return 0


def delete_old_segments(log: PartitionLog, now_ms: int, times: SegmentTimes | None = None) -> int:
    """Apply retention: by log start offset always, by size and time if cleanup.policy includes delete. Returns the
    number of deleted segments: if it is `SEGMENTS_AT_ONCE` or more, others may be due.

    `times` was read in a thread; segments without a known time stay. Without `times` this may read the last bytes of
    time indexes, or file times, the first time.

    Raises:
        StorageError: the disk refused. After a transient error the rest is deleted the next time, after any other the
            log is offline.
    """
    log.check()
    deleted = 0
    with log.local.health.refusing_if(f"deleting segments of {log.directory}"):
        for rule in breached_rules(
            log.config, log.local.segments, log.log_start_offset, log.context.cache, times, now_ms
        ):
            deleted += _delete_oldest(log, rule.segment_count, rule.name)
    return deleted


def _delete_oldest(log: PartitionLog, count: int, reason: str) -> int:
    """Delete the oldest `count` segments, as far as they are replicated, and not too many at once; the active segment
    is rolled first if it is among them.
    """
    local, producers = log.local, log.producers
    bounds = [segment.base_offset for segment in local.segments[1:]] + [log.log_end_offset]
    count = min(count, SEGMENTS_AT_ONCE, count_replicated(bounds, log.high_watermark))
    if count == len(local.segments):
        if not local.segments[-1].size:
            count -= 1
        else:
            log.roll()
    if count <= 0:
        return 0
    count, failure = local.doom(local.segments[:count], producers.snapshots, log.config.file_delete_delay_ms)
    if count:
        log.increment_log_start_offset(local.segments[count].base_offset)
        producers.forget_snapshots(local.segments[:count])
        local.forget_oldest(count)
        logger.info("%s: deleting %d segments up to offset %d by %s", log, count, log.log_start_offset, reason)
    if failure is not None:
        raise failure
    return count


def replace_segments(log: PartitionLog, old: list[Segment], new: Segment) -> None:
    """Replace neighbouring segments below the active one by one cleaned segment, whose files are there as `.swap`.

    After a crash from now on, the next start completes the swap (`recovery.swaps`): the old files are removed, the new
    ones stay. Reads of the old segments that are under way find their files under other names.

    Raises:
        StorageError: the disk refused. Unless the log is offline now, nothing has changed.
    """
    log.check()
    local, producers = log.local, log.producers
    slot = local.segments.index(old[0])
    superseded = {offset for offset in producers.snapshots if offset != new.base_offset}
    count, failure = local.doom(old, superseded, log.config.file_delete_delay_ms)
    if failure is not None:
        if count:
            local.health.fail(failure)  # the next start completes the deletion
        raise failure
    producers.forget_snapshots(old, kept=new.base_offset)
    local.swap_in(new, slot, len(old))
