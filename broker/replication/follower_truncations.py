"""Truncates the logs of followed partitions where they diverge from their leaders'.

A truncation runs in a thread, for all logs of one response together. Meanwhile the partition may be followed at another
leader, or in a newer epoch: its log is held there until the truncation ends, and is then fetched from its present
leader.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from barnabas.broker.replication.fetcher import Fetcher, FollowedLog, Following, PartitionId
from barnabas.broker.replication.fetcher_context import FetcherContext
from barnabas.storage.errors import StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.truncation import Cut
from barnabas.wire.messages.fetch import PartitionData
from barnabas.wire.record_batch import ReadBuffer

logger = logging.getLogger(__name__)


class TruncatingLane(Protocol):
    """The part of a lane that its truncations use (`FetcherLane`)."""

    fetcher: Fetcher

    def append(self, following: Following, log: PartitionLog, data: PartitionData, records: ReadBuffer) -> None:
        """Append records to a log that begins anew with them."""
        ...

    def refused(self, following: Following, log: PartitionLog, error: Exception) -> None:
        """Apply the error of a truncation."""
        ...

    def wake(self) -> None:
        """Check whether there is something to fetch."""
        ...


class FollowerTruncations:
    """The truncations in progress; owned by the event loop. `resume` resumes fetching a partition, whichever broker
    leads it by then."""

    def __init__(self, context: FetcherContext, resume: Callable[[PartitionId], None]) -> None:
        self._context = context
        self._resume = resume
        self._tasks: dict[FollowedLog, asyncio.Task[None]] = {}

    def __contains__(self, log: FollowedLog) -> bool:
        """Whether a log is being truncated."""
        return log in self._tasks

    @property
    def tasks(self) -> "set[asyncio.Task[None]]":
        """The tasks of all truncations, which must not be cancelled."""
        return set(self._tasks.values())

    async def ended(self, logs: Iterable[FollowedLog]) -> None:
        """Wait until none of these logs is being truncated."""
        tasks = {self._tasks[log] for log in logs if log in self._tasks}
        if tasks:
            await asyncio.wait(tasks)

    def begin(
        self, lane: TruncatingLane, cuts: dict[Following, Cut], rest: dict[Following, PartitionData] | None = None
    ) -> None:
        """Truncate logs in a thread, all of them together; then append `rest` to those that have some."""
        free = {following: cut for following, cut in cuts.items() if cut.log not in self}
        for following in cuts:
            if following not in free:  # it is being truncated in another epoch, and continues when that ends
                lane.fetcher.held(following)
        if free:
            task = self._context.spawn(self._run(lane, free, rest or {}))
            self._tasks |= dict.fromkeys((cut.log for cut in free.values()), task)

    async def _run(
        self, lane: TruncatingLane, cuts: dict[Following, Cut], rest: dict[Following, PartitionData]
    ) -> None:
        try:
            errors = await self._truncate(list(cuts.values()))
        except Exception as error:  # noqa: BLE001 - they would stay BUSY, and not be fetched
            for following, cut in cuts.items():
                lane.refused(following, cut.log, error)
                self._resume_in_newer_epoch(lane, following)
            lane.wake()
            return
        for following, cut in cuts.items():
            failure = errors.get(cut.log)
            if failure is not None and failure.passes:
                lane.refused(following, cut.log, failure)
                self._resume_in_newer_epoch(lane, following)
                lane.wake()
            elif failure is not None:
                logger.error("truncating %s to %d failed: %s", following, cut.offset, failure.message)
                lane.fetcher.given_up(following)
                self._resume_in_newer_epoch(lane, following)
            elif following in rest and lane.fetcher.is_current(following):
                lane.append(following, cut.log, rest[following], rest[following].records or b"")
            else:
                self._resume(following.id)

    def _resume_in_newer_epoch(self, lane: TruncatingLane, following: Following) -> None:
        """Resume a partition that is followed in another epoch by now: it was held for a truncation that has failed,
        and its next append shows whether its log accepts records."""
        if not lane.fetcher.is_current(following):
            self._resume(following.id)

    async def _truncate(self, cuts: list[Cut]) -> dict[PartitionLog, StorageError]:
        """The logs that could not be truncated, with their errors."""
        log_manager = self._context.log_manager
        try:
            truncations = log_manager.truncations(cuts)
            try:
                await log_manager.threads.call(truncations.run)
            except RuntimeError:  # no thread could be started; the logs cannot be left as they are
                truncations.run()
            truncations.complete()
        finally:
            for cut in cuts:
                del self._tasks[cut.log]
                self._context.reads.changed(cut.log)
        return truncations.errors
