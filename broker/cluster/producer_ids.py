"""Producer ids, taken one by one out of blocks that the controller hands out (Kafka's ProducerIdManager)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from barnabas.wire.names import ProducerId

HANDED_OUT_MAX: Final = 2**52
"""No cluster lives long enough to hand out a greater one: clients that write a batch may put any id into it."""


def highest_handed_out(used: Iterable[int]) -> int:
    """The greatest of the ids that logs name and that a broker can have handed out; -1 if there is none."""
    return max((producer_id for producer_id in used if producer_id <= HANDED_OUT_MAX), default=-1)


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
