"""The group coordinator of this broker: requests of handlers, and background work.

Groups and their offsets live in `__consumer_offsets`; `runtime` has its shards. Source: Kafka's
GroupCoordinatorService.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final, overload

from barnabas.broker.coordinators.effects import printable
from barnabas.broker.coordinators.groups import views
from barnabas.broker.coordinators.groups.events import (
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
from barnabas.broker.coordinators.groups.kinds import DescribedGroup
from barnabas.broker.coordinators.groups.records import encode_record
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.groups.shard import KINDS, GroupShard
from barnabas.broker.coordinators.groups.views import GroupSummary, ListedGroup
from barnabas.broker.coordinators.log import CoordinatorLog
from barnabas.broker.coordinators.runner import ShardRunner, answered
from barnabas.broker.coordinators.runtime import CoordinatorDefinition, CoordinatorRuntime
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.turns import Turns
from barnabas.wire.control_records import EndTxnMarker
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import CompressionType

GROUPS_PER_TURN: Final = 256
"""The number of groups after which background work lets requests run."""

_GROWING_EVENTS: Final = (JoinGroup, SyncGroup, CommitOffsets)

_NAMED_GROUP_EVENTS: Final = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DeleteOffsets)
"""These need a group id that is not empty; offsets may be stored under the empty id, as in Kafka."""


class GroupRunner(ShardRunner[GroupShard, GroupEvent | OffsetEvent, Reply]):
    """Runs one partition of `__consumer_offsets`."""


class GroupService:
    """Groups and their offsets, for handlers and metrics; owned by the event loop.

    `runtime` holds the shards of `__consumer_offsets`. `new_id` returns a new UUID as text for every member id.
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
        self.new_id = new_id
        self.settings = settings
        self.set_aside = SetAside[str]("timers of the group", clock, name=printable)
        self.set_aside_offsets = SetAside[str](
            "forgetting offsets of the group", clock, first_delay_ms=0, name=printable
        )
        definition = CoordinatorDefinition(
            "groups",
            GroupRunner,
            GroupShard,
            encode_record,
            settings.held_bytes_max,
            self.set_aside,
            compression=CompressionType(settings.offsets_topic_compression_codec),
        )
        self.runtime = CoordinatorRuntime(definition, coordinator_log, partition_count, timers, clock, settings)

    @property
    def set_asides(self) -> tuple[SetAside[str], ...]:
        """The members that are set aside, by activity."""
        return (self.set_aside, self.set_aside_offsets, self.runtime.set_aside)

    async def start(self) -> None:
        """Start to serve requests."""
        self.runtime.start()

    async def stop(self) -> None:
        """Unload every shard; returns when no thread reads the log any more."""
        await self.runtime.stop()

    # Requests

    def ask(self, event: GroupEvent | OffsetEvent) -> "Reply | asyncio.Future[Reply]":
        """Pass an event (its token is set here) to its shard; returns the reply, or a future if the reply has to wait.

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
        runner = self.runtime.runner(event.group_id)
        if isinstance(event, JoinGroup):
            self._check_room(runner, event)
        if isinstance(event, _GROWING_EVENTS):
            self._check_memory(runner, event)
        return runner.ask(event)

    def _check_room(self, runner: GroupRunner, event: JoinGroup) -> None:
        """Refuse a new member if there are too many timers, since every member, and every assigned id, has one; and any
        join that would make the group too large.
        """
        if not event.member_id:
            timers = sum(len(runner.alarms) for runner in self.runtime.runners())
            is_used = event.group_id in runner.shard.offsets.by_group
            settings = self.settings
            if timers >= (settings.timers_of_used_groups_max if is_used else settings.timers_max):
                raise self.runtime.memory.refusal("there are too many group members")
        group = runner.shard.groups.get(event.group_id)
        if group is not None and group.members:
            added = runner.shard.added_bytes(event)
            if added > 0 and group.held_bytes + added > self.settings.held_bytes_of_group_max:
                raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "the metadata of the group's members is too large")

    def _check_memory(self, runner: GroupRunner, event: JoinGroup | SyncGroup | CommitOffsets) -> None:
        """Refuse an event that would add too much to the memory of groups and offsets."""
        settings = self.settings
        if isinstance(event, CommitOffsets):
            bytes_max = settings.held_bytes_max
        elif event.group_id in runner.shard.offsets.by_group:
            bytes_max = settings.held_bytes_of_used_groups_max
        else:
            bytes_max = settings.held_bytes_with_members_max
        added = runner.shard.added_bytes(event)
        self.runtime.memory.check(added, bytes_max, "groups and offsets take too much memory")

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
        del event  # it may be large, and the wait long: the stored parts are in the group, and counted there
        return await answered(reply)

    def end_transaction(
        self,
        partition: int,
        marker: EndTxnMarker,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
    ) -> "asyncio.Future[None] | None":
        """Write a transaction marker into a partition of `__consumer_offsets`: None when it is committed, else a
        future.

        Errors: ApiError, NOT_LEADER_OR_FOLLOWER while the shard is not here; INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.
        """
        runner = self.runtime.runner_at(partition)
        if runner is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return runner.end_transaction(marker, producer_id, producer_epoch, transaction_version)

    async def fetch_offsets(
        self, group_id: str, topics: Mapping[str, Collection[int]] | None, *, require_stable: bool
    ) -> dict[str, list[FetchedOffset]]:
        """The offsets of the requested partitions, or (None) of all that have one; waits until they are committed.

        Errors: ApiError as `ask`, but NOT_COORDINATOR where replication takes too long: consumers before 3.9 retry no
        other. UNSTABLE_OFFSET_COMMIT per partition.
        """
        runner = self.runtime.runner(group_id)
        fetched = runner.shard.offsets.fetch(group_id, topics, require_stable=require_stable)
        try:
            reply = runner.once_committed(group_id, fetched)
            if isinstance(reply, asyncio.Future):
                await reply
        except ApiError as error:
            raise ApiError(ErrorCode.NOT_COORDINATOR, error.message) from error
        return fetched.topics

    def describe(self, group_id: str) -> DescribedGroup:
        """The description of a group. Errors: ApiError as `ask`, GROUP_ID_NOT_FOUND."""
        group = self.runtime.runner(group_id).shard.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return KINDS[group.group_type].describe(group)

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[ListedGroup]:
        """The groups that this broker coordinates, filtered by state and type names.

        Errors: ApiError, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS while any shard loads.
        """
        listed: dict[str, ListedGroup] = {}
        for runner in self.runtime.all_runners():
            for found in views.list_groups(runner.shard.groups.values(), states, types):
                if found.group_id not in listed or self._is_served_by(runner, found.group_id):
                    listed[found.group_id] = found
        return list(listed.values())

    def _is_served_by(self, runner: GroupRunner, group_id: str) -> bool:
        """Whether the runner serves the group; otherwise its group is from before the topic got more partitions."""
        return self.runtime.partition_for(group_id) == runner.partition

    def summaries(self, text_bytes_max: int = sys.maxsize) -> tuple[list[GroupSummary], int]:
        """State, size and committed offsets of the groups whose shards are loaded, and the number of groups left out
        because a page with all of them (a line for each, two for each offset) would be longer than `text_bytes_max`.
        """
        summaries: dict[str, GroupSummary] = {}
        left_out = 0
        for runner in self.runtime.runners():
            offsets = runner.shard.offsets
            for group in runner.shard.groups.values():
                if group.group_id in summaries and not self._is_served_by(runner, group.group_id):
                    continue
                text_bytes = views.page_bytes(group.group_id, offsets)
                if text_bytes > text_bytes_max:
                    left_out += 1
                else:
                    text_bytes_max -= text_bytes
                    summaries[group.group_id] = views.summarize(group, offsets)
        return list(summaries.values()), left_out

    # Background work

    async def on_topics_deleted(self, names: Collection[str]) -> None:
        """Delete all offsets of deleted topics; shards that are loading do it afterwards."""
        await self.runtime.tell_all(partial(self._forget_topics, frozenset(names)))

    async def expire_offsets(self) -> None:
        """Delete the offsets, and then the groups, that have outlived `offsets.retention.minutes`."""
        for runner in self.runtime.runners():
            await self._tell_groups(runner, [ExpireOffsets(group_id) for group_id in runner.shard.groups])

    async def _forget_topics(self, topics: frozenset[str], runner: GroupRunner) -> None:
        offsets = runner.shard.offsets
        groups = {group_id for group_id, stored in offsets.by_group.items() if not topics.isdisjoint(stored)}
        groups |= offsets.groups_with_pending(topics)
        events = [ForgetTopics(group_id, topics) for group_id in sorted(groups)]
        await self._tell_groups(runner, events)

    async def _tell_groups(self, runner: GroupRunner, events: Collection[ExpireOffsets | ForgetTopics]) -> None:
        turns = Turns(GROUPS_PER_TURN)
        for event in events:
            if runner.is_closed:
                return
            with self.set_aside_offsets.attempt(event.group_id):
                runner.tell(event)
            await turns.after_one()
