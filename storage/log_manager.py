"""All logs of a broker: opened and recovered, made and deleted, flushed, checkpointed and closed.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from barnabas.clock import Clock
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_DIRECTORIES_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    write_clean_shutdown,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import DirectoryMismatch, StorageError
from barnabas.storage.files import (
    DescriptorCache,
    Files,
    LogFile,
    make_durable_directory,
    refusal,
    unlink_if_exists,
)
from barnabas.storage.flush import FlushTask
from barnabas.storage.known_directories import KnownDirectories, identify
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.local_log import LocalLog
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_context import DoomedFiles, LogContext
from barnabas.storage.log_directory import DELETE_SUFFIX, STRAY_SUFFIX, FoundLogs, LogDirectory, look_at, remove_tree
from barnabas.storage.offset_index import OffsetIndexCache
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.recovery.log_loader import LogCheckpoints, Progress, open_log
from barnabas.storage.segment import Segment
from barnabas.storage.segment_times import SegmentTimes
from barnabas.threads import run_in_threads
from barnabas.wire.names import ZERO_TOPIC_ID

logger = logging.getLogger(__name__)

_MAX_NAME_SIZE: Final = 255
_REMOVAL_RETRY_MS: Final = 60_000
_LOG_CHECKPOINTS: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)

_numbers = itertools.count()

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _DoomedDirectory:
    """A deleted log whose files are to be removed when `due_ms` (monotonic) has come."""

    due_ms: int
    path: str
    segments: list[LogFile]


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
        new_id: draws the id of a new log directory; by default unique in this process only.
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
        new_id: Callable[[], str] = lambda: f"directory-{next(_numbers)}",
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
        self._new_id = new_id
        self._threads_per_directory = threads_per_directory
        self._cache = DescriptorCache(files)
        self._indexes = OffsetIndexCache()
        self._paths = [str(directory) for directory in directories]
        self._directories: list[LogDirectory] = []
        self._configured: dict[str, LogDirectory] = {}
        """By the path that `log.dirs` has."""
        self._known = KnownDirectories({}, {})
        self._out_of_reach: set[TopicPartition] = set()
        """Logs that only a missing directory can hold."""
        self.found_cluster_id: str | None = None
        """The cluster that the directories belong to, None as long as no directory names one."""
        self._by_log: dict[TopicPartition, LogDirectory] = {}
        self._doomed: deque[_DoomedDirectory] = deque()
        self._deletions = 0
        self.previous_broker_epoch = -1
        """The epoch that the broker had when it stopped cleanly; -1 if it did not in each of the directories, or not in
        all of them at once (LogManager.readBrokerEpochFromCleanShutdownFiles)."""

    # --- opening

    def open(self) -> None:
        """Lock the directories and load their logs, recovering those that were not closed cleanly. Blocking.

        Raises:
            DirectoryLocked: somebody else uses a directory.
            DirectoryMismatch: a directory belongs to another broker or cluster, or two of them hold the same partition.
            OSError: a directory cannot be used at all. One that was used before is only missed, if there are others.
        """
        try:
            self._lock_directories()
            for directory in self._directories:
                self.found_cluster_id = directory.check_owner(self._node_id, self._cluster_id) or self.found_cluster_id
            found = [directory.find_logs() for directory in self._directories]
            broker_epochs = {logs.broker_epoch for logs in found}
            self.previous_broker_epoch = broker_epochs.pop() if len(broker_epochs) == 1 else -1
            for directory, logs in zip(self._directories, found, strict=True):
                self._place(directory, logs)
            self._load_logs(*_follow_moves(found))
        except BaseException:
            self._unlock_all()
            raise

    def _lock_directories(self) -> None:
        """Lock the directories that are there; name those that are missed.

        What is in them is offline until they are back: nothing takes its place in another directory.
        """
        seen = [look_at(self._files, path) for path in self._paths]
        known = identify(seen, self._new_id)
        missing_paths = {missed.path for missed in known.missing.values()}
        for directory in seen:
            path = directory.path
            if directory.problem and path not in missing_paths:
                raise OSError(f"log directory {path} cannot be used: {directory.problem}")
            if path not in known.present:
                continue
            try:
                real_path = self._files.real_path(path)
                make_durable_directory(self._files, real_path)
                locked = LogDirectory.lock(real_path, self._make_context(real_path))
            except OSError as error:
                if directory.note is None or len(known.present) == 1:
                    raise OSError(f"log directory {path} cannot be used: {error.strerror}") from error
                known = known.without(path, error.strerror or str(error))
            else:
                self._directories.append(locked)
                self._configured[path] = locked
        self._known = known
        for directory_id, missed in known.missing.items():
            logger.error(
                "log directory %s is missing (%s): the partitions in it are offline until a start finds it."
                " To give it up, delete the line of %s from %s in the other log directories",
                missed.path, missed.problem, directory_id, LOG_DIRECTORIES_FILE,
            )  # fmt: skip

    @property
    def missing_directories(self) -> dict[str, str]:
        """Directories that the broker once had and that could not be used at the start: why, by path."""
        return {missed.path: missed.problem for missed in self._known.missing.values()}

    def _make_context(self, path: str) -> LogContext:
        return LogContext(
            self._cache,
            self._indexes,
            self._clock,
            reads_cached=self._files.reads_cached(path),
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            random_below=self._random_below,
            on_failure=self._log_failed,
        )

    def _unlock_all(self) -> None:
        for directory in self._directories:
            directory.unlock()
        self._directories = []
        self._configured = {}

    def _log_failed(self, log: LocalLog, error: StorageError) -> None:
        self._on_failure(f"{log.directory}: {error.message}")

    def set_cluster_id(self, cluster_id: str) -> None:
        """Note the cluster's id in every directory, and which directories there are: once the metadata store is there,
        so that a directory which names a cluster stands for one that has a store. Blocking where something is new.

        Raises:
            DirectoryMismatch: a directory belongs to another cluster.
        """
        self._cluster_id = self.found_cluster_id = cluster_id
        for directory in self._directories:
            directory.set_owner(self._node_id, cluster_id)
        for path, note in self._known.notes().items():
            self._configured[path].write_note(note)

    def _place(self, directory: LogDirectory, found: FoundLogs) -> None:
        for key in found.logs:
            other = self._by_log.setdefault(key, directory)
            if other is not directory:
                raise DirectoryMismatch(f"both {directory.path} and {other.path} hold {key[0]}-{key[1]}")

    def _load_logs(self, found: list[FoundLogs], moves: dict[TopicPartition, FoundLogs]) -> None:
        """Open what was found. `moves` holds the logs that come from another directory, and what was found there."""
        opened = self._in_threads(
            [
                [
                    partial(
                        self._open_log,
                        directory,
                        key,
                        self._config_of(key[0]),
                        known,
                        is_clean=logs.is_clean and moves.get(key, logs).is_clean,
                    )
                    for key, known in logs.logs.items()
                ]
                for directory, logs in zip(self._directories, found, strict=True)
            ]
        )
        for directory, logs, outcomes in zip(self._directories, found, opened, strict=True):
            for (key, checkpoints), outcome in zip(logs.logs.items(), outcomes, strict=True):
                if isinstance(outcome, StorageError):
                    logger.error("%s-%d stays offline: %s", *key, outcome.message)
                    directory.failed[key] = (outcome, checkpoints)
                else:
                    directory.logs[key] = outcome
            if not logs.is_clean:
                # A process that was killed may have left names that are not on the disk: what is served from now on is.
                self._files.sync_directory(directory.path)
        for directory, logs in zip(self._directories, found, strict=True):
            if not moves.keys().isdisjoint(logs.logs):
                # Before the directory that they come from forgets them.
                self._checkpoint_directory(directory, *_LOG_CHECKPOINTS)
        for directory, logs in zip(self._directories, found, strict=True):
            if stale := directory.stale_checkpoints(logs):
                self._checkpoint_directory(directory, *stale)

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
        except Exception as error:  # whatever is wrong with this log, the others are opened
            logger.exception("opening %s failed", path)
            return StorageError(f"opening {path} failed: {type(error).__name__}: {error}")

    def _in_threads(self, jobs: list[list[Callable[[], Outcome]]]) -> list[list[Outcome]]:
        """Run each directory's jobs in threads of its own, which share the waiting for one disk; what they returned."""
        return run_in_threads(jobs, self._threads_per_directory, "logs")

    def set_threads_per_directory(self, count: int) -> None:
        """Have so many threads from now on."""
        self._threads_per_directory = count

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

    def producer_ids(self) -> set[int]:
        """The ids that producers of all logs have, or had a while ago; a log that cannot be read names none. Blocking;
        any thread."""
        found: set[int] = set()
        for log in self.logs:
            try:
                found.update(log.producer_ids())
            except Exception as error:  # noqa: BLE001 - whatever is wrong with this log, the others are asked
                logger.warning("the producers of %s cannot be read: %r", log.directory, error)
        return found

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
            raise StorageError(failed[0].message, passes=failed[0].passes)
        return directory.logs[topic, partition]

    def reopening(self, topic: str, partition: int) -> Callable[[], PartitionLog | StorageError] | None:
        """A job that tries again to open a log which could not be opened for a cause that passes; `reopened` takes in
        what it returns. None if there is no such log. The job blocks and may run in any thread.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if directory is None or key not in directory.failed or not directory.failed[key][0].passes:
            return None
        checkpoints = directory.failed[key][1]
        return partial(self._open_log, directory, key, self._config_of(topic), checkpoints, is_clean=False)

    def reopened(self, topic: str, partition: int, outcome: PartitionLog | StorageError) -> None:
        """The log works, or is offline as before."""
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
            self._checkpoint_directory(directory, CLEANER_OFFSET_FILE)

    def get_or_create(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *, is_new: bool = True
    ) -> PartitionLog:
        """A partition's log, created in the directory that has the fewest. `topic_id` ZERO_TOPIC_ID is not compared.

        That of a partition which is not new may be in a directory that is missing: then none is created
        (LogManager.getOrCreateLog).

        A new log is on the disk only after its first flush, which it is in line for.

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
            raise self._refused(directory, f"creating the log of {topic}-{partition}", error) from error
        return log

    def _create(self, directory: LogDirectory, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        key = (topic, partition)
        for stale in self._directories:
            if key in stale.checkpointed:
                # What the checkpoints say of an earlier log of this name would delete records of the new one.
                stale.write_checkpoints(_LOG_CHECKPOINTS)
                stale.checkpointed = set(stale.logs)
        context = directory.context
        path = f"{directory.path}/{topic}-{partition}"
        try:
            self._files.make_directory(path)
        except FileExistsError as error:  # nothing is wrong with the disk: somebody has left a file of that name there
            raise StorageError(f"{path} is in the way of a new log: move it away", passes=True) from error
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
            StorageError: the disk refused, or the log's directory is missing: it would come back with it.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if key in self._out_of_reach:
            raise StorageError(f"its log directory is missing ({', '.join(self.missing_directories)})")
        if directory is None:
            return
        log = directory.logs.get(key)
        new_path = self._move_away(directory, key, DELETE_SUFFIX)
        delay_ms, segments = 0, []
        if log is not None:
            delay_ms, segments = log.config.file_delete_delay_ms, [segment.file for segment in log.segments]
        self._doomed.append(_DoomedDirectory(self._clock.monotonic_ms() + delay_ms, new_path, segments))

    def set_aside(self, topic: str, partition: int) -> None:
        """Take away the log of a topic that nobody knows of any more: its directory is renamed, and left to the
        operator.

        Source: LogManager.asyncDelete with isStray.

        Raises:
            StorageError: the disk refused.
        """
        directory = self._by_log[topic, partition]
        new_path = self._move_away(directory, (topic, partition), STRAY_SUFFIX)
        logger.warning("the log of an earlier topic %s, partition %d, is set aside as %s", topic, partition, new_path)

    def _move_away(self, directory: LogDirectory, key: TopicPartition, suffix: str) -> str:
        """Rename the directory of a log, which is none from now on; its new path."""
        old_path = f"{directory.path}/{key[0]}-{key[1]}"
        new_path = f"{directory.path}/{self._away_name(*key, suffix)}"
        log = directory.logs.get(key)
        try:
            if log is not None:
                log.move_to(new_path)
                log.close_files()
            else:
                self._files.rename(old_path, new_path)
        except OSError as error:
            raise self._refused(directory, f"deleting {old_path}", error) from error
        del self._by_log[key]
        directory.logs.pop(key, None)
        directory.failed.pop(key, None)
        directory.checkpointed.add(key)
        directory.has_unsynced_deletions = True
        return new_path

    def sync_deletions(self) -> None:
        """Bring the new names of deleted logs to the disk, so that none comes back. Blocking, any thread.

        Raises:
            StorageError: the disk refused.
        """
        for directory in self._directories:
            if directory.failure is not None:
                raise StorageError(directory.failure.message)
            if directory.has_unsynced_deletions:
                directory.has_unsynced_deletions = False
                try:
                    self._files.sync_directory(directory.path)
                except OSError as error:
                    directory.has_unsynced_deletions = True
                    raise self._refused(directory, f"deleting logs of {directory.path}", error) from error

    def _away_name(self, topic: str, partition: int, suffix: str) -> str:
        """Unique, and no longer than a name may be: Kafka cuts the topic, too."""
        self._deletions += 1
        suffix = f"-{partition}.{self._clock.now_ms():016x}{self._deletions:016x}{suffix}"
        return topic[: _MAX_NAME_SIZE - len(suffix)] + suffix

    def truncate_to(self, log: PartitionLog, offset: int) -> None:
        """Remove all batches of a log that reach to `offset` or beyond, and take its recovery point back: what comes in
        their place is not on the disk. Blocking.

        Raises:
            StorageError: the disk refused.
        """
        log.truncate_to(offset)
        try:
            self._by_log[log.topic, log.partition].write_checkpoints((RECOVERY_POINT_FILE, CLEANER_OFFSET_FILE))
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
                try:
                    self._unlink(files)
                except OSError as error:
                    # Nobody reads them any more: that they stay costs no more than room.
                    logger.warning("removing deleted segments of %s failed: %s", directory.path, error)
                    doomed.append(DoomedFiles(now_ms + _REMOVAL_RETRY_MS, files.segments, files.others))
                    continue
                count += len(files.segments)
        for _ in range(len(self._doomed)):
            deleted = self._doomed.popleft()
            if deleted.due_ms > now_ms or any(segment.holders for segment in deleted.segments):
                self._doomed.append(deleted)
                continue
            if remove_tree(self._files, deleted.path):
                count += 1
            else:
                self._doomed.append(_DoomedDirectory(now_ms + _REMOVAL_RETRY_MS, deleted.path, []))
        return count

    def _unlink(self, files: DoomedFiles) -> None:
        for segment in files.segments:
            self._cache.unlink(segment)
        for path in files.others:
            unlink_if_exists(self._files, path)

    def run_retention(self, now_ms: int) -> int:
        """Delete old segments of all logs; how many. Blocking; a broker rather uses `retain` for one after another."""
        return sum(self.retain(log, now_ms) for log in self.logs)

    def retain(self, log: PartitionLog, now_ms: int, times: SegmentTimes | None = None) -> int:
        """Delete old segments of a log, unless it is offline or was deleted; how many. One that fails goes offline, one
        whose disk only has no room is looked at again the next time.

        `times` is what was read for it in a thread; without it this may block.
        """
        if log.failure is None:
            with suppress(StorageError):  # it has said why
                return log.delete_old_segments(now_ms, times)
        return 0

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

    def checkpoint_clean_offset(self, log: PartitionLog, offset: int) -> None:
        """Write down up to where a log is clean. Before the first swap: from then on offsets may be missing, and a
        start after a crash has to know that. Blocking, any thread.

        Raises:
            OSError: the disk refused; the log counts as it did.
        """
        directory = self._by_log.get((log.topic, log.partition))
        if directory is None or directory.logs.get((log.topic, log.partition)) is not log:
            return  # deleted meanwhile
        before, log.clean_offset = log.clean_offset, offset
        try:
            directory.write_checkpoints((CLEANER_OFFSET_FILE,))
        except OSError as error:
            log.clean_offset = before
            self._refused(directory, f"writing {CLEANER_OFFSET_FILE}", error)
            raise

    def _checkpoint(self, name: str) -> None:
        for directory in self._directories:
            self._checkpoint_directory(directory, name)

    def _checkpoint_directory(self, directory: LogDirectory, *names: str) -> None:
        """Nothing depends on new checkpoints, so a full disk may keep them from being written; a disk that fails is not
        trusted any more.
        """
        try:
            directory.write_checkpoints(names)
        except OSError as error:
            self._refused(directory, f"writing {', '.join(names)}", error)

    def _refused(self, directory: LogDirectory, what: str, error: OSError) -> StorageError:
        """The disk refused what concerns a directory, not one of its logs. What passes may be tried again, anything
        else is told to whoever runs this.
        """
        failure = refusal(what, error)
        logger.error("%s: %s", directory.path, failure.message)
        if not failure.passes and directory.failure is None:
            directory.failure = failure
            self._on_failure(f"{directory.path}: {failure.message}")
        return failure

    # --- closing

    def close(self, broker_epoch: int = -1) -> None:
        """Bring every log to the disk, and leave the marker of a clean shutdown where that worked. Blocking; nothing
        else may run.
        """
        flushes = [self._prepare_close(directory) for directory in self._directories]
        closing = [
            [partial(self._close_directory, broker_epoch, directory, flush)]
            for directory, flush in zip(self._directories, flushes, strict=True)
        ]
        run_in_threads(closing, 1, "closing")
        self._cache.close_all()
        self._unlock_all()

    def _close_directory(
        self, broker_epoch: int, directory: LogDirectory, flushes: Sequence[tuple[PartitionLog, FlushTask]]
    ) -> None:
        """Bring one directory to the disk and mark it: it does not wait for another one, on a slower disk, which may
        not be done before somebody kills the process.
        """
        self._in_threads([[task.run for _, task in flushes]])
        for log, task in flushes:
            log.complete_flush(task)
        try:
            directory.write_checkpoints((RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE))
            if (
                not directory.failed
                and directory.failure is None
                and all(log.is_on_disk for log in directory.logs.values())
            ):
                write_clean_shutdown(self._files, directory.path, broker_epoch)
        except OSError as error:
            self._refused(directory, "closing it", error)

    def _prepare_close(self, directory: LogDirectory) -> list[tuple[PartitionLog, FlushTask]]:
        flushes = []
        for log in directory.logs.values():
            try:
                task = log.prepare_close()
            except StorageError:
                continue  # it is offline already
            except Exception as error:  # the others are closed well; this one is looked at by the next start
                logger.exception("closing %s failed", log)
                log.fail(StorageError(f"closing {log.directory} failed: {type(error).__name__}: {error}"))
                continue
            if task is not None:
                flushes.append((log, task))
        return flushes

    def abandon(self) -> None:
        """Give everything up as a crash would, but for the locks: for tests of recovery."""
        self._cache.close_all()
        self._unlock_all()


def _follow_moves(found: Sequence[FoundLogs]) -> tuple[list[FoundLogs], dict[TopicPartition, FoundLogs]]:
    """What was found, where each log that somebody moved to another directory meanwhile has the checkpoints that it had
    before; and the moved ones, with what was found in the directory they come from.
    """
    moves = {}
    followed = []
    for logs in found:
        known = dict(logs.logs)
        for key in known.keys() - logs.named.keys():
            for origin in found:
                if key in origin.named and key not in origin.logs:
                    known[key], moves[key] = origin.named[key], origin
        followed.append(logs._replace(logs=known))
    return followed, moves
