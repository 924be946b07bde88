"""A partition that this broker leads and others follow: applies the followers' fetches, proposes ISRs to the
controller, and completes the waits for deletions. `followers.py` decides; this module carries the decisions out (the
rest of Kafka's Partition; docs/decisions/0013-followers-at-their-leader.md). Created for one leader epoch; a partition
without other replicas has none.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from barnabas.broker.cluster.alter_partitions import AlterPartitions
from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.broker.replication.followers import Follower, Followers, Proposal
from barnabas.broker.replication.isr import PartitionState
from barnabas.broker.replication.throttles import Throttle
from barnabas.clock import Clock
from barnabas.storage.log import PartitionLog
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import BrokerState, RequestPartitionData, ResponsePartitionData
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

logger = logging.getLogger(__name__)


class LedPartition(Protocol):
    """The part of a partition that its leadership uses (`Partition`)."""

    topic_id: TopicId
    index: int
    log: PartitionLog
    state: PartitionState

    @property
    def own_offset(self) -> int:
        """The offset up to which the leader's own log counts."""
        ...

    def commit(self, offset: int) -> None:
        """Commit everything below `offset`, which is beyond the high watermark."""
        ...

    def in_sync_replicas_changed(self) -> None:
        """Apply another ISR."""
        ...


class Leaderships:
    """The shared parameters of all leaderships of a broker, and their counters.

    `clock` measures the lag of followers, and their heartbeats (`ReplicaFetch`). `lag_ms_max` is
    `replica.lag.time.max.ms`; `is_alive(broker_id)` returns whether that broker is registered, as far as the controller
    has reported. `throttle` delays followers that are not in sync.
    """

    def __init__(
        self,
        clock: Clock,
        lag_ms_max: int,
        is_alive: Callable[[int], bool],
        alter_partitions: AlterPartitions,
        throttle: Throttle | None = None,
    ) -> None:
        self.clock = clock
        self.lag_ms_max = lag_ms_max
        self.is_alive = is_alive
        self.alter_partitions = alter_partitions
        self.throttle = throttle
        self.isr_expands = 0
        """The number of stored ISRs with more followers."""
        self.isr_shrinks = 0
        self.failed_isr_updates = 0
        """The number of proposals that the controller refused, or whose responses were outdated."""

    def lead(self, partition: LedPartition, told: "LeaderAndIsrPartitionState") -> "Leadership":
        """Begin to lead a partition with followers, as the controller requested."""
        return Leadership(self, partition, told)


