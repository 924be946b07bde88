"""One log directory of a broker: its owner, its logs and its checkpoints.

A log directory holds one directory per partition and these files, all described in `checkpoints`:

================================= ==================================================================================
name                              content
================================= ==================================================================================
.lock                             empty; locked by the process that uses the directory
.kafka_cleanshutdown              exists only while no process uses the directory and all of it is on the disk
meta.properties                   broker id and cluster id the directory belongs to
recovery-point-offset-checkpoint  per partition: everything before this offset is on the disk
log-start-offset-checkpoint       per partition: everything before this offset is deleted
replication-offset-checkpoint     per partition: the high watermark
cleaner-offset-checkpoint         per partition that was ever compacted: everything before this offset is clean
barnabas-transaction-indexes      per segment with aborted transactions: size and checksum of its transaction index;
                                  where it is missing, Barnabas was not here yet
barnabas-log-directories          which directories the broker has (`known_directories`), where there are several
barnabas-lost-logs                in the first one: logs that the broker had and has no more (`lost_logs`)
barnabas-zookeeper-session        with ZooKeeper, in the first one: the session of a broker that runs, or was killed
TOPIC-PARTITION/                  a log; the topic may contain dashes
TOPIC-PARTITION.HEX-delete/       a deleted log whose files are still to be removed
================================= ==================================================================================

Source: kafka.log.LogManager, LocalLog.parseTopicPartitionName.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_DIRECTORIES_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    LogCheckpoints,
    MetaProperties,
    TopicPartition,
    take_clean_shutdown,
    write_clean_shutdown,
)
from barnabas.storage.deletions import DELETE_SUFFIX, STRAY_SUFFIX, remove_tree
from barnabas.storage.directory_checkpoints import DirectoryCheckpoints
from barnabas.storage.errors import CorruptFile, DirectoryLocked, DirectoryMismatch, StorageError, refusal
from barnabas.storage.files import Files, read_file, replace_file
from barnabas.storage.flush import FlushTask
from barnabas.storage.known_directories import DirectoryNote, SeenDirectory
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_closing import is_on_disk, prepare_close
from barnabas.storage.log_context import LogContext
from barnabas.storage.partition_metadata import is_somebody_elses

logger = logging.getLogger(__name__)

OFFSET_CHECKPOINTS: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)
HELD_LOGS_FILES: Final = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE)
"""The checkpoints that name every log of the directory."""
_SET_ASIDE: Final = (STRAY_SUFFIX, "-future")

_OTHER_DIRECTORY: Final = "Give this broker another one (--data-dir, log.dirs), or make this one usable"
_SHOWN_PATH_LENGTH_MAX: Final = 300

_owned_directories: set[str] = set()
"""Directories in use by this process: POSIX locks do not exclude their own process. For `Files` that are not shared,
the same path may be another directory.
"""
_owned_directories_lock = threading.Lock()


class FoundLogs(NamedTuple):
    """The content of a log directory before it is opened: the checkpoints of each log. `named` are the checkpoints of
    the logs that its checkpoint files name, `held` the logs that existed when these files were written; `broker_epoch`
    is that of the clean-shutdown file, -1 if it contains none.
    """

    logs: dict[TopicPartition, LogCheckpoints]
    named: dict[TopicPartition, LogCheckpoints]
    held: frozenset[TopicPartition]
    is_clean: bool
    broker_epoch: int
    has_recovery_points: bool
    has_clean_offsets: bool
    has_txn_index_notes: bool


class LogDirectory:
    """One log directory: its lock, and the shared state of its logs.

    `failed` contains the logs that could not be opened: the error, and their checkpoints. While there are any, the
    directory gets no clean-shutdown file.
    """

    def __init__(self, path: str, context: LogContext, lock_descriptor: int) -> None:
        self.path = path
        self.context = context
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, tuple[StorageError, LogCheckpoints]] = {}
        self.checkpoints = DirectoryCheckpoints(context.cache.files, path)
        self.has_unsynced_deletions = False
        self.failure: StorageError | None = None
        """The reason why the disk is not trusted any more: no request for the directory's logs is acknowledged, and no
        clean-shutdown file is written.
        """
        self.before_forgetting: Callable[[], None] = lambda: None
        """Called before the last checkpoint file that names lost logs is replaced. Raises OSError."""
        self._files = context.cache.files
        self._lock_descriptor = lock_descriptor

    # --- its owner

    @classmethod
    def lock(cls, path: str, context: LogContext) -> LogDirectory:
        """Lock the directory at `path` against other processes and brokers. Raises DirectoryLocked."""
        files = context.cache.files
        with _owned_directories_lock:
            if files.is_shared and path in _owned_directories:
                raise DirectoryLocked(f"this process uses {path} already")
            try:
                descriptor = files.lock(f"{path}/{LOCK_FILE}")
            except DirectoryLocked as error:
                raise DirectoryLocked(
                    f"log directory {path} is in use: {error}. {_OTHER_DIRECTORY}", error.pid
                ) from None
            if files.is_shared:
                _owned_directories.add(path)
        return cls(path, context, descriptor)

    def unlock(self) -> None:
        """Unlock the directory."""
        with _owned_directories_lock:
            _owned_directories.discard(self.path)
            self._files.close(self._lock_descriptor)

    def check_owner(self, node_id: int, cluster_id: str | None) -> str | None:
        """Check `meta.properties`; returns the cluster that it names, None if the file is missing. Blocking.

        Raises:
            DirectoryMismatch: the directory belongs to another broker or cluster.
        """
        path = f"{self.path}/{META_PROPERTIES_FILE}"
        try:
            found = MetaProperties.decode(read_file(self._files, path))
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            raise DirectoryMismatch(f"{path}: {error}") from None
        if found.broker_id != node_id:
            raise DirectoryMismatch(f"{path} belongs to broker {found.broker_id}, not {node_id}")
        if cluster_id is not None and found.cluster_id != cluster_id:
            raise DirectoryMismatch(f"{path} belongs to cluster {found.cluster_id}, not {cluster_id}")
        return found.cluster_id

    def set_owner(self, node_id: int, cluster_id: str) -> None:
        """Write `meta.properties` if it is missing; raises DirectoryMismatch as `check_owner` does. Blocking."""
        if self.check_owner(node_id, cluster_id) is None:
            path = f"{self.path}/{META_PROPERTIES_FILE}"
            replace_file(self._files, path, MetaProperties(node_id, cluster_id).encode())

    def write_note(self, note: DirectoryNote) -> None:
        """Write the note of all directories, if it has changed. Blocking."""
        if read_note(self._files, self.path) != note:
            replace_file(self._files, f"{self.path}/{LOG_DIRECTORIES_FILE}", note.encode())

    def sync(self) -> None:
        """Flush the names of logs to the disk. Blocking, any thread. Raises OSError."""
        self._files.sync_directory(self.path)

    # --- its contents

    def find_logs(self) -> FoundLogs:
        """The logs of the directory and their checkpoints. Removes the clean-shutdown file. Blocking."""
        broker_epoch = take_clean_shutdown(self._files, self.path)
        is_clean = broker_epoch is not None
        checkpoints = self.checkpoints.read(is_clean=is_clean)
        named = checkpoints.named
        logs = {}
        for name in sorted(self._partition_directories()):
            key = parse_log_name(name)
            if key is None:
                logger.warning("ignoring %s/%s: not the name of a log", self.path, name)
                continue
            if key not in named and is_somebody_elses(self._files, f"{self.path}/{name}"):
                logger.warning("ignoring %s/%s: hidden, and not a log", self.path, name)
                continue
            logs[key] = checkpoints.of(key)
        return FoundLogs(
            logs,
            {key: checkpoints.of(key) for key in named},
            checkpoints.held,
            is_clean,
            -1 if broker_epoch is None else broker_epoch,
            has_recovery_points=checkpoints.recovery_points is not None,
            has_clean_offsets=checkpoints.clean_offsets is not None,
            has_txn_index_notes=checkpoints.txn_indexes is not None,
        )

    def _partition_directories(self) -> Iterator[str]:
        """Names that may be logs. Removes logs whose deletion a crash interrupted."""
        for entry in self._files.list(self.path):
            if not entry.is_directory:
                continue
            if entry.name.endswith(DELETE_SUFFIX):
                remove_tree(self._files, f"{self.path}/{entry.name}")
            elif entry.name.endswith(_SET_ASIDE):
                logger.warning("leaving %s/%s alone: it was set aside", self.path, entry.name)
            elif "-" in entry.name:
                yield entry.name

    # --- checkpoints

    def stale_checkpoints(self, found: FoundLogs) -> list[str]:
        """The checkpoints to write once the logs are open, in this order, before anything is appended or compacted."""
        names = []
        if not found.has_clean_offsets or any(
            self.logs[key].clean_offset != known.clean_offset for key, known in found.logs.items() if key in self.logs
        ):
            # A log that the file does not name has no gaps, and batches that replace lost ones are not clean. Without
            # the file, every log may have gaps.
            names.append(CLEANER_OFFSET_FILE)
        if not (found.is_clean and found.has_recovery_points and found.has_txn_index_notes):
            # Recovered batches are on the disk: the next start need not check them again.
            names.append(RECOVERY_POINT_FILE)
        return names

    def write_checkpoints(self, names: Sequence[str]) -> None:
        """Write some of the checkpoint files. Blocking, any thread. Raises OSError."""
        if HIGH_WATERMARK_FILE in names:
            self.before_forgetting()
        self.checkpoints.write(names, self.logs, self.failed)

    def forget(self, key: TopicPartition) -> None:
        """Remove a deleted log from the checkpoint files: their log start offset for it would delete records of a new
        log of this name. Blocking. Raises OSError.
        """
        if key in self.checkpoints.named:
            self.write_checkpoints(OFFSET_CHECKPOINTS)
            self.checkpoints.named = set(self.logs)

    def checkpoint(self, *names: str) -> None:
        """Write some of the checkpoint files, if possible: nothing depends on current ones, so a full disk may prevent
        it; after another error the disk is not trusted any more. Blocking, any thread.
        """
        try:
            self.write_checkpoints(names)
        except OSError as error:
            self.refused(f"writing {', '.join(names)}", error)

    # --- its health

    def refused(self, what: str, error: OSError) -> StorageError:
        """The error to raise when the disk refuses an operation on the directory, not on one of its logs. A transient
        error may be retried, any other is reported through `on_failure`.
        """
        failure = refusal(what, error)
        logger.error("%s: %s", self.path, failure.message)
        if not failure.passes and self.failure is None:
            self.failure = failure
            self.context.on_failure(self.path, failure)
        return failure

    # --- closing

    def prepare_close(self) -> list[tuple[PartitionLog, FlushTask]]:
        """Capture the flushes that have to run before the clean-shutdown file may be written. Blocking."""
        flushes = []
        for log in self.logs.values():
            try:
                task = prepare_close(log)
            except StorageError:
                continue  # it is offline already
            except Exception as error:  # the others are closed well; the next start checks this log
                logger.exception("closing %s failed", log)
                log.local.health.fail(StorageError(f"closing {log.directory} failed: {type(error).__name__}: {error}"))
                continue
            if task is not None:
                flushes.append((log, task))
        return flushes

    def complete_close(self, flushes: Sequence[tuple[PartitionLog, FlushTask]], broker_epoch: int) -> None:
        """Process the flushes of `prepare_close` after they have run; write the checkpoints and, if all logs of the
        directory are completely flushed, the clean-shutdown file. Blocking, any thread.
        """
        for log, task in flushes:
            log.complete_flush(task)
        try:
            self.write_checkpoints((RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE))
            if not self.failed and self.failure is None and all(map(is_on_disk, self.logs.values())):
                write_clean_shutdown(self._files, self.path, broker_epoch)
        except OSError as error:
            self.refused("closing it", error)


def unusable(path: str, reason: str) -> OSError:
    """The error for a log directory that cannot be created, read or written."""
    if len(path) > _SHOWN_PATH_LENGTH_MAX:
        half = _SHOWN_PATH_LENGTH_MAX // 2
        path = f"{path[:half]}...{path[-half:]} ({len(path)} characters)"
    return OSError(f"log directory {path} cannot be used: {reason}. {_OTHER_DIRECTORY}")


def look_at(files: Files, path: str) -> SeenDirectory:
    """The visible state of a log directory before it is locked; nothing is changed. Blocking."""
    try:
        if not files.exists(path):
            return SeenDirectory(path, None, is_owned=False)
        names = {entry.name for entry in files.list(path)}
        return SeenDirectory(path, read_note(files, path), is_owned=META_PROPERTIES_FILE in names)
    except OSError as error:
        return SeenDirectory(path, None, is_owned=False, problem=error.strerror or str(error))


def read_note(files: Files, path: str) -> DirectoryNote | None:
    """A directory's note of all directories; None if it is missing or unreadable. Blocking."""
    try:
        return DirectoryNote.decode(read_file(files, f"{path}/{LOG_DIRECTORIES_FILE}"))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        logger.warning("ignoring %s/%s: %s", path, LOG_DIRECTORIES_FILE, error)
        return None


def parse_log_name(name: str) -> TopicPartition | None:
    """Topic and partition of a log's directory name, `TOPIC-PARTITION`; None for another name."""
    topic, dash, partition = name.rpartition("-")
    if not topic or not dash or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
