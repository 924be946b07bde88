"""What can go wrong on a disk, as exceptions."""

from __future__ import annotations

from barnabas.wire.errors import ApiError, ErrorCode


class StorageError(ApiError):
    """The disk failed or holds something it should not: the log is offline, clients are told KAFKA_STORAGE_ERROR.

    Where it `passes` the log is not offline: there was no room, or no descriptor, and the same may work later.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        self.passes = passes
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class LogDeleted(StorageError):
    """The log was deleted, maybe while somebody waited for it: no failure of the disk, there is nothing any more that
    could fail. Clients are told UNKNOWN_TOPIC_OR_PARTITION.
    """

    def __init__(self, message: str) -> None:
        ApiError.__init__(self, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


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
    """Another broker, or another log manager of this process, uses the log directory."""


class DirectoryMismatch(Exception):
    """A log directory is not this broker's, or contradicts another one."""


class ReadWouldBlock(Exception):
    """The bytes are not in the page cache."""
