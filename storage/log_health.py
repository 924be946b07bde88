"""Whether one log works: the error that took it offline, if there is one.

Kafka takes the whole log directory offline where the disk fails (LogDirFailureChannel); here it is first of all the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from barnabas.storage.errors import LogBusy, LogDeleted, StorageError, refusal

logger = logging.getLogger(__name__)


class LogHealth:
    """Whether one log works. All parts of the log share it: each asks it before it goes on, and tells it what the disk
    refused.

    `failure` is why the log is offline (LogDeleted if it was deleted), None while it works; it never becomes None
    again, unless it is LogBusy: then the log only waits for the disk (`hold`).

    Ownership: the event loop.

    Args:
        directory: the log's, `.../TOPIC-PARTITION`, for messages.
        on_failure: told once, with the directory and why, when the log goes offline; not if it is deleted.
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
        """Take the log offline: nothing is acknowledged, read or retried any more until a restart finds out what is
        on the disk.
        """
        if self.failure is None or isinstance(self.failure, LogBusy):
            self.failure = error
            logger.error("%s is offline: %s", self._name, error.message)
            self._on_failure(self._directory, error)

    def hold(self, reason: str) -> None:
        """Refuse all use of the log, which works, until `release`."""
        self.failure = LogBusy(reason)

    def release(self) -> None:
        """Whatever held the log is over; it stays offline if it failed meanwhile."""
        if isinstance(self.failure, LogBusy):
            self.failure = None

    def note_deletion(self) -> None:
        """The log was deleted: from now on nothing that befalls it is a failure of the disk."""
        self.failure = LogDeleted(f"{self._directory} was deleted")

    def refused(self, what: str, error: OSError) -> StorageError:
        """The disk refused `what`, and nothing has changed yet: the error to raise. What passes (no room, no
        descriptor) may be tried again; anything else takes the log offline.
        """
        failure = refusal(what, error)
        if failure.passes:
            logger.error("%s: %s", self._name, failure.message)
        else:
            self.fail(failure)
        return failure

    @contextmanager
    def refusing_if(self, what: str) -> Iterator[None]:
        """A context for work, called `what` in messages, that leaves nothing behind when the disk refuses it: an
        OSError in it becomes the StorageError that `refused` returns.
        """
        try:
            yield
        except OSError as error:
            raise self.refused(what, error) from error

    @contextmanager
    def failing_if(self, what: str) -> Iterator[None]:
        """A context for work, called `what` in messages, that cannot be undone: an OSError in it takes the log offline,
        for nobody knows what is on the disk then, and becomes a StorageError.
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
