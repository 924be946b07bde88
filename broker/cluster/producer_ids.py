"""Producer ids, taken one by one out of blocks that the controller hands out (Kafka's ProducerIdManager)."""

import asyncio
from collections.abc import Awaitable, Callable

from barnabas.wire.names import ProducerId


class ProducerIds:
    """Gives each caller an id that no other producer of the cluster has.

    `allocate_block` returns the first and the last id of a fresh block.
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> ProducerId:
        """A fresh producer id; raises ApiError when no block can be had."""
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    first, last = await self._allocate_block()
                    self._next, self._end = first, last + 1
        producer_id = self._next
        self._next += 1
        return ProducerId(producer_id)
