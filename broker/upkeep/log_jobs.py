"""The periodic jobs on a broker's logs, and their intervals: by a key, or by a constant where Kafka has none."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from barnabas.broker.configuration.config import BrokerConfig
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.upkeep.compaction import Compaction
from barnabas.broker.upkeep.disk_space import DiskSpace
from barnabas.broker.upkeep.housekeeping import Housekeeping
from barnabas.broker.upkeep.retention import Retention
from barnabas.clock import REPEAT_MIN_MS, Clock
from barnabas.set_aside import SetAside
from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.storage.producer_state import VERIFICATIONS_OF_ALL_LOGS_MAX, beyond_their_share
from barnabas.turns import Turns

FILE_DELETE_INTERVAL_MS: Final = 1_000
FREE_SPACE_INTERVAL_MS: Final = 500
PRODUCERS_CHECK_INTERVAL_MS: Final = 5_000
SEGMENTS_CHECK_INTERVAL_MS: Final = 5_000
FLUSH_CHECK_INTERVAL_MS: Final = 1_000


class LogJobs:
    """Deletes, compacts, flushes and checkpoints logs, and expires producers; `set_aside` are logs at which that
    failed."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        retention: Retention,
        compaction: Compaction,
        disk_space: DiskSpace,
        clock: Clock,
    ) -> None:
        self.set_aside = SetAside[PartitionLog]("expiring the producers", clock)
        self.set_aside_bounds = SetAside[PartitionLog]("bounding the producers", clock)
        self._logs = logs
        self._replicas = replicas
        self._retention = retention
        self._compaction = compaction
        self._disk_space = disk_space
        self._clock = clock

    @property
    def set_asides(self) -> tuple[SetAside[PartitionLog], ...]:
        """The members that are set aside, by activity."""
        return (self._compaction.set_aside, self._retention.set_aside, self.set_aside, self.set_aside_bounds)

    def schedule(self, housekeeping: Housekeeping, network_housekeeping: Housekeeping, config: LiveConfig) -> None:
        """Schedule all jobs; those that depend on other brokers in `network_housekeeping`."""
        every, logs = housekeeping.every, self._logs
        every("looking at free space", FREE_SPACE_INTERVAL_MS, self._disk_space.check, initial_delay_ms=0)
        every("retention", config.log_retention_check_interval_ms, self._retention.run)
        every("deleting files", FILE_DELETE_INTERVAL_MS, self._in_thread(logs.delete_due_files))
        if config.log_cleaner_enable and config.log_cleaner_threads > 0:
            every("compaction", max(config.log_cleaner_backoff_ms, REPEAT_MIN_MS), self._compaction.run)
            config.follow(BrokerConfig.log_cleaner_backoff_ms, partial(self._rest_from_compaction, housekeeping))
        lag_ms = config.replica_lag_time_max_ms
        network_housekeeping.every("looking at in-sync replicas", lag_ms // 2, self._replicas.look_at_isrs)
        every("flushing", FLUSH_CHECK_INTERVAL_MS, self._replicas.flusher.flush_due)
        every(
            "writing the recovery point checkpoint",
            config.log_flush_offset_checkpoint_interval_ms,
            self._in_thread(partial(logs.checkpoint, RECOVERY_POINT_FILE)),
        )
        every(
            "writing the log start offset checkpoint",
            config.log_flush_start_offset_checkpoint_interval_ms,
            self._in_thread(partial(logs.checkpoint, LOG_START_FILE)),
        )
        every(
            "writing the high watermark checkpoint",
            config.replica_high_watermark_checkpoint_interval_ms,
            self._in_thread(partial(logs.checkpoint, HIGH_WATERMARK_FILE)),
        )
        every("bounding what is remembered of producers", PRODUCERS_CHECK_INTERVAL_MS, self._bound_producers)
        every("bounding the segments", SEGMENTS_CHECK_INTERVAL_MS, logs.bound_segments)
        every("expiring producers", config.producer_id_expiration_check_interval_ms, self._expire_producers)

    def _rest_from_compaction(self, housekeeping: Housekeeping, backoff_ms: int) -> None:
        housekeeping.change_interval("compaction", max(backoff_ms, REPEAT_MIN_MS))
        self._compaction.set_backoff_ms(backoff_ms)

    async def _expire_producers(self) -> None:
        turns = Turns()
        for partition in self._replicas.partitions():
            with self.set_aside.attempt(partition.log):
                partition.log.producers.remove_expired(self._clock.now_ms())
            await turns.after_one()

    def _bound_producers(self) -> None:
        logs = self.set_aside_bounds.ready([partition.log for partition in self._replicas.partitions()])
        states = {log: state for log in logs if (state := log.producers.state) is not None}
        counts = {log: len(state.producers) for log, state in states.items()}
        for log, surplus in beyond_their_share(counts).items():
            with self.set_aside_bounds.attempt(log):
                states[log].forget_oldest(surplus)
        counts = {log: len(state.verifications) for log, state in states.items()}
        for log, surplus in beyond_their_share(counts, VERIFICATIONS_OF_ALL_LOGS_MAX).items():
            with self.set_aside_bounds.attempt(log):
                states[log].forget_oldest_verifications(surplus)

    def _in_thread(self, job: Callable[[], object]) -> Callable[[], Awaitable[object]]:
        """Run a job that waits for the disk in a thread."""
        return partial(self._logs.threads.call, job)
