"""Fetches the partitions that this broker follows (Kafka's ReplicaFetcherManager): at which leader, and in which lane.

Each leader has two connections, the lanes: the steady lane for partitions that have everything that is committed, and
the catch-up lane for those that do not, so that their large responses and cold reads do not delay partitions that
acknowledgements wait for. Partitions start in the catch-up lane.
"""

import asyncio
from collections.abc import Iterable

from barnabas.broker.replication.fetcher import Fetcher, Following, PartitionId, Stage
from barnabas.broker.replication.fetcher_context import FetcherContext
from barnabas.broker.replication.fetcher_lane import FetcherLane
from barnabas.broker.replication.follower_truncations import FollowerTruncations
from barnabas.storage.log import PartitionLog
from barnabas.wire.names import TopicId


class FetcherManager:
    """The fetchers of one broker; owned by the event loop."""

    def __init__(self, context: FetcherContext) -> None:
        self.context = context
        self._leaders: dict[int, _Leader] = {}
        self._leader_of: dict[PartitionId, _Leader] = {}
        self._truncations = FollowerTruncations(context, self._resume)
        self.set_aside = context.set_aside
        """Lanes with an unexpected exception."""
        self.reads = context.reads
        """The followed partitions that consumers read here."""

    @property
    def appended_bytes(self) -> int:
        """The bytes appended from leaders, since the start."""
        return self.context.appended_bytes

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
        is_held = log in self._truncations
        leader.follow(topic, topic_id, index, leader_epoch, log, is_held=is_held, is_in_sync=is_in_sync)

    async def unfollow(self, partitions: Iterable[PartitionId]) -> None:
        """Stop fetching these partitions. Returns when none of their logs is being truncated, so that they may be led
        or deleted."""
        unfollowed = [following for partition in list(partitions) if (following := self._unfollow(partition))]
        for following in unfollowed:
            self.reads.remove(following.log)
        await self._truncations.ended(following.log for following in unfollowed)

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
        for task in self.context.tasks - self._truncations.tasks:
            task.cancel()
        tasks += self.context.tasks
        self._leaders.clear()
        self._leader_of.clear()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, leader_id: int) -> "_Leader":
        context = self.context

        def lane(number: int) -> FetcherLane:
            fetcher = Fetcher(context.replica_id, context.broker_epoch, context.settings)
            connection = context.connection(leader_id, f"fetcher-{number}")
            name = f"fetcher {number} of broker {leader_id}"
            return FetcherLane(context, self._truncations, fetcher, connection, name)

        return _Leader(leader_id, lane(0), lane(1))

    def _resume(self, partition: PartitionId) -> None:
        """Resume fetching for a log, whichever broker leads it now."""
        leader = self._leader_of.get(partition)
        if leader is not None:
            leader.resume(partition)


class _Leader:
    """The partitions followed at one broker, in two lanes."""

    def __init__(self, leader_id: int, steady: FetcherLane, catching_up: FetcherLane) -> None:
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

    def _lane_of(self, partition: PartitionId) -> FetcherLane:
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

    def resume(self, partition: PartitionId) -> None:
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
    def _move(following: Following, source: FetcherLane, target: FetcherLane) -> None:
        source.fetcher.unfollow(*following.id)
        moved = target.fetcher.follow(
            following.topic, following.topic_id, following.index, following.leader_epoch, following.log
        )
        moved.lag, moved.trouble = following.lag, following.trouble
        target.fetcher.lags(moved)
