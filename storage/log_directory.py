"""One log directory of a broker: who owns it, which logs it holds, what is checkpointed.

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
cleaner-offset-checkpoint         per partition that was ever compacted: everything before this offset is clean
barnabas-transaction-indexes      per segment with aborted transactions: size and checksum of its transaction index;
                                  where it is missing, Barnabas was not here yet
barnabas-log-directories          which directories the broker has (`known_directories`), where there are several
TOPIC-PARTITION/                  a log; the topic may contain dashes
TOPIC-PARTITION.HEX-delete/       a deleted log whose files are still to be removed
================================= ==================================================================================

Source: kafka.log.LogManager, LocalLog.parseTopicPartitionName.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_DIRECTORIES_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    TRANSACTION_INDEXES_FILE,
    MetaProperties,
    TopicPartition,
    decode_txn_index_notes,
    encode_txn_index_notes,
    read_offsets,
    take_clean_shutdown,
    write_offsets,
)
from barnabas.storage.errors import CorruptFile, DirectoryLocked, DirectoryMismatch, StorageError
from barnabas.storage.files import Files, read_file, replace_file, unlink_if_exists
from barnabas.storage.known_directories import DirectoryNote, SeenDirectory
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_context import LogContext
from barnabas.storage.recovery.log_loader import LogCheckpoints
from barnabas.storage.txn_index import TransactionIndexNote

logger = logging.getLogger(__name__)

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
_SET_ASIDE: Final = (STRAY_SUFFIX, "-future")

_owned_directories: set[str] = set()
"""Directories in use by this process: POSIX locks do not exclude their own process."""
_owned_directories_lock = threading.Lock()


class FoundLogs(NamedTuple):
    """What a log directory holds before it is opened: each log's checkpoints. `named` are those of logs that its
    checkpoint files name, `broker_epoch` is that of the mark of a clean shutdown, -1 where none is told.
    """

    logs: dict[TopicPartition, LogCheckpoints]
    named: dict[TopicPartition, LogCheckpoints]
    is_clean: bool
    broker_epoch: int
    has_recovery_points: bool
    has_clean_offsets: bool
    has_txn_index_notes: bool


class LogDirectory:
    """One log directory: its lock, and what its logs share.

    `failed` holds the logs that could not be opened: why, and what was checkpointed of them. As long as there are some,
    no clean shutdown is claimed.
    """

    def __init__(self, path: str, context: LogContext, lock_descriptor: int) -> None:
        self.path = path
        self.context = context
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, tuple[StorageError, LogCheckpoints]] = {}
        self.checkpointed: set[TopicPartition] = set()
        """Logs that the checkpoint files may name."""
        self._txn_indexes: dict[TopicPartition, dict[int, TransactionIndexNote]] | None = None
        """What is noted of them; None as long as nothing is."""
        self.has_unsynced_deletions = False
        self.failure: StorageError | None = None
        """Why the disk is not trusted any more: nothing is acknowledged that is the directory's, nor a clean shutdown
        claimed.
        """
        self._files = context.cache.files
        self._lock_descriptor = lock_descriptor
        self._checkpoint_lock = threading.Lock()

    # --- whose it is

    @classmethod
    def lock(cls, path: str, context: LogContext) -> LogDirectory:
        """Keep everybody else out. Raises DirectoryLocked."""
        with _owned_directories_lock:
            if path in _owned_directories:
                raise DirectoryLocked(f"this process uses {path} already")
            descriptor = context.cache.files.lock(f"{path}/{LOCK_FILE}")
            _owned_directories.add(path)
        return cls(path, context, descriptor)

    def unlock(self) -> None:
        """Give it up."""
        with _owned_directories_lock:
            _owned_directories.discard(self.path)
            self._files.close(self._lock_descriptor)

    def check_owner(self, node_id: int, cluster_id: str | None) -> str | None:
        """Compare `meta.properties` with who we are; the cluster that it names, None if there is none. Blocking.

        Raises:
            DirectoryMismatch: it belongs to somebody else.
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
        """Write `meta.properties`, if there is none; raises DirectoryMismatch as `check_owner` does. Blocking."""
        if self.check_owner(node_id, cluster_id) is None:
            path = f"{self.path}/{META_PROPERTIES_FILE}"
            replace_file(self._files, path, MetaProperties(node_id, cluster_id).encode())

    def write_note(self, note: DirectoryNote) -> None:
        """Note which directories there are, if that has changed. Blocking."""
        if read_note(self._files, self.path) != note:
            replace_file(self._files, f"{self.path}/{LOG_DIRECTORIES_FILE}", note.encode())

    # --- what it holds

    def find_logs(self) -> FoundLogs:
        """Which logs there are, and what the checkpoints say of them. The mark of a clean shutdown is taken away.
        Blocking.
        """
        broker_epoch = take_clean_shutdown(self._files, self.path)
        is_clean = broker_epoch is not None
        recovery_points = self._read_checkpoint(RECOVERY_POINT_FILE)
        log_starts = self._read_checkpoint(LOG_START_FILE) or {}
        high_watermarks = self._read_checkpoint(HIGH_WATERMARK_FILE) or {}
        clean_offsets = self._read_checkpoint(CLEANER_OFFSET_FILE)
        self._txn_indexes = self._read_txn_index_notes()
        # Without the file nobody knows which logs were compacted. Nor where Kafka was killed, which names a log only
        # after its first compaction; without notes of our own it may have been here. So all may have been compacted,
        # and say so from now on (see `write_checkpoints`).
        was_kafka_killed = not is_clean and self._txn_indexes is None
        unnamed = 0 if clean_offsets is None or was_kafka_killed else None
        self.checkpointed = {*(recovery_points or ()), *log_starts, *high_watermarks, *(clean_offsets or ())}

        def checkpoints(key: TopicPartition) -> LogCheckpoints:
            return LogCheckpoints(
                (recovery_points or {}).get(key, 0),
                log_starts.get(key, 0),
                high_watermarks.get(key, 0),
                clean_offset=(clean_offsets or {}).get(key, unnamed),
                may_have_gaps=recovery_points is None,
                txn_indexes=(self._txn_indexes or {}).get(key, {}),
            )

        logs = {}
        for name in sorted(self._partition_directories()):
            key = parse_log_name(name)
            if key is None:
                logger.warning("ignoring %s/%s: not the name of a log", self.path, name)
                continue
            logs[key] = checkpoints(key)
        return FoundLogs(
            logs,
            {key: checkpoints(key) for key in self.checkpointed},
            is_clean,
            -1 if broker_epoch is None else broker_epoch,
            has_recovery_points=recovery_points is not None,
            has_clean_offsets=clean_offsets is not None,
            has_txn_index_notes=self._txn_indexes is not None,
        )

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int] | None:
        """What a checkpoint says; None if it is not there, empty (Kafka makes it so) or unusable."""
        try:
            if not self._files.stat(f"{self.path}/{name}").size:
                return None
            return read_offsets(self._files, self.path, name)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            logger.warning("ignoring %s/%s: %s", self.path, name, error)
            return None

    def _read_txn_index_notes(self) -> dict[TopicPartition, dict[int, TransactionIndexNote]] | None:
        try:
            return decode_txn_index_notes(read_file(self._files, f"{self.path}/{TRANSACTION_INDEXES_FILE}"))
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            logger.warning("ignoring %s/%s: %s", self.path, TRANSACTION_INDEXES_FILE, error)
            return {}

    def _partition_directories(self) -> Iterator[str]:
        """Names that may be logs. Logs whose deletion a crash interrupted are removed on the way."""
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
        """What has to be written once the logs are open, in this order, before anything is appended or compacted."""
        names = []
        if not found.has_clean_offsets or any(
            self.logs[key].clean_offset != known.clean_offset for key, known in found.logs.items() if key in self.logs
        ):
            # A log that it does not name has no gaps, and what comes in the place of what was lost is not clean. As
            # long as there is no file, every log may have gaps.
            names.append(CLEANER_OFFSET_FILE)
        if not (found.is_clean and found.has_recovery_points and found.has_txn_index_notes):
            # What was recovered is on the disk: the next start need not look at it again.
            names.append(RECOVERY_POINT_FILE)
        return names

    def write_checkpoints(self, names: Sequence[str]) -> None:
        """The values are taken under the lock that the files are written under, so that none is replaced by an older
        one. Blocking, any thread.
        """
        with self._checkpoint_lock:
            if RECOVERY_POINT_FILE in names and self._txn_indexes is None and CLEANER_OFFSET_FILE not in names:
                # With the first notes the next start believes that a log which is not named there was never compacted.
                names = (CLEANER_OFFSET_FILE, *names)
            for name in names:
                write_offsets(self._files, self.path, name, self._offsets(name))
            self.checkpointed.update(list(self.logs))
            if RECOVERY_POINT_FILE in names:
                self._write_txn_index_notes()

    def _write_txn_index_notes(self) -> None:
        """Note which transaction indexes there are, if that has changed: a note that is too old costs the next start
        a look at the batches.
        """
        notes = {key: dict(checkpoints.txn_indexes) for key, (_, checkpoints) in list(self.failed.items())}
        for key, log in list(self.logs.items()):
            segments, known = log.segments, (self._txn_indexes or {}).get(key, {})
            of_log = notes[key] = {}
            for segment in segments:
                if segment.has_txn_index:
                    of_log[segment.base_offset] = segment.note_txn_index(
                        self._files, known.get(segment.base_offset), is_sealed=segment is not segments[-1]
                    )
        notes = {key: of_log for key, of_log in notes.items() if of_log}
        if notes != self._txn_indexes:
            replace_file(self._files, f"{self.path}/{TRANSACTION_INDEXES_FILE}", encode_txn_index_notes(notes))
            self._txn_indexes = notes

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        """What a checkpoint says of each log. Of a failed one it goes on saying what it said."""
        offsets = {}
        for key, log in list(self.logs.items()):
            if name == RECOVERY_POINT_FILE:
                offsets[key] = log.recovery_point_to_write
            elif name == HIGH_WATERMARK_FILE:
                offsets[key] = log.high_watermark
            elif name == CLEANER_OFFSET_FILE:
                if log.clean_offset is not None:
                    offsets[key] = log.clean_offset
            elif log.log_start_offset > 0:
                # Also where the first segment says so: the names of deleted ones may not be off the disk yet.
                offsets[key] = log.log_start_offset
        for key, (_, checkpoints) in list(self.failed.items()):
            if name == RECOVERY_POINT_FILE:
                offsets[key] = checkpoints.recovery_point
            elif name == HIGH_WATERMARK_FILE:
                offsets[key] = checkpoints.high_watermark
            elif name == CLEANER_OFFSET_FILE:
                if checkpoints.clean_offset is not None:
                    offsets[key] = checkpoints.clean_offset
            else:
                offsets[key] = checkpoints.log_start_offset
        return offsets


