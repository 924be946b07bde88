"""A partition that this broker leads and others follow: what the leader learns from their fetches, what it asks the
controller for, and who waits for it. `followers.py` decides; here is what carries that out (the rest of Kafka's
Partition). Made for one leader epoch; a partition without other replicas has none.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.cluster.alter_partitions import AlterPartitions
from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.broker.replication.followers import Follower, Followers, Proposal
from barnabas.broker.replication.throttles import Throttle
from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import BrokerState, RequestPartitionData, ResponsePartitionData

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

logger = logging.getLogger(__name__)


class Leaderships:
    """What all leaderships of a broker share, and what they count.

    How long followers lag is told by `clock`, by which their heartbeats are noted, too (`ReplicaFetch`). `lag_ms_max`
    is `replica.lag.time.max.ms`; `is_alive(broker_id)` whether that broker is registered, as far as the controller has
    told. `throttle` holds up followers that are not in sync.
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
        """How often the controller has stored an ISR with a follower more."""
        self.isr_shrinks = 0
        self.failed_isr_updates = 0
        """How often the controller refused, or its answer was of no use any more."""

    def lead(self, partition: "Partition", told: "LeaderAndIsrPartitionState") -> "Leadership":
        """Begin to lead a partition that others follow, as this broker was told."""
        return Leadership(self, partition, told)


class Leadership:
    """What this broker, as the leader of one partition in one leader epoch, does for its followers; owned by the event
    loop.
    """

    __slots__ = ("_deletions", "_partition", "_shared", "followers")

    def __init__(self, shared: Leaderships, partition: "Partition", told: "LeaderAndIsrPartitionState") -> None:
        state = partition.state
        self._shared = shared
        self._partition = partition
        self._deletions: CommitWaiters | None = None
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

    # --- the controller's word --------------------------------------------------------------------

    def told(self, told: "LeaderAndIsrPartitionState") -> None:
        """Take over what was told again of the same leader epoch, perhaps other replicas or another ISR."""
        self.followers.told(told.replicas, told.isr, told.partition_epoch)

    def end(self, error: ErrorCode) -> None:
        """End: this broker leads no more, or in another epoch. Whoever waits is told the error."""
        if self._deletions is not None:
            self._deletions.fail(ApiError(error))

    # --- what followers tell ----------------------------------------------------------------------

    def knows(self, replica_id: int) -> bool:
        """Whether that broker has a replica and is registered, as far as this one was told."""
        return self.followers.follower(replica_id) is not None and self._shared.is_alive(replica_id)

    def fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """A follower asks for what begins at `fetch_offset`, in the registration `broker_epoch`, and tells where its
        log starts. Only for a fetch that can be served: neither out of range nor from a log that diverges.

        Raises ApiError: UNKNOWN_LEADER_EPOCH if it is no replica of the partition, as far as this broker was told;
        NOT_LEADER_OR_FOLLOWER if the fetch is of an earlier life of it.
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
        """A follower that has just fetched and need not be heard of again before something changes, as it has
        everything and is in sync; else None."""
        follower = self.followers.follower(replica_id)
        if (
            follower is None
            or follower.log_end_offset != self._partition.log.log_end_offset
            or replica_id not in self.followers.isr
        ):
            return None
        return follower

    def look_at_isr(self) -> None:
        """Some time has passed: propose to leave out of the ISR who has not kept up, and commit what only waited for
        somebody who has not joined."""
        log = self._partition.log
        proposal = self.followers.shrinking(
            log.log_end_offset, self._shared.clock.monotonic_ms(), self._shared.lag_ms_max
        )
        self._propose(proposal)
        self._advance()
        if self._deletions is not None:
            self._deletions.release(self.low_watermark())

    # --- what is committed ------------------------------------------------------------------------

    def high_watermark(self, own_offset: int) -> int:
        """How far the partition is committed when the leader counts its own log up to `own_offset`; see `Followers`."""
        log = self._partition.log
        return self.followers.high_watermark(
            own_offset,
            log.log_end_offset,
            self._shared.clock.monotonic_ms(),
            min_insync_replicas=log.config.min_insync_replicas,
            lag_ms_max=self._shared.lag_ms_max,
        )

    def is_waited_for(self, replica_id: int) -> bool:
        """Whether nothing is committed that the replica on that broker lacks."""
        shared = self._shared
        return self.followers.is_waited_for(
            replica_id, self._partition.log.log_end_offset, shared.clock.monotonic_ms(), shared.lag_ms_max
        )

    def low_watermark(self) -> int:
        """The offset below which no live replica has records, which DeleteRecords answers."""
        return self.followers.low_watermark(self._partition.log.log_start_offset, self._shared.is_alive)

    def deleted(self, offset: int) -> "asyncio.Future[None] | None":
        """None when no live replica has records below `offset`, else a future of that. It fails with ApiError when
        leadership is lost first."""
        if self.low_watermark() >= offset:
            return None
        if self._deletions is None:
            self._deletions = CommitWaiters()
        return self._deletions.add(offset, outlasts_setbacks=False)

    def _advance(self) -> None:
        """Commit what followers have by now, if that is more than before."""
        partition = self._partition
        offset = self.high_watermark(partition.own_offset)
        if offset > partition.log.high_watermark:
            partition.commit(offset)

    # --- who is in sync ---------------------------------------------------------------------------

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
        """The controller has answered; whether it is to be asked again."""
        if self._partition.leadership is not self:
            return False
        followers, error = self.followers, ErrorCode.of(answer.error_code)
        before = followers.isr
        if error:
            is_asked_again = followers.refused(proposal, error, self._shared.clock.monotonic_ms())
            self._shared.failed_isr_updates += 1
            level = logging.WARNING if is_asked_again else logging.INFO
            logger.log(level, "%s: the controller has not stored %s: %s", self._partition, proposal.isr, error.name)
            self._advance()  # who does not join is not waited for any more
            return is_asked_again
        if not followers.stored(proposal, answer.isr, answer.leader_epoch, answer.partition_epoch):
            self._shared.failed_isr_updates += 1
            return False
        self._shared.isr_expands += bool(followers.isr - before)
        self._shared.isr_shrinks += bool(before - followers.isr)
        self._partition.state.isr_stored(followers.isr, answer.partition_epoch)
        self._partition.in_sync_replicas_changed()
        return False
