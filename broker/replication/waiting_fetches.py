"""Limits the number of partitions in all waiting fetches together: each of them uses memory for as long as it waits,
and a client may wait for weeks.
"""

import asyncio

PARTITIONS_MAX = 200_000
"""The same limit as for fetch sessions; a session's fetch waits only for its awake partitions."""

FEW = 10
"""Fetches of at most this many partitions are not counted: there are as many as connections, and they use little
memory."""


class WaitingFetches:
    """The waiting fetches of more than `FEW` partitions; owned by the event loop. Beyond `partitions_max` the largest
    one is completed with the available records, as if its client's wait were over.
    """

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self.partition_count = 0
        self._partitions_max = partitions_max
        self._sizes: dict[asyncio.Future[None], int] = {}

    def enter(self, enough: asyncio.Future[None], partition_count: int) -> None:
        """Register a fetch that waits until `enough` is done."""
        self._sizes[enough] = partition_count
        self.partition_count += partition_count
        enough.add_done_callback(self._leave)
        while self.partition_count > self._partitions_max:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._leave(largest)
            if not largest.done():
                largest.set_result(None)

    def _leave(self, enough: asyncio.Future[None]) -> None:
        self.partition_count -= self._sizes.pop(enough, 0)
