"""What can go wrong on a disk, as exceptions, and whether it passes."""

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
    """The disk failed or holds something it should not: the log is offline, clients are told KAFKA_STORAGE_ERROR.

    Where it `passes` the log is not offline: there was no room, or no descriptor, and the same may work later.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        self.passes = passes
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class DiskFull(StorageError):
    """There is no room. It passes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passes=True)


class LogDeleted(StorageError):
    """The log was deleted, maybe while somebody waited for it: no failure of the disk, there is nothing any more that
    could fail. Clients are told UNKNOWN_TOPIC_OR_PARTITION.
    """

    passes = False

    def __init__(self, message: str) -> None:
        ApiError.__init__(self, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


class LogBusy(StorageError):
    """The log is being truncated in a thread: nothing may use it until that is done. It passes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passes=True)


class CorruptLog(StorageError):
    """A segment is damaged where no torn write can explain it, so nothing is cut off: an operator has to decide.

    `path` and `position` say where the first bad batch starts.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.reason = reason
        super().__init__(f"{path} is damaged at byte {position}: {reason}")


class CorruptFile(Exception):
    """A checkpoint, snapshot or index is not what its format says; the caller knows what to rebuild or ignore."""


class DirectoryLocked(Exception):
    """Another broker, or another log manager of this process, uses the log directory. `pid` is the process that does;
    0 if that is not known."""

    def __init__(self, reason: str, pid: int = 0) -> None:
        super().__init__(reason)
        self.pid = pid


class DirectoryMismatch(Exception):
    """A log directory is not this broker's, or contradicts another one."""


class ReadWouldBlock(Exception):
    """The bytes are not in the page cache."""


class StateUnknown(OSError):
    """Nobody can tell what is on the disk, so that this is final whatever `errno` says: a sync failed (the kernel may
    have dropped what it was to write, and a second try would only seem to work), or what a refused write left behind
    could not be taken away.
    """


def is_passing(error: OSError) -> bool:
    """Whether the disk is whole and only has no room, or the process no descriptors or memory: that may change.

    The one place that decides it. What passes is refused and tried again; anything else is final. Callers make final
    what passes only where it leaves something on the disk that they cannot tell.
    """
    return error.errno in _PASSING and not isinstance(error, StateUnknown)


def refusal(what: str, error: OSError) -> StorageError:
    """What the callers of storage are told of an error of the operating system, and whether it passes."""
    if error.errno == errno.EROFS:
        return StorageError(f"{what} failed: {error}. {_MOUNT_ANEW}")
    if error.errno in _NO_ROOM and is_passing(error):
        return DiskFull(f"{what} failed: {error}")
    return StorageError(f"{what} failed: {error}", passes=is_passing(error))


def lacks_descriptors(error: OSError) -> bool:
    """Whether a file could not be opened because the process or the machine has too many open already."""
    return error.errno in _NO_DESCRIPTORS
