"""How many partitions the fetches that wait have, all together: each of them costs memory for as long as it waits, and
a client may wait for weeks.
"""

import asyncio

PARTITIONS_MAX = 200_000
"""As many as fetch sessions may have; of a session only those that are awake are waited for."""

FEW = 10
"""Fetches of so many partitions at most are not counted: there are as many as connections, and they take little."""


class WaitingFetches:
    """The fetches of more than `FEW` partitions that wait; owned by the event loop. Beyond `partitions_max` the one
    with the most of them is answered with what there is, as if its client were not willing to wait any longer.
    """

    def __init__(self, partitions_max: int = PARTITIONS_MAX) -> None:
        self.partition_count = 0
        self._partitions_max = partitions_max
        self._sizes: dict[asyncio.Future[None], int] = {}

    def enter(self, enough: asyncio.Future[None], partition_count: int) -> None:
        """A fetch waits until `enough` is done."""
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
