"""One connection to a leader, over which a follower fetches: sends the requests of its `Fetcher`, and appends the
records in the responses (Kafka's ReplicaFetcherThread). `fetcher.py` decides, `follower_truncations.py` truncates.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.replication.fetcher import (
    FETCH_VERSION,
    Append,
    AskOffsets,
    Decision,
    Fetcher,
    Following,
    Mistake,
    Stage,
    StartAnew,
    Truncate,
)
from barnabas.broker.replication.fetcher_context import FetcherContext, FlushLog, LeaderConnection
from barnabas.broker.replication.follower_truncations import FollowerTruncations
from barnabas.broker.replication.throttles import Throttle
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.replicated_batches import replicated_headers, start_around
from barnabas.storage.truncation import Cut
from barnabas.turns import LOGS_PER_TURN, Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.fetch import PartitionData
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.record_batch import ReadBuffer

logger = logging.getLogger(__name__)

LIST_OFFSETS_VERSION: Final = 9
"""The highest version of Kafka 3.9."""

BYTES_PER_TURN: Final = 1 << 17
"""The number of bytes that are appended before other tasks have a turn: without turns, a replica that catches up may
use the whole processor. To check and write so many bytes takes some 0.3 ms, or 0.6 ms if the page cache has to find
room."""

_LATEST: Final = -1
_EARLIEST: Final = -2


class FetcherLane:
    """One connection to a leader, and the task that fetches over it.

    `before_request` is called immediately before each request, and `after_response` once the decisions from its
    response are carried out.
    """

    def __init__(
        self,
        context: FetcherContext,
        truncations: FollowerTruncations,
        fetcher: Fetcher,
        connection: LeaderConnection,
        name: str,
    ) -> None:
        self.fetcher = fetcher
        self.before_request: Callable[[], None] = _nothing
        self.after_response: Callable[[], None] = _nothing
        self._context = context
        self._truncations = truncations
        self._connection = connection
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = asyncio.Event()
        self._is_failing = False
        self._is_set_aside = False

    def start(self) -> None:
        """Start fetching."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def stop(self) -> "asyncio.Task[None]":
        """Stop fetching; returns the task, which ends."""
        assert self._task is not None
        self._task.cancel()
        self._context.set_aside.forget(self._name)
        return self._task

    def wake(self) -> None:
        """Check whether there is something to fetch."""
        self._is_wanted.set()

    # --- requests to the leader -------------------------------------------------------------------

    async def _run(self) -> None:
        clock = self._context.network_clock
        while True:
            try:
                await self._go_round()
            except OSError as error:
                self._note_failure(error)
                self.fetcher.failed(clock.monotonic_ms())
            except Exception as error:  # noqa: BLE001 - a bug here or at the leader: fetching continues after a delay
                self._context.set_aside.put(self._name, error)
                self._is_set_aside = True
                self.fetcher.failed(clock.monotonic_ms())

    async def _go_round(self) -> None:
        """Send one request and carry out its response; or wait until there is something to fetch. Raises OSError."""
        clock = self._context.network_clock
        self.before_request()
        throttle, now_ms = self._context.throttle, clock.monotonic_ms()
        is_throttled = throttle is not None and throttle.is_limited and self._hold_up(throttle, now_ms)
        request = self.fetcher.next_request(now_ms)
        if request is None:
            await self._pause(self.fetcher.pause_ms(clock.monotonic_ms()))
            return
        if is_throttled:
            request.max_bytes = min(request.max_bytes, self._context.settings.max_bytes)
        if self._context.reads.partitions:
            request.max_wait_ms = min(request.max_wait_ms, self._context.reads.wait_ms(self.fetcher))
        response = await self._connection.send(request, FETCH_VERSION, self._context.settings.socket_timeout_ms)
        self._is_failing = False
        decisions = self.fetcher.answered(response, clock.monotonic_ms())
        try:
            await self._carry_out(decisions)
        except Exception:
            self._take_back(decisions)
            raise
        self.after_response()
        if self._is_set_aside:
            self._is_set_aside = False
            self._context.set_aside.release(self._name)

    def _hold_up(self, throttle: Throttle, now_ms: int) -> bool:
        """Delay the partitions that are throttled and not in sync until the throttle lets their bytes pass; returns
        whether there are such partitions."""
        wait_ms = throttle.wait_ms()
        self.fetcher.end_delays(now_ms, bytes_may_pass=not wait_ms)  # otherwise the most delayed one has no turn
        behind = [
            each for each in self.fetcher.fetching(caught_up=False) if throttle.applies_to(each.topic, each.index)
        ]
        if wait_ms:
            for following in behind:
                self.fetcher.paused(following, now_ms + wait_ms)
        return bool(behind)

    async def _pause(self, duration_ms: int | None) -> None:
        """Wait until there may be something to fetch, at most for `duration_ms`."""
        self._is_wanted.clear()
        timer = None if duration_ms is None else self._context.timers.call_later(max(1, duration_ms), self.wake)
        try:
            await self._is_wanted.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _note_failure(self, error: OSError) -> None:
        if not self._is_failing:
            logger.warning("%s: %s; fetching again until it responds", self._name, error)
        self._is_failing = True

    # --- decisions --------------------------------------------------------------------------------

    async def _carry_out(self, decisions: list[Decision]) -> None:
        turns = Turns(BYTES_PER_TURN)
        cuts: dict[Following, Cut] = {}
        for decision in decisions:
            following, log = decision.following, decision.following.log
            assert isinstance(log, PartitionLog)
            if isinstance(decision, Append):
                records = decision.data.records or b""
                if len(records) > BYTES_PER_TURN:
                    records = await self._append_in_turns(following, log, decision.data, turns)
                if self.fetcher.is_current(following) and following.stage is Stage.FETCHING:
                    self.append(following, log, decision.data, records)
                await turns.after(BYTES_PER_TURN // LOGS_PER_TURN + len(records))
            elif isinstance(decision, AskOffsets):
                self._ask_offsets(following)
            elif isinstance(decision, Mistake):
                self.refused(following, log, decision.error)
            else:
                cuts[following] = _cut_of(decision, log)
        cuts = {following: cut for following, cut in cuts.items() if self.fetcher.is_current(following)}
        if cuts:
            self._truncations.begin(self, cuts)

    def _take_back(self, decisions: list[Decision]) -> None:
        """Decisions could not be carried out, because of an unexpected exception: retry their partitions, which would
        otherwise stay BUSY for ever."""
        for decision in decisions:
            if decision.following.stage is Stage.BUSY:
                self.fetcher.refused(decision.following, self._context.network_clock.monotonic_ms())

    async def _append_in_turns(
        self, following: Following, log: PartitionLog, data: PartitionData, turns: Turns
    ) -> ReadBuffer:
        """Append all but the last part of many records, with turns for other tasks in between, and return the last
        part. Afterwards the partition may not be followed any more."""
        assert data.records is not None
        *parts, last = parts_of(data.records, following.leader_epoch)
        for part in parts:
            if not (self.fetcher.is_current(following) and following.stage is Stage.FETCHING):
                break
            if not self._append_records(following, log, data, part):
                break
            await turns.after(len(part))
        return last

    def _append_records(
        self, following: Following, log: PartitionLog, data: PartitionData, records: ReadBuffer
    ) -> bool:
        """Append records; returns whether they are in the log, so that the rest of the response applies."""
        try:
            if self._begins_around(following, log, data, memoryview(records)):
                return False
            now_ms = self._context.clock.now_ms()
            info = log.append_as_follower(records, now_ms=now_ms, leader_epoch=following.leader_epoch)
            if info is None:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the leader sent records of an epoch that is not its own")
        except Exception as error:  # noqa: BLE001 - an error in one log does not stop the others
            self.refused(following, log, error)
            return False
        self._context.appended_bytes += len(records)
        throttle = self._context.throttle
        if throttle is not None and throttle.applies_to(following.topic, following.index):
            throttle.record(len(records))
        return True

    def append(self, following: Following, log: PartitionLog, data: PartitionData, records: ReadBuffer) -> None:
        """Apply the leader's response for one partition: append `records`, the last part of its records, and update the
        offsets. An error in one log does not stop the others."""
        if len(records) and not self._append_records(following, log, data, records):
            return
        try:
            # The high watermark never goes back: once committed, records stay committed in this log.
            log.update_high_watermark(max(log.high_watermark, min(data.high_watermark, log.log_end_offset)))
            if data.log_start_offset > log.log_start_offset:
                log.increment_log_start_offset(min(data.log_start_offset, log.high_watermark))
        except Exception as error:  # noqa: BLE001 - an error in one log does not stop the others
            self.refused(following, log, error)
            return
        self.fetcher.appended(following, data.high_watermark, had_records=bool(data.records))
        if self._context.reads.partitions:
            self._context.reads.changed(log)
        flush = self._context.flush
        if flush is not None and log.recovery_point < log.log_end_offset:
            self.fetcher.held(following)
            self._context.spawn(self._flush(flush, following, log))
        self.wake()

    def _begins_around(self, following: Following, log: PartitionLog, data: PartitionData, records: memoryview) -> bool:
        """Whether this log is empty and ends inside the leader's first batch, where the leader's log begins. If so,
        begin this log anew with that batch."""
        if log.log_start_offset != log.log_end_offset:
            return False
        start = start_around(records, log.log_end_offset)
        if start is None:
            return False
        self.fetcher.held(following)
        self._truncations.begin(self, {following: Cut(log, start, starts_anew=True)}, {following: data})
        return True

    def refused(self, following: Following, log: PartitionLog, error: Exception) -> None:
        """The leader's response for a partition could not be used: log the error once, and fetch again after a delay
        unless the disk has failed."""
        if isinstance(error, LogDeleted):  # the partition is no longer followed
            return
        # LogBusy is no error here: records of an older epoch are flushed while the log is truncated for a newer one.
        if not isinstance(error, LogBusy) and following.is_news(f"{log.log_end_offset} {error!r}"):
            if isinstance(error, ApiError):
                logger.error("records for %s at offset %d are refused: %s", following, log.log_end_offset, error)
            else:
                logger.error("cannot use the records fetched for %s", following, exc_info=error)
        if isinstance(error, StorageError) and not error.passes:
            self.fetcher.given_up(following)
        else:
            self.fetcher.refused(following, self._context.network_clock.monotonic_ms())

    async def _flush(self, flush: FlushLog, following: Following, log: PartitionLog) -> None:
        try:
            await flush(log)
        except Exception as error:  # noqa: BLE001 - as in `append`
            self.refused(following, log, error)
        else:
            self.fetcher.resumed(following)
        self.wake()

    # --- offsets out of range ---------------------------------------------------------------------

    def _ask_offsets(self, following: Following) -> None:
        """Ask the leader for its log end and start offsets before the next fetch."""
        answers = [
            self._connection.send(self._list_offsets(following, timestamp), LIST_OFFSETS_VERSION)
            for timestamp in (_LATEST, _EARLIEST)
        ]
        self._context.spawn(self._take_offsets(following, answers))

    def _list_offsets(self, following: Following, timestamp: int) -> ListOffsetsRequest:
        partition = ListOffsetsPartition(
            partition_index=following.index, current_leader_epoch=following.leader_epoch, timestamp=timestamp
        )
        return ListOffsetsRequest(
            replica_id=self._context.replica_id, topics=[ListOffsetsTopic(name=following.topic, partitions=[partition])]
        )

    async def _take_offsets(self, following: Following, answers: "list[asyncio.Future[Any]]") -> None:
        try:
            told = [response.topics[0].partitions[0] for response in await asyncio.gather(*answers)]
            await self._offsets_told(following, *told)
        except Exception as error:  # noqa: BLE001 - whatever the error, the leader is asked again
            if following.is_news(repr(error)):
                logger.warning("the leader of %s does not return its offsets: %r", following, error)
            self.fetcher.refused(following, self._context.network_clock.monotonic_ms())
        self.wake()

    async def _offsets_told(
        self, following: Following, latest: ListOffsetsPartitionResponse, earliest: ListOffsetsPartitionResponse
    ) -> None:
        fetcher, now_ms = self.fetcher, self._context.network_clock.monotonic_ms()
        errors = [ErrorCode.of(found.error_code) for found in (latest, earliest) if found.error_code]
        if ErrorCode.FENCED_LEADER_EPOCH in errors:
            fetcher.fenced(following, now_ms)
        elif errors:
            fetcher.refused(following, now_ms)
        else:
            decision = fetcher.offsets_told(following, earliest.offset, latest.offset, now_ms)
            if decision is not None:
                await self._carry_out([decision])


def parts_of(records: ReadBuffer, leader_epoch: int) -> list[ReadBuffer]:
    """Split records into parts of whole batches; each part is appended without a turn for others. The last part has at
    least one batch to append, and whatever follows the batches: bytes that cannot be read, or batches of another
    leader."""
    view, parts, start, end = memoryview(records), list[ReadBuffer](), 0, 0
    with contextlib.suppress(ApiError):  # it is raised when the last part is appended
        for header in replicated_headers(view, leader_epoch):
            if start < end and header.end_position - start > BYTES_PER_TURN:
                parts.append(view[start:end])
                start = end
            end = header.end_position
    return [*parts, view[start:]]


def _cut_of(decision: Truncate | StartAnew, log: PartitionLog) -> Cut:
    return Cut(log, decision.offset, starts_anew=isinstance(decision, StartAnew))


def _nothing() -> None:
    """The default hook of a lane before its requests and after its responses, until `FetcherManager` sets one."""
