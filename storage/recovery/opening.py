"""Opening the logs that a start finds: all of them at once, side by side, or later one that could not be opened.

Source: LogManager.loadLogs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from barnabas.storage.checkpoints import TopicPartition
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import StorageError
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_directory import FoundLogs, LogDirectory
from barnabas.storage.recovery.log_loader import LogCheckpoints, open_log
from barnabas.threads import Threads

logger = logging.getLogger(__name__)


class OpeningGivenUp(Exception):
    """A start was ended while logs were recovered. Nothing is lost: the next one recovers them, as after a crash."""


class LogOpener:
    """Opens logs of existing directories.

    Args:
        config_of: a topic's settings.
    """

    def __init__(self, config_of: Callable[[str], LogConfig]) -> None:
        self._config_of = config_of
        self._is_given_up = False

    def give_up(self) -> None:
        """End the recovery of logs; what is opened without it is opened nevertheless. Any thread."""
        self._is_given_up = True

    def _go_on(self) -> None:
        if self._is_given_up:
            raise OpeningGivenUp

    def open(
        self, directory: LogDirectory, key: TopicPartition, checkpoints: LogCheckpoints, *, is_clean: bool
    ) -> PartitionLog | StorageError:
        """Open one log, or say why that is not possible. Blocking, any thread."""
        topic, partition = key
        path, config = f"{directory.path}/{topic}-{partition}", self._config_of(topic)
        try:
            return open_log(
                directory.context, topic, partition, path, config, checkpoints,
                is_clean=is_clean, go_on=self._go_on,
            )  # fmt: skip
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
        """Open what was found; each directory takes in its logs, and those that could not be opened. Blocking.

        `moves` holds the logs that come from another directory, and what was found there.
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
    """What was found, where each log that somebody moved to another directory meanwhile has the checkpoints that it had
    before; and the moved ones, with what was found in the directory they come from.
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
