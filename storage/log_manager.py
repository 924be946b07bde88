"""The log directories of a broker: who owns them, which logs they hold, what is checkpointed and cleaned up.

A log directory holds one directory per partition and these files, all described in `checkpoints`:

================================= ==================================================================================
name                              content
================================= ==================================================================================
.lock                             empty; locked by the process that uses the directory
.kafka_cleanshutdown              there only while no process uses the directory and all of it is on the disk
meta.properties                   broker id and cluster id the directory belongs to
recovery-point-offset-checkpoint  per partition: everything before this offset is on the disk
log-start-offset-checkpoint       per partition: everything before this offset is deleted
replication-offset-checkpoint     per partition: the high watermark
TOPIC-PARTITION/                  a log; the topic may contain dashes
TOPIC-PARTITION.HEX-delete/       a deleted log whose files are still to be removed
================================= ==================================================================================

Source: kafka.log.LogManager, LocalLog.parseTopicPartitionName.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from barnabas.clock import Clock
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    MetaProperties,
    TopicPartition,
    read_offsets,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offsets,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptFile, DirectoryLocked, DirectoryMismatch, StorageError
from barnabas.storage.files import (
    DescriptorCache,
    Files,
    LogFile,
    is_passing,
    make_durable_directory,
    read_file,
    replace_file,
    unlink_if_exists,
)
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.offset_index import OffsetIndexCache
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.recovery import LogCheckpoints, Progress, open_log
from barnabas.storage.segment import Segment
from barnabas.wire.names import ZERO_TOPIC_ID

logger = logging.getLogger(__name__)

DELETE_SUFFIX: Final = "-delete"
_SET_ASIDE: Final = ("-stray", "-future")
_MAX_NAME_SIZE: Final = 255

Outcome = TypeVar("Outcome")

_owned_directories: set[str] = set()
"""Directories in use by this process: POSIX locks do not exclude their own process."""
_owned_directories_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _DoomedDirectory:
    """A deleted log whose files are to be removed when `due_ms` (monotonic) has come."""

    due_ms: int
    path: str
    segments: list[LogFile]


class _FoundLogs(NamedTuple):
    """What a log directory holds before it is opened: each log's partition, settings and checkpoints."""

    directory: LogDirectory
    logs: list[tuple[TopicPartition, LogConfig, LogCheckpoints]]
    is_clean: bool
    has_recovery_points: bool


class LogDirectory:
    """One log directory: its lock, and what its logs share.

    `failed` holds the logs that could not be opened: why, and what was checkpointed of them. As long as there are some,
    no clean shutdown is claimed.
    """

    def __init__(self, path: str, context: LogContext) -> None:
        self.path = path
        self.context = context
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, tuple[StorageError, LogCheckpoints]] = {}
        self.checkpointed: set[TopicPartition] = set()
        """Logs that the checkpoint files may name."""
        self.has_unsynced_deletions = False
        self.has_failed = False
        """The disk did not take a checkpoint: a clean shutdown is not to be claimed."""
        self.lock_descriptor = -1


