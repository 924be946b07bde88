"""Which logs a broker had, and has no more: its disk was replaced, or somebody took a partition's directory away.

A log that is gone must not begin anew where others count on what was in it: an empty leader has the others cut theirs.
So what is lost is remembered until each such partition has a log again, or is no longer this broker's, in the file
`barnabas-lost-logs` of the first log directory. It is a checkpoint file (see `checkpoints`) of lines `TOPIC PARTITION`,
or of one line `*` where nobody knows which logs there were: a log directory is new. Whoever deletes the file, while the
broker is stopped, gives the logs up: then they begin anew, as Kafka's do, which does not know the file.
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
    """The logs that are lost; `may_be_any` says that it may be any that there is none of.

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
        """Add what an earlier life wrote down. One that cannot be read says that any log may be lost."""
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
        """The controller has named all partitions of this broker: of those that lack a log, these are `claimed`."""
        self.named = {key for key in claimed if key in self}
        self.may_be_any = False

    @property
    def is_written(self) -> bool:
        """Whether the file says what is known."""
        return self._written == (self.may_be_any, frozenset(self.named))

    def write(self, files: Files, directory: str) -> None:
        """Write down what is known, or remove the file where nothing is lost. Raises OSError."""
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