def look_at(files: Files, path: str) -> SeenDirectory:
    """What can be seen of a log directory before it is locked; nothing is changed. Blocking."""
    try:
        if not files.exists(path):
            return SeenDirectory(path, None, is_owned=False)
        names = {entry.name for entry in files.list(path)}
        return SeenDirectory(path, read_note(files, path), is_owned=META_PROPERTIES_FILE in names)
    except OSError as error:
        return SeenDirectory(path, None, is_owned=False, problem=error.strerror or str(error))


def read_note(files: Files, path: str) -> DirectoryNote | None:
    """A directory's note of all directories; None if there is none, or none that can be read. Blocking."""
    try:
        return DirectoryNote.decode(read_file(files, f"{path}/{LOG_DIRECTORIES_FILE}"))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        logger.warning("ignoring %s/%s: %s", path, LOG_DIRECTORIES_FILE, error)
        return None


def remove_tree(files: Files, path: str) -> bool:
    """Remove a deleted log's directory; whether that worked. Blocking."""
    try:
        for entry in files.list(path):
            unlink_if_exists(files, f"{path}/{entry.name}")
        files.remove_directory(path)
    except OSError as error:
        logger.warning("removing %s failed: %s", path, error)
        return False
    return True


def parse_log_name(name: str) -> TopicPartition | None:
    """Topic and partition of a log's directory name, `TOPIC-PARTITION`; None if it is not one."""
    topic, dash, partition = name.rpartition("-")
    if not topic or not dash or not (partition.isascii() and partition.isdigit()):
        return None
    return topic, int(partition)
