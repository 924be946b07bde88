"""Fetches the partitions that this broker follows: connections to their leaders, appends, truncations (Kafka's
ReplicaFetcherManager, and the threads that it runs). `fetcher.py` decides; this module carries the decisions out.

Each leader has two connections, the lanes: the steady lane for partitions that have everything that is committed, and
the catch-up lane for those that do not, so that their large responses and cold reads do not delay partitions that
acknowledgements wait for. Partitions start in the catch-up lane.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from barnabas.broker.replication.fetcher import (
    FETCH_VERSION,
    Append,
    AskOffsets,
    Decision,
    Fetcher,
    FetchSettings,
    Following,
    Mistake,
    PartitionId,
    Stage,
    StartAnew,
    Truncate,
)
from barnabas.broker.replication.follower_reads import FollowerReads
from barnabas.broker.replication.throttles import Throttle
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.storage.replicated_batches import replicated_headers, start_around
from barnabas.storage.truncation import Cut
from barnabas.timers import Timers
from barnabas.turns import LOGS_PER_TURN, Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.fetch import PartitionData
from barnabas.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.wire.names import TopicId
from barnabas.wire.record_batch import ReadBuffer
from barnabas.wire.schema import Message

logger = logging.getLogger(__name__)

LIST_OFFSETS_VERSION: Final = 9
"""The highest version of Kafka 3.9."""

_BYTES_PER_TURN: Final = 1 << 17
"""The number of bytes that are appended before other tasks have a turn: checking and writing them takes some 0.3 ms,
0.6 where the page cache has to find room. Otherwise a replica that catches up may use the whole processor."""

_LATEST: Final = -1
_EARLIEST: Final = -2

FlushLog = Callable[[PartitionLog], Coroutine[Any, Any, None]]


class LeaderConnection(Protocol):
    """A connection to a leader (`network.peer_connection.PeerConnection`)."""

    def send(self, request: Message, version: int, timeout_ms: int | None = None) -> "asyncio.Future[Any]":
        """Send a request; the future is its response, or fails with OSError."""
        ...


class FetcherManager:
    """The fetchers of one broker; owned by the event loop.

    Args:
        replica_id: this broker's id.
        broker_epoch: returns the epoch of its current registration.
        connection: the connection to a broker for a purpose, always the same one (`Peers.connection`).
        log_manager: truncates logs, in its threads.
        clock: the time of appends.
        network_clock: the time by which partitions are delayed after errors.
        timers: end such delays.
        settings: sizes and times of fetches.
        flush: flushes a log. Given with `barnabas.flush.before.ack`: this replica then fetches only from offsets up to
            which its log is flushed, since its leader counts the fetch offset. Raises StorageError.
        throttle: delays partitions that are not in sync.
    """

    def __init__(
        self,
        replica_id: int,
        broker_epoch: Callable[[], int],
        connection: Callable[[int, str], LeaderConnection],
        log_manager: LogManager,
        clock: Clock,
        network_clock: Clock,
        timers: Timers,
        settings: FetchSettings,
        *,
        flush: FlushLog | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._connection = connection
        self.log_manager = log_manager
        self.clock = clock
        self.network_clock = network_clock
        self.timers = timers
        self.settings = settings
        self.flush = flush
        self.throttle = throttle
        self._leaders: dict[int, _Leader] = {}
        self._leader_of: dict[PartitionId, _Leader] = {}
        self._cutting: dict[PartitionLog, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.set_aside = SetAside[str]("fetching", network_clock, first_delay_ms=0)
        """Lanes with an unexpected exception; their fetchers decide when they fetch again."""
        self.reads = FollowerReads(network_clock)
        """The followed partitions that consumers read here."""
        self.appended_bytes = 0
        """The bytes appended from leaders, since the start."""

    # --- requests of the controller ---------------------------------------------------------------

    def follow(
        self,
        topic: str,
        topic_id: TopicId,
        index: int,
        leader_id: int,
        leader_epoch: int,
        log: PartitionLog,
        *,
        is_in_sync: bool = True,
    ) -> None:
        """Fetch a partition from its leader, from now on and in this epoch. `is_in_sync` is whether it is in the ISR by
        the controller's request."""
        leader = self._leaders.get(leader_id)
        if leader is None:
            leader = self._leaders[leader_id] = self._begin(leader_id)
        former = self._leader_of.get((topic_id, index))
        if former is not None and former is not leader:
            self._unfollow((topic_id, index))  # consumers that read it here go on
        self._leader_of[topic_id, index] = leader
        is_held = log in self._cutting
        leader.follow(topic, topic_id, index, leader_epoch, log, is_held=is_held, is_in_sync=is_in_sync)

    async def unfollow(self, partitions: Iterable[PartitionId]) -> None:
        """Stop fetching these partitions. Returns when none of their logs is being truncated, so that they may be led
        or deleted."""
        cutting = []
        for partition in list(partitions):
            following = self._unfollow(partition)
            if following is not None:
                self.reads.remove(following.log)
                if following.log in self._cutting:
                    cutting.append(self._cutting[following.log])
        if cutting:
            await asyncio.wait(cutting)

    def _unfollow(self, partition: PartitionId) -> Following | None:
        leader = self._leader_of.pop(partition, None)
        if leader is None:
            return None
        following = leader.unfollow(partition)
        if not len(leader):
            leader.end()
            del self._leaders[leader.id]
        return following

    def following(self, topic_id: TopicId, index: int) -> Following | None:
        """The state of a followed partition; None if it is not followed."""
        leader = self._leader_of.get((topic_id, index))
        return None if leader is None else leader.following((topic_id, index))

    @property
    def fetchers(self) -> list[Fetcher]:
        """The fetchers of all leaders and lanes."""
        return [lane.fetcher for leader in self._leaders.values() for lane in leader.lanes]

    async def stop(self) -> None:
        """Stop all fetchers; returns when no task here touches a log."""
        tasks = [task for leader in self._leaders.values() for task in leader.end()]
        for task in self._tasks:
            if task not in self._cutting.values():
                task.cancel()
        tasks += self._tasks
        self._leaders.clear()
        self._leader_of.clear()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, leader_id: int) -> "_Leader":
        def lane(number: int) -> "_Lane":
            return _Lane(
                self,
                Fetcher(self._replica_id, self._broker_epoch, self.settings),
                self._connection(leader_id, f"fetcher-{number}"),
                f"fetcher {number} of broker {leader_id}",
            )

        return _Leader(leader_id, lane(0), lane(1))

    # --- for the lanes ----------------------------------------------------------------------------

    @property
    def replica_id(self) -> int:
        """This broker's id."""
        return self._replica_id

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task beside the fetching."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cut(self, lane: "_Lane", cuts: dict[Following, Cut], rest: dict[Following, PartitionData]) -> None:
        """Truncate logs in a thread, all of them together; then append `rest` to those that have some."""
        free = {following: cut for following, cut in cuts.items() if cut.log not in self._cutting}
        for following in cuts:
            if following not in free:  # it is being cut in another epoch, and continues when that ends
                lane.fetcher.held(following)
        if free:
            task = self.spawn(self._cut(lane, free, rest))
            self._cutting |= dict.fromkeys((cut.log for cut in free.values()), task)

    async def _cut(self, lane: "_Lane", cuts: dict[Following, Cut], rest: dict[Following, PartitionData]) -> None:
        try:
            errors = await self._truncate(list(cuts.values()))
        except Exception as error:  # noqa: BLE001 - they would stay BUSY, and not be fetched
            for following, cut in cuts.items():
                lane.refused(following, cut.log, error)
                self._go_on_in_newer_epoch(lane, following)
            lane.wake()
            return
        for following, cut in cuts.items():
            failure = errors.get(cut.log)
            if failure is not None and failure.passes:
                lane.refused(following, cut.log, failure)
                self._go_on_in_newer_epoch(lane, following)
                lane.wake()
            elif failure is not None:
                logger.error("truncating %s to %d failed: %s", following, cut.offset, failure.message)
                lane.fetcher.given_up(following)
                self._go_on_in_newer_epoch(lane, following)
            elif following in rest and lane.fetcher.is_current(following):
                lane.append(following, cut.log, rest[following], rest[following].records or b"")
            else:
                self._go_on(following.id)

    def _go_on_in_newer_epoch(self, lane: "_Lane", following: Following) -> None:
        """Resume a partition that is followed in another epoch by now: it was held for a truncation that has failed,
        and its next append shows whether its log accepts records."""
        if not lane.fetcher.is_current(following):
            self._go_on(following.id)

    async def _truncate(self, cuts: list[Cut]) -> dict[PartitionLog, StorageError]:
        """The logs that could not be truncated, with their errors."""
        try:
            truncations = self.log_manager.truncations(cuts)
            try:
                await self.log_manager.threads.call(truncations.run)
            except RuntimeError:  # no thread could be started; the logs cannot be left as they are
                truncations.run()
            truncations.complete()
        finally:
            for cut in cuts:
                del self._cutting[cut.log]
                self.reads.changed(cut.log)
        return truncations.errors

    def _go_on(self, partition: PartitionId) -> None:
        """Resume fetching for a log, whichever broker leads it now."""
        leader = self._leader_of.get(partition)
        if leader is not None:
            leader.go_on(partition)


