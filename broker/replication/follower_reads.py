"""Consumers that read from partitions that this broker follows (KIP-392): they see only committed records, and a
follower learns the high watermark from its leader, with records or when its fetch has waited.

While consumers read, and this broker has records that it does not know to be committed, its fetches wait only for
`COMMIT_WAIT_MS`. That costs the leader almost nothing: one more fetch per record for records that come one by one, and
none while records come faster. (KIP-392 let leaders end the waits of all followers then, and KAFKA-9731 reverted it.)
"""

from typing import TYPE_CHECKING, Final

from barnabas.clock import Clock

if TYPE_CHECKING:
    from barnabas.broker.replication.fetcher import Fetcher, FollowedLog
    from barnabas.broker.replication.partition import Partition

COMMIT_WAIT_MS: Final = 5
"""The time for which a leader may hold back the high watermark from a follower that consumers read from."""

READ_MS: Final = 30_000
"""The time after its last fetch in which a consumer that does not wait counts as reading: it processes its records."""

WITHOUT_LIMIT_MS: Final = 2**31 - 1


class FollowerReads:
    """The followed partitions that consumers read, and the time of the last read; owned by the event loop. `clock` is
    the one by which fetches wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[FollowedLog, Partition] = {}
        """Partitions that consumers have fetched here since this broker follows them, whichever broker leads them.
        While there are none, callers need no other method."""
        self._read_ms: dict[FollowedLog, int] = {}

    def add(self, partition: "Partition") -> None:
        """Note that a consumer fetches a partition here."""
        self.partitions[partition.log] = partition
        self._read_ms[partition.log] = self._clock.monotonic_ms()

    def remove(self, log: "FollowedLog") -> None:
        """Forget a partition that is no longer followed."""
        self.partitions.pop(log, None)
        self._read_ms.pop(log, None)

    def changed(self, log: "FollowedLog") -> None:
        """The leader has sent news of a partition: wake the fetches that wait for it."""
        partition = self.partitions.get(log)
        if partition is not None:
            partition.notify()

    def wait_ms(self, fetcher: "Fetcher") -> int:
        """The time for which the next request of a fetcher may wait at the leader."""
        now_ms = self._clock.monotonic_ms()
        for log, partition in self.partitions.items():
            if (
                partition.log.high_watermark < log.log_end_offset
                and (partition.is_waited_for or now_ms - self._read_ms[log] <= READ_MS)
                and (partition.topic_id, partition.index) in fetcher
            ):
                return COMMIT_WAIT_MS
        return WITHOUT_LIMIT_MS
