"""Decides how many of a log's oldest segments retention deletes; `segment_removal` deletes them.

Each function takes the segments oldest first and returns how many of them to delete. Source:
UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from barnabas.storage.config import LogConfig
from barnabas.storage.descriptors import DescriptorCache
from barnabas.storage.segment import Segment
from barnabas.storage.segment_times import SegmentTimes

SEGMENTS_AT_ONCE: Final = 200
"""The number of segments of a log that one rule deletes before other logs have their turn: each takes a few renames. A
log may have tens of thousands if `segment.bytes` is small.
"""


class BreachedRule(NamedTuple):
    """The number of oldest segments that a rule wants deleted, possibly 0, and the rule's name for the log line."""

    segment_count: int
    name: str


def breached_rules(
    config: LogConfig,
    segments: Sequence[Segment],
    log_start_offset: int,
    cache: DescriptorCache,
    times: SegmentTimes | None,
    now_ms: int,
) -> Iterator[BreachedRule]:
    """The result of each rule for a log, in Kafka's order. `segments` is the log's own list: the caller deletes a
    rule's segments from it before it asks for the next rule.

    `times` are the segments' times read in a thread; without it they are read here. Raises OSError.
    """
    bounds = [segment.base_offset for segment in segments[1:]]
    yield BreachedRule(breached_by_start(bounds, log_start_offset), "log start offset")
    if not config.deletes_by_retention:
        return
    sizes = [segment.size for segment in segments]
    yield BreachedRule(breached_by_size(sizes, config.retention_bytes), "retention.bytes")
    if times is not None and isinstance(times.error, OSError):
        if isinstance(times.error, FileNotFoundError):
            return  # compaction renamed it meanwhile
        raise times.error
    timestamps = (segment.largest_timestamp(cache) if times is None else times.largest(segment) for segment in segments)
    yield BreachedRule(breached_by_time(timestamps, config.retention_ms, now_ms), "retention.ms")


def times_needed(config: LogConfig, segments: Sequence[Segment], cache: DescriptorCache, now_ms: int) -> SegmentTimes:
    """The segments' times that `breached_rules` needs: to be read in a thread."""
    if not config.deletes_by_retention or config.retention_ms < 0:
        segments = []
    elif not segments[-1].size:
        segments = segments[:-1]  # an empty segment stays, however old it is
    return SegmentTimes(
        cache,
        largest_of=segments,
        is_enough=lambda timestamp: not is_breached_by_time(timestamp, config.retention_ms, now_ms),
    )


def count_replicated(upper_bounds: Sequence[int], high_watermark: int) -> int:
    """The number of segments that lie wholly below the high watermark: no others may be deleted. `upper_bounds` are the
    base offsets of the next segments.
    """
    return sum(1 for _ in takewhile(lambda bound: bound <= high_watermark, upper_bounds))


def breached_by_start(next_base_offsets: Iterable[int], log_start_offset: int) -> int:
    """The number of segments all of whose records lie before the log start offset; the active segment has no next one
    and stays.
    """
    return sum(1 for _ in takewhile(lambda base_offset: base_offset <= log_start_offset, next_base_offsets))


def breached_by_size(sizes: Sequence[int], retention_bytes: int) -> int:
    """The number of segments without which the log still has at least `retention_bytes` (-1: unlimited). `sizes` are
    those of all segments.
    """
    excess = sum(sizes) - retention_bytes
    if retention_bytes < 0 or excess < 0:
        return 0
    count = 0
    for size in sizes:
        if excess < size:
            break
        excess -= size
        count += 1
    return count


def breached_by_time(largest_timestamps: Iterable[int | None], retention_ms: int, now_ms: int) -> int:
    """The number of segments whose largest timestamp is more than `retention_ms` (-1: unlimited) ago; an unknown
    timestamp (None) ends the count. Lazy, because a timestamp may have to be read from the disk.
    """
    if retention_ms < 0:
        return 0
    return sum(
        1
        for _ in takewhile(
            lambda timestamp: timestamp is not None and is_breached_by_time(timestamp, retention_ms, now_ms),
            largest_timestamps,
        )
    )


def is_breached_by_time(largest_timestamp: int, retention_ms: int, now_ms: int) -> bool:
    """Whether a segment with this largest timestamp is deleted."""
    return now_ms - largest_timestamp > retention_ms
