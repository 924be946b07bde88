"""What this broker knows and decides about one hosted partition: who leads it, which replicas are in sync, and what
that allows and commits. No I/O, no clock, no futures: `Partition` asks it, and carries out what it says.

Today every partition has all of its replicas on this one broker, so that only its own log counts for the high
watermark. (Kafka keeps the same in Partition and PartitionState.)
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

NO_LEADER: Final = -1
UNKNOWN_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1


class RoleChange(Enum):
    """What a LeaderAndIsr request has changed about this broker's part."""

    NONE = 1
    ELECTED = 2  # the leader now, in a new epoch
    RESIGNED = 3  # the leader no longer


class PartitionState:
    """Leader, epochs, replicas and in-sync replicas of one partition, as the controller told them last.

    `is_leader` is whether this broker leads; `leader_epoch_start_offset` where its log ended when it was elected.
    """

    __slots__ = (
        "_commits_alone",
        "controller_epoch",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "node_id",
        "partition_epoch",
        "replicas",
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
        self.isr: Sequence[int] = ()
        self._commits_alone = False

    # --- the controller's word --------------------------------------------------------------------

    def is_outdated(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether a LeaderAndIsr request is of an earlier leader epoch than the one that is known."""
        return told.leader_epoch < self.leader_epoch

    def is_elected_by(self, told: "LeaderAndIsrPartitionState") -> bool:
        """Whether this broker would lead in a new epoch, which its log has to begin first."""
        return told.leader == self.node_id and told.leader_epoch > self.leader_epoch

    def become_leader_or_follower(self, told: "LeaderAndIsrPartitionState", log_end_offset: int) -> RoleChange:
        """Go by what the controller told."""
        was_leader, is_elected = self.is_leader, self.is_elected_by(told)
        if is_elected:
            self.leader_epoch_start_offset = log_end_offset
        self.leader = told.leader
        self.is_leader = told.leader == self.node_id
        self.leader_epoch = told.leader_epoch
        self.partition_epoch = told.partition_epoch
        self.controller_epoch = told.controller_epoch
        self.replicas = tuple(told.replicas)
        self.isr = tuple(told.isr)
        self._commits_alone = self.is_leader and self.isr == (self.node_id,)
        if is_elected:
            return RoleChange.ELECTED
        return RoleChange.RESIGNED if was_leader and not self.is_leader else RoleChange.NONE

    def resign(self) -> RoleChange:
        """This broker no longer hosts the partition."""
        was_leader = self.is_leader
        self.leader = NO_LEADER
        self.is_leader = self._commits_alone = False
        return RoleChange.RESIGNED if was_leader else RoleChange.NONE

    # --- what is allowed --------------------------------------------------------------------------

    def check_leader(self, current_leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Fence a request by the leader epoch that its client knows (KIP-320).

        Raises ApiError NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if current_leader_epoch not in (UNKNOWN_EPOCH, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

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

    # --- what is committed ------------------------------------------------------------------------

    def high_watermark(self, own_end_offset: int) -> int:
        """The smallest end offset of the in-sync replicas, when this broker's own is `own_end_offset`; UNKNOWN_OFFSET
        if this broker does not lead, or does not know how far another in-sync replica is."""
        return own_end_offset if self._commits_alone else UNKNOWN_OFFSET
