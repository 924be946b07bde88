"""Directs consumers to a replica in their rack (KIP-392), with `replica.selector.class` of Kafka's rack-aware selector.
Imported when the first such consumer fetches.

Source: kafka.server.ReplicaManager.findPreferredReadReplica, RackAwareReplicaSelector, ReplicaView.
"""

from collections.abc import Callable

from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.attention import Attention
from barnabas.broker.replication.fetch_operation import FetchLimits, FetchOperation
from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.fetch_sessions import FetchPlan
from barnabas.broker.replication.followers import Followers
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.storage.segment_reader import ColdRead

RackOf = Callable[[int], str | None]
"""The rack of a broker, None if the consumer cannot reach it."""


def preferred_replica(followers: Followers, fetch_offset: int, rack: str, rack_of: RackOf) -> int | None:
    """The preferred read replica: a follower in that rack that is in the ISR and has the offset; None if the leader is
    in the rack, too. Among several the one with the most records, then the one that was fully caught up last.

    Only members of the ISR, because a consumer that reads from a lagging follower lags with it.
    """
    if rack_of(followers.node_id) == rack:
        return None
    found = [
        (follower.log_end_offset, follower.last_caught_up_ms, replica)
        for replica in followers.isr
        if (follower := followers.follower(replica)) is not None
        and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
        and rack_of(replica) == rack
    ]
    return max(found)[-1] if found else None


def has_nearer(followers: Followers, rack: str, rack_of: RackOf) -> bool:
    """Whether the rack has a follower in the ISR, but not the leader: that follower is preferred as soon as it has the
    offset."""
    return rack_of(followers.node_id) != rack and any(rack_of(replica) == rack for replica in followers.isr)


class _ReadElsewhere(Exception):
    """Ends the read of a partition, as an error would; the response has no error."""

    def __init__(self, partition: Partition, replica_id: int) -> None:
        super().__init__()
        self.partition = partition
        self.replica_id = replica_id


class RackAwareFetch(FetchOperation):
    """One fetch of a consumer in `rack`. Where a preferred read replica exists, the response names it and has no
    records. `standpoint` returns a value that changes whenever `rack_of` may."""

    def __init__(
        self,
        replicas: ReplicaManager,
        unforeseen: UnforeseenErrors,
        plan: FetchPlan,
        limits: FetchLimits,
        *,
        rack: str,
        rack_of: RackOf,
        standpoint: Callable[[], object],
    ) -> None:
        self._standpoint = standpoint
        if plan.attention is not None and plan.attention.looks_from(standpoint()):
            plan.partitions = plan.attention.awake()
        super().__init__(replicas, unforeseen, plan.partitions, limits, plan.attention)
        self._rack = rack
        self._rack_of = rack_of

    def _locate(self, asked: FetchPartition) -> tuple[Partition, int]:
        partition, max_offset = super()._locate(asked)
        if partition.leadership is not None:
            replica_id = preferred_replica(
                partition.leadership.followers, asked.fetch_offset, self._rack, self._rack_of
            )
            if replica_id is not None:
                raise _ReadElsewhere(partition, replica_id)
        return partition, max_offset

    def _add_error(self, asked: FetchPartition, error: Exception) -> None:
        if not isinstance(error, _ReadElsewhere):
            super()._add_error(asked, error)
            return
        self._add(asked, error.partition, b"", asked.fetch_offset)
        data = self.results[-1][1]
        data.preferred_read_replica = error.replica_id
        data.aborted_transactions = None
        self._must_reply = True

    def read_again(self) -> ColdRead | None:
        if self._attention is not None:
            self._attention.looks_from(self._standpoint())
        return super().read_again()

    def _found_nothing(
        self, asked: FetchPartition, partition: Partition, max_offset: int, attention: Attention
    ) -> None:
        """A partition is not put to rest while it is read here only because the nearer replica does not have the offset
        yet, or has not fetched yet: no listener is called when the replica reaches the offset. A change of the ISR does
        call the listeners."""
        leadership = partition.leadership
        if leadership is None or not has_nearer(leadership.followers, self._rack, self._rack_of):
            super()._found_nothing(asked, partition, max_offset, attention)
