"""The loop that shuffles: what it leaves in order, what not, and that a seed tells it all
(tools/simulation/world/loop.py)."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.simulation.world.loop import InOrder, ShuffledLoop, shuffled

SEEDS = range(30)


Work = list["asyncio.Future[None]"]


async def note(seen: list[int], number: int) -> None:
    seen.append(number)


def tasks(seen: list[int]) -> Work:
    return [asyncio.ensure_future(note(seen, number)) for number in range(5)]


def waiting_tasks(seen: list[int]) -> Work:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(5)]

    async def wait(number: int) -> None:
        await futures[number]
        seen.append(number)

    for number in range(5):
        loop.call_later(1, futures[number].set_result, None)
    return [asyncio.ensure_future(wait(number)) for number in range(5)]


def jobs(seen: list[int]) -> Work:
    return [asyncio.ensure_future(asyncio.to_thread(seen.append, number)) for number in range(5)]


def jobs_of_one_thread(seen: list[int]) -> Work:
    thread = ThreadPoolExecutor(1)

    loop = asyncio.get_running_loop()
    return [loop.run_in_executor(thread, seen.append, number) for number in range(5)]


def callbacks(seen: list[int]) -> Work:
    for number in range(5):
        asyncio.get_running_loop().call_soon(seen.append, number)
    return [asyncio.ensure_future(asyncio.sleep(1))]


def callbacks_of_a_future(seen: list[int]) -> Work:
    future = asyncio.get_running_loop().create_future()
    for number in range(5):
        future.add_done_callback(lambda _, number=number: seen.append(number))  # type: ignore[misc]
    future.set_result(None)
    return [asyncio.ensure_future(asyncio.sleep(1))]


def timers(seen: list[int]) -> Work:
    for number in range(5):
        asyncio.get_running_loop().call_later(number, seen.append, number)
    return [asyncio.ensure_future(asyncio.sleep(10))]


def orders(begin: Callable[[list[int]], Work]) -> set[tuple[int, ...]]:
    """The orders in which five things of a kind happened, with each seed."""

    async def run() -> tuple[int, ...]:
        seen: list[int] = []
        await asyncio.wait(begin(seen))
        return tuple(seen)

    found = []
    for seed in SEEDS:
        for _ in range(2):
            with shuffled(seed) as runner:
                found.append(runner.run(run()))
        assert found[-1] == found[-2], f"seed {seed} tells two stories"
    return set(found)


@pytest.mark.parametrize("begin", [tasks, waiting_tasks, jobs])
def test_shuffles(begin: Callable[[list[int]], Work]) -> None:
    assert len(orders(begin)) > 10


@pytest.mark.parametrize("begin", [jobs_of_one_thread, callbacks, callbacks_of_a_future, timers])
def test_keeps(begin: Callable[[list[int]], Work]) -> None:
    assert orders(begin) == {(0, 1, 2, 3, 4)}


def test_answers_of_one_thread_are_heard_in_order() -> None:
    async def run() -> list[int]:
        seen: list[int] = []
        thread = InOrder()

        async def ask(number: int) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ShuffledLoop)
            asked.append(number)
            await loop.run_in_executor(thread, int)
            seen.append(number)

        asked: list[int] = []
        await asyncio.gather(*(ask(number) for number in range(5)))
        assert seen == asked
        return asked

    stories = set()
    for seed in SEEDS:
        with shuffled(seed) as runner:
            stories.add(tuple(runner.run(run())))
    assert len(stories) > 10


def test_a_thread_may_ask_the_loop() -> None:
    async def answer(number: int) -> int:
        await asyncio.sleep(number)
        return number + 1

    async def run() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()

        def ask(number: int) -> int:
            assert threading.current_thread() is not threading.main_thread()
            for _ in range(10):
                number = asyncio.run_coroutine_threadsafe(answer(number), loop).result()
            return number

        return tuple(await asyncio.gather(*(asyncio.to_thread(ask, number) for number in range(5))))

    for seed in SEEDS:
        with shuffled(seed, job_s_max=2) as runner:
            assert runner.run(run()) == (10, 11, 12, 13, 14)


def test_says_so_when_nothing_can_happen_any_more() -> None:
    async def run() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="everybody waits"), shuffled(1) as runner:
        runner.run(run())
