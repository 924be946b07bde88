"""Opens the logs that a start finds, in parallel, and retries logs that could not be opened.

Source: LogManager.loadLogs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from barnabas.storage.checkpoints import LogCheckpoints, TopicPartition
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_directories import LogDirectories
from barnabas.storage.log_directory import OFFSET_CHECKPOINTS, FoundLogs, LogDirectory
from barnabas.storage.recovery.log_loader import load_log
from barnabas.threads import Threads

logger = logging.getLogger(__name__)


class OpeningGivenUp(Exception):
    """The recovery of logs was cancelled during a start. Nothing is lost: the next start recovers them, as after a
    crash.
    """


class LogOpener:
    """Opens logs of existing directories.

    Args:
        config_of: returns a topic's settings.
    """

    def __init__(self, config_of: Callable[[str], LogConfig]) -> None:
        self._config_of = config_of
        self._is_given_up = False

    def give_up(self) -> None:
        """Cancel the recovery of logs; logs that need none are still opened. Any thread."""
        self._is_given_up = True

    def _go_on(self) -> None:
        if self._is_given_up:
            raise OpeningGivenUp

    def open(
        self, directory: LogDirectory, key: TopicPartition, checkpoints: LogCheckpoints, *, is_clean: bool
    ) -> PartitionLog | StorageError:
        """Open one log; returns the error if that fails. Blocking, any thread."""
        topic, partition = key
        path, config = f"{directory.path}/{topic}-{partition}", self._config_of(topic)
        try:
            loaded = load_log(directory.context, path, config, checkpoints, is_clean=is_clean, go_on=self._go_on)
            return PartitionLog(directory.context, key, config, loaded)
        except OpeningGivenUp:
            raise
        except StorageError as error:
            return error
        except Exception as error:  # whatever is wrong with this log, the others are opened
            logger.exception("opening %s failed", path)
            return StorageError(f"opening {path} failed: {type(error).__name__}: {error}")

    def open_all(
        self,
        found: Mapping[LogDirectory, FoundLogs],
        moves: Mapping[TopicPartition, FoundLogs],
        threads: Threads,
        threads_per_directory: int,
    ) -> None:
        """Open the found logs; each directory receives its logs, and those that could not be opened. Blocking. `moves`
        contains the logs that come from another directory, and the content of that directory.
        """
        opened = threads.run(
            [
                [
                    partial(self.open, directory, key, known, is_clean=logs.is_clean and moves.get(key, logs).is_clean)
                    for key, known in logs.logs.items()
                ]
                for directory, logs in found.items()
            ],
            threads_per_directory,
            "logs",
        )
        for (directory, logs), outcomes in zip(found.items(), opened, strict=True):
            for (key, checkpoints), outcome in zip(logs.logs.items(), outcomes, strict=True):
                if isinstance(outcome, StorageError):
                    logger.error("%s-%d stays offline: %s", *key, outcome.message)
                    directory.failed[key] = (outcome, checkpoints)
                else:
                    directory.logs[key] = outcome


def follow_moves(
    found: Mapping[LogDirectory, FoundLogs],
) -> tuple[dict[LogDirectory, FoundLogs], dict[TopicPartition, FoundLogs]]:
    """The found logs, where each log that was moved to another directory has its old checkpoints; and the moved logs,
    with the content of the directory that they come from.
    """
    moves = {}
    followed = {}
    for directory, logs in found.items():
        known = dict(logs.logs)
        for key in sorted(known.keys() - logs.named.keys()):
            for origin in found.values():
                if key in origin.named and key not in origin.logs:
                    known[key], moves[key] = origin.named[key], origin
        followed[directory] = logs._replace(logs=known)
    return followed, moves


def make_durable(
    directories: LogDirectories, found: Mapping[LogDirectory, FoundLogs], moves: Mapping[TopicPartition, FoundLogs]
) -> None:
    """Flush the changes of the start to the disk. Blocking. `moves` contains the logs that come from another directory.

    Raises:
        OSError: a disk refused; if possible its directory is left out instead.
    """
    for directory, logs in found.items():
        if not logs.is_clean:
            # A killed process may have left names that are not on the disk: the served ones have to be.
            try:
                directory.sync()
            except OSError as error:
                if moves:  # a log and its checkpoints must stay together
                    raise
                directories.leave_out(directory, error)
    in_use = {directory: found[directory] for directory in directories}
    for directory, logs in in_use.items():
        if not moves.keys().isdisjoint(logs.logs):
            # First the new directory: the old one drops their checkpoints.
            directory.checkpoint(*OFFSET_CHECKPOINTS)
    for directory, logs in in_use.items():
        if stale := directory.stale_checkpoints(logs):
            directory.checkpoint(*stale)