class LogManager:
    """All logs of a broker.

    Ownership: the event loop, except for the methods that say "any thread". Those that say "blocking" wait for the
    disk.

    Args:
        files: the disk.
        directories: `log.dirs`; created where missing.
        config_of: a topic's settings, for logs that are found at the start.
        clock: for segment ages and delayed deletions.
        node_id: `broker.id`.
        cluster_id: None if it is known only later; then `set_cluster_id` checks it.
        on_failure: told, once per log and from any thread, why a log went offline.
        progress: told how recovery gets on.
        producer_id_expiration_ms: `producer.id.expiration.ms`.
        random_below: draws the jitter of `segment.jitter.ms`: a number from 0 to below its argument.
        threads_per_directory: `num.recovery.threads.per.data.dir`: so many open and close each directory's logs.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[Path | str],
        config_of: Callable[[str], LogConfig],
        clock: Clock,
        *,
        node_id: int,
        cluster_id: str | None = None,
        on_failure: Callable[[str], None] = lambda _reason: None,
        progress: Progress | None = None,
        producer_id_expiration_ms: int = 86_400_000,
        random_below: Callable[[int], int] = lambda _limit: 0,
        threads_per_directory: int = 1,
    ) -> None:
        self._files = files
        self._config_of = config_of
        self._clock = clock
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._on_failure = on_failure
        self._progress = progress
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._random_below = random_below
        self.threads_per_directory = threads_per_directory
        self._cache = DescriptorCache(files)
        self._indexes = OffsetIndexCache()
        self._paths = [str(directory) for directory in directories]
        self._directories: list[LogDirectory] = []
        self._by_log: dict[TopicPartition, LogDirectory] = {}
        self._doomed: deque[_DoomedDirectory] = deque()
        self._checkpoint_lock = threading.Lock()
        self._deletions = 0

    # --- opening

    def open(self) -> None:
        """Lock the directories and load their logs, recovering those that were not closed cleanly. Blocking.

        Raises:
            DirectoryLocked: somebody else uses a directory.
            DirectoryMismatch: a directory belongs to another broker or cluster, or two of them hold the same partition.
            OSError: a directory cannot be used at all.
        """
        try:
            for path in map(self._files.real_path, self._paths):
                make_durable_directory(self._files, path)
                self._directories.append(self._lock(path))
            for directory in self._directories:
                self._check_owner(directory)
            self._load_logs([self._find_logs(directory) for directory in self._directories])
        except BaseException:
            self._unlock_all()
            raise

    def _lock(self, path: str) -> LogDirectory:
        with _owned_directories_lock:
            if path in _owned_directories:
                raise DirectoryLocked(f"this process uses {path} already")
            descriptor = self._files.lock(f"{path}/{LOCK_FILE}")
            _owned_directories.add(path)
        context = LogContext(
            self._cache,
            self._indexes,
            self._clock,
            reads_cached=self._files.reads_cached(path),
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            random_below=self._random_below,
            on_failure=self._log_failed,
        )
        directory = LogDirectory(path, context)
        directory.lock_descriptor = descriptor
        return directory

    def _unlock_all(self) -> None:
        for directory in self._directories:
            with _owned_directories_lock:
                _owned_directories.discard(directory.path)
                self._files.close(directory.lock_descriptor)
        self._directories = []

    def _log_failed(self, log: LocalLog, error: StorageError) -> None:
        self._on_failure(f"{log.directory}: {error.message}")

    def _check_owner(self, directory: LogDirectory) -> None:
        """Compare `meta.properties` with who we are, or write it if the cluster is known."""
        path = f"{directory.path}/{META_PROPERTIES_FILE}"
        try:
            found = MetaProperties.decode(read_file(self._files, path))
        except FileNotFoundError:
            if self._cluster_id is not None:
                replace_file(self._files, path, MetaProperties(self._node_id, self._cluster_id).encode())
            return
        except CorruptFile as error:
            raise DirectoryMismatch(f"{path}: {error}") from None
        if found.broker_id != self._node_id:
            raise DirectoryMismatch(f"{path} belongs to broker {found.broker_id}, not {self._node_id}")
        if self._cluster_id is not None and found.cluster_id != self._cluster_id:
            raise DirectoryMismatch(f"{path} belongs to cluster {found.cluster_id}, not {self._cluster_id}")

    def set_cluster_id(self, cluster_id: str) -> None:
        """Note the cluster's id in every directory. Blocking where a directory is new.

        Raises:
            DirectoryMismatch: a directory belongs to another cluster.
        """
        self._cluster_id = cluster_id
        for directory in self._directories:
            self._check_owner(directory)

    def _find_logs(self, directory: LogDirectory) -> _FoundLogs:
        """Which logs a directory holds, and what its checkpoints say of them."""
        is_clean = take_clean_shutdown(self._files, directory.path)
        recovery_points = self._read_checkpoint(directory, RECOVERY_POINT_FILE)
        log_starts = self._read_checkpoint(directory, LOG_START_FILE) or {}
        high_watermarks = self._read_checkpoint(directory, HIGH_WATERMARK_FILE) or {}
        cleaned = self._read_checkpoint(directory, CLEANER_OFFSET_FILE) or {}
        directory.checkpointed = {*(recovery_points or ()), *log_starts, *high_watermarks}
        logs = []
        for name in sorted(self._partition_directories(directory)):
            key = parse_log_name(name)
            if key is None:
                logger.warning("ignoring %s/%s: not the name of a log", directory.path, name)
                continue
            checkpoints = LogCheckpoints(
                (recovery_points or {}).get(key, 0),
                log_starts.get(key, 0),
                high_watermarks.get(key, 0),
                may_have_gaps=recovery_points is None or key in cleaned,
            )
            other = self._by_log.setdefault(key, directory)
            if other is not directory:
                raise DirectoryMismatch(f"both {directory.path} and {other.path} hold {key[0]}-{key[1]}")
            logs.append((key, self._config_of(key[0]), checkpoints))
        return _FoundLogs(directory, logs, is_clean, recovery_points is not None)

    def _load_logs(self, found: list[_FoundLogs]) -> None:
        opened = self._in_threads(
            [
                [partial(self._open_log, logs.directory, *log, is_clean=logs.is_clean) for log in logs.logs]
                for logs in found
            ]
        )
        for logs, outcomes in zip(found, opened, strict=True):
            directory = logs.directory
            for (key, _, checkpoints), outcome in zip(logs.logs, outcomes, strict=True):
                if isinstance(outcome, StorageError):
                    logger.error("%s-%d stays offline: %s", *key, outcome.message)
                    directory.failed[key] = (outcome, checkpoints)
                else:
                    directory.logs[key] = outcome
            if not logs.is_clean:
                # A process that was killed may have left names that are not on the disk: what is served from now on is.
                self._files.sync_directory(directory.path)
        if not all(logs.has_recovery_points and logs.is_clean for logs in found):
            # What was recovered is on the disk: the next start need not look at it again.
            self._checkpoint(RECOVERY_POINT_FILE)

    def _open_log(
        self,
        directory: LogDirectory,
        key: TopicPartition,
        config: LogConfig,
        checkpoints: LogCheckpoints,
        *,
        is_clean: bool,
    ) -> PartitionLog | StorageError:
        topic, partition = key
        path = f"{directory.path}/{topic}-{partition}"
        try:
            return open_log(
                directory.context,
                topic,
                partition,
                path,
                config,
                checkpoints,
                is_clean=is_clean,
                progress=self._progress,
            )
        except StorageError as error:
            return error

    def _in_threads(self, jobs: list[list[Callable[[], Outcome]]]) -> list[list[Outcome]]:
        """Run each directory's jobs in threads of its own, which share the waiting for one disk; what they returned."""
        pools = [ThreadPoolExecutor(self.threads_per_directory, "logs") for _ in jobs]
        try:
            running = [[pool.submit(job) for job in some] for pool, some in zip(pools, jobs, strict=True)]
            return [[future.result() for future in futures] for futures in running]
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)

    def _read_checkpoint(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int] | None:
        """What a checkpoint says; None if it is not there or unusable."""
        try:
            return read_offsets(self._files, directory.path, name)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            logger.warning("ignoring %s/%s: %s", directory.path, name, error)
            return None

    def _partition_directories(self, directory: LogDirectory) -> Iterator[str]:
        """Names that may be logs. Logs whose deletion a crash interrupted are removed on the way."""
        for entry in self._files.list(directory.path):
            if not entry.is_directory:
                continue
            if entry.name.endswith(DELETE_SUFFIX):
                self._remove_tree(f"{directory.path}/{entry.name}")
            elif entry.name.endswith(_SET_ASIDE):
                logger.warning("leaving %s/%s alone: it was set aside", directory.path, entry.name)
            elif "-" in entry.name:
                yield entry.name

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Forget producers that do not write after this time from now on."""
        self._producer_id_expiration_ms = expiration_ms
        for directory in self._directories:
            directory.context.producer_id_expiration_ms = expiration_ms

    # --- finding and making logs

    @property
    def files(self) -> Files:
        """The disk."""
        return self._files

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return [Path(directory.path) for directory in self._directories]

    @property
    def logs(self) -> list[PartitionLog]:
        """All logs that work, or did when they were opened. Any thread."""
        return [log for directory in self._directories for log in list(directory.logs.values())]

    def parent_directory(self, log: PartitionLog) -> Path:
        """The log directory that a log is in."""
        return Path(log.directory).parent

    def space(self, directory: Path | str) -> tuple[int, int]:
        """Total and free bytes of the file system of a log directory. Blocking, any thread."""
        return self._files.total_bytes(str(directory)), self._files.free_bytes(str(directory))

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """A partition's log, if there is one.

        Raises:
            StorageError: there is one, but it could not be opened.
        """
        directory = self._by_log.get((topic, partition))
        if directory is None:
            return None
        failed = directory.failed.get((topic, partition))
        if failed is not None:
            raise StorageError(failed[0].message)
        return directory.logs[topic, partition]

    def get_or_create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> PartitionLog:
        """A partition's log, created in the directory that has the fewest. `topic_id` ZERO_TOPIC_ID is not compared.

        A new log is on the disk only after its first flush, which it is in line for.

        Raises:
            ApiError: INCONSISTENT_TOPIC_ID, if there is a log of another topic of this name.
            StorageError: the disk refused, or the log could not be opened.
        """
        log = self.get(topic, partition)
        if log is None:
            try:
                log = self._create(topic, partition, config)
            except OSError as error:
                raise StorageError(f"creating the log of {topic}-{partition} failed: {error}") from error
        log.update_config(config)
        if topic_id != ZERO_TOPIC_ID:
            try:
                log.assign_topic_id(topic_id)
            except OSError as error:
                raise StorageError(f"writing the topic id of {topic}-{partition} failed: {error}") from error
        return log

    def _create(self, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        key = (topic, partition)
        directory = min(self._directories, key=lambda found: len(found.logs) + len(found.failed))
        for stale in self._directories:
            if key in stale.checkpointed:
                # What the checkpoints say of an earlier log of this name would delete records of the new one.
                self._write_checkpoints(stale, (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE))
                stale.checkpointed = set(stale.logs)
        context = directory.context
        path = f"{directory.path}/{topic}-{partition}"
        self._files.make_directory(path)
        segment = Segment.create(self._cache, path, 0, self._clock.now_ms(), context.jitter(config))
        log = PartitionLog(
            context,
            topic,
            partition,
            path,
            config,
            [segment],
            log_start_offset=0,
            log_end_offset=0,
            recovery_point=0,
            leader_epochs=LeaderEpochs(),
            producers=ProducerState(0, context.producer_id_expiration_ms),
        )
        log.mark_new()
        directory.logs[key] = log
        self._by_log[key] = directory
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Take a log away: its directory is renamed now, and removed after file.delete.delay.ms. Fine if there is none.

        Raises:
            StorageError: the disk refused.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if directory is None:
            return
        log = directory.logs.get(key)
        old_path = f"{directory.path}/{topic}-{partition}"
        new_path = f"{directory.path}/{self._deleted_name(topic, partition)}"
        delay_ms, segments = 0, []
        try:
            if log is not None:
                log.move_to(new_path)
                log.close_files()
                delay_ms, segments = log.config.file_delete_delay_ms, [segment.file for segment in log.segments]
            else:
                self._files.rename(old_path, new_path)
        except OSError as error:
            raise StorageError(f"deleting {old_path} failed: {error}") from error
        del self._by_log[key]
        directory.logs.pop(key, None)
        directory.failed.pop(key, None)
        directory.checkpointed.add(key)
        directory.has_unsynced_deletions = True
        self._doomed.append(_DoomedDirectory(self._clock.monotonic_ms() + delay_ms, new_path, segments))

    def sync_deletions(self) -> None:
        """Bring the new names of deleted logs to the disk, so that none comes back. Blocking, any thread.

        Raises:
            StorageError: the disk refused.
        """
        for directory in self._directories:
            if directory.has_unsynced_deletions:
                directory.has_unsynced_deletions = False
                try:
                    self._files.sync_directory(directory.path)
                except OSError as error:
                    raise StorageError(f"deleting logs of {directory.path} failed: {error}") from error

    def _deleted_name(self, topic: str, partition: int) -> str:
        """Unique, and no longer than a name may be: Kafka cuts the topic, too."""
        self._deletions += 1
        suffix = f"-{partition}.{self._clock.now_ms():016x}{self._deletions:016x}{DELETE_SUFFIX}"
        return topic[: _MAX_NAME_SIZE - len(suffix)] + suffix

    def truncate_to(self, log: PartitionLog, offset: int) -> None:
        """Remove all batches of a log that reach to `offset` or beyond, and take its recovery point back: what comes in
        their place is not on the disk. Blocking.

        Raises:
            StorageError: the disk refused.
        """
        log.truncate_to(offset)
        try:
            self._write_checkpoints(self._by_log[log.topic, log.partition], (RECOVERY_POINT_FILE,))
        except OSError as error:
            log.fail(StorageError(f"writing the recovery point of {log.directory} failed: {error}"))
            raise StorageError(str(error)) from error

    # --- upkeep

    def delete_due_files(self) -> int:
        """Unlink deleted segments and logs whose file.delete.delay.ms is over; how many. Blocking, any thread, one at
        a time.
        """
        now_ms = self._clock.monotonic_ms()
        count = 0
        for directory in self._directories:
            doomed = directory.context.doomed
            for _ in range(len(doomed)):
                files = doomed.popleft()
                if files.due_ms > now_ms:
                    doomed.append(files)
                    continue
                for segment in files.segments:
                    self._cache.unlink(segment)
                for path in files.others:
                    unlink_if_exists(self._files, path)
                count += len(files.segments)
        for _ in range(len(self._doomed)):
            deleted = self._doomed.popleft()
            if deleted.due_ms > now_ms or any(segment.holders for segment in deleted.segments):
                self._doomed.append(deleted)
                continue
            self._remove_tree(deleted.path)
            count += 1
        return count

    def _remove_tree(self, path: str) -> None:
        """Remove a deleted log's directory; what cannot be removed is tried again at the next start."""
        try:
            for entry in self._files.list(path):
                unlink_if_exists(self._files, f"{path}/{entry.name}")
            self._files.remove_directory(path)
        except OSError as error:
            logger.warning("removing %s failed: %s", path, error)

    def run_retention(self, now_ms: int) -> int:
        """Delete old segments of all logs; how many. A log that fails goes offline without stopping the others."""
        count = 0
        for log in self.logs:
            if log.failure is None:
                try:
                    count += log.delete_old_segments(now_ms)
                except StorageError as error:
                    log.fail(error)
        return count

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with something to flush: new names or a sealed segment, a new leader epoch, or flush.ms has passed."""
        return [log for log in self.logs if log.failure is None and log.flush_is_due(now_ms)]

    def run_flushes(self, now_ms: int) -> int:
        """Flush what `logs_to_flush` names; how many. Blocking; a broker rather runs each log's `prepare_flush` in a
        thread.
        """
        count = 0
        for log in self.logs_to_flush(now_ms):
            task = log.prepare_flush()
            if task is not None:
                task.run()
                log.complete_flush(task)
                count += 1
        return count

    def checkpoint_recovery_points(self) -> None:
        """Write down how far each log is on the disk. Blocking, any thread."""
        self._checkpoint(RECOVERY_POINT_FILE)

    def checkpoint_log_start_offsets(self) -> None:
        """Write down where each log starts, if not at 0. Blocking, any thread."""
        self._checkpoint(LOG_START_FILE)

    def checkpoint_high_watermarks(self) -> None:
        """Write down the high watermarks. Blocking, any thread."""
        self._checkpoint(HIGH_WATERMARK_FILE)

    def _checkpoint(self, name: str) -> None:
        for directory in self._directories:
            self._checkpoint_directory(directory, name)

    def _checkpoint_directory(self, directory: LogDirectory, name: str) -> None:
        """Nothing depends on a new checkpoint, so a full disk may keep it from being written; a disk that fails is not
        trusted any more.
        """
        try:
            self._write_checkpoints(directory, (name,))
        except OSError as error:
            logger.error("writing %s/%s failed: %s", directory.path, name, error)
            if not is_passing(error):
                directory.has_failed = True
                self._on_failure(f"{directory.path}: writing {name} failed: {error}")

    def _write_checkpoints(self, directory: LogDirectory, names: Sequence[str]) -> None:
        """The values are taken under the lock that the files are written under, so that none is replaced by an older
        one.
        """
        with self._checkpoint_lock:
            for name in names:
                write_offsets(self._files, directory.path, name, _offsets(directory, name))
            directory.checkpointed.update(list(directory.logs))

    # --- closing

    def close(self, broker_epoch: int = -1) -> None:
        """Bring every log to the disk, and leave the marker of a clean shutdown where that worked. Blocking; nothing
        else may run.
        """
        flushes = [self._prepare_close(directory) for directory in self._directories]
        self._in_threads([[task.run for _, task in tasks] for tasks in flushes])
        for log, task in [flush for tasks in flushes for flush in tasks]:
            log.complete_flush(task)
        for directory in self._directories:
            try:
                self._write_checkpoints(directory, (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE))
                if not (directory.failed or directory.has_failed) and all(
                    log.is_on_disk for log in directory.logs.values()
                ):
                    write_clean_shutdown(self._files, directory.path, broker_epoch)
            except OSError as error:
                logger.error("closing %s failed, it will be recovered at the next start: %s", directory.path, error)
        self._cache.close_all()
        self._unlock_all()

    def _prepare_close(self, directory: LogDirectory) -> list[tuple[PartitionLog, FlushTask]]:
        flushes = []
        for log in directory.logs.values():
            try:
                task = log.prepare_close()
            except StorageError as error:
                log.fail(error)
                continue
            if task is not None:
                flushes.append((log, task))
        return flushes

    def abandon(self) -> None:
        """Give everything up as a crash would, but for the locks: for tests of recovery."""
        self._cache.close_all()
        self._unlock_all()


def _offsets(directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
    """What a checkpoint says of each log. Of a failed one it goes on saying what it said."""
    offsets = {}
    for key, log in list(directory.logs.items()):
        if name == RECOVERY_POINT_FILE:
            offsets[key] = log.recovery_point_to_write
        elif name == HIGH_WATERMARK_FILE:
            offsets[key] = log.high_watermark
        elif log.log_start_offset > 0:
            # Also where the first segment says so: the names of deleted ones may not be off the disk yet.
            offsets[key] = log.log_start_offset
    for key, (_, checkpoints) in list(directory.failed.items()):
        if name == RECOVERY_POINT_FILE:
            offsets[key] = checkpoints.recovery_point
        elif name == HIGH_WATERMARK_FILE:
            offsets[key] = checkpoints.high_watermark
        else:
            offsets[key] = checkpoints.log_start_offset
    return offsets


def parse_log_name(name: str) -> TopicPartition | None:
    """Topic and partition of a log's directory name, `TOPIC-PARTITION`; None if it is not one."""
    topic, dash, partition = name.rpartition("-")
    if not topic or not dash or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