class _Leader:
    """The partitions followed at one broker, in two lanes."""

    def __init__(self, leader_id: int, steady: "_Lane", catching_up: "_Lane") -> None:
        self.id = leader_id
        self.lanes = (steady, catching_up)
        self._steady = steady
        self._catching_up = catching_up
        steady.before_request = self._take_over
        catching_up.after_response = self._steady.wake
        steady.after_response = self._give_up
        for lane in (steady, catching_up):
            lane.start()

    def __len__(self) -> int:
        return len(self._steady.fetcher) + len(self._catching_up.fetcher)

    def _lane_of(self, partition: PartitionId) -> "_Lane":
        return self._steady if partition in self._steady.fetcher else self._catching_up

    def follow(
        self,
        topic: str,
        topic_id: TopicId,
        index: int,
        leader_epoch: int,
        log: PartitionLog,
        *,
        is_held: bool,
        is_in_sync: bool,
    ) -> None:
        """Follow a partition; if it `is_held`, nothing is fetched yet."""
        lane = self._lane_of((topic_id, index))
        following = lane.fetcher.follow(topic, topic_id, index, leader_epoch, log)
        if not is_in_sync:
            lane.fetcher.lags(following)
        if is_held:
            lane.fetcher.held(following)
        lane.wake()

    def unfollow(self, partition: PartitionId) -> Following | None:
        """Stop following a partition; returns its former state, None if it was not followed."""
        return self._lane_of(partition).fetcher.unfollow(*partition)

    def following(self, partition: PartitionId) -> Following | None:
        """The state of a followed partition; None if it is not followed."""
        return self._lane_of(partition).fetcher.following(*partition)

    def go_on(self, partition: PartitionId) -> None:
        """Resume a partition whose log was held."""
        lane = self._lane_of(partition)
        following = lane.fetcher.following(*partition)
        if following is not None and following.stage is Stage.BUSY:
            lane.fetcher.resumed(following)
            lane.wake()

    def end(self) -> "list[asyncio.Task[None]]":
        """Stop both lanes; returns their tasks, which end."""
        return [self._steady.stop(), self._catching_up.stop()]

    def _take_over(self) -> None:
        """Move partitions that lack nothing committed to the steady lane: immediately before its request, so that each
        request includes them."""
        for following in self._catching_up.fetcher.fetching(caught_up=True):
            self._move(following, self._catching_up, self._steady)

    def _give_up(self) -> None:
        """Move partitions that lack committed records, and so are not in the ISR, to the catch-up lane."""
        behind = self._steady.fetcher.fetching(caught_up=False)
        for following in behind:
            self._move(following, self._steady, self._catching_up)
        if behind:
            self._catching_up.wake()

    @staticmethod
    def _move(following: Following, source: "_Lane", target: "_Lane") -> None:
        source.fetcher.unfollow(*following.id)
        moved = target.fetcher.follow(
            following.topic, following.topic_id, following.index, following.leader_epoch, following.log
        )
        moved.lag, moved.trouble = following.lag, following.trouble
        target.fetcher.lags(moved)


