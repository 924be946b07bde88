"""The checkpoint files of one log directory: four files of offsets, and the notes of transaction indexes. The formats
are described in `checkpoints`.

Source: OffsetCheckpointFile, LogManager.checkpointRecoveryOffsetsInDir and its like.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from barnabas.storage.checkpoints import (
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TRANSACTION_INDEXES_FILE,
    LogCheckpoints,
    TopicPartition,
    decode_txn_index_notes,
    encode_txn_index_notes,
    read_offsets,
    write_offsets,
)
from barnabas.storage.errors import CorruptFile, StorageError
from barnabas.storage.files import Files, read_file, replace_file
from barnabas.storage.log import PartitionLog
from barnabas.storage.txn_index import TransactionIndexNote

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]
FailedLogs = Mapping[TopicPartition, tuple[StorageError, LogCheckpoints]]
"""Logs that could not be opened: the error, and their checkpoints."""


class ReadCheckpoints(NamedTuple):
    """The content of the files of one directory; None for a missing or unusable file.

    `unnamed_clean_offset` applies to a log that is missing in the cleaner's file: None if such a log was never
    compacted, 0 if that is unknown.
    """

    recovery_points: Offsets | None
    log_starts: Offsets
    high_watermarks: Offsets
    clean_offsets: Offsets | None
    txn_indexes: Mapping[TopicPartition, Mapping[int, TransactionIndexNote]] | None
    unnamed_clean_offset: int | None

    @property
    def named(self) -> set[TopicPartition]:
        """Logs in any of the offset files."""
        return {
            *(self.recovery_points or ()), *self.log_starts, *self.high_watermarks, *(self.clean_offsets or ())
        }  # fmt: skip

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Logs that existed at the last checkpoint: these files name each of them, and no deleted one."""
        return frozenset({**(self.recovery_points or {}), **self.high_watermarks})

    def of(self, key: TopicPartition) -> LogCheckpoints:
        """The checkpoints of one log."""
        return LogCheckpoints(
            (self.recovery_points or {}).get(key, 0),
            self.log_starts.get(key, 0),
            self.high_watermarks.get(key, 0),
            clean_offset=(self.clean_offsets or {}).get(key, self.unnamed_clean_offset),
            may_have_gaps=self.recovery_points is None,
            txn_indexes=(self.txn_indexes or {}).get(key, {}),
        )


class DirectoryCheckpoints:
    """Reads and writes the files of one directory.

    `named` is a superset of the logs in the offset files.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.named: set[TopicPartition] = set()
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._txn_indexes: Mapping[TopicPartition, Mapping[int, TransactionIndexNote]] | None = None
        """The last notes of transaction indexes; None before there are any."""

    # --- reading

    def read(self, *, is_clean: bool) -> ReadCheckpoints:
        """Read the files; `is_clean` says that the last shutdown was clean. Blocking. Raises OSError."""
        recovery_points = self._read_offsets(RECOVERY_POINT_FILE)
        log_starts = self._read_offsets(LOG_START_FILE) or {}
        high_watermarks = self._read_offsets(HIGH_WATERMARK_FILE) or {}
        clean_offsets = self._read_offsets(CLEANER_OFFSET_FILE)
        self._txn_indexes = self._read_txn_index_notes()
        # Without the file it is unknown which logs were compacted. The same holds if Kafka was killed, since Kafka
        # names a log only after its first compaction, and without notes of our own Kafka may have used the directory.
        # Then every log counts as compacted, and `write` records that.
        was_kafka_killed = not is_clean and self._txn_indexes is None
        unnamed = 0 if clean_offsets is None or was_kafka_killed else None
        found = ReadCheckpoints(recovery_points, log_starts, high_watermarks, clean_offsets, self._txn_indexes, unnamed)
        self.named = found.named
        return found

    def _read_offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """Read a checkpoint; None if it is missing, empty (Kafka creates it empty) or unusable."""
        try:
            if not self._files.stat(f"{self._path}/{name}").size:
                return None
            return read_offsets(self._files, self._path, name)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            logger.warning("ignoring %s/%s: %s", self._path, name, error)
            return None

    def _read_txn_index_notes(self) -> dict[TopicPartition, dict[int, TransactionIndexNote]] | None:
        try:
            return decode_txn_index_notes(read_file(self._files, f"{self._path}/{TRANSACTION_INDEXES_FILE}"))
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            logger.warning("ignoring %s/%s: %s", self._path, TRANSACTION_INDEXES_FILE, error)
            return {}

    # --- writing

    def write(self, names: Sequence[str], logs: Mapping[TopicPartition, PartitionLog], failed: FailedLogs) -> None:
        """Write some of the files. The values are read under the lock that guards the files, so that no file is
        replaced by an older version. Blocking, any thread. Raises OSError.
        """
        with self._lock:
            if RECOVERY_POINT_FILE in names and self._txn_indexes is None and CLEANER_OFFSET_FILE not in names:
                # With the first notes, the next start assumes that a log not named there was never compacted.
                names = (CLEANER_OFFSET_FILE, *names)
            for name in names:
                write_offsets(self._files, self._path, name, _offsets(name, logs, failed))
            self.named.update(list(logs))
            if RECOVERY_POINT_FILE in names:
                self._write_txn_index_notes(logs, failed)

    def _write_txn_index_notes(self, logs: Mapping[TopicPartition, PartitionLog], failed: FailedLogs) -> None:
        """Write the notes of transaction indexes if they have changed: an outdated note makes the next start read the
        batches.
        """
        notes = {key: dict(checkpoints.txn_indexes) for key, (_, checkpoints) in list(failed.items())}
        for key, log in list(logs.items()):
            segments, known = log.segments, (self._txn_indexes or {}).get(key, {})
            of_log = notes[key] = {}
            for segment in segments:
                if segment.has_txn_index:
                    of_log[segment.base_offset] = segment.note_txn_index(
                        self._files, known.get(segment.base_offset), is_sealed=segment is not segments[-1]
                    )
        notes = {key: of_log for key, of_log in notes.items() if of_log}
        if notes != self._txn_indexes:
            replace_file(self._files, f"{self._path}/{TRANSACTION_INDEXES_FILE}", encode_txn_index_notes(notes))
            self._txn_indexes = notes


def _offsets(name: str, logs: Mapping[TopicPartition, PartitionLog], failed: FailedLogs) -> dict[TopicPartition, int]:
    """The content of a checkpoint. A failed log keeps its last values."""
    offsets = {}
    for key, log in list(logs.items()):
        if name == RECOVERY_POINT_FILE:
            offsets[key] = log.local.durability.recovery_point_to_write
        elif name == HIGH_WATERMARK_FILE:
            # A start treats a log that is shorter than its checkpointed values as damaged, and begins at the log start
            # offset if the value is lower.
            offsets[key] = 0 if log.local.durability.is_unnamed else log.high_watermark
        elif name == CLEANER_OFFSET_FILE:
            if log.clean_offset is not None:
                offsets[key] = log.clean_offset
        elif log.log_start_offset > 0:
            # Also if the first segment begins there: the names of deleted segments may still be on the disk.
            offsets[key] = log.log_start_offset
    for key, (_, checkpoints) in list(failed.items()):
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
