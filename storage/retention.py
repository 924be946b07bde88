"""Which of a log's oldest segments retention deletes: plans, without effects.

Each function takes the segments oldest first and answers how many of them go. Source: UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile


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
