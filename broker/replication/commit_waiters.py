"""Waits for the commit of an offset in one partition: producers with acks=all, coordinators for their records."""

import asyncio
import heapq
import itertools
from typing import Final, NamedTuple

from barnabas.wire.errors import ApiError

_PURGE_ABOVE_MIN: Final = 64
"""The number of waiters above which cancelled ones are searched for and removed."""


class _Waiter(NamedTuple):
    end_offset: int
    sequence: int
    """Distinguishes waiters for the same offset."""
    future: asyncio.Future[None]
    outlasts_setbacks: bool


class CommitWaiters:
    """Futures by the offset that they wait for; owned by the event loop."""

    __slots__ = ("_heap", "_purge_above", "_sequence")

    def __init__(self) -> None:
        self._heap: list[_Waiter] = []
        self._sequence = itertools.count()
        self._purge_above = _PURGE_ABOVE_MIN

    def __len__(self) -> int:
        """The number of waiters, including cancelled ones that were not removed yet."""
        return len(self._heap)

    def add(self, end_offset: int, *, outlasts_setbacks: bool) -> "asyncio.Future[None]":
        """A future that is done when everything below `end_offset` is committed. It fails with the ApiError of `fail`,
        and with that of `fail_producers` unless it `outlasts_setbacks`. A caller that stops waiting cancels it."""
        if len(self._heap) >= self._purge_above:
            self._forget_cancelled()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, _Waiter(end_offset, next(self._sequence), future, outlasts_setbacks))
        return future

    def release(self, high_watermark: int) -> None:
        """Complete the futures that wait for an offset up to `high_watermark`."""
        heap = self._heap
        while heap and heap[0].end_offset <= high_watermark:
            future = heapq.heappop(heap).future
            if not future.done():
                future.set_result(None)

    def fail(self, error: ApiError) -> None:
        """Fail all waiters: nothing more is committed here, because this broker is no longer the leader or the log has
        failed."""
        waiters, self._heap = self._heap, []
        _fail(waiters, error)

    def fail_producers(self, error: ApiError) -> None:
        """Fail the waiters that do not outlast setbacks: a flush failed and will be repeated, or too few replicas are
        in sync for now, so that their records may still be committed. A producer sends its batch again; a coordinator,
        whose state depends on its records, keeps waiting."""
        told = [waiter for waiter in self._heap if not waiter.outlasts_setbacks]
        self._heap = [waiter for waiter in self._heap if waiter.outlasts_setbacks]
        heapq.heapify(self._heap)
        _fail(told, error)

    def _forget_cancelled(self) -> None:
        """Amortised O(1): the next run is when the number of waiters has doubled."""
        self._heap = [waiter for waiter in self._heap if not waiter.future.done()]
        heapq.heapify(self._heap)
        self._purge_above = max(_PURGE_ABOVE_MIN, 2 * len(self._heap))


def _fail(waiters: list[_Waiter], error: ApiError) -> None:
    for waiter in waiters:
        if not waiter.future.done():
            waiter.future.set_exception(error)
