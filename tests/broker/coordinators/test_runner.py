"""The shell that all coordinators share, under the least of coordinators: one that adds numbers to sums."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import wraps
from typing import Any, ClassVar, NamedTuple

import pytest

from barnabas.broker.coordinators.effects import Cancel, Effects, Schedule, Token
from barnabas.broker.coordinators.runner import TIMER_RETRY_DELAY_MS, ShardRunner
from barnabas.broker.coordinators.runtime import LOAD_RETRY_DELAY_MS, CoordinatorDefinition, CoordinatorRuntime
from barnabas.broker.coordinators.shard import Shard
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ApiError, ErrorCode, ProtocolError
from tests.broker.coordinators.memory_log import MemoryLog

COMMIT_TIMEOUT_MS = 500
TIMER_MS = 1_000
HELD_BYTES_MAX = 100


class Add(NamedTuple):
    """Answered with the sum; a negative `number` at once with the sum as it is, and 0 with the one after this."""

    key: str
    token: Token
    number: int


class Doubled(NamedTuple):
    """The effect of a timer, and of every start, on a sum."""

    key: str


class Sum(NamedTuple):
    """The record."""

    key: str
    value: int


class Parked(NamedTuple):
    """Somebody waits for the next sum."""

    key: str
    token: Token


class Sums(Shard[Add | Doubled, Sum | Parked, int]):
    RECORDS: ClassVar = (Sum,)

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, int] = {}
        self.parked: dict[str, list[Token]] = {}
        self.doublings: list[int] = []
        self.is_broken = False

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def held_bytes(self) -> int:
        return 10 * len(self.sums)

    @staticmethod
    def decode_record(key: bytes, value: bytes | None) -> Sum:
        if value is None:
            raise ProtocolError("no sum")
        return Sum(key.decode(), int(value))

    def decide(
        self, event: Add | Doubled, now_ms: int, settings: Any, uncommitted: Collection[str]
    ) -> Effects[Sum | Parked, int]:
        known = self.sums.get(event.key, 0)
        if isinstance(event, Doubled):
            self.doublings.append(now_ms)
            assert not self.is_broken
            return Effects([Sum(event.key, 2 * known)])
        if event.number < 0:
            return Effects(replies=[(event.token, known)], timers=[Cancel("double")], at_once=True)
        if event.number == 0:
            return Effects([Parked(event.key, event.token)])
        wanted = known + event.number
        waiting = [*self.parked.get(event.key, ()), event.token]
        return Effects(
            [Sum(event.key, wanted)],
            [(token, wanted) for token in waiting],
            [Schedule("double", TIMER_MS)],
            is_followed_up=event.key in uncommitted or wanted > 100,
        )

    def _apply(self, key: str, change: Sum | Parked, record_offset: int, producer_id: int) -> None:
        if isinstance(change, Parked):
            self.parked.setdefault(key, []).append(change.token)
        else:
            self.sums[key] = change.value
            self.parked.pop(key, None)

    def commit_timeout_ms(self, key: str, settings: Any) -> int:
        return COMMIT_TIMEOUT_MS

    def events_at_start(self) -> list[Add | Doubled]:
        return [Doubled(key) for key in self.sums]

    def timer_fired(self, key: str, timer_key: Any) -> Doubled:
        return Doubled(key)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_000_000)
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.log: Any = MemoryLog()
        self.followed_up: list[str] = []
        definition = CoordinatorDefinition(
            "sums",
            ShardRunner[Sums, Add | Doubled, int],
            Sums,
            lambda record: (record.key.encode(), str(record.value).encode()),
            HELD_BYTES_MAX,
            SetAside[str]("events of sums", self.clock),
            follow_up=lambda _, key: self.followed_up.append(key),
        )
        self.runtime = CoordinatorRuntime(definition, self.log, 1, self.timers, self.clock, None)

    async def up(self) -> "Bench":
        self.runtime.start()
        self.runtime.on_elected(0, 1)
        await self.loaded()
        return self

    async def loaded(self) -> None:
        while work := self.runtime.running():
            await asyncio.wait(work)

    def ask(self, key: str, number: int) -> "int | asyncio.Future[int]":
        return self.runtime.runner(key).ask(Add(key, 0, number))

    @property
    def shard(self) -> Sums:
        return self.runtime.runner("").shard

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.fire_due()


def in_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def error_of(reply: "int | asyncio.Future[int]") -> ErrorCode:
    assert isinstance(reply, asyncio.Future)
    assert reply.done(), "it would wait for ever"
    with pytest.raises(ApiError) as caught:
        await reply
    return caught.value.error


@in_loop
async def test_replies_leave_at_once_when_all_is_committed() -> None:
    bench = await Bench().up()
    assert bench.ask("a", 1) == 1
    assert bench.ask("a", 2) == 3
    assert bench.ask("b", 5) == 5
    assert bench.log.record_counts(0) == [1, 1, 1]


@in_loop
async def test_a_wait_for_a_commit_ends_once() -> None:
    bench = await Bench().up()
    bench.log.replicated = False
    first, second = bench.ask("a", 1), bench.ask("a", 2)
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert bench.ask("a", -1) == 3, "at once"
    bench.log.waiting.pop(0).set_result(None)
    assert await first == 1
    bench.pass_time(COMMIT_TIMEOUT_MS - 1)
    assert not second.done()
    bench.pass_time(1)
    assert await error_of(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.replicate()
    await asyncio.sleep(0)
    third = bench.ask("a", 4)
    assert third == 7


@in_loop
async def test_a_waiting_reply_is_answered_by_an_event_or_the_end() -> None:
    bench = await Bench().up()
    parked = [bench.ask("a", 0), bench.ask("b", 0)]
    assert bench.ask("a", 1) == 1
    assert isinstance(parked[0], asyncio.Future)
    assert await parked[0] == 1
    bench.runtime.on_resigned(0)
    assert await error_of(parked[1]) is ErrorCode.NOT_COORDINATOR


@in_loop
async def test_a_follow_up_begins_at_the_commit_without_waiters() -> None:
    bench = await Bench().up()
    assert bench.ask("a", 100) == 100
    assert bench.followed_up == []
    bench.log.replicated = False
    asked = bench.ask("a", 1)
    bench.pass_time(COMMIT_TIMEOUT_MS)
    assert await error_of(asked) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.followed_up == []
    bench.log.replicate()
    await asyncio.sleep(0)
    assert bench.followed_up == ["a"]


@in_loop
async def test_a_decision_is_told_what_is_not_committed() -> None:
    bench = await Bench().up()
    bench.log.replicated = False
    bench.ask("a", 1)
    bench.ask("b", 1)
    bench.ask("a", 1)
    bench.log.replicate()
    await asyncio.sleep(0)
    assert bench.followed_up == ["a"], "by a decision while the one before could be lost"
    bench.ask("a", 1)
    assert bench.followed_up == ["a"], "nothing of it can be lost any more"


@in_loop
async def test_a_log_that_refuses_changes_nothing() -> None:
    bench = await Bench().up()
    bench.ask("a", 3)
    bench.log.refusal = ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
    with pytest.raises(ApiError, match="UNKNOWN_SERVER_ERROR"):
        bench.ask("a", 1)
    bench.log.refusal = None
    assert bench.ask("a", -1) == 3
    assert bench.shard.end_offset == 1


@in_loop
async def test_a_log_in_doubt_is_loaded_again() -> None:
    bench = await Bench().up()
    bench.ask("a", 3)
    waiting = bench.ask("a", 0)
    bench.log.refusal = ApiError(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        bench.ask("a", 1)
    assert await error_of(waiting) is ErrorCode.NOT_COORDINATOR
    bench.log.refusal = None
    bench.pass_time(LOAD_RETRY_DELAY_MS)
    await bench.loaded()
    assert bench.ask("a", -1) == 6, "doubled by the start"


@in_loop
async def test_a_shard_of_another_broker_is_not_set_aside() -> None:
    """Neither when it could not be loaded before, nor when that fails later."""
    bench = Bench()
    bench.log.read_error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.runtime.on_elected(0, 1)
    await bench.loaded()
    assert bench.runtime.set_aside.members == ["partition 0"]
    bench.runtime.on_resigned(0)
    assert bench.runtime.set_aside.members == []
    bench.log.gate.clear()
    bench.runtime.on_elected(0, 2)
    await asyncio.sleep(0)
    bench.runtime.on_resigned(0)
    bench.log.gate.set()
    await bench.loaded()
    assert bench.runtime.set_aside.members == []
    assert bench.runtime.set_aside.failures == 1


@in_loop
async def test_a_timer_whose_records_were_refused_is_tried_again() -> None:
    bench = await Bench().up()
    bench.ask("a", 3)
    bench.log.refusal = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.pass_time(TIMER_MS)
    bench.log.refusal = None
    bench.pass_time(TIMER_RETRY_DELAY_MS - 1)
    assert bench.shard.sums["a"] == 3
    bench.pass_time(1)
    assert bench.shard.sums["a"] == 6


@in_loop
async def test_a_timer_that_raises_is_tried_again_less_and_less_often() -> None:
    bench = await Bench().up()
    started_ms = bench.clock.now_ms()
    bench.ask("a", 3)
    bench.shard.is_broken = True
    for _ in range(10_000):
        bench.pass_time(100)
    assert [at_ms - started_ms for at_ms in bench.shard.doublings] == [1_000, 61_000, 181_000, 421_000, 901_000]
    assert bench.runtime.set_aside_events.members == ["a"]
    bench.shard.is_broken = False
    bench.pass_time(3_600_000)
    assert bench.shard.sums == {"a": 6}
    assert bench.runtime.set_aside_events.members == []


@in_loop
async def test_the_log_makes_the_same_shard_again() -> None:
    before = await Bench().up()
    for key, number in (("a", 1), ("b", 5), ("a", 2)):
        before.ask(key, number)
    loaded = Sums()
    await before.log.read_all(0, loaded.load)
    assert (loaded.sums, loaded.end_offset) == (before.shard.sums, before.shard.end_offset) == ({"a": 3, "b": 5}, 3)


@in_loop
async def test_one_more_is_refused_when_the_shards_take_too_much() -> None:
    bench = await Bench().up()
    for number in range(9):
        bench.runtime.memory.check(10, HELD_BYTES_MAX, "too much")
        bench.ask(str(number), 1)
    with pytest.raises(ApiError, match="COORDINATOR_NOT_AVAILABLE"):
        bench.runtime.memory.check(11, HELD_BYTES_MAX, "too much")
    bench.runtime.memory.check(10, HELD_BYTES_MAX, "too much")
    bench.runtime.memory.check(30, HELD_BYTES_MAX + 20, "too much")
    assert bench.runtime.memory.refused_count == 1
