"""The partitions of a fetch session that the next fetch has to look at. The cost of a fetch depends on the number of
partitions that have changed, not on the number in the session.

Two invariants hold between two fetches:

1. Each partition of a session is awake or at rest. A partition is put to rest when a fetch finds nothing new in it for
   its reader: no records, no other high watermark or log start offset, no error. Further looks would find the same,
   because any change of these calls the partition's listeners (`Partition.notify`), and the first call wakes the
   partition. A request that names the partition wakes it, too. Where a consumer may be sent to another replica
   (`replica_selector.py`), the choice depends on more than partitions; all partitions wake when it changes.
2. The awake partitions are looked at in the order of the session, so that `max_bytes` leaves the same partitions out of
   a response as if all were looked at.

`tests/broker/replication/test_attention.py` tests both invariants: it compares with fetches that look at every
partition.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.replication.fetch_partition import FetchPartition, PartitionKey
    from barnabas.broker.replication.followers import Follower, Heartbeat
    from barnabas.broker.replication.partition import Partition

Join = Callable[["Partition", "FetchPartition"], None]

_PLACE = attrgetter("place")


class Attention:
    """The awake and the resting partitions of one fetch session. Owned by the event loop."""

    __slots__ = ("_awake", "_listener", "_resting", "_standpoint", "followers", "heartbeat", "waiting")

    def __init__(self) -> None:
        self._awake: dict[PartitionKey, FetchPartition] = {}
        self._resting: dict[Partition, FetchPartition] = {}
        self._listener = self._changed
        self._standpoint: object = None
        self.waiting: dict[Join, None] = {}
        """The long polls of the session: each is called with every partition that wakes."""
        self.heartbeat: Heartbeat | None = None
        """In a follower's session: the time of its last fetch; the resting partitions share it."""
        self.followers: dict[PartitionKey, Follower] = {}
        """In a follower's session: its `Follower` in each partition that was put to rest."""

    def __len__(self) -> int:
        """The number of partitions that the next fetch looks at."""
        return len(self._awake)

    def awake(self) -> "list[FetchPartition]":
        """The partitions to look at, in the order of the session."""
        awake = self._awake.values()
        return sorted(awake, key=_PLACE) if len(awake) > 1 else list(awake)

    def rest(self, asked: "FetchPartition", partition: "Partition") -> bool:
        """Skip a partition until it changes; False if it is no longer in the session, or the session has ended."""
        if self._awake.pop(asked.key, None) is None:
            return False
        self._resting[partition] = asked
        asked.rests_at = partition
        partition.add_listener(self._listener)
        return True

    def wake(self, asked: "FetchPartition") -> None:
        """Have the next fetch look at a partition: it is new in the session, or was requested again."""
        if asked.rests_at is not None:
            self._end_rest(asked.rests_at)
        self._awake[asked.key] = asked

    def looks_from(self, standpoint: object) -> bool:
        """Wake all partitions if the reader's standpoint has changed since its last fetch, since partitions do not
        report such a change; returns whether it has."""
        if standpoint == self._standpoint:
            return False
        self._standpoint = standpoint
        for asked in list(self._resting.values()):
            self.wake(asked)
        return True

    def forget(self, asked: "FetchPartition") -> None:
        """Remove a partition from the session."""
        if asked.rests_at is not None:
            self._end_rest(asked.rests_at)
        self._awake.pop(asked.key, None)
        follower = self.followers.pop(asked.key, None)
        if follower is not None and follower.heartbeat is self.heartbeat:
            follower.forgotten()

    def close(self) -> None:
        """End the session: no partition calls its listener any more."""
        for partition in list(self._resting):
            self._end_rest(partition)
        self._awake.clear()

    def _changed(self, partition: "Partition") -> None:
        asked = self._end_rest(partition)
        if asked is not None:
            self._awake[asked.key] = asked
            for join in list(self.waiting):
                join(partition, asked)

    def _end_rest(self, partition: "Partition") -> "FetchPartition | None":
        partition.remove_listener(self._listener)
        asked = self._resting.pop(partition, None)
        if asked is not None:
            asked.rests_at = None
        return asked
