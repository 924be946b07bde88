"""The group coordinator of this broker: which shard serves a group, and how shards come and go.

A partition of `__consumer_offsets` that this broker leads is a shard: loaded from its log in a thread, then run by a
ShardRunner. Requests for a shard that is not here, or not loaded yet, fail at once: clients ask again. Source:
Kafka's GroupCoordinatorService and CoordinatorRuntime.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, overload

from barnabas.broker.coordinator import views
from barnabas.broker.coordinator.events import (
    CommitOffsets,
    DeleteGroup,
    DeleteGroupReply,
    DeleteOffsets,
    ExpireOffsets,
    FetchedOffset,
    ForgetTopics,
    GroupEvent,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    OffsetEvent,
    OffsetsReply,
    Reply,
    SyncGroup,
    SyncReply,
)
from barnabas.broker.coordinator.runner import CoordinatorLog, ShardRunner
from barnabas.broker.coordinator.settings import GroupSettings
from barnabas.broker.coordinator.shard import Shard
from barnabas.broker.coordinator.views import DescribedGroup, GroupSummary, ListedGroup
from barnabas.broker.timers import TimerHandle, Timers
from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.records import EndTxnMarker

log = logging.getLogger(__name__)

LOAD_RETRY_DELAY_MS: Final = 1_000
"""A shard that could not be loaded, or that was lost to its log, is loaded again after this time."""

GROUPS_PER_TURN: Final = 256
"""Background work gives way to requests after so many groups."""

TIMERS_MAX: Final = 30_000
"""Timers of all groups: one for each member or id that was handed out, another for each rebalance. A group with one
member takes up to 4 KiB; newcomers beyond that are told to come back.
"""

_NAMED_GROUP_EVENTS: Final = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DeleteOffsets)
"""These need a group id that is not empty; offsets may be kept under the empty id, as ever."""


class _Loading:
    """A shard on its way in; `topics` were deleted meanwhile."""

    __slots__ = ("is_cancelled", "retry", "topics")

    def __init__(self) -> None:
        self.is_cancelled = False
        self.topics: set[str] = set()
        self.retry: TimerHandle | None = None


class GroupService:
    """Groups and their offsets, for handlers and metrics; owned by the event loop.

    `partition_count` is the number of partitions of `__consumer_offsets`; it may be set until the first group is
    served. `new_id` gives a fresh UUID as text for every member id. `listeners` are called after every change of a
    group (tests wait with them).
    """

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        timers: Timers,
        clock: Clock,
        settings: GroupSettings,
        partition_count: int,
        new_id: Callable[[], str],
    ) -> None:
        self.partition_count = partition_count
        self.new_id = new_id
        self.settings = settings
        self._log = coordinator_log
        self._timers = timers
        self._clock = clock
        self.listeners: set[Callable[[], None]] = set()
        self._shards: dict[int, ShardRunner | _Loading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._expiry: TimerHandle | None = None
        self._is_active = False

    async def start(self) -> None:
        """Serve requests, and expire offsets from now on. Shards come with `on_elected`, which may be called before."""
        self._is_active = True
        self._schedule_expiry()

    async def stop(self) -> None:
        """Let go of every shard; returns when no thread reads the log any more."""
        self._is_active = False
        if self._expiry is not None:
            self._expiry.cancel()
        for partition in list(self._shards):
            self.on_resigned(partition)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # Shards

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds the group."""
        return abs_java_hash(group_id) % self.partition_count

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition from `leader_epoch` on: load it. A shard that is here already stays: nobody
        else wrote to it.
        """
        if partition not in self._shards:
            log.debug("Loading groups of partition %d, leader epoch %d", partition, leader_epoch)
            self._load(partition, _Loading())

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition, or none does: forget it. Waiting clients look for their new
        coordinator.
        """
        shard = self._shards.pop(partition, None)
        if isinstance(shard, ShardRunner):
            shard.close(ApiError(ErrorCode.NOT_COORDINATOR))
        elif shard is not None:
            shard.is_cancelled = True
            if shard.retry is not None:
                shard.retry.cancel()

    def _on_lost(self, partition: int) -> None:
        """The log failed in a way that leaves open what it holds: start over from what it does hold."""
        self.on_resigned(partition)
        loading = _Loading()
        self._shards[partition] = loading
        self._load_later(partition, loading)

    def _load_later(self, partition: int, loading: _Loading) -> None:
        delay_ms = LOAD_RETRY_DELAY_MS
        loading.retry = self._timers.call_later(delay_ms, lambda: self._load(partition, loading))

    def _load(self, partition: int, loading: _Loading) -> None:
        self._shards[partition] = loading
        self._spawn(self._load_shard(partition, loading))

    async def _load_shard(self, partition: int, loading: _Loading) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            shard = await asyncio.to_thread(_read_shard, self._log, partition, loading)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this log, the others must load
            log.error("Could not load groups of partition %d: %s: %s", partition, type(error).__name__, error)
            if not loading.is_cancelled:
                self._load_later(partition, loading)
            return
        if loading.is_cancelled:
            return
        for reason, count in shard.skipped.items():
            log.warning("Groups of partition %d: %d records left out, %s", partition, count, reason)
        log.log(
            logging.INFO if shard.groups else logging.DEBUG,
            "Loaded %d groups of partition %d in %d ms",
            len(shard.groups),
            partition,
            self._clock.monotonic_ms() - started_ms,
        )
        runner = ShardRunner(
            partition, shard, self._log, self._timers, self._clock, self.settings, self._on_lost, self._changed
        )
        self._shards[partition] = runner
        runner.start()
        self._changed()
        if loading.topics:
            await _forget_topics(runner, frozenset(loading.topics))

    def _changed(self) -> None:
        for listener in list(self.listeners):
            listener()

    def _runner(self, group_id: str) -> ShardRunner:
        if not self._is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards.get(self.partition_for(group_id))
        if isinstance(shard, ShardRunner):
            return shard
        raise ApiError(ErrorCode.NOT_COORDINATOR if shard is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _runners(self) -> list[ShardRunner]:
        return [shard for shard in self._shards.values() if isinstance(shard, ShardRunner)]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Background work of the group coordinator failed", exc_info=error)

    # Requests

    def ask(self, event: GroupEvent | OffsetEvent) -> "Reply | asyncio.Future[Reply]":
        """Have an event decided (its token is set here): the reply, or a future when the answer must wait.

        Errors: ApiError, raised or in the future: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (not started, or the log takes or replicates no
        records), UNKNOWN_SERVER_ERROR (too large to be stored).
        """
        if not event.group_id and isinstance(event, _NAMED_GROUP_EVENTS):
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        if isinstance(event, JoinGroup) and not (
            self.settings.group_min_session_timeout_ms
            <= event.session_timeout_ms
            <= self.settings.group_max_session_timeout_ms
        ):
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        runner = self._runner(event.group_id)
        if isinstance(event, JoinGroup) and not event.member_id and self._is_full():
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there are too many group members")
        return runner.ask(event)

    def _is_full(self) -> bool:
        """Whether a newcomer must wait: every member, and every id that was handed out, has its timer."""
        return sum(runner.alarm_count for runner in self._runners()) >= TIMERS_MAX

    @overload
    async def answer(self, event: JoinGroup) -> JoinReply: ...
    @overload
    async def answer(self, event: SyncGroup) -> SyncReply: ...
    @overload
    async def answer(self, event: Heartbeat) -> HeartbeatReply: ...
    @overload
    async def answer(self, event: LeaveGroup) -> LeaveReply: ...
    @overload
    async def answer(self, event: CommitOffsets | DeleteOffsets) -> OffsetsReply: ...
    @overload
    async def answer(self, event: DeleteGroup) -> DeleteGroupReply: ...
    async def answer(self, event: GroupEvent | OffsetEvent) -> Reply:
        """`ask`, and wait for the reply. Errors: as there."""
        reply = self.ask(event)
        return await reply if isinstance(reply, asyncio.Future) else reply

    def end_transaction(
        self,
        partition: int,
        marker: EndTxnMarker,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
    ) -> "asyncio.Future[None] | None":
        """Write a transaction's marker into a partition of `__consumer_offsets`: None when it is committed, else a
        future.

        Errors: ApiError, NOT_LEADER_OR_FOLLOWER while the shard is not here; INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.
        """
        shard = self._shards.get(partition)
        if not self._is_active or not isinstance(shard, ShardRunner):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return shard.end_transaction(marker, producer_id, producer_epoch, transaction_version)

    async def fetch_offsets(
        self, group_id: str, topics: Mapping[str, list[int]] | None, *, require_stable: bool
    ) -> dict[str, list[FetchedOffset]]:
        """The offsets of the partitions asked for, or (None) of all that have one; waits until they are committed.

        Errors: ApiError as `ask`, but NOT_COORDINATOR where replication takes too long: consumers before 3.9 retry no
        other. UNSTABLE_OFFSET_COMMIT per partition.
        """
        runner = self._runner(group_id)
        fetched = runner.shard.offsets.fetch(group_id, topics, require_stable=require_stable)
        try:
            reply = runner.once_committed(fetched)
            if isinstance(reply, asyncio.Future):
                await reply
        except ApiError as error:
            raise ApiError(ErrorCode.NOT_COORDINATOR, error.message) from error
        return fetched.topics

    def describe(self, group_id: str) -> DescribedGroup:
        """All about a group. Errors: ApiError as `ask`, GROUP_ID_NOT_FOUND."""
        group = self._runner(group_id).shard.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return views.describe(group)

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """The groups that this broker coordinates, filtered by state and type names.

        Errors: ApiError COORDINATOR_LOAD_IN_PROGRESS while any shard loads: a shorter list would look complete.
        """
        if not self._is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        runners = self._runners()
        if len(runners) < len(self._shards):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [
            listed for runner in runners for listed in views.list_groups(runner.shard.groups.values(), states, types)
        ]

    def summaries(self) -> Iterator[GroupSummary]:
        """State, size and committed offsets of every group whose shard is loaded."""
        for runner in self._runners():
            for group in runner.shard.groups.values():
                yield views.summarize(group, runner.shard.offsets)

    # Background work

    def running(self) -> "list[asyncio.Task[None]]":
        """Background work that is under way."""
        return list(self._tasks)

    async def on_topics_deleted(self, names: Collection[str]) -> None:
        """Forget all offsets of topics that are gone; shards that load do it when they are loaded."""
        topics = frozenset(names)
        for shard in list(self._shards.values()):
            if isinstance(shard, ShardRunner):
                await _forget_topics(shard, topics)
            else:
                shard.topics |= topics

    def _schedule_expiry(self) -> None:
        if self._is_active:
            self._expiry = self._timers.call_later(
                self.settings.offsets_retention_check_interval_ms, self._start_expiry
            )

    def _start_expiry(self) -> None:
        self._spawn(self._expire_offsets())

    async def _expire_offsets(self) -> None:
        try:
            for runner in self._runners():
                await _tell_groups(runner, [ExpireOffsets(group_id) for group_id in runner.shard.groups])
        finally:
            self._schedule_expiry()


async def _forget_topics(runner: ShardRunner, topics: frozenset[str]) -> None:
    offsets = runner.shard.offsets
    groups = {group_id for group_id, stored in offsets.by_group.items() if not topics.isdisjoint(stored)}
    groups |= {key[0] for pending in offsets.pending.values() for key in pending if key[1] in topics}
    events = [ForgetTopics(group_id, topics) for group_id in sorted(groups)]
    await _tell_groups(runner, events)


async def _tell_groups(runner: ShardRunner, events: Collection[ExpireOffsets | ForgetTopics]) -> None:
    for number, event in enumerate(events, start=1):
        if runner.is_closed:
            return
        runner.tell(event)
        if number % GROUPS_PER_TURN == 0:
            await asyncio.sleep(0)


def _read_shard(coordinator_log: CoordinatorLog, partition: int, loading: _Loading) -> Shard:
    """Build the shard from its log. Runs in a thread; touches nothing else but the cancellation flag."""
    shard = Shard()
    for chunk in coordinator_log.read_all(partition):
        if loading.is_cancelled:
            break
        shard.load(chunk)
    return shard


@lru_cache(maxsize=4096)
def abs_java_hash(text: str) -> int:
    """Java's String.hashCode without its sign (Utils.abs: the one value without a positive twin becomes 0)."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (value * 31 + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    signed = value - 0x100000000 if value & 0x80000000 else value
    return 0 if signed == -0x80000000 else abs(signed)
