"""A reply waits for all its commits, up to its timeout, and no task waits with it."""

import asyncio

import pytest

from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.broker.replication.delayed_reply import once_committed
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.wire.errors import ApiError, ErrorCode

TIMEOUT_MS = 1_000
LOST = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Bench:
    """A reply of as many entries as there are partitions, each of which waits for its first record."""

    def __init__(self, partitions: int = 3) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.partitions = [CommitWaiters() for _ in range(partitions)]
        self.commits = [waiters.add(1, outlasts_setbacks=False) for waiters in self.partitions]
        self.told: list[tuple[int, ErrorCode]] = []
        self.answer = once_committed("reply", list(enumerate(self.commits)), self.fail, self.timers, TIMEOUT_MS)

    def fail(self, entry: int, error: ErrorCode) -> None:
        self.told.append((entry, error))

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.fire_due()

    async def is_answered(self) -> bool:
        await asyncio.sleep(0)
        return self.answer.done()


async def test_the_last_commit_lets_it_go_and_no_task_waits() -> None:
    tasks = asyncio.all_tasks()
    bench = Bench()
    for waiters in bench.partitions:
        assert not await bench.is_answered()
        waiters.release(1)
    assert await bench.is_answered()
    assert await bench.answer == "reply"
    assert bench.told == []
    assert asyncio.all_tasks() == tasks
    bench.pass_time(TIMEOUT_MS)
    assert bench.told == []


@pytest.mark.parametrize(
    ("error", "told"),
    [(LOST, ErrorCode.NOT_LEADER_OR_FOLLOWER), (ZeroDivisionError(), ErrorCode.KAFKA_STORAGE_ERROR)],
)
async def test_each_entry_is_told_its_own_error_when_all_have_ended(error: Exception, told: ErrorCode) -> None:
    bench = Bench()
    bench.commits[1].set_exception(error)
    bench.partitions[0].release(1)
    assert not await bench.is_answered()
    assert bench.told == []
    bench.partitions[2].release(1)
    assert await bench.answer == "reply"
    assert bench.told == [(1, told)]


async def test_a_reply_leaves_at_its_timeout_without_further_waiters() -> None:
    bench = Bench()
    bench.partitions[0].release(1)
    bench.partitions[1].fail(LOST)
    bench.pass_time(TIMEOUT_MS - 1)
    assert not await bench.is_answered()
    bench.pass_time(1)
    assert await bench.answer == "reply"
    told = [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (2, ErrorCode.REQUEST_TIMED_OUT)]
    assert bench.told == told
    await asyncio.sleep(0)
    assert bench.commits[2].cancelled()
    bench.partitions[2].release(1)
    await asyncio.sleep(0)
    assert bench.told == told


async def test_a_wait_that_ends_at_its_timeout_is_answered_once() -> None:
    bench = Bench(1)
    bench.partitions[0].fail(LOST)
    bench.pass_time(TIMEOUT_MS)
    for _ in range(3):
        await asyncio.sleep(0)
    assert bench.told == [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)]


async def test_a_reply_that_is_given_up_has_no_waiters() -> None:
    bench = Bench()
    bench.answer.cancel()
    await asyncio.sleep(0)
    assert all(commit.cancelled() for commit in bench.commits)
    bench.pass_time(TIMEOUT_MS)
    assert bench.told == []


async def test_requests_that_time_out_leave_nothing_behind() -> None:
    """No record is committed for a long time."""
    timers = Timers(clock := ManualClock(), asyncio.get_running_loop())
    waiters = CommitWaiters()
    for number in range(1_000):
        commit = waiters.add(number, outlasts_setbacks=False)
        answer = once_committed(None, [(0, commit)], lambda _entry, _error: None, timers, 10)
        clock.advance(10)
        timers.fire_due()
        await answer
        await asyncio.sleep(0)
    assert len(waiters) <= 64
