"""What this broker knows and decides about one hosted partition: who leads it, which replicas are in sync, and what
that allows and commits. No I/O, no clock, no futures: `Partition` asks it, and carries out what it says.

Where other brokers have replicas, too, what their leader knows of them is in `followers.py`. (Kafka keeps the same in
Partition and PartitionState.)
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState
    from barnabas.wire.messages.stop_replica import StopReplicaPartitionState

NO_LEADER: Final = -1
UNKNOWN_EPOCH: Final = -1


class RoleChange(Enum):
    """What a LeaderAndIsr request has changed about this broker's part."""

    NONE = 1
    ELECTED = 2  # the leader now, in a new epoch
    RESIGNED = 3  # the leader no longer


class PartitionState:
    """Leader, epochs, replicas and in-sync replicas of one partition, as the controller told them last.

    `is_leader` is whether this broker leads; `leader_epoch_start_offset` where its log ended when it was elected.
    `commits_alone` is whether it leads and nobody else has a replica, so that what its log has is committed.
    `knew_isr` is whether a controller has told one since this broker hosts the partition.
    `replication_factor` is how many of the replicas count when some lag: not those that a reassignment adds.
    """

    __slots__ = (
        "commits_alone",
        "controller_epoch",
        "is_leader",
        "isr",
        "knew_isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "node_id",
        "partition_epoch",
        "replicas",
        "replication_factor",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.is_leader = False
        self.leader = NO_LEADER
        self.leader_epoch = UNKNOWN_EPOCH
        self.leader_epoch_start_offset = 0
        self.partition_epoch = UNKNOWN_EPOCH
        self.controller_epoch = UNKNOWN_EPOCH
        self.replicas: Sequence[int] = ()
        self.replication_factor = 0
        self.isr: Sequence[int] = ()
        self.knew_isr = False
        self.commits_alone = False

    # --- the controller's word --------------------------------------------------------------------

    def is_outdated(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether a LeaderAndIsr request is of an earlier leader epoch than the one that is known. One without an ISR,
        as the controller has lost the state, is of a later one, or a repetition: it ends what was before."""
        if told.leader_epoch == self.leader_epoch and not told.isr:
            return bool(self.isr)
        return told.leader_epoch < self.leader_epoch

    def outlives(self, told: "StopReplicaPartitionState") -> bool:
        """Whether a StopReplica request is of an earlier leader epoch than the one that is known. The end of a topic is
        told without one (-2, `EPOCH_DURING_DELETE`; -1 is nobody's): nothing outlives that."""
        return 0 <= told.leader_epoch < self.leader_epoch

    def is_elected_by(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether this broker would lead in a new epoch, which its log has to begin first."""
        return told.leader == self.node_id and told.leader_epoch > self.leader_epoch

    def become_leader_or_follower(self, told: "LeaderAndIsrPartitionState", log_end_offset: int) -> RoleChange:
        """Go by what the controller told. In the leader epoch that is known, what is older than the last answer to
        AlterPartition changes nothing: it would undo that."""
        if told.leader_epoch == self.leader_epoch and told.partition_epoch < self.partition_epoch:
            return RoleChange.NONE
        was_leader, is_elected = self.is_leader, self.is_elected_by(told)
        if is_elected:
            self.leader_epoch_start_offset = log_end_offset
        self.leader = told.leader
        self.is_leader = told.leader == self.node_id
        self.leader_epoch = told.leader_epoch
        self.partition_epoch = told.partition_epoch
        self.controller_epoch = told.controller_epoch
        self.replicas = tuple(told.replicas)
        self.replication_factor = len(self.replicas) - len(told.adding_replicas)
        self.isr = tuple(told.isr)
        self.knew_isr = self.knew_isr or bool(told.isr)
        self.commits_alone = self.is_leader and self.replicas == self.isr == (self.node_id,)
        if is_elected:
            return RoleChange.ELECTED
        return RoleChange.RESIGNED if was_leader and not self.is_leader else RoleChange.NONE

    def isr_stored(self, isr: Iterable[int], partition_epoch: int) -> None:
        """The controller has answered AlterPartition: that is the state now."""
        self.isr = tuple(sorted(isr))
        self.partition_epoch = partition_epoch

    def resign(self) -> RoleChange:
        """Lead no more: this broker no longer hosts the partition."""
        was_leader = self.is_leader
        self.leader = NO_LEADER
        self.is_leader = self.commits_alone = False
        return RoleChange.RESIGNED if was_leader else RoleChange.NONE

    # --- what is allowed --------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Fence a request by the leader epoch that its client knows (KIP-320).

        Raises ApiError NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if current_leader_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            raise self._fence(current_leader_epoch)
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leads(self, current_leader_epoch: int) -> bool:
        """Whether this broker leads, for a request that a follower may serve, too (KIP-392). Raises as `check_leader`
        where the epoch is another."""
        if current_leader_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            raise self._fence(current_leader_epoch)
        return self.is_leader

    def _fence(self, current_leader_epoch: int) -> ApiError:
        is_older = current_leader_epoch < self.leader_epoch
        return ApiError(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_enough_replicas(self, min_insync_replicas: int) -> None:
        """Whether a produce with acks=all may be appended, `min.insync.replicas` being what was given, but never more
        than there are replicas. Raises ApiError NOT_ENOUGH_REPLICAS."""
        in_sync = len(self.isr)
        if in_sync < min_insync_replicas:  # what is effective has to be known only in trouble
            effective = min(min_insync_replicas, max(1, len(self.replicas)))
            if in_sync < effective:
                raise ApiError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{in_sync} in-sync replicas, min.insync.replicas wants {effective}",
                )
