"""The errors of a disk as exceptions, and their classification as transient or final."""

from __future__ import annotations

import errno
from typing import Final

from barnabas.wire.errors import ApiError, ErrorCode

_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PASSING: Final = _NO_DESCRIPTORS | _NO_ROOM | {errno.EFBIG, errno.ENOMEM, errno.EAGAIN}

_MOUNT_ANEW: Final = (
    "The kernel makes a file system read-only when its disk fails, and says why in its own log: see to that, mount it"
    " for writing, and start the broker again"
)


class StorageError(ApiError):
    """The disk failed or its content is invalid: the log is offline, clients receive KAFKA_STORAGE_ERROR.

    If the error `passes`, the log is not offline: there was no free space or no descriptor, and a retry may succeed.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        self.passes = passes
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class DiskFull(StorageError):
    """The disk is full. The error passes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passes=True)


class LogDeleted(StorageError):
    """The log was deleted, maybe during a request for it. That is not a disk failure: nothing is left that could fail.
    Clients receive UNKNOWN_TOPIC_OR_PARTITION.
    """

    passes = False

    def __init__(self, message: str) -> None:
        ApiError.__init__(self, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


class LogBusy(StorageError):
    """The log is being truncated in a thread and cannot be used until that is done. The error passes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passes=True)


class CorruptLog(StorageError):
    """A segment is damaged in a way that no torn write explains, so nothing is truncated: an operator has to decide.

    `path` and `position` are the start of the first bad batch.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = reason
        super().__init__(f"{path} is damaged at byte {position}: {reason}")


class CorruptFile(Exception):
    """A checkpoint, snapshot or index violates its format; the caller decides whether to rebuild or ignore it."""


class DirectoryLocked(Exception):
    """Another broker, or another log manager of this process, uses the log directory. `pid` is its process; 0 if
    unknown.
    """

    def __init__(self, reason: str, pid: int = 0) -> None:
        super().__init__(reason)
        self.pid = pid


class DirectoryMismatch(Exception):
    """A log directory belongs to another broker or cluster, or contradicts another directory."""


class ReadWouldBlock(Exception):
    """The bytes are not in the page cache."""


class StateUnknown(OSError):
    """The content of the disk is unknown, so the error is final whatever `errno` says: a sync failed (the kernel may
    have dropped the pages, and a second sync would only seem to succeed), or the remains of a failed write could not be
    truncated.
    """


def is_passing(error: OSError) -> bool:
    """Whether the disk works and only lacks space, or the process lacks descriptors or memory: that may change.

    This is the only place that decides it. An operation that fails with a transient error is refused and may be
    retried; any other error is final. Callers treat a transient error as final only if it leaves the disk in an unknown
    state.
    """
    return error.errno in _PASSING and not isinstance(error, StateUnknown)


def refusal(what: str, error: OSError) -> StorageError:
    """The StorageError for an error of the operating system; it says whether the error passes."""
    if error.errno == errno.EROFS:
        return StorageError(f"{what} failed: {error}. {_MOUNT_ANEW}")
    if error.errno in _NO_ROOM and is_passing(error):
        return DiskFull(f"{what} failed: {error}")
    return StorageError(f"{what} failed: {error}", passes=is_passing(error))


def lacks_descriptors(error: OSError) -> bool:
    """Whether opening a file failed because the process or the machine has too many open files."""
    return error.errno in _NO_DESCRIPTORS
