"""Whose turn it is, and how long it lasts, by a clock that only turns move."""

import asyncio
from collections.abc import Callable

import pytest

from barnabas.broker.network.turns import SLICE_S, TURN_S, RequestTurns


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Asking:
    """A connection that keeps `left` requests, each of which takes `takes_s`."""

    def __init__(
        self, name: str, left: int, takes_s: float, time: Time, served: list[str], turns: RequestTurns
    ) -> None:
        self.name, self.left, self.takes_s = name, left, takes_s
        self.time, self.served, self.turns = time, served, turns
        self.is_aborted = False

    def take_turn(self) -> bool:
        while self.left:
            self.left -= 1
            self.served.append(self.name)
            self.time.now_s += self.takes_s
            if self.time.now_s >= self.turns.end_s and self.turns.is_over():
                break
        return self.left > 0

    def abort(self) -> None:
        self.is_aborted = True


class Scene:
    def __init__(self) -> None:
        self.time = Time()
        self.turns = RequestTurns(self.time)
        self.served: list[str] = []

    def asking(self, name: str, left: int = 1, takes_s: float = 0.004) -> Asking:
        return Asking(name, left, takes_s, self.time, self.served, self.turns)

    async def round(self) -> list[str]:
        """The requests that are served in the next round of the loop."""
        self.served.clear()
        await asyncio.sleep(0)
        return list(self.served)


def in_loop(test: "Callable[[Scene], object]") -> None:
    async def run() -> None:
        await test(Scene())  # type: ignore[misc]

    asyncio.run(run())


def test_a_slice_lasts_from_the_first_request_to_the_round_end() -> None:
    async def test(scene: Scene) -> None:
        turns, time = scene.turns, scene.time
        assert not turns.is_over()
        assert turns.end_s == time() + SLICE_S
        time.now_s += SLICE_S
        assert turns.is_over()
        await asyncio.sleep(0)
        assert not turns.is_over()

    in_loop(test)


def test_waiting_connections_are_served_between_other_work() -> None:
    async def test(scene: Scene) -> None:
        for name in "abcd":
            scene.turns.queue(scene.asking(name, left=2))
        rounds = [await scene.round() for _ in range(4)]
        assert rounds == [["a", "b", "c"], ["d", "a", "b"], ["c", "d"], []]

    in_loop(test)


def test_a_turn_is_many_short_requests() -> None:
    async def test(scene: Scene) -> None:
        scene.turns.queue(scene.asking("a", left=6, takes_s=TURN_S / 4))
        scene.turns.queue(scene.asking("b", left=1))
        assert await scene.round() == [*"aaaa", "b", *"aa"]

    in_loop(test)


def test_a_new_request_comes_first_and_costs_no_other_its_turn() -> None:
    async def test(scene: Scene) -> None:
        for name in "abc":
            scene.turns.queue(scene.asking(name, left=9))
        await scene.round()
        scene.turns.come_in(scene.asking("quick", takes_s=0.0001))
        assert await scene.round() == ["quick", "a", "b", "c"]
        for name in ("slow", "last"):
            scene.turns.come_in(scene.asking(name, takes_s=0.175))
        assert await scene.round() == ["last", "a"]
        assert await scene.round() == ["b", "c", "slow"]

    in_loop(test)


def test_no_connection_has_a_turn_while_turns_are_held() -> None:
    async def test(scene: Scene) -> None:
        scene.turns.hold()
        scene.turns.queue(scene.asking("a"))
        assert scene.time() >= scene.turns.end_s
        assert scene.turns.is_over()
        assert [await scene.round() for _ in range(3)] == [[], [], []]
        scene.turns.release()
        assert await scene.round() == ["a"]

    in_loop(test)


def test_a_connection_that_raises_is_cut_in_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    """The others have their turns."""

    async def test(scene: Scene) -> None:
        bad = scene.asking("bad")
        bad.takes_s = None  # type: ignore[assignment]
        scene.turns.queue(bad)
        scene.turns.queue(scene.asking("good"))
        assert await scene.round() == ["bad", "good"]
        assert bad.is_aborted
        assert "serving a request that was kept failed" in caplog.text

    in_loop(test)
