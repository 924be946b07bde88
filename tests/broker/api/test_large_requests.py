"""Large requests are let in one after the other; what is decoded of all of them together is bounded."""

import asyncio

from barnabas.broker.api.large_requests import SERVED_BYTES_MAX, LargeRequests

HALF = SERVED_BYTES_MAX // 2


async def asked(large: LargeRequests, *sizes: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(large.enter(size)) for size in sizes]
    await settle()
    return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def let_in(tasks: list[asyncio.Task[None]]) -> list[bool]:
    return [task.done() and not task.cancelled() for task in tasks]


def test_large_requests_begin_in_order_when_there_is_room() -> None:
    async def scenario() -> None:
        large = LargeRequests()
        tasks = await asked(large, HALF, HALF - 1, HALF, 1)
        assert let_in(tasks) == [True, True, False, False]  # there is room for the last one, but not its turn
        large.leave(HALF)
        await settle()
        assert let_in(tasks) == [True] * 4
        for size in (HALF - 1, HALF, 1):
            large.leave(size)
        assert large.served_bytes == 0

    asyncio.run(scenario())


def test_a_request_larger_than_the_room_runs_alone() -> None:
    async def scenario() -> None:
        large = LargeRequests()
        tasks = await asked(large, 3 * SERVED_BYTES_MAX, 1)
        assert let_in(tasks) == [True, False]
        large.leave(3 * SERVED_BYTES_MAX)
        await settle()
        assert let_in(tasks) == [True, True]

    asyncio.run(scenario())


def test_a_request_of_a_gone_connection_delays_no_other() -> None:
    async def scenario() -> None:
        large = LargeRequests()
        tasks = await asked(large, HALF, SERVED_BYTES_MAX, HALF)
        assert let_in(tasks) == [True, False, False]
        tasks[1].cancel()
        await settle()
        assert let_in(tasks) == [True, False, True]
        waiting = await asked(large, HALF)
        large.leave(HALF)
        waiting[0].cancel()  # let in, and gone before it knows
        await settle()
        assert (let_in(waiting), large.served_bytes) == ([False], HALF)

    asyncio.run(scenario())