class Leadership:
    """The leader's side of one partition with followers, in one leader epoch; owned by the event loop."""

    __slots__ = ("_deletions", "_has_ended", "_partition", "_shared", "followers")

    def __init__(self, shared: Leaderships, partition: LedPartition, told: "LeaderAndIsrPartitionState") -> None:
        state = partition.state
        self._shared = shared
        self._partition = partition
        self._deletions: CommitWaiters | None = None
        self._has_ended = False
        self.followers = Followers(
            state.node_id,
            told.replicas,
            told.isr,
            leader_epoch=told.leader_epoch,
            partition_epoch=told.partition_epoch,
            start_offset=state.leader_epoch_start_offset,
            now_ms=shared.clock.monotonic_ms(),
            is_eligible=lambda replica_id, _broker_epoch: shared.is_alive(replica_id),
        )

    # --- requests of the controller ---------------------------------------------------------------

    def told(self, told: "LeaderAndIsrPartitionState") -> None:
        """Apply a further request in the same leader epoch, perhaps with other replicas or another ISR."""
        self.followers.told(told.replicas, told.isr, told.partition_epoch)

    def end(self, error: ErrorCode) -> None:
        """End the leadership: this broker leads no longer, or in another epoch. Waits for deletions fail with
        `error`.
        """
        self._has_ended = True
        if self._deletions is not None:
            self._deletions.fail(ApiError(error))

    # --- fetches of followers ---------------------------------------------------------------------

    def knows(self, replica_id: int) -> bool:
        """Whether that broker has a replica and is registered, as far as this broker knows."""
        return self.followers.follower(replica_id) is not None and self._shared.is_alive(replica_id)

    def fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """Apply a follower's fetch from `fetch_offset`, with its broker epoch and its log start offset. Only for a
        fetch that can be served: not out of range, and not from a log that diverges.

        Raises ApiError: UNKNOWN_LEADER_EPOCH if the broker is no replica of the partition, as far as this broker knows;
        NOT_LEADER_OR_FOLLOWER if the fetch is from an earlier registration.
        """
        followers, log = self.followers, self._partition.log
        follower = followers.follower(replica_id)
        if follower is None:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if followers.is_outdated(replica_id, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        has_more = follower.log_end_offset != fetch_offset
        now_ms = self._shared.clock.monotonic_ms()
        follower.fetched(fetch_offset, log_start_offset, broker_epoch, log.log_end_offset, now_ms)
        if replica_id not in followers.isr:
            self._propose(followers.expansion(replica_id, log.high_watermark, now_ms))
        if has_more:
            self._advance()
        if self._deletions is not None:
            self._deletions.release(self.low_watermark())

    def resting(self, replica_id: int) -> Follower | None:
        """A follower that has just fetched, has everything, and is in the ISR: its further fetches need not look at the
        partition before something changes. None otherwise."""
        follower = self.followers.follower(replica_id)
        if (
            follower is None
            or follower.log_end_offset != self._partition.log.log_end_offset
            or replica_id not in self.followers.isr
        ):
            return None
        return follower

    def look_at_isr(self) -> None:
        """Called periodically: propose to remove lagging followers from the ISR, and commit records that only waited
        for a replica that has not joined."""
        log = self._partition.log
        proposal = self.followers.shrinking(
            log.log_end_offset, self._shared.clock.monotonic_ms(), self._shared.lag_ms_max
        )
        self._propose(proposal)
        self._advance()
        if self._deletions is not None:
            self._deletions.release(self.low_watermark())

    # --- the high watermark -----------------------------------------------------------------------

    def high_watermark(self, own_offset: int) -> int:
        """The high watermark when the leader's own log counts up to `own_offset`; see `Followers`."""
        log = self._partition.log
        return self.followers.high_watermark(
            own_offset,
            log.log_end_offset,
            self._shared.clock.monotonic_ms(),
            min_insync_replicas=log.config.min_insync_replicas,
            lag_ms_max=self._shared.lag_ms_max,
        )

    def is_waited_for(self, replica_id: int) -> bool:
        """Whether the high watermark waits for the replica on that broker."""
        shared = self._shared
        return self.followers.is_waited_for(
            replica_id, self._partition.log.log_end_offset, shared.clock.monotonic_ms(), shared.lag_ms_max
        )

    def low_watermark(self) -> int:
        """The offset below which no live replica has records, for the DeleteRecords response."""
        return self.followers.low_watermark(self._partition.log.log_start_offset, self._shared.is_alive)

    def deleted(self, offset: int) -> "asyncio.Future[None] | None":
        """None when no live replica has records below `offset`, else a future that is done then. It fails with ApiError
        when leadership is lost first."""
        if self.low_watermark() >= offset:
            return None
        if self._deletions is None:
            self._deletions = CommitWaiters()
        return self._deletions.add(offset, outlasts_setbacks=False)

    def _advance(self) -> None:
        """Raise the high watermark, if followers have more records than before."""
        partition = self._partition
        offset = self.high_watermark(partition.own_offset)
        if offset > partition.log.high_watermark:
            partition.commit(offset)

    # --- the ISR ----------------------------------------------------------------------------------

    def _propose(self, proposal: Proposal | None) -> None:
        if proposal is None:
            return
        partition = self._partition
        logger.info("%s: proposing in-sync replicas %s, not %s", partition, proposal.isr, sorted(self.followers.isr))
        members = self.followers.broker_epochs(proposal.isr)
        asked = RequestPartitionData(
            partition_index=partition.index,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=replica, broker_epoch=members[replica]) for replica in members],
        )
        self._shared.alter_partitions.propose(
            partition.topic_id, asked, lambda answer: self._answered(proposal, answer)
        )

    def _answered(self, proposal: Proposal, answer: ResponsePartitionData) -> bool:
        """Apply the controller's response; returns whether to ask again."""
        if self._has_ended:
            return False
        followers, error = self.followers, ErrorCode.of(answer.error_code)
        before = followers.isr
        if error:
            is_asked_again = followers.refused(proposal, error, self._shared.clock.monotonic_ms())
            self._shared.failed_isr_updates += 1
            level = logging.WARNING if is_asked_again else logging.INFO
            logger.log(level, "%s: the controller has not stored %s: %s", self._partition, proposal.isr, error.name)
            self._advance()  # the high watermark no longer waits for a replica that does not join
            return is_asked_again
        if not followers.stored(proposal, answer.isr, answer.leader_epoch, answer.partition_epoch):
            self._shared.failed_isr_updates += 1
            return False
        self._shared.isr_expands += bool(followers.isr - before)
        self._shared.isr_shrinks += bool(before - followers.isr)
        self._partition.state.isr_stored(followers.isr, answer.partition_epoch)
        self._partition.in_sync_replicas_changed()
        return False