class _Lane:
    """One connection to a leader, and the task that fetches over it."""

    def __init__(self, manager: FetcherManager, fetcher: Fetcher, connection: LeaderConnection, name: str) -> None:
        self.fetcher = fetcher
        self.before_request: Callable[[], None] = _nothing
        self.after_response: Callable[[], None] = _nothing
        self._manager = manager
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
        self._manager.set_aside.forget(self._name)
        return self._task

    def wake(self) -> None:
        """Check whether there is something to fetch."""
        self._is_wanted.set()

    # --- requests to the leader -------------------------------------------------------------------

    async def _run(self) -> None:
        clock = self._manager.network_clock
        while True:
            try:
                await self._go_round()
            except OSError as error:
                self._note_failure(error)
                self.fetcher.failed(clock.monotonic_ms())
            except Exception as error:  # noqa: BLE001 - a bug here or at the leader: fetching continues after a delay
                self._manager.set_aside.put(self._name, error)
                self._is_set_aside = True
                self.fetcher.failed(clock.monotonic_ms())

    async def _go_round(self) -> None:
        """Send one request and carry out its response; or wait until there is something to fetch. Raises OSError."""
        clock = self._manager.network_clock
        self.before_request()
        throttle, now_ms = self._manager.throttle, clock.monotonic_ms()
        is_throttled = throttle is not None and throttle.is_limited and self._hold_up(throttle, now_ms)
        request = self.fetcher.next_request(now_ms)
        if request is None:
            await self._pause(self.fetcher.pause_ms(clock.monotonic_ms()))
            return
        if is_throttled:
            request.max_bytes = min(request.max_bytes, self._manager.settings.max_bytes)
        if self._manager.reads.partitions:
            request.max_wait_ms = min(request.max_wait_ms, self._manager.reads.wait_ms(self.fetcher))
        response = await self._connection.send(request, FETCH_VERSION, self._manager.settings.socket_timeout_ms)
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
            self._manager.set_aside.release(self._name)

    def _hold_up(self, throttle: Throttle, now_ms: int) -> bool:
        """Delay partitions that are throttled and not in sync until their bytes may pass; returns whether there are
        any."""
        wait_ms = throttle.wait_ms()
        self.fetcher.end_delays(now_ms, bytes_may_pass=not wait_ms)  # otherwise they may have to keep waiting
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
        timer = None if duration_ms is None else self._manager.timers.call_later(max(1, duration_ms), self.wake)
        try:
            await self._is_wanted.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _note_failure(self, error: OSError) -> None:
        if not self._is_failing:
            logger.warning("%s: %s; it is asked again until it answers", self._name, error)
        self._is_failing = True

    # --- decisions --------------------------------------------------------------------------------

    async def _carry_out(self, decisions: list[Decision]) -> None:
        turns = Turns(_BYTES_PER_TURN)
        cuts: dict[Following, Cut] = {}
        for decision in decisions:
            following, log = decision.following, decision.following.log
            assert isinstance(log, PartitionLog)
            if isinstance(decision, Append):
                records = decision.data.records or b""
                if len(records) > _BYTES_PER_TURN:
                    records = await self._append_in_turns(following, log, decision.data, turns)
                if self.fetcher.is_current(following) and following.stage is Stage.FETCHING:
                    self.append(following, log, decision.data, records)
                await turns.after(_BYTES_PER_TURN // LOGS_PER_TURN + len(records))
            elif isinstance(decision, AskOffsets):
                self._ask_offsets(following)
            elif isinstance(decision, Mistake):
                self.refused(following, log, decision.error)
            else:
                cuts[following] = _cut_of(decision, log)
        cuts = {following: cut for following, cut in cuts.items() if self.fetcher.is_current(following)}
        if cuts:
            self._manager.cut(self, cuts, {})

    def _take_back(self, decisions: list[Decision]) -> None:
        """Decisions could not be carried out, because of an unexpected exception: retry their partitions, which would
        otherwise stay BUSY for ever."""
        for decision in decisions:
            if decision.following.stage is Stage.BUSY:
                self.fetcher.refused(decision.following, self._manager.network_clock.monotonic_ms())

    async def _append_in_turns(
        self, following: Following, log: PartitionLog, data: PartitionData, turns: Turns
    ) -> ReadBuffer:
        """Append all but the last part of many records, with turns for other tasks in between, and return the last
        part; meanwhile the partition may have stopped being followed."""
        assert data.records is not None
        *parts, last = _parts(data.records, following.leader_epoch)
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
            now_ms = self._manager.clock.now_ms()
            info = log.append_as_follower(records, now_ms=now_ms, leader_epoch=following.leader_epoch)
            if info is None:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the leader sent records of an epoch that is not its own")
        except Exception as error:  # noqa: BLE001 - an error in one log does not stop the others
            self.refused(following, log, error)
            return False
        self._manager.appended_bytes += len(records)
        throttle = self._manager.throttle
        if throttle is not None and throttle.applies_to(following.topic, following.index):
            throttle.record(len(records))
        return True

    def append(self, following: Following, log: PartitionLog, data: PartitionData, records: ReadBuffer) -> None:
        """Apply the leader's response, of which these are the last records; an error in one log does not stop the
        others."""
        if len(records) and not self._append_records(following, log, data, records):
            return
        try:
            # Never back: once committed, records stay committed in this log.
            log.update_high_watermark(max(log.high_watermark, min(data.high_watermark, log.log_end_offset)))
            if data.log_start_offset > log.log_start_offset:
                log.increment_log_start_offset(min(data.log_start_offset, log.high_watermark))
        except Exception as error:  # noqa: BLE001 - an error in one log does not stop the others
            self.refused(following, log, error)
            return
        self.fetcher.appended(following, data.high_watermark, had_records=bool(data.records))
        if self._manager.reads.partitions:
            self._manager.reads.changed(log)
        flush = self._manager.flush
        if flush is not None and log.recovery_point < log.log_end_offset:
            self.fetcher.held(following)
            self._manager.spawn(self._flush(flush, following, log))
        self.wake()

    def _begins_around(self, following: Following, log: PartitionLog, data: PartitionData, records: memoryview) -> bool:
        """Whether the leader's log begins inside the first batch; then this log begins anew with that batch."""
        if log.log_start_offset != log.log_end_offset:
            return False
        start = start_around(records, log.log_end_offset)
        if start is None:
            return False
        self.fetcher.held(following)
        self._manager.cut(self, {following: Cut(log, start, starts_anew=True)}, {following: data})
        return True

    def refused(self, following: Following, log: PartitionLog, error: Exception) -> None:
        """A leader's response could not be used: logged once, and fetched again after a delay unless the disk has
        failed."""
        if isinstance(error, LogDeleted):  # it is no longer followed
            return
        # A log that is truncated for a newer epoch, while records of an older epoch are flushed, is no error.
        if not isinstance(error, LogBusy) and following.is_news(f"{log.log_end_offset} {error!r}"):
            if isinstance(error, ApiError):
                logger.error("what was fetched for %s at %d is refused: %s", following, log.log_end_offset, error)
            else:
                logger.error("cannot use what was fetched for %s", following, exc_info=error)
        if isinstance(error, StorageError) and not error.passes:
            self.fetcher.given_up(following)
        else:
            self.fetcher.refused(following, self._manager.network_clock.monotonic_ms())

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
        self._manager.spawn(self._take_offsets(following, answers))

    def _list_offsets(self, following: Following, timestamp: int) -> ListOffsetsRequest:
        partition = ListOffsetsPartition(
            partition_index=following.index, current_leader_epoch=following.leader_epoch, timestamp=timestamp
        )
        return ListOffsetsRequest(
            replica_id=self._manager.replica_id, topics=[ListOffsetsTopic(name=following.topic, partitions=[partition])]
        )

    async def _take_offsets(self, following: Following, answers: "list[asyncio.Future[Any]]") -> None:
        try:
            told = [response.topics[0].partitions[0] for response in await asyncio.gather(*answers)]
            await self._offsets_told(following, *told)
        except Exception as error:  # noqa: BLE001 - whatever the error, it is asked again
            if following.is_news(repr(error)):
                logger.warning("the leader of %s does not tell its offsets: %r", following, error)
            self.fetcher.refused(following, self._manager.network_clock.monotonic_ms())
        self.wake()

    async def _offsets_told(
        self, following: Following, latest: ListOffsetsPartitionResponse, earliest: ListOffsetsPartitionResponse
    ) -> None:
        fetcher, now_ms = self.fetcher, self._manager.network_clock.monotonic_ms()
        errors = [ErrorCode.of(found.error_code) for found in (latest, earliest) if found.error_code]
        if ErrorCode.FENCED_LEADER_EPOCH in errors:
            fetcher.fenced(following, now_ms)
        elif errors:
            fetcher.refused(following, now_ms)
        else:
            decision = fetcher.offsets_told(following, earliest.offset, latest.offset, now_ms)
            if decision is not None:
                await self._carry_out([decision])


def _parts(records: ReadBuffer, leader_epoch: int) -> list[ReadBuffer]:
    """Split records into parts of whole batches that are appended at once. The last part has at least one batch to
    append, followed by bytes that cannot be read or were sent by another leader."""
    view, parts, start, end = memoryview(records), list[ReadBuffer](), 0, 0
    with contextlib.suppress(ApiError):  # it is raised when the last part is appended
        for header in replicated_headers(view, leader_epoch):
            if start < end and header.end_position - start > _BYTES_PER_TURN:
                parts.append(view[start:end])
                start = end
            end = header.end_position
    return [*parts, view[start:]]


def _cut_of(decision: Truncate | StartAnew, log: PartitionLog) -> Cut:
    return Cut(log, decision.offset, starts_anew=isinstance(decision, StartAnew))


def _nothing() -> None:
    """The default hook of a lane before its requests and after its responses, until `_Leader` sets one."""
