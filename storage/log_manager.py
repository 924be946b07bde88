"""All logs of a broker: opened and recovered, made and deleted, flushed, checkpointed and closed.

Source: kafka.log.LogManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.clock import Clock
from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from barnabas.storage.config import LogConfig
from barnabas.storage.deletions import DELETE_SUFFIX, STRAY_SUFFIX, Deletions
from barnabas.storage.descriptors import DescriptorCache
from barnabas.storage.errors import CorruptLog, DirectoryMismatch, StorageError, is_passing
from barnabas.storage.files import Files
from barnabas.storage.flush import FlushTask
from barnabas.storage.leader_epochs import LeaderEpochs
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_directories import LogDirectories
from barnabas.storage.log_directory import HELD_LOGS_FILES, OFFSET_CHECKPOINTS, FoundLogs, LogDirectory
from barnabas.storage.lost_logs import LostLogs
from barnabas.storage.offset_index import OffsetIndexCache
from barnabas.storage.producer_state import ProducerState
from barnabas.storage.recovery.opening import LogOpener, follow_moves
from barnabas.storage.segment import Segment
from barnabas.storage.segment_times import SegmentTimes
from barnabas.storage.truncation import Cut, Truncations
from barnabas.threads import Threads
from barnabas.wire.names import ZERO_TOPIC_ID

logger = logging.getLogger(__name__)

SEALED_SEGMENTS_MAX: Final = 100_000
SMALL_SEGMENT_BYTES: Final = 1024 * 1024
"""With more sealed segments than that, of all logs together, none of less than this is sealed. (Kafka 4 takes no less
for `segment.bytes`: KIP-1030.) Each costs 1 KB of memory, four files, and 0.1 ms of a start."""


class LogManager:
    """All logs of a broker.

    Ownership: the event loop, except for the methods that say "any thread". Those that say "blocking" wait for the
    disk.

    Args:
        files: the disk.
        directories: `log.dirs`; created where missing.
        config_of: a topic's settings, for logs that are found at the start.
        clock: for segment ages and delayed deletions.
        threads: those that wait for the disk.
        node_id: `broker.id`.
        cluster_id: None if it is known only later; then `set_cluster_id` checks it.
        on_failure: told, once per log and from any thread, why a log went offline.
        producer_id_expiration_ms: `producer.id.expiration.ms`.
        random_below: draws the jitter of `segment.jitter.ms`: a number from 0 to below its argument.
        new_id: draws the id of a new log directory, unlike any other.
        threads_per_directory: `num.recovery.threads.per.data.dir`: so many open and close each directory's logs.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[Path | str],
        config_of: Callable[[str], LogConfig],
        clock: Clock,
        threads: Threads,
        *,
        node_id: int,
        cluster_id: str | None = None,
        on_failure: Callable[[str], None] = lambda _reason: None,
        producer_id_expiration_ms: int = 86_400_000,
        new_id: Callable[[], str],
        random_below: Callable[[int], int] = lambda _limit: 0,
        threads_per_directory: int = 1,
    ) -> None:
        self._files = files
        self._clock = clock
        self._threads = threads
        self._threads_per_directory = threads_per_directory
        self._cluster_id = cluster_id
        self._on_failure = on_failure
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._random_below = random_below
        self._opener = LogOpener(config_of)
        self._cache = DescriptorCache(files, threads)
        self._indexes = OffsetIndexCache()
        self._deletions = Deletions(self._cache, clock)
        paths = [str(directory) for directory in directories]
        self._directories = LogDirectories(files, paths, self._make_context, node_id, new_id)
        self._out_of_reach: set[TopicPartition] = set()
        """Logs that only a missing directory can hold."""
        self.lost = LostLogs()
        self._noting = threading.Lock()
        self._unnoted_cluster_id: str | None = None
        """The cluster's id, as long as not all directories name it."""
        self._by_log: dict[TopicPartition, LogDirectory] = {}
        self.previous_broker_epoch = -1
        """The epoch that the broker had when it stopped cleanly; -1 if it did not in each of the directories, or not in
        all of them at once (LogManager.readBrokerEpochFromCleanShutdownFiles)."""
        self.was_closed = False
        """Whether all directories were closed cleanly, so that everything that was in their logs is there."""
        self._is_loaded = False
        """Whether the logs are known: checkpoints written before would forget all of them."""
        self._is_closed = False
        self._closing = threading.Lock()
        """Held while `_is_closed` is set, and while a thread that no stop waits for writes."""

    # --- opening

    def lock(self) -> None:
        """Lock the directories, and see whose they are. Blocking.

        Raises:
            DirectoryLocked: somebody else uses a directory.
            DirectoryMismatch: a directory belongs to another broker or cluster.
            OSError: a directory cannot be used at all. One that was used before is only missed, if there are others.
        """
        try:
            self._directories.open(self._cluster_id)
            for directory in self._directories:
                directory.before_forgetting = self.write_lost_logs
        except BaseException:
            self._directories.close()
            raise

    def load(self) -> None:
        """Load the logs of the directories, which are locked, recovering those that were not closed cleanly. Blocking.

        Raises:
            DirectoryMismatch: two directories hold the same partition.
            OSError: as `lock`.
            OpeningGivenUp: after `give_up_opening`, if a log had to be recovered.
        """
        try:
            found, moves = follow_moves(self._directories.find_logs())
            broker_epochs = {logs.broker_epoch for logs in found.values()}
            self.previous_broker_epoch = broker_epochs.pop() if len(broker_epochs) == 1 else -1
            self.was_closed = all(logs.is_clean for logs in found.values())
            self._place(found)
            self._look_for_lost(found)
            self._opener.open_all(found, moves, self._threads, self._threads_per_directory)
            self._make_durable(found, moves)
            self._is_loaded = True
        except BaseException:
            self._directories.close()
            raise

    def open(self) -> None:
        """`lock` and `load`."""
        self.lock()
        self.load()

    def give_up_opening(self) -> None:
        """End a `load` that recovers logs after a crash; after a clean stop it is soon done anyway. Any thread."""
        self._opener.give_up()

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

    def _log_failed(self, directory: str, error: StorageError) -> None:
        self._on_failure(f"{directory}: {error.message}")

    def _place(self, found: Mapping[LogDirectory, FoundLogs]) -> None:
        for directory, logs in found.items():
            for key in logs.logs:
                other = self._by_log.setdefault(key, directory)
                if other is not directory:
                    raise DirectoryMismatch(f"both {directory.path} and {other.path} hold {key[0]}-{key[1]}")

    def _look_for_lost(self, found: Mapping[LogDirectory, FoundLogs]) -> None:
        """Logs that checkpoints name and no directory holds are gone, and maybe others, where one is new or missing."""
        held = frozenset().union(*(logs.held for logs in found.values()))
        self.lost.may_be_any = self._directories.has_new or bool(self.missing_directories)
        self.lost.named = set(held - self._by_log.keys())
        self.lost.read(self._files, self._first_path)

    @property
    def _first_path(self) -> str:
        return next(iter(self._directories)).path

    def _make_durable(self, found: Mapping[LogDirectory, FoundLogs], moves: Mapping[TopicPartition, FoundLogs]) -> None:
        """Bring what the start changed to the disk. `moves` holds the logs that come from another directory."""
        for directory, logs in found.items():
            if not logs.is_clean:
                # A process that was killed may have left names that are not on the disk: what is served from now on is.
                try:
                    self._files.sync_directory(directory.path)
                except OSError as error:
                    if moves:  # what was noted of a log, and where it is now, must not be apart
                        raise
                    self._leave_out(directory, error)
        in_use = {directory: found[directory] for directory in self._directories}
        for directory, logs in in_use.items():
            if not moves.keys().isdisjoint(logs.logs):
                # Before the directory that they come from forgets them.
                directory.checkpoint(*OFFSET_CHECKPOINTS)
        for directory, logs in in_use.items():
            if stale := directory.stale_checkpoints(logs):
                directory.checkpoint(*stale)

    def _leave_out(self, directory: LogDirectory, error: OSError) -> None:
        """Do without a directory whose logs are open already: see `LogDirectories.leave_out`."""
        self._directories.leave_out(directory, error)
        for log in directory.logs.values():
            log.close_files()
        self._by_log = {key: other for key, other in self._by_log.items() if other is not directory}

    @property
    def missing_directories(self) -> dict[str, str]:
        """Directories that the broker once had and that could not be used at the start: why, by path."""
        return self._directories.missing

    @property
    def found_cluster_id(self) -> str | None:
        """The cluster that the directories belong to, None as long as no directory names one."""
        return self._directories.cluster_id

    def set_cluster_id(self, cluster_id: str) -> None:
        """Note the cluster's id in every directory, and which directories there are: once the metadata store is there,
        so that a directory which names a cluster stands for one that has a store. Blocking where something is new.
        On a full disk that is done when there is room again.

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
            logger.warning("which logs are lost, and whose %s is, is written down later: %s", self._first_path, error)

    def set_threads_per_directory(self, count: int) -> None:
        """Open and close the logs of each directory with so many threads from now on."""
        self._threads_per_directory = count

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Forget producers that do not write after this time from now on."""
        self._producer_id_expiration_ms = expiration_ms
        for directory in self._directories:
            directory.context.producer_id_expiration_ms = expiration_ms

    # --- finding and making logs

    @property
    def files(self) -> Files:
        """How the disk is reached."""
        return self._files

    @property
    def threads(self) -> Threads:
        """The threads in which logs wait for the disk."""
        return self._threads

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

    def is_lost(self, topic: str, partition: int) -> bool:
        """Whether there may have been a log of that partition, which is not new, and there is none any more. (That of a
        missing directory is out of reach: see `get_or_create`.)"""
        key = (topic, partition)
        return key in self.lost and key not in self._by_log and not self.missing_directories

    @property
    def may_lack_logs(self) -> bool:
        """Whether `is_lost` may be true of some partition, or `barnabas-lost-logs` says so and should not."""
        return self.lost.may_be_any or bool(self.lost.named) or not self.lost.is_written

    def settle_lost_logs(self, claimed: Collection[TopicPartition]) -> None:
        """Lost are no other logs than those of the partitions that are `claimed` to be this broker's: those are all.
        `write_lost_logs` has the next start know it."""
        if not self.missing_directories:
            self.lost.settle([key for key in claimed if key not in self._by_log])

    def write_lost_logs(self) -> None:
        """Have the next start know which logs are lost: before a checkpoint forgets them, and as long as a new
        directory looks like one. Blocking, any thread. Raises OSError."""
        if not self.lost.is_written:
            self.lost.write(self._files, self._first_path)
        with self._noting:
            if self._unnoted_cluster_id is not None:
                self._directories.note(self._unnoted_cluster_id)
                self._unnoted_cluster_id = None

    def reopening(self, topic: str, partition: int) -> Callable[[], PartitionLog | StorageError] | None:
        """A job that tries again to open a log which could not be opened for a cause that passes; `reopened` takes in
        what it returns. None if there is no such log. The job blocks and may run in any thread.
        """
        key = (topic, partition)
        directory = self._by_log.get(key)
        if directory is None or key not in directory.failed or not directory.failed[key][0].passes:
            return None
        checkpoints = directory.failed[key][1]
        return partial(self._opener.open, directory, key, checkpoints, is_clean=False)

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
            directory.checkpoint(CLEANER_OFFSET_FILE)

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
            raise directory.refused(f"creating the log of {topic}-{partition}", error) from error
        return log

    def _create(self, directory: LogDirectory, topic: str, partition: int, config: LogConfig) -> PartitionLog:
        key = (topic, partition)
        for other in self._directories:
            other.forget(key)
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
        self.lost.named.discard(key)
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
        if key in self.lost.named:
            self.lost.named.discard(key)
            for found in self._directories:
                found.has_unsynced_deletions = True  # one of them says that there was a log
        if directory is None:
            return
        log = directory.logs.get(key)
        new_path = self._move_away(directory, key, DELETE_SUFFIX)
        delay_ms, segments = 0, []
        if log is not None:
            delay_ms, segments = log.config.file_delete_delay_ms, [segment.file for segment in log.segments]
        self._deletions.add_directory(new_path, delay_ms, segments)

    def is_damaged(self, topic: str, partition: int) -> bool:
        """Whether there is a log of that partition which could not be opened because its batches are damaged, where no
        crash can have left them so."""
        directory = self._by_log.get((topic, partition))
        failed = None if directory is None else directory.failed.get((topic, partition))
        return failed is not None and isinstance(failed[0], CorruptLog)

    def damaged(self) -> frozenset[TopicPartition]:
        """The partitions whose logs `is_damaged` says that of, or are known to be lost."""
        failed = [key for directory in self._directories for key in directory.failed]
        return frozenset(key for key in failed if self.is_damaged(*key)) | self.lost.named

    def set_aside(self, topic: str, partition: int, reason: str) -> None:
        """Take away a log that is not to be used, for a `reason` that is told ("which is ..."): its directory is
        renamed, and left to the operator.

        Source: LogManager.asyncDelete with isStray.

        Raises:
            StorageError: the disk refused.
        """
        directory = self._by_log[topic, partition]
        new_path = self._move_away(directory, (topic, partition), STRAY_SUFFIX)
        logger.warning("the log of %s-%d, %s is set aside as %s", topic, partition, reason, new_path)

    def _move_away(self, directory: LogDirectory, key: TopicPartition, suffix: str) -> str:
        """Rename the directory of a log, which is none from now on; its new path."""
        old_path = f"{directory.path}/{key[0]}-{key[1]}"
        new_path = f"{directory.path}/{self._deletions.away_name(*key, suffix)}"
        log = directory.logs.get(key)
        try:
            if log is not None:
                log.move_to(new_path)
                log.close_files()
            else:
                self._files.rename(old_path, new_path)
        except OSError as error:
            raise directory.refused(f"deleting {old_path}", error) from error
        del self._by_log[key]
        directory.logs.pop(key, None)
        directory.failed.pop(key, None)
        directory.checkpoints.named.add(key)
        directory.has_unsynced_deletions = True
        return new_path

    def sync_deletions(self) -> None:
        """Bring the new names of deleted logs to the disk, so that none comes back, and forget what is written down of
        them, so that none is missed: a new one of its name may not have been made when the broker dies. Blocking, any
        thread.

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
                    raise directory.refused(f"deleting logs of {directory.path}", error) from error
                with self._closing:
                    if self._is_closed:  # the disk hung for longer than the stop waits: others have the directories now
                        return
                    directory.checkpoint(*HELD_LOGS_FILES)
        with self._closing, suppress(OSError):  # a full disk, say; it is tried again with the next partitions
            if not self._is_closed:
                self.write_lost_logs()

    def truncations(self, cuts: Sequence[Cut]) -> Truncations:
        """Begin to cut logs, with one write of the checkpoints for all: until it is completed, as `Truncations` says,
        each of them refuses all use."""
        found = ((cut.log, self._by_log.get((cut.log.topic, cut.log.partition))) for cut in cuts)
        # A log that was deleted has none, and refuses to be cut.
        return Truncations({log: directory for log, directory in found if directory is not None}, cuts)

    def truncate_to(self, log: PartitionLog, offset: int) -> None:
        """Remove all batches of one log that reach to `offset` or beyond. Blocking.

        Raises:
            StorageError: the disk refused.
        """
        truncations = self.truncations([Cut(log, offset)])
        truncations.run()
        truncations.complete()
        for error in truncations.errors.values():
            raise error

    # --- upkeep

    def delete_due_files(self) -> int:
        """Unlink deleted segments and logs whose file.delete.delay.ms is over; how many. Blocking, any thread, one at
        a time.
        """
        return self._deletions.remove_due(directory.context.doomed for directory in self._directories)

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

    def bound_segments(self, sealed_max: int = SEALED_SEGMENTS_MAX) -> None:
        """Look whether there are so many segments that small ones have to grow. To be called now and then; there may be
        some more until then."""
        logs = self.logs
        is_crowded = sum(log.segment_count for log in logs) - len(logs) > sealed_max
        bytes_min = SMALL_SEGMENT_BYTES if is_crowded else 1
        for directory in self._directories:
            if directory.context.segment_bytes_min < bytes_min:
                logger.warning("%s: there are more than %d segments: none of less than %d bytes is sealed, whatever"
                               " segment.bytes and segment.ms say", directory.path, sealed_max, bytes_min)  # fmt: skip
            directory.context.segment_bytes_min = bytes_min

    def logs_to_flush(self, now_ms: int) -> list[PartitionLog]:
        """Logs with something to flush: new names or a sealed segment, a new leader epoch, or flush.ms has passed."""
        return [log for log in self.logs if log.failure is None and log.flush_is_due(now_ms)]

    def run_flushes(self, now_ms: int) -> int:
        """Flush what `logs_to_flush` names; how many. Blocking; a broker rather runs each log's `prepare_flush` in a
        thread.
        """
        count = 0
        for log in self.logs_to_flush(now_ms):
            task = log.prepare_flush(is_of_all=log.all_is_due(now_ms))
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

    def checkpoint_clean_offset(self, log: PartitionLog, offset: int, cut_count: int | None = None) -> None:
        """Write down up to where a log is clean. Before the first swap: from then on offsets may be missing, and a
        start after a crash has to know that. Blocking, any thread.

        Nothing changes if the log was cut since its `cut_count` was that: whoever looked at it saw other batches.

        Raises:
            OSError: the disk refused; the log counts as it did.
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

    def _checkpoint(self, name: str) -> None:
        for directory in self._directories:
            directory.checkpoint(name)

    # --- closing

    def close(self, broker_epoch: int = -1) -> None:
        """Bring every log to the disk, and leave the marker of a clean shutdown where that worked. Blocking; nothing
        else may run. Directories whose logs were not loaded stay as they are.

        No directory waits for another one, on a slower disk, which may not be done before somebody kills the process.
        """
        if self._is_loaded:
            closing = [(directory, directory.prepare_close()) for directory in self._directories]
            self._threads.run([[partial(self._close, *found, broker_epoch)] for found in closing], 1, "closing")
        self._let_go()

    def _let_go(self) -> None:
        with self._closing:
            self._is_closed = True
        self._cache.close_all()
        self._directories.close()

    def _close(
        self, directory: LogDirectory, flushes: Sequence[tuple[PartitionLog, FlushTask]], broker_epoch: int
    ) -> None:
        self._threads.run([[task.run for _, task in flushes]], self._threads_per_directory, "logs")
        directory.complete_close(flushes, broker_epoch)

    def abandon(self) -> None:
        """Give everything up as a crash would, but for the locks: for tests of recovery."""
        self._let_go()
