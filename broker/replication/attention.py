"""Which partitions of a fetch session the next fetch has to look at: a fetch costs what has changed, not what is
followed.

What holds between two fetches:

1. Each partition of a session is either awake or rests. When one was put to rest, a fetch found nothing in it that its
   reader may see and was not told yet: no records, no other high watermark or log start offset, no error. A look at it
   would find the same ever since, because whoever changes any of that calls the partition's listeners
   (`Partition.notify`), and the first call wakes it, as does a request that names it. Where a reader may be sent
   elsewhere (`replica_selector.py`), that depends on more than partitions, and all are woken when that is another.
2. Those that are awake are looked at in the order of the session, so that what `max_bytes` leaves out of a reply is
   what it would leave out if all were looked at.

Both are held by `tests/broker/replication/test_attention.py`, which compares with fetches that look at everything.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.replication.fetch_sessions import FetchPartition, PartitionKey
    from barnabas.broker.replication.followers import Follower, Heartbeat
    from barnabas.broker.replication.partition import Partition

Join = Callable[["Partition", "FetchPartition"], None]

_PLACE = attrgetter("place")


class Attention:
    """Which partitions of one fetch session are awake, so that its next fetch looks at them, and which rest. Owned by
    the event loop.
    """

    __slots__ = ("_awake", "_listener", "_resting", "_standpoint", "followers", "heartbeat", "waiting")

    def __init__(self) -> None:
        self._awake: dict[PartitionKey, FetchPartition] = {}
        self._resting: dict[Partition, FetchPartition] = {}
        self._listener = self._changed
        self._standpoint: object = None
        self.waiting: dict[Join, None] = {}
        """The long polls of the session: each is called with every partition that wakes."""
        self.heartbeat: Heartbeat | None = None
        """In the session of a broker that follows: when it last fetched; the partitions that rest share it."""
        self.followers: dict[PartitionKey, Follower] = {}
        """In the session of a broker that follows: its `Follower` in each partition that was put to rest."""

    def __len__(self) -> int:
        """How many partitions the next fetch looks at."""
        return len(self._awake)

    def awake(self) -> "list[FetchPartition]":
        """The partitions to look at, in the order of the session."""
        awake = self._awake.values()
        return sorted(awake, key=_PLACE) if len(awake) > 1 else list(awake)

    def rest(self, asked: "FetchPartition", partition: "Partition") -> bool:
        """Pass a partition over until it changes; False if it is no longer in the session, or the session has ended."""
        if self._awake.pop(asked.key, None) is None:
            return False
        self._resting[partition] = asked
        asked.rests_at = partition
        partition.add_listener(self._listener)
        return True

    def wake(self, asked: "FetchPartition") -> None:
        """Have the next fetch look at a partition: it is new in the session, or asked for again."""
        if asked.rests_at is not None:
            self._end_rest(asked.rests_at)
        self._awake[asked.key] = asked

    def looks_from(self, standpoint: object) -> bool:
        """Wake all if the reader sees them from elsewhere than at its last fetch, as no partition tells of that;
        whether it does."""
        if standpoint == self._standpoint:
            return False
        self._standpoint = standpoint
        for asked in list(self._resting.values()):
            self.wake(asked)
        return True

    def forget(self, asked: "FetchPartition") -> None:
        """Take a partition out of the session."""
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
