"""Retention of this broker's logs: deletes the segments that are expired by `retention.ms`, `retention.bytes` or
DeleteRecords (Kafka's LogManager.cleanupLogs)."""

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.upkeep.segment_times import times_of_logs
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.storage.retention import SEGMENTS_AT_ONCE
from barnabas.storage.segment_removal import retain, times_for_retention
from barnabas.turns import LOGS_PER_TURN, Turns


class Retention:
    """Applies retention to all logs, including those that this broker does not host yet."""

    def __init__(self, replicas: ReplicaManager, log_manager: LogManager, clock: Clock) -> None:
        self._replicas = replicas
        self._log_manager = log_manager
        self._clock = clock
        self._is_stopping = False
        self.set_aside = SetAside[PartitionLog]("retention", clock)

    async def run(self) -> None:
        """Delete expired segments, and wake their partitions' listeners.

        Segments that have to be read for that are read in a thread, some logs at a time. Logs that are deleted or
        offline by then are skipped.
        """
        now_ms = self._clock.now_ms()
        turns = Turns(LOGS_PER_TURN)
        async for log, times in times_of_logs(
            self.set_aside.ready(self._log_manager.logs),
            lambda log: times_for_retention(log, now_ms),
            lambda: self._is_stopping,
            self._log_manager.threads,
        ):
            with self.set_aside.attempt(log):
                if times.error is not None and not isinstance(times.error, OSError):
                    raise times.error
                deleted = SEGMENTS_AT_ONCE
                while deleted >= SEGMENTS_AT_ONCE and not self._is_stopping:
                    deleted = retain(log, now_ms, times)
                    if deleted:
                        partition = self._replicas.hosted(log)
                        if partition is not None:
                            partition.notify()
                        # Renaming files takes a while, too.
                        await turns.after(1 + LOGS_PER_TURN * deleted // SEGMENTS_AT_ONCE)

    def stop(self) -> None:
        """End a run, after its present logs."""
        self._is_stopping = True
