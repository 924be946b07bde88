"""Reads the timestamps of segments for retention and compaction: some logs at a time, in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from barnabas.storage.log import PartitionLog
from barnabas.storage.segment_times import SegmentTimes
from barnabas.threads import Threads
from barnabas.turns import ENTRIES_PER_TURN


async def times_of_logs(
    logs: Sequence[PartitionLog],
    ask: Callable[[PartitionLog], SegmentTimes],
    is_over: Callable[[], bool],
    threads: Threads,
) -> AsyncIterator[tuple[PartitionLog, SegmentTimes]]:
    """Each log with the result of `ask`, until `is_over`.

    The event loop has turns in between: the caller has to check the state of the log again.
    """
    for start in range(0, len(logs), ENTRIES_PER_TURN):
        if is_over():
            return
        asked = [(log, ask(log)) for log in logs[start : start + ENTRIES_PER_TURN] if log.failure is None]
        unknown = [times for _, times in asked if not times.is_known]
        try:
            if unknown:
                await threads.call(_read_all, unknown)
            else:
                await asyncio.sleep(0)
        finally:
            for times in unknown:
                times.take_in()
        for found in asked:
            yield found


def _read_all(unknown: Sequence[SegmentTimes]) -> None:
    for times in unknown:
        times.read()
