"""Waiters for a commit are notified once, in the order of offsets, and forgotten when they time out."""

import asyncio

import pytest

from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.wire.errors import ApiError, ErrorCode

LOST = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def add(waiters: CommitWaiters, end_offset: int, *, outlasts: bool = False) -> "asyncio.Future[None]":
    return waiters.add(end_offset, outlasts_setbacks=outlasts)


async def test_waiters_below_the_high_watermark_are_released() -> None:
    waiters = CommitWaiters()
    futures = {end_offset: add(waiters, end_offset) for end_offset in (30, 10, 20)}
    again = add(waiters, 10)
    waiters.release(9)
    assert not any(future.done() for future in futures.values())
    waiters.release(20)
    assert [futures[end_offset].done() for end_offset in (10, 20, 30)] == [True, True, False]
    assert again.done()
    assert len(waiters) == 1


async def test_everybody_hears_of_a_loss() -> None:
    waiters = CommitWaiters()
    futures = [add(waiters, 10), add(waiters, 20, outlasts=True)]
    waiters.fail(LOST)
    assert [future.exception() for future in futures] == [LOST, LOST]
    assert len(waiters) == 0
    waiters.release(20)


async def test_a_failed_flush_is_told_to_whoever_can_send_again() -> None:
    waiters = CommitWaiters()
    producers = [add(waiters, end_offset) for end_offset in (10, 30)]
    coordinator = add(waiters, 20, outlasts=True)
    waiters.fail_producers(LOST)
    assert [future.exception() for future in producers] == [LOST, LOST]
    assert not coordinator.done()
    waiters.release(20)
    assert coordinator.result() is None


@pytest.mark.parametrize("end_offset_step", [1, -1])
async def test_waiters_that_gave_up_are_forgotten(end_offset_step: int) -> None:
    """No record is committed for a long time, and all waiting requests time out."""
    waiters = CommitWaiters()
    kept = add(waiters, 0)
    for number in range(10_000):
        add(waiters, end_offset_step * number).cancel()
        assert len(waiters) <= 64
    waiters.release(10_000)
    assert kept.done()
