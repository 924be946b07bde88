"""A response that waits for commits in several partitions: of Produce with acks=all, of WriteTxnMarkers.

Commits are counted down; no task waits for them. Source: Kafka's DelayedProduce.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from barnabas.timers import Timers
from barnabas.wire.errors import ApiError, ErrorCode

Entry = TypeVar("Entry")
Reply = TypeVar("Reply")


def once_committed(
    reply: Reply,
    commits: Sequence[tuple[Entry, "asyncio.Future[None]"]],
    fail: Callable[[Entry, ErrorCode], None],
    timers: Timers,
    timeout_ms: int,
) -> "asyncio.Future[Reply]":
    """The response, once all commits have ended or `timeout_ms` have passed; then all commits are cancelled.

    Immediately before that, `fail` (which must not raise) is called for each entry of the response whose commit failed
    or has not ended, with REQUEST_TIMED_OUT, the error of the commit, or KAFKA_STORAGE_ERROR.
    """
    answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    left = len(commits)

    def one_has_ended(_commit: "asyncio.Future[None]") -> None:
        nonlocal left
        left -= 1
        if not left:
            end()

    def end() -> None:
        if answer.done():
            return
        for entry, commit in commits:
            error = _error_of(commit)
            if error is not None:
                fail(entry, error)
        answer.set_result(reply)

    def give_up(_answer: "asyncio.Future[Reply]") -> None:
        timer.cancel()
        for _, commit in commits:
            commit.cancel()

    timer = timers.call_later(timeout_ms, end)
    for _, commit in commits:
        commit.add_done_callback(one_has_ended)
    answer.add_done_callback(give_up)
    return answer


def _error_of(commit: "asyncio.Future[None]") -> ErrorCode | None:
    if not commit.done() or commit.cancelled():
        return ErrorCode.REQUEST_TIMED_OUT
    error = commit.exception()
    if error is None:
        return None
    return error.error if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
