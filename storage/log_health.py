"""The health of one log: the error that took it offline, if any.

After a disk failure Kafka takes the whole log directory offline (LogDirFailureChannel); here it is first of all the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from barnabas.storage.errors import LogBusy, LogDeleted, StorageError, refusal

logger = logging.getLogger(__name__)


class LogHealth:
    """The health of one log. All parts of the log share it: each checks it before an operation, and reports disk errors
    to it.

    `failure` is the reason why the log is offline (LogDeleted if it was deleted), None while it works; it never becomes
    None again, except for LogBusy: then the log only waits for the disk (`hold`).

    Ownership: the event loop.

    Args:
        directory: the log's, `.../TOPIC-PARTITION`, for messages.
        on_failure: called once, with the directory and the error, when the log goes offline; not if it is deleted.
    """

    __slots__ = ("_directory", "_on_failure", "failure")

    def __init__(self, directory: str, on_failure: Callable[[str, StorageError], None]) -> None:
        self._directory = directory
        self._on_failure = on_failure
        self.failure: StorageError | None = None

    def check(self) -> None:
        """Raises StorageError if the log is offline, LogDeleted if it was deleted."""
        failure = self.failure
        if failure is not None:
            if isinstance(failure, (LogBusy, LogDeleted)):
                raise type(failure)(failure.message)
            raise StorageError(failure.message)

    def fail(self, error: StorageError) -> None:
        """Take the log offline: no append is acknowledged, no read served and nothing retried before a restart has
        checked the disk.
        """
        if self.failure is None or isinstance(self.failure, LogBusy):
            self.failure = error
            logger.error("%s is offline: %s", self._name, error.message)
            self._on_failure(self._directory, error)

    def hold(self, reason: str) -> None:
        """Refuse all use of the log until `release`. The log must be working."""
        self.failure = LogBusy(reason)

    def release(self) -> None:
        """End `hold`; the log stays offline if it failed meanwhile."""
        if isinstance(self.failure, LogBusy):
            self.failure = None

    def note_deletion(self) -> None:
        """The log was deleted: an error from now on is no disk failure."""
        self.failure = LogDeleted(f"{self._directory} was deleted")

    def refused(self, what: str, error: OSError) -> StorageError:
        """The error to raise when the disk refused `what` and nothing has changed. A transient error (no space, no
        descriptor) may be retried; any other takes the log offline.
        """
        failure = refusal(what, error)
        if failure.passes:
            logger.error("%s: %s", self._name, failure.message)
        else:
            self.fail(failure)
        return failure

    @contextmanager
    def refusing_if(self, what: str) -> Iterator[None]:
        """A context for work, called `what` in messages, that leaves no changes when the disk refuses it: an OSError
        becomes the StorageError that `refused` returns.
        """
        try:
            yield
        except OSError as error:
            raise self.refused(what, error) from error

    @contextmanager
    def failing_if(self, what: str) -> Iterator[None]:
        """A context for work, called `what` in messages, that cannot be undone: an OSError takes the log offline,
        because the content of the disk is unknown then, and becomes a StorageError.
        """
        try:
            yield
        except OSError as error:
            failure = StorageError(f"{what} failed: {error}")
            self.fail(failure)
            raise failure from error

    @property
    def _name(self) -> str:
        return self._directory.rpartition("/")[2]
