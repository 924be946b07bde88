"""All logs of a broker: opens, recovers, creates, deletes, flushes, checkpoints and closes them.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.clock import Clock
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    TopicPartition,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.deletions import DELETE_SUFFIX, STRAY_SUFFIX, Deletions
from barnabas.storage.descriptors import DescriptorCache
from barnabas.storage.errors import CorruptLog, StorageError, is_passing
from barnabas.storage.files import Files
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.loaded_log import LoadedLog
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_directories import LogDirectories
from barnabas.storage.log_directory import HELD_LOGS_FILES, LogDirectory
from barnabas.storage.lost_logs import LostLogs
from barnabas.storage.offset_index import OffsetIndexCache
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.recovery.opening import LogOpener, follow_moves, make_durable
from barnabas.storage.segment import Segment
from barnabas.storage.truncation import Cut, Truncations
from barnabas.threads import Threads
from barnabas.wire.names import ZERO_TOPIC_ID

logger = logging.getLogger(__name__)

SEALED_SEGMENTS_MAX: Final = 100_000
SMALL_SEGMENT_BYTES: Final = 1024 * 1024
"""If all logs together have more sealed segments than that, no segment smaller than this is sealed. (Kafka 4 does not
accept a smaller `segment.bytes`: KIP-1030.) Each segment costs 1 KB of memory, four files, and 0.1 ms of a start.
"""


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """The parts that the logs of a broker get from outside.

    Attributes:
        files: the disk.
        clock: for segment ages and delayed deletions.
        threads: run blocking disk work.
        new_id: draws the unique id of a new log directory.
        random_below: draws the jitter of `segment.jitter.ms`: a number from 0 to below its argument.
        on_failure: called once per log that goes offline, from any thread, with the reason.
    """

    files: Files
    clock: Clock
    threads: Threads
    new_id: Callable[[], str]
    random_below: Callable[[int], int] = lambda _limit: 0
    on_failure: Callable[[str], None] = lambda _reason: None


@dataclass(frozen=True, slots=True)
class LogManagerSettings:
    """The settings of a broker's logs at its start.

    Attributes:
        directories: `log.dirs`; created if missing.
        config_of: returns a topic's settings, for logs that are found.
        node_id: `broker.id`.
        cluster_id: None if it is known only later; then `set_cluster_id` checks it.
        producer_id_expiration_ms: `producer.id.expiration.ms`.
        threads_per_directory: `num.recovery.threads.per.data.dir`: the number of threads that open and close each
            directory's logs.
    """

    directories: Sequence[Path | str]
    config_of: Callable[[str], LogConfig]
    node_id: int
    cluster_id: str | None = None
    producer_id_expiration_ms: int = 86_400_000
    threads_per_directory: int = 1


class LogManager:
    """All logs of a broker.

    Ownership: the event loop, except for methods marked "any thread". Methods marked "blocking" wait for the disk.
    """

    def __init__(self, environment: LogEnvironment, settings: LogManagerSettings) -> None:
        self.files = files = environment.files
        self.threads = environment.threads
        self._environment = environment
        self._threads_per_directory = settings.threads_per_directory
        self._cluster_id = settings.cluster_id
        self._producer_id_expiration_ms = settings.producer_id_expiration_ms
        self._opener = LogOpener(settings.config_of)
        self._cache = DescriptorCache(files, environment.threads)
        self._indexes = OffsetIndexCache()
        self._deletions = Deletions(self._cache, environment.clock)
        paths = [str(directory) for directory in settings.directories]
        self._directories = LogDirectories(files, paths, self._make_context, settings.node_id, environment.new_id)
        self._out_of_reach: set[TopicPartition] = set()
        """Logs that only a missing directory can contain."""
        self.lost = LostLogs(files, self._directories)
        self._noting = threading.Lock()
        self._unnoted_cluster_id: str | None = None
        """The cluster's id, while some directory does not name it."""
        self._by_log = self._directories.by_log
        self.previous_broker_epoch = -1
        """The broker epoch of the last clean shutdown; -1 if a directory has no clean-shutdown file, or if they differ
        (LogManager.readBrokerEpochFromCleanShutdownFiles).
        """
        self.was_closed = False
        """Whether all directories were closed cleanly, so that all their log content is present."""
        self._is_loaded = False
        """Whether the logs are loaded: checkpoints written before that would lose all entries."""
        self._is_closed = False
        self._closing = threading.Lock()
        """Held while `_is_closed` is set, and during writes of a thread that the shutdown does not wait for."""

    # --- opening

    def lock(self) -> None:
        """Lock the directories and check their owners. Blocking.

        Raises:
            DirectoryLocked: another process uses a directory.
            DirectoryMismatch: a directory belongs to another broker or cluster.
            OSError: a directory cannot be used at all. One that was in use beside others is only missing.
        """
        try:
            self._directories.open(self._cluster_id)
            for directory in self._directories:
                directory.before_forgetting = self.write_lost_logs
        except BaseException:
            self._directories.close()
            raise

    def load(self) -> None:
        """Load the logs of the locked directories, and recover those that were not closed cleanly. Blocking.

        Raises:
            DirectoryMismatch: two directories contain the same partition.
            OSError: as `lock`.
            OpeningGivenUp: after `give_up_opening`, if a log had to be recovered.
        """
        try:
            found, moves = follow_moves(self._directories.find_logs())
            broker_epochs = {logs.broker_epoch for logs in found.values()}
            self.previous_broker_epoch = broker_epochs.pop() if len(broker_epochs) == 1 else -1
            self.was_closed = all(logs.is_clean for logs in found.values())
            self.lost.find(frozenset().union(*(logs.held for logs in found.values())))
            self._opener.open_all(found, moves, self.threads, self._threads_per_directory)
            make_durable(self._directories, found, moves)
            self._is_loaded = True
        except BaseException:
            self._directories.close()
            raise

    def give_up_opening(self) -> None:
        """Cancel a `load` that recovers logs after a crash; after a clean shutdown it is fast anyway. Any thread."""
        self._opener.give_up()

    def _make_context(self, path: str) -> LogContext:
        return LogContext(
            self._cache,
            self._indexes,
            self._environment.clock,
            reads_cached=self.files.reads_cached(path),
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            random_below=self._environment.random_below,
            on_failure=self._log_failed,
        )

    def _log_failed(self, directory: str, error: StorageError) -> None:
        self._environment.on_failure(f"{directory}: {error.message}")

    @property
    def missing_directories(self) -> dict[str, str]:
        """Directories of the broker that could not be used at the start: the reasons, by path."""
        return self._directories.missing

    @property
    def found_cluster_id(self) -> str | None:
        """The cluster that the directories belong to, None while no directory names one."""
        return self._directories.cluster_id

    def set_cluster_id(self, cluster_id: str) -> None:
        """Write the cluster's id, and the note of all directories, into every directory: once the metadata store
        exists, so that a directory that names a cluster proves that a store exists. Blocking if something is new. On a
        full disk this is done once there is space again.

        Raises:
            DirectoryMismatch: a directory belongs to another cluster.
        """
        self._cluster_id = cluster_id
        self._directories.set_cluster_id(cluster_id)
        self._unnoted_cluster_id = cluster_id
        try:
            self.write_lost_logs()
        except OSError as error:
            if not is_passing(error):
                raise
            path = self._directories.first_path
            logger.warning("%s: the lost logs and the cluster id are written later: %s", path, error)

    def set_threads_per_directory(self, count: int) -> None:
        """Set the number of threads that open and close the logs of each directory."""
        self._threads_per_directory = count

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Set the time after which idle producers expire."""
        self._producer_id_expiration_ms = expiration_ms
        for directory in self._directories:
            directory.context.producer_id_expiration_ms = expiration_ms

    # --- finding and making logs

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return [Path(directory.path) for directory in self._directories]

    @property
    def logs(self) -> list[PartitionLog]:
        """All logs that could be opened. Any thread."""
        return [log for directory in self._directories for log in list(directory.logs.values())]

    def producer_ids(self) -> set[int]:
        """The ids of all logs' producers, including some that have expired; unreadable logs contribute none. Blocking;
        any thread.
        """
        found: set[int] = set()
        for log in self.logs:
            try:
                found.update(log.producers.read_ids(log.log_start_offset, log.log_end_offset))
            except Exception as error:  # noqa: BLE001 - after any error of this log, the others are handled
                logger.warning("the producers of %s cannot be read: %r", log.directory, error)
        return found

    def space(self, directory: Path | str) -> tuple[int, int]:
        """Total and free bytes of the file system of a log directory. Blocking, any thread."""
        return self.files.total_bytes(str(directory)), self.files.free_bytes(str(directory))

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """A partition's log, None if there is none.

        Raises:
            StorageError: the log exists, but could not be opened.
        """
        directory = self._by_log.get((topic, partition))
        if directory is None:
            return None
        failed = directory.failed.get((topic, partition))
        if failed is not None:
            raise StorageError(failed[0].message, passes=failed[0].passes)
        return directory.logs[topic, partition]

    def write_lost_logs(self) -> None:
        """Write the lost logs for the next start: before a checkpoint drops them, and while a new directory makes any
        log count as lost. Blocking, any thread. Raises OSError.
        """
        self.lost.write()
        with self._noting:
            if self._unnoted_cluster_id is not None:
                self._directories.note(self._unnoted_cluster_id)
                self._unnoted_cluster_id = None

    def reopening(self, topic: str, partition: int) -> Callable[[], PartitionLog | StorageError] | None:
        """A job that retries opening a log that could not be opened because of a transient error; `reopened` takes its
        result. None if there is no such log. The job blocks and may run in any thread.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if directory is None or key not in directory.failed or not directory.failed[key][0].passes:
            return None
        checkpoints = directory.failed[key][1]
        return partial(self._opener.open, directory, key, checkpoints, is_clean=False)

    def reopened(self, topic: str, partition: int, outcome: PartitionLog | StorageError) -> None:
        """Process the result of `reopening`: the log works, or stays offline."""
        key = (topic, partition)
        directory = self._by_log[key]
        checkpoints = directory.failed[key][1]
        if isinstance(outcome, StorageError):
            directory.failed[key] = (outcome, checkpoints)
            return
        logger.info("%s-%d could be opened", topic, partition)
        directory.logs[key] = outcome
        del directory.failed[key]
        if outcome.clean_offset != checkpoints.clean_offset:
            directory.checkpoint(CLEANER_OFFSET_FILE)

    def get_or_create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *, is_new: bool = True
    ) -> PartitionLog:
        """A partition's log, created in the directory with the fewest logs if it does not exist. `topic_id`
        ZERO_TOPIC_ID is not compared. The log of a partition that is not new may be in a missing directory: then none
        is created (LogManager.getOrCreateLog).

        A new log is on the disk only after its first flush, which is due at once.

        Raises:
            ApiError: INCONSISTENT_TOPIC_ID, if there is a log of another topic of this name.
            StorageError: the disk refused, the log could not be opened, or its directory is missing.
        """
        log = self.get(topic, partition)
        if log is None and not is_new and self.missing_directories:
            self._out_of_reach.add((topic, partition))
            raise StorageError(f"its log directory is missing ({', '.join(self.missing_directories)})")
        directory = self._by_log.get((topic, partition)) or min(
            self._directories, key=lambda found: len(found.logs) + len(found.failed)
        )
        if directory.failure is not None:
            raise StorageError(directory.failure.message)
        try:
            if log is None:
                log = self._create(directory, topic, partition, config)
            log.update_config(config)
            if topic_id != ZERO_TOPIC_ID:
                log.assign_topic_id(topic_id)
        except OSError as error:
            raise directory.refused(f"creating the log of {topic}-{partition}", error) from error
        return log

    def _create(self, directory: LogDirectory, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        key = (topic, partition)
        for other in self._directories:
            other.forget(key)
        context = directory.context
        path = f"{directory.path}/{topic}-{partition}"
        try:
            self.files.make_directory(path)
        except FileExistsError as error:  # the disk works: a file of that name exists
            raise StorageError(f"{path} is in the way of a new log: move it away", passes=True) from error
        segment = Segment.create(self._cache, path, 0, self._environment.clock.now_ms(), context.jitter(config))
        created = LoadedLog(path, [segment], log_start_offset=0, log_end_offset=0, recovery_point=0)
        created.leader_epochs = LeaderEpochs()
        created.producers = ProducerState(0, context.producer_id_expiration_ms)
        log = PartitionLog(context, key, config, created)
        log.local.durability.note_directory(segment.file.path)  # a flush is due
        directory.logs[key] = log
        self._by_log[key] = directory
        self.lost.named.discard(key)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Delete a log: its directory is renamed now, and removed after file.delete.delay.ms. No error if there is
        none.

        Raises:
            StorageError: the disk refused, or the log's directory is missing: the log would reappear with it.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if key in self._out_of_reach:
            raise StorageError(f"its log directory is missing ({', '.join(self.missing_directories)})")
        if key in self.lost.named:
            self.lost.named.discard(key)
            for found in self._directories:
                found.has_unsynced_deletions = True  # one of them names the log in its checkpoints
        if directory is None:
            return
        log = directory.logs.get(key)
        new_path = self._move_away(directory, key, DELETE_SUFFIX)
        delay_ms, segments = 0, []
        if log is not None:
            delay_ms, segments = log.config.file_delete_delay_ms, [segment.file for segment in log.segments]
        self._deletions.add_directory(new_path, delay_ms, segments)

    def is_damaged(self, topic: str, partition: int) -> bool:
        """Whether the partition's log could not be opened because its batches are damaged in a way that no crash
        explains.
        """
        directory = self._by_log.get((topic, partition))
        failed = None if directory is None else directory.failed.get((topic, partition))
        return failed is not None and isinstance(failed[0], CorruptLog)

    def damaged(self) -> frozenset[TopicPartition]:
        """The partitions for which `is_damaged` is true, or whose logs are known to be lost."""
        failed = [key for directory in self._directories for key in directory.failed]
        return frozenset(key for key in failed if self.is_damaged(*key)) | self.lost.named

    def set_aside(self, topic: str, partition: int, reason: str) -> None:
        """Retire a log that must not be used, for a `reason` that is logged ("which is ..."): its directory is renamed,
        and left for the operator.

        Source: LogManager.asyncDelete with isStray.

        Raises:
            StorageError: the disk refused.
        """
        directory = self._by_log[topic, partition]
        new_path = self._move_away(directory, (topic, partition), STRAY_SUFFIX)
        logger.warning("the log of %s-%d, %s is renamed to %s", topic, partition, reason, new_path)

    def _move_away(self, directory: LogDirectory, key: TopicPartition, suffix: str) -> str:
        """Rename the directory of a log, which is no log from now on; returns the new path."""
        old_path = f"{directory.path}/{key[0]}-{key[1]}"
        new_path = f"{directory.path}/{self._deletions.away_name(*key, suffix)}"
        log = directory.logs.get(key)
        try:
            if log is not None:
                log.local.move_to(new_path)
                log.local.close_files()
            else:
                self.files.rename(old_path, new_path)
        except OSError as error:
            raise directory.refused(f"deleting {old_path}", error) from error
        del self._by_log[key]
        directory.logs.pop(key, None)
        directory.failed.pop(key, None)
        directory.checkpoints.named.add(key)
        directory.has_unsynced_deletions = True
        return new_path

    def sync_deletions(self) -> None:
        """Flush the new names of deleted logs to the disk, so that none reappears, and drop their checkpoints, so that
        none counts as lost: the broker may die before a new log of the name is created. Blocking, any thread.

        Raises:
            StorageError: the disk refused.
        """
        for directory in self._directories:
            if directory.failure is not None:
                raise StorageError(directory.failure.message)
            if directory.has_unsynced_deletions:
                directory.has_unsynced_deletions = False
                try:
                    directory.sync()
                except OSError as error:
                    directory.has_unsynced_deletions = True
                    raise directory.refused(f"deleting logs of {directory.path}", error) from error
                with self._closing:
                    if self._is_closed:  # the disk hung beyond the shutdown's timeout: others have the directories now
                        return
                    directory.checkpoint(*HELD_LOGS_FILES)
        with self._closing, suppress(OSError):  # a full disk, say; it is retried with the next partitions
            if not self._is_closed:
                self.write_lost_logs()

    def truncations(self, cuts: Sequence[Cut]) -> Truncations:
        """Begin to truncate logs, with one write of the checkpoints for all: until completion, described in
        `Truncations`, each of them refuses all use.
        """
        found = ((cut.log, self._by_log.get((cut.log.topic, cut.log.partition))) for cut in cuts)
        # A deleted log has no directory, and refuses truncation.
        return Truncations({log: directory for log, directory in found if directory is not None}, cuts)

    # --- upkeep

    def delete_due_files(self) -> int:
        """Unlink deleted segments and logs whose file.delete.delay.ms has passed; returns their number. Blocking, any
        thread, one at a time.
        """
        return self._deletions.remove_due(directory.context.doomed for directory in self._directories)

    def bound_segments(self, sealed_max: int = SEALED_SEGMENTS_MAX) -> None:
        """Raise the minimum size of segments if there are too many. To be called periodically; the limit may be
        exceeded in between.
        """
        logs = self.logs
        is_crowded = sum(len(log.local.segments) for log in logs) - len(logs) > sealed_max
        bytes_min = SMALL_SEGMENT_BYTES if is_crowded else 1
        for directory in self._directories:
            if directory.context.segment_bytes_min < bytes_min:
                logger.warning("%s has more than %d segments: no segment below %d bytes rolls, even if segment.bytes"
                               " or segment.ms is smaller", directory.path, sealed_max, bytes_min)  # fmt: skip
            directory.context.segment_bytes_min = bytes_min

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with something to flush: new names, a sealed segment, a new leader epoch, or flush.ms has passed."""
        return [log for log in self.logs if log.failure is None and log.flush_is_due(now_ms)]

    def checkpoint(self, name: str) -> None:
        """Write one of the checkpoint files of every log directory: RECOVERY_POINT_FILE, LOG_START_FILE or
        HIGH_WATERMARK_FILE. Blocking, any thread.
        """
        for directory in self._directories:
            directory.checkpoint(name)

    def checkpoint_clean_offset(self, log: PartitionLog, offset: int, cut_count: int | None = None) -> None:
        """Checkpoint the end of a log's clean section, before the first swap: from then on offsets may be missing, and
        recovery after a crash has to know that. Blocking, any thread.

        Nothing changes if the log's `cut_count` is not the given one: the pass read batches that were truncated since.

        Raises:
            OSError: the disk refused; the log's clean offset is unchanged.
        """
        directory = self._by_log.get((log.topic, log.partition))
        if directory is None or directory.logs.get((log.topic, log.partition)) is not log:
            return  # deleted meanwhile
        if cut_count not in (None, log.cut_count):
            return
        before, log.clean_offset = log.clean_offset, offset
        try:
            directory.write_checkpoints((CLEANER_OFFSET_FILE,))
        except OSError as error:
            log.clean_offset = before
            directory.refused(f"writing {CLEANER_OFFSET_FILE}", error)
            raise

    # --- closing

    def close(self, broker_epoch: int = -1) -> None:
        """Flush every log, and write the clean-shutdown file of each directory where that worked. Blocking; nothing
        else may run. Directories whose logs were not loaded are left unchanged.

        No directory waits for another one on a slower disk, because the process may be killed before that one is done.
        """
        if self._is_loaded:
            closing = [(directory, directory.prepare_close()) for directory in self._directories]
            self.threads.run([[partial(self._close, *found, broker_epoch)] for found in closing], 1, "closing")
        self._let_go()

    def _let_go(self) -> None:
        with self._closing:
            self._is_closed = True
        self._cache.close_all()
        self._directories.close()

    def _close(
        self, directory: LogDirectory, flushes: Sequence[tuple[PartitionLog, FlushTask]], broker_epoch: int
    ) -> None:
        self.threads.run([[task.run for _, task in flushes]], self._threads_per_directory, "logs")
        directory.complete_close(flushes, broker_epoch)

    def abandon(self) -> None:
        """Release everything, including the locks, and write nothing, as after a crash."""
        self._let_go()
