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


class ProducerIdBlocks:
    """Fresh blocks. A metadata store may have forgotten what was handed out, or be that of an earlier day; then the
    logs are asked which ids are used: a producer that gets one of another has its records taken for retries.

    `allocate(above)` has the controller hand out a block of ids that are greater than `above`; `used_ids` reads those
    of all logs, once; `is_store_trusted` says, each time, that the store cannot have forgotten.
    """

    def __init__(
        self,
        allocate: Callable[[int], Awaitable[tuple[int, int]]],
        used_ids: Callable[[], Awaitable[Iterable[int]]],
        is_store_trusted: Callable[[], bool],
    ) -> None:
        self._allocate = allocate
        self._used_ids = used_ids
        self._is_store_trusted = is_store_trusted
        self._highest_used: int | None = None

    async def next(self) -> tuple[int, int]:
        """The first and the last id of a block. Errors: ApiError COORDINATOR_LOAD_IN_PROGRESS and the controller's."""
        if self._highest_used is None and not self._is_store_trusted():
            self._highest_used = highest_handed_out(await self._used_ids())
        return await self._allocate(-1 if self._highest_used is None else self._highest_used)


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
