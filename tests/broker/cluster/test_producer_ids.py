"""Producer ids out of blocks."""

import asyncio

from barnabas.broker.cluster.producer_ids import ProducerIds


def test_blocks_are_used_up_and_never_overlap() -> None:
    blocks = iter([(0, 2), (3, 5), (1000, 1002)])

    async def allocate() -> tuple[int, int]:
        await asyncio.sleep(0)
        return next(blocks)

    async def take() -> list[int]:
        ids = ProducerIds(allocate)
        return [await ids.next() for _ in range(2)] + sorted(await asyncio.gather(*(ids.next() for _ in range(6))))

    assert asyncio.run(take()) == [0, 1, 2, 3, 4, 5, 1000, 1001]
