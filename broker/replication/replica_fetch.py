"""A fetch by another broker that follows partitions of this one: it reads up to the log end offset, and its fetch
offsets tell the leader the follower's position (Kafka's Partition.fetchRecords for followers). Imported at the first
such fetch.

It waits for records as any other fetch does, and also ends when a log start offset has moved: the follower has to move
its own before DeleteRecords is answered. It does not end when only the high watermark has moved: no request waits for a
follower to know it, and the follower receives it with the next records or when its wait is over (KIP-392 ended such
waits, which made twice as many fetches of each record, and KAFKA-9731 reverted that).
"""

from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.attention import Attention
from barnabas.broker.replication.fetch_operation import FetchLimits, FetchOperation
from barnabas.broker.replication.fetch_partition import FetchPartition
from barnabas.broker.replication.fetch_sessions import FetchPlan
from barnabas.broker.replication.followers import Heartbeat
from barnabas.broker.replication.leadership import Leadership
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.replication.throttles import Throttle
from barnabas.storage.log import PartitionLog
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.wire.errors import ApiError, ErrorCode


class ReplicaFetch(FetchOperation):
    """One fetch by the replicas on broker `replica_id`, registered with `broker_epoch`. `now_ms` is monotonic time, by
    the same clock as leaderships.
    """

    _counts = False

    def __init__(
        self,
        replicas: ReplicaManager,
        unforeseen: UnforeseenErrors,
        plan: FetchPlan,
        limits: FetchLimits,
        *,
        replica_id: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        throttle = None if replicas.leaderships is None else replicas.leaderships.throttle
        self._throttle = throttle if throttle is not None and throttle.is_limited else None
        self._throttled_bytes = 0
        super().__init__(replicas, unforeseen, plan.partitions, limits, plan.attention)
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._tells_progress = True
        if self._attention is not None:
            heartbeat = self._attention.heartbeat = self._attention.heartbeat or Heartbeat(now_ms)
            heartbeat.broker_epoch = broker_epoch

    def read_again(self) -> ColdRead | None:
        self._tells_progress = False  # the fetch offsets were already applied when it was received
        if self._throttle is not None:
            self._throttle.record(-self._throttled_bytes)  # the records of the first pass are read again
            self._throttled_bytes = 0
        return super().read_again()

    def _locate(self, asked: FetchPartition) -> tuple[Partition, int]:
        partition, max_offset = super()._locate(asked)
        leadership = self._leadership(partition, asked)
        if self._tells_progress and is_prefix(asked, partition.log):
            leadership.fetched(self._replica_id, self._broker_epoch, asked.fetch_offset, asked.log_start_offset)
        return partition, max_offset

    def _found_nothing(
        self, asked: FetchPartition, partition: Partition, max_offset: int, attention: Attention
    ) -> None:
        leadership, heartbeat = partition.leadership, attention.heartbeat
        if asked.is_named or leadership is None or heartbeat is None:
            asked.is_named = False
            return
        follower = leadership.resting(self._replica_id)
        if follower is not None and attention.rest(asked, partition):
            follower.heartbeat = heartbeat
            attention.followers[asked.key] = follower

    def _leadership(self, partition: Partition, asked: FetchPartition) -> Leadership:
        """The leadership of the partition. Raises ApiError if the fetcher is no replica of it, or not registered, as
        far as this broker knows: a newer assignment may be on its way, and the follower asks again."""
        leadership = partition.leadership
        if leadership is None or not leadership.knows(self._replica_id):
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if asked.current_leader_epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return leadership

    def _finds_nothing(self, asked: FetchPartition, log: PartitionLog, max_offset: int) -> bool:
        is_at_end = asked.fetch_offset == max_offset
        return (
            (is_at_end or (self._bytes_read > 0 and not self._bytes_left) or self._is_held_up(asked))
            and is_prefix(asked, log)
            and log.failure is None
        )

    # --- throttling -------------------------------------------------------------------------------

    def _is_held_up(self, asked: FetchPartition) -> bool:
        """Whether a throttle holds back records from a follower; then the response is sent when they may pass, if the
        fetch waits for so long. Replicas that acknowledgements wait for are exempt, including one that has just caught
        up and is about to join the ISR: otherwise it would delay acknowledgements for `replica.lag.time.max.ms`, as it
        can in Kafka, which exempts members of the ISR alone."""
        throttle = self._throttle
        if throttle is None or not (wait_ms := throttle.wait_ms()) or not self._is_throttled(asked, throttle):
            return False
        partition = self._replicas.partition(asked.topic or "", asked.partition)
        if partition is None or partition.leadership is None or partition.leadership.is_waited_for(self._replica_id):
            return False
        self._limits.max_wait_ms = min(self._limits.max_wait_ms, wait_ms)
        return True

    @staticmethod
    def _is_throttled(asked: FetchPartition, throttle: Throttle) -> bool:
        return throttle.applies_to(asked.topic or "", asked.partition)

    def _accept(self, asked: FetchPartition, partition: Partition, data: FetchData) -> None:
        before = self._bytes_read
        super()._accept(asked, partition, data)
        if self._throttle is not None and self._is_throttled(asked, self._throttle):
            self._throttle.record(self._bytes_read - before)
            self._throttled_bytes += self._bytes_read - before

    # --- waiting ----------------------------------------------------------------------------------

    def _readable(self, partition: Partition, asked: FetchPartition) -> int | None:
        told = asked.told_log_start_offset
        if told >= 0 and told != partition.log.log_start_offset:
            return None
        if self._is_held_up(asked):
            return 0
        return super()._readable(partition, asked)


def is_prefix(asked: FetchPartition, log: PartitionLog) -> bool:
    """Whether the follower's log is a prefix of the leader's up to the fetch offset: the offset lies in the leader's
    log, within the epoch of the follower's last record or at its end (KIP-595)."""
    if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
        return False
    if asked.last_fetched_epoch < 0:
        return True
    epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
    return epoch == asked.last_fetched_epoch and asked.fetch_offset <= end_offset
