"""The lost logs of a broker: their disk was replaced, or a partition's directory was removed.

A lost log must not start anew while other replicas rely on its records: an empty leader makes its followers truncate
theirs. So lost logs are recorded until each such partition has a log again, or is no longer assigned to this broker, in
the file `barnabas-lost-logs` of the first log directory. It is a checkpoint file (see `checkpoints`) of lines `TOPIC
PARTITION`, or of one line `*` if the lost logs are unknown because a log directory is new. Deleting the file, while the
broker is stopped, abandons the logs: then they start anew, as in Kafka, which ignores the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Final

from barnabas.storage.checkpoints import LOST_LOGS_FILE, TopicPartition, decode_checkpoint, encode_checkpoint
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Files, read_file, replace_file, unlink_if_exists
from barnabas.storage.log_directories import LogDirectories

logger = logging.getLogger(__name__)

_ANY: Final = "*"


class LostLogs:
    """The lost logs; `may_be_any` says that any partition without a log may have lost it.

    Ownership: the event loop; `find` blocks, and is for the start. `write` blocks, and any thread may call it.

    Args:
        files: the disk.
        directories: the log directories in use, the first of which has the file.
    """

    def __init__(self, files: Files, directories: LogDirectories) -> None:
        self.may_be_any = False
        self.named: set[TopicPartition] = set()
        self._files = files
        self._directories = directories
        self._written: tuple[bool, frozenset[TopicPartition]] = (False, frozenset())
        self._lock = threading.Lock()

    def is_lost(self, topic: str, partition: int) -> bool:
        """Whether a partition that is not new may have had a log that is gone. (The log of a missing directory is not
        lost but out of reach: see `LogManager.get_or_create`.)
        """
        key = (topic, partition)
        has_log = key in self._directories.by_log
        return not has_log and (self.may_be_any or key in self.named) and not self._directories.missing

    @property
    def may_be_some(self) -> bool:
        """Whether `is_lost` may be true for some partition, or the file is outdated."""
        return self.may_be_any or bool(self.named) or not self.is_written

    def find(self, held: Iterable[TopicPartition]) -> None:
        """Determine the lost logs at a start: checkpoints name them (`held`), or an earlier run has recorded them, and
        no directory contains them. If a directory is new or missing, or the file is unreadable, others may be lost too.
        """
        self.may_be_any = self._directories.has_new or bool(self._directories.missing)
        self.named = set(held) - self._directories.by_log.keys()
        path = self._path
        try:
            lines = decode_checkpoint(read_file(self._files, path))
            recorded = {(topic, int(partition)) for topic, partition in (line for line in lines if line != [_ANY])}
        except FileNotFoundError:
            return
        except (CorruptFile, ValueError) as error:
            logger.warning("%s cannot be read: %s", path, error)
            self.may_be_any = True
            return
        self._written = ([_ANY] in lines, frozenset(recorded))
        self.may_be_any |= [_ANY] in lines
        self.named |= recorded

    def settle(self, claimed: Collection[TopicPartition]) -> None:
        """Limit the lost logs to the partitions in `claimed`, which are all partitions of this broker according to the
        controller. `write` makes it durable.
        """
        if not self._directories.missing:
            without_log = (key for key in claimed if key not in self._directories.by_log)
            self.named = {key for key in without_log if self.may_be_any or key in self.named}
            self.may_be_any = False

    @property
    def is_written(self) -> bool:
        """Whether the file is up to date."""
        return self._written == (self.may_be_any, frozenset(self.named))

    def write(self) -> None:
        """Write the lost logs, or remove the file if there are none. Raises OSError."""
        with self._lock:
            may_be_any, named = known = (self.may_be_any, frozenset(self.named))
            if known == self._written:
                return
            if may_be_any or named:
                lines = [_ANY] if may_be_any else [f"{topic} {partition}" for topic, partition in sorted(named)]
                replace_file(self._files, self._path, encode_checkpoint(lines))
            else:
                unlink_if_exists(self._files, self._path)
            self._written = known

    @property
    def _path(self) -> str:
        return f"{self._directories.first_path}/{LOST_LOGS_FILE}"
