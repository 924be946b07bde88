"""What consumers read of the partitions that this broker follows (KIP-392): they see what is committed, and a follower
hears of that from its leader, with records or when its fetch has waited.

While somebody reads, this broker has its leader not wait until it hears that what it has already is committed. That
costs the leader nothing, one more fetch for records that come one by one, and none while more records come than that.
(Kafka had leaders end the waits of all followers then, KIP-392, and took it back, KAFKA-9731.)
"""

from typing import TYPE_CHECKING, Final

from barnabas.clock import Clock

if TYPE_CHECKING:
    from barnabas.broker.replication.fetcher import Fetcher, FollowedLog
    from barnabas.broker.replication.partition import Partition

COMMIT_WAIT_MS: Final = 5
"""How long a leader may keep a commit from a follower that is read from."""

READ_MS: Final = 30_000
"""How long after its last fetch a consumer still counts that does not wait: it works on what it was given."""

WITHOUT_LIMIT_MS: Final = 2**31 - 1


class FollowerReads:
    """Which followed partitions are read, and by when; owned by the event loop. `clock` is one that a fetch's wait goes
    by."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[FollowedLog, Partition] = {}
        """Partitions that were read here since this broker follows them, whoever leads them. Nothing has to be asked of
        this while there are none."""
        self._read_ms: dict[FollowedLog, int] = {}

    def add(self, partition: "Partition") -> None:
        """Note that a consumer fetches a partition here."""
        self.partitions[partition.log] = partition
        self._read_ms[partition.log] = self._clock.monotonic_ms()

    def remove(self, log: "FollowedLog") -> None:
        """Forget a partition that is not followed any more."""
        self.partitions.pop(log, None)
        self._read_ms.pop(log, None)

    def changed(self, log: "FollowedLog") -> None:
        """The leader has told something new of it: let who waits look."""
        partition = self.partitions.get(log)
        if partition is not None:
            partition.notify()

    def wait_ms(self, fetcher: "Fetcher") -> int:
        """How long the next request of a fetcher may wait for this."""
        now_ms = self._clock.monotonic_ms()
        for log, partition in self.partitions.items():
            if (
                partition.log.high_watermark < log.log_end_offset
                and (partition.is_waited_for or now_ms - self._read_ms[log] <= READ_MS)
                and (partition.topic_id, partition.index) in fetcher
            ):
                return COMMIT_WAIT_MS
        return WITHOUT_LIMIT_MS
