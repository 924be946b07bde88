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
from collections.abc import Collection
from typing import Final

from barnabas.storage.checkpoints import LOST_LOGS_FILE, TopicPartition, decode_checkpoint, encode_checkpoint
from barnabas.storage.errors import CorruptFile
from barnabas.storage.files import Files, read_file, replace_file, unlink_if_exists

logger = logging.getLogger(__name__)

_ANY: Final = "*"


class LostLogs:
    """The lost logs; `may_be_any` says that any partition without a log may have lost it.

    Ownership: the event loop; `read` blocks, and is for the start. `write` blocks, and any thread may call it.
    """

    def __init__(self) -> None:
        self.may_be_any = False
        self.named: set[TopicPartition] = set()
        self._written: tuple[bool, frozenset[TopicPartition]] = (False, frozenset())
        self._lock = threading.Lock()

    def __contains__(self, key: TopicPartition) -> bool:
        return self.may_be_any or key in self.named

    def read(self, files: Files, directory: str) -> None:
        """Add the logs that an earlier run recorded. After an unreadable file any log may be lost."""
        try:
            lines = decode_checkpoint(read_file(files, f"{directory}/{LOST_LOGS_FILE}"))
            named = {(topic, int(partition)) for topic, partition in (line for line in lines if line != [_ANY])}
        except FileNotFoundError:
            return
        except (CorruptFile, ValueError) as error:
            logger.warning("%s/%s cannot be read: %s", directory, LOST_LOGS_FILE, error)
            self.may_be_any = True
            return
        self._written = ([_ANY] in lines, frozenset(named))
        self.may_be_any |= [_ANY] in lines
        self.named |= named

    def settle(self, claimed: Collection[TopicPartition]) -> None:
        """The controller has named all partitions of this broker: those without a log are `claimed`."""
        self.named = {key for key in claimed if key in self}
        self.may_be_any = False

    @property
    def is_written(self) -> bool:
        """Whether the file is up to date."""
        return self._written == (self.may_be_any, frozenset(self.named))

    def write(self, files: Files, directory: str) -> None:
        """Write the lost logs, or remove the file if there are none. Raises OSError."""
        path = f"{directory}/{LOST_LOGS_FILE}"
        with self._lock:
            may_be_any, named = known = (self.may_be_any, frozenset(self.named))
            if known == self._written:
                return
            if may_be_any or named:
                lines = [_ANY] if may_be_any else [f"{topic} {partition}" for topic, partition in sorted(named)]
                replace_file(files, path, encode_checkpoint(lines))
            else:
                unlink_if_exists(files, path)
            self._written = known
