"""Large replies are made one after the other, and the event loop is free in between for as long as the work took."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from barnabas.broker.api.large_replies import RESTING_MIN_MS, LargeReplies
from barnabas.clock import ManualClock
from tests.support.manual_timers import ManualTimers


class Loop:
    """The replies that were made, and the rests between them, which end when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock(0)
        self.timers = ManualTimers()
        self.replies = LargeReplies(self.timers, self.clock)  # type: ignore[arg-type]
        self.made: list[str] = []

    @property
    def rests_ms(self) -> list[int]:
        return [timer.delay_ms for timer in self.timers.waiting]

    def ask(self, name: str, work_ms: int, has_room: Callable[[], Awaitable[None]] | None = None) -> asyncio.Task[str]:
        def work() -> str:
            self.made.append(name)
            self.clock.advance(work_ms)
            return name

        return asyncio.create_task(self.replies.make(work, has_room))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Loop], Any]) -> None:
    async def in_loop() -> None:
        await scenario(Loop())

    asyncio.run(in_loop())


def test_a_rest_is_as_long_as_the_work() -> None:
    async def scenario(loop: Loop) -> None:
        first, second = loop.ask("first", 40), loop.ask("second", 7)
        await settle()
        assert await first == "first"  # the reply itself does not wait
        assert (loop.made, loop.rests_ms) == (["first"], [40])
        loop.timers.fire()
        await settle()
        assert await second == "second"
        assert loop.rests_ms == [7]

    run(scenario)


def test_short_work_has_no_rest() -> None:
    async def scenario(loop: Loop) -> None:
        tasks = [loop.ask(str(number), RESTING_MIN_MS - 1) for number in range(3)]
        await asyncio.gather(*tasks)
        assert (loop.made, loop.rests_ms) == (["0", "1", "2"], [])

    run(scenario)


def test_a_failure_rests_as_well() -> None:
    async def scenario(loop: Loop) -> None:
        def fail() -> None:
            loop.clock.advance(20)
            raise ValueError("refused")

        with pytest.raises(ValueError, match="refused"):
            await loop.replies.make(fail)
        other = loop.ask("other", 0)
        await settle()
        assert not other.done()
        loop.timers.fire()
        assert await other == "other"

    run(scenario)


def test_waiting_for_room_is_not_work() -> None:
    async def scenario(loop: Loop) -> None:
        has_room = asyncio.Event()

        async def wait() -> None:
            await has_room.wait()

        first, second = loop.ask("first", 0, wait), loop.ask("second", 0)
        await settle()
        loop.clock.advance(1_000)
        assert loop.made == []
        has_room.set()
        await asyncio.gather(first, second)
        assert (loop.made, loop.rests_ms) == (["first", "second"], [])

    run(scenario)


@pytest.mark.parametrize("position", [0, 1])
def test_a_cancelled_request_gives_up_its_turn(position: int) -> None:
    async def scenario(loop: Loop) -> None:
        closed = asyncio.Event()

        async def wait() -> None:
            await closed.wait()

        tasks = [loop.ask("a", 0, wait), loop.ask("b", 0, wait), loop.ask("c", 0)]
        await settle()
        tasks[position].cancel()
        closed.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert loop.made == [name for name in "abc" if name != "ab"[position]]

    run(scenario)
