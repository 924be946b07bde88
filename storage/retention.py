"""Which of a log's oldest segments retention deletes. What is decided here is done by `PartitionLog`.

Each function takes the segments oldest first and answers how many of them go. Source: UnifiedLog.deleteOldSegments.
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
"""So many segments of a log are deleted by one rule before others have their turn: each takes a few renames. A log may
have tens of thousands where `segment.bytes` is small."""


class BreachedRule(NamedTuple):
    """How many of the oldest segments a rule wants deleted, maybe none, and the rule's name for the log line."""

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
    """What each rule says of a log, in Kafka's order. `segments` is the log's own list: the segments that a rule names
    are taken out of it before the next one is asked for.

    `times` is what was read of the segments' times in a thread; without it they are read here. Raises OSError.
    """
    bounds = [segment.base_offset for segment in segments[1:]]
    yield BreachedRule(breached_by_start(bounds, log_start_offset), "log start offset")
    if not config.deletes_by_retention:
        return
    sizes = [segment.size for segment in segments]
    yield BreachedRule(breached_by_size(sizes, config.retention_bytes), "retention.bytes")
    if times is not None and isinstance(times.error, OSError):
        if isinstance(times.error, FileNotFoundError):
            return  # a swap gave it another name while it was looked at
        raise times.error
    timestamps = (segment.largest_timestamp(cache) if times is None else times.largest(segment) for segment in segments)
    yield BreachedRule(breached_by_time(timestamps, config.retention_ms, now_ms), "retention.ms")


def times_needed(config: LogConfig, segments: Sequence[Segment], cache: DescriptorCache, now_ms: int) -> SegmentTimes:
    """What `breached_rules` needs to know of the segments' times: to be read in a thread."""
    if not config.deletes_by_retention or config.retention_ms < 0:
        segments = []
    elif not segments[-1].size:
        segments = segments[:-1]  # an empty one stays, however old it is
    return SegmentTimes(
        cache,
        largest_of=segments,
        is_enough=lambda timestamp: not is_breached_by_time(timestamp, config.retention_ms, now_ms),
    )


def count_replicated(upper_bounds: Sequence[int], high_watermark: int) -> int:
    """Segments that lie wholly below the high watermark: no others may be deleted. `upper_bounds` are the offsets
    where the next ones start.
    """
    return sum(1 for _ in takewhile(lambda bound: bound <= high_watermark, upper_bounds))


def breached_by_start(next_base_offsets: Iterable[int], log_start_offset: int) -> int:
    """Segments all of whose records lie before the log start offset; the active segment has no next one and stays."""
    return sum(1 for _ in takewhile(lambda base_offset: base_offset <= log_start_offset, next_base_offsets))


def breached_by_size(sizes: Sequence[int], retention_bytes: int) -> int:
    """Segments without which the log still has at least `retention_bytes` (-1: unlimited). `sizes` are those of all
    segments.
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
    """Segments whose largest timestamp is more than `retention_ms` (-1: unlimited) ago; None is not known, and ends it.
    Looked up one by one: it may need the disk.
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
    """Whether a segment with this largest timestamp goes."""
    return now_ms - largest_timestamp > retention_ms
