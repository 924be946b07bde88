"""Jobs that block: where they run, and what those who wait for them hear (`barnabas/threads.py`)."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from barnabas.threads import OneThread, OsThreads, Threads
from tools.waiting import PATIENCE_S


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.mark.parametrize("threads", [OsThreads(), OneThread()], ids=["threads", "none"])
@in_loop
async def test_waiters_get_the_outcome(threads: Threads) -> None:
    threads.begin()
    workers = threads.workers("workers", 2)
    for call in (threads.call, workers.call):
        assert await call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await call(divmod, 7, 0)
    await workers.stop()


@in_loop
async def test_the_event_loop_goes_on_meanwhile() -> None:
    threads, go_on = OsThreads(), threading.Event()
    threads.begin()
    job = threads.call(go_on.wait, 60)
    go_on.set()
    assert await job


@in_loop
async def test_one_thread_runs_awaited_jobs_in_turn() -> None:
    threads, done = OneThread(), list[int]()
    jobs = [threads.call(done.append, number) for number in range(4)]
    assert done == [], "the caller goes on first"
    jobs[1].cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert done == [0, 2, 3]


@in_loop
async def test_a_stop_drops_what_has_not_begun_and_waits_for_what_has() -> None:
    threads, begun, go_on, done = OsThreads(), threading.Event(), threading.Event(), list[str]()
    threads.begin()
    workers = threads.workers("worker", 1)

    def job() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        done.append("first")

    first, second = workers.call(job), workers.call(done.append, "second")
    assert await threads.call(begun.wait, PATIENCE_S)
    stopping = asyncio.ensure_future(workers.stop())
    with pytest.raises(asyncio.CancelledError):
        await second
    assert not stopping.done()
    go_on.set()
    await stopping
    await first
    assert done == ["first"]
