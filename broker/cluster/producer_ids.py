"""Producer ids, taken one by one from blocks that the controller allocates (Kafka's ProducerIdManager)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from barnabas.wire.names import ProducerId

HANDED_OUT_MAX: Final = 2**52
"""No cluster lives long enough to allocate a greater id. Greater ids in batches are made up by clients, which may write
any id."""


def highest_handed_out(used: Iterable[int]) -> int:
    """The greatest of the ids in logs that a broker can have allocated; -1 if there is none."""
    return max((producer_id for producer_id in used if producer_id <= HANDED_OUT_MAX), default=-1)


class ProducerIdBlocks:
    """New blocks. A metadata store may have lost the allocated ids, or been restored from a backup; then the logs are
    searched for used ids, because a producer that gets the id of another one has its records taken for retries.

    `allocate(above)` has the controller allocate a block of ids greater than `above`; `used_ids` reads those of all
    logs, once; `is_store_trusted` returns, each time, whether the store cannot have lost allocations.
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

    `allocate_block` returns the first and the last id of a new block.
    """

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> ProducerId:
        """A new producer id; raises ApiError when no block is available."""
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    first, last = await self._allocate_block()
                    self._next, self._end = first, last + 1
        producer_id = self._next
        self._next += 1
        return ProducerId(producer_id)
