"""The state of one hosted partition and the decisions that depend on it: the leader, the ISR, and which requests and
commits they allow. No I/O, no clock, no futures: `Partition` calls it, and carries out the decisions.

Where other brokers have replicas, too, the leader's knowledge of them is in `followers.py`. (Kafka keeps the same in
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
    """The change of this broker's role by a LeaderAndIsr request."""

    NONE = 1
    ELECTED = 2  # leader now, in a new epoch
    RESIGNED = 3  # no longer the leader


class PartitionState:
    """Leader, epochs, replicas and ISR of one partition, as of the controller's last request.

    `is_leader` is whether this broker leads; `leader_epoch_start_offset` is its log end offset at its election.
    `commits_alone` is whether it leads and has the only replica, so that every record in its log is committed.
    `knew_isr` is whether a controller has sent an ISR since this broker hosts the partition. `replication_factor` is
    the number of replicas without those that a reassignment adds.
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

    # --- requests of the controller ---------------------------------------------------------------

    def is_outdated(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether a LeaderAndIsr request has an earlier leader epoch than the known one. A request without an ISR, sent
        because the controller has lost the state, has a later epoch or is a repetition: it replaces the former state.
        """
        if told.leader_epoch == self.leader_epoch and not told.isr:
            return bool(self.isr)
        return told.leader_epoch < self.leader_epoch

    def outlives(self, told: "StopReplicaPartitionState") -> bool:
        """Whether a StopReplica request has an earlier leader epoch than the known one. The deletion of a topic has
        none (-2, `EPOCH_DURING_DELETE`; -1 means no epoch): no partition outlives that."""
        return 0 <= told.leader_epoch < self.leader_epoch

    def is_elected_by(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether the request makes this broker leader in a new epoch, which its log has to begin first."""
        return told.leader == self.node_id and told.leader_epoch > self.leader_epoch

    def become_leader_or_follower(self, told: "LeaderAndIsrPartitionState", log_end_offset: int) -> RoleChange:
        """Apply the controller's request. In the known leader epoch, a partition epoch older than that of the last
        AlterPartition response changes nothing: it would undo that response."""
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
        """Apply the state of the controller's AlterPartition response."""
        self.isr = tuple(sorted(isr))
        self.partition_epoch = partition_epoch

    def resign(self) -> RoleChange:
        """Stop leading: this broker no longer hosts the partition."""
        was_leader = self.is_leader
        self.leader = NO_LEADER
        self.is_leader = self.commits_alone = False
        return RoleChange.RESIGNED if was_leader else RoleChange.NONE

    # --- checks -----------------------------------------------------------------------------------

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
        if the epoch differs."""
        if current_leader_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            raise self._fence(current_leader_epoch)
        return self.is_leader

    def _fence(self, current_leader_epoch: int) -> ApiError:
        is_older = current_leader_epoch < self.leader_epoch
        return ApiError(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_enough_replicas(self, min_insync_replicas: int) -> None:
        """Check that a produce with acks=all may be appended: the ISR has `min.insync.replicas` members, or as many as
        there are replicas. Raises ApiError NOT_ENOUGH_REPLICAS."""
        in_sync = len(self.isr)
        if in_sync < min_insync_replicas:  # the effective value is needed only in case of an error
            effective = min(min_insync_replicas, max(1, len(self.replicas)))
            if in_sync < effective:
                raise ApiError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{in_sync} in-sync replicas, min.insync.replicas wants {effective}",
                )
