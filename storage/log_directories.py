"""The log directories of a broker: the ones in use, and the missing ones.

A directory that was in use before and cannot be used now is missing: its logs are offline until a start finds it, and
are not created in another directory. A directory that is new, or the only one, has to be usable.

Source: LogManager.createAndValidateLogDirs, lockLogDirs, offlineLogDirs.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from barnabas.storage.checkpoints import LOG_DIRECTORIES_FILE, TopicPartition
from barnabas.storage.errors import DirectoryMismatch
from barnabas.storage.files import Files, make_durable_directory
from barnabas.storage.known_directories import KnownDirectories, MissingDirectory, identify
from barnabas.storage.log_context import LogContext
from barnabas.storage.log_directory import FoundLogs, LogDirectory, look_at, unusable

logger = logging.getLogger(__name__)

NEW_DIRECTORY_FREE_BYTES_MIN: Final = 1 << 20
"""The first start writes some 200 KB, most of it for the metadata store and its reserved space."""


class LogDirectories:
    """The directories in use, each locked; iterates in the order of `log.dirs`.

    Ownership: the code that starts and stops the log manager.

    Args:
        files: the disk.
        paths: `log.dirs`; created if missing.
        new_context: creates the shared state of the logs in the directory with this path.
        node_id: `broker.id`.
        new_id: draws the id of a new log directory.
    """

    def __init__(
        self,
        files: Files,
        paths: Sequence[str],
        new_context: Callable[[str], LogContext],
        node_id: int,
        new_id: Callable[[], str],
    ) -> None:
        self._files = files
        self._paths = paths
        self._new_context = new_context
        self._node_id = node_id
        self._new_id = new_id
        self._in_use: dict[str, LogDirectory] = {}
        """By their path in `log.dirs`."""
        self._noted: set[str] = set()
        """Paths of directories with a note, which shows that they were in use beside others."""
        self._known = KnownDirectories({}, {})
        self.by_log: dict[TopicPartition, LogDirectory] = {}
        """The directory that contains each log, also those that could not be opened."""
        self.has_new = False
        """Whether a directory in use names no owner: it is new, or replaces a lost one."""
        self.cluster_id: str | None = None
        """The cluster that the directories belong to, None while no directory names one."""

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._in_use.values())

    @property
    def first_path(self) -> str:
        """The first of the directories in use: it has the files that a broker needs once."""
        return next(iter(self)).path

    @property
    def missing(self) -> dict[str, str]:
        """Directories of the broker that could not be used since the start: the reasons, by path."""
        return {missed.path: missed.problem for missed in self._known.missing.values()}

    # --- starting

    def open(self, cluster_id: str | None) -> None:
        """Lock the present directories, check their owners, and determine the missing ones. Blocking.

        Raises:
            DirectoryLocked: another process uses a directory.
            DirectoryMismatch: a directory belongs to another broker, or to another cluster than `cluster_id`.
            OSError: a directory that is new, or the only one, cannot be used.
        """
        seen = [look_at(self._files, path) for path in self._paths]
        self._noted = {directory.path for directory in seen if directory.note is not None}
        self._known = identify(seen, self._new_id)
        missing_paths = {missed.path for missed in self._known.missing.values()}
        for directory in seen:
            if directory.problem and directory.path not in missing_paths:
                raise unusable(directory.path, directory.problem)
        for directory in seen:
            if directory.path in self._known.present:
                try:
                    self._lock(directory.path)
                    if not directory.is_owned:
                        self.has_new = True
                        self._require_room(directory.path)
                except OSError as error:
                    self._leave_out(directory.path, error)
        for directory_id, missed in self._known.missing.items():
            _tell(directory_id, missed)
        for locked in list(self):
            try:
                self.cluster_id = locked.check_owner(self._node_id, cluster_id) or self.cluster_id
            except OSError as error:
                self.leave_out(locked, error)

    def _lock(self, path: str) -> None:
        real_path = self._files.real_path(path)
        make_durable_directory(self._files, real_path)
        self._in_use[path] = LogDirectory.lock(real_path, self._new_context(real_path))

    def _require_room(self, path: str) -> None:
        """Require free space in a new directory. (One that is in use starts on a full disk, too, to serve its logs.)"""
        if self._files.free_bytes(path) < NEW_DIRECTORY_FREE_BYTES_MIN:
            raise OSError(errno.ENOSPC, "No space left on device")

    def find_logs(self) -> dict[LogDirectory, FoundLogs]:
        """The logs of each directory, for `by_log` too. Removes the clean-shutdown files. Blocking.

        Raises:
            DirectoryMismatch: two directories contain the same partition.
            OSError: the disk refused; a directory that was in use beside others is left out instead.
        """
        found = {}
        for directory in list(self):
            try:
                found[directory] = directory.find_logs()
            except OSError as error:
                self.leave_out(directory, error)
        for directory, logs in found.items():
            for key in logs.logs:
                other = self.by_log.setdefault(key, directory)
                if other is not directory:
                    raise DirectoryMismatch(f"both {directory.path} and {other.path} hold {key[0]}-{key[1]}")
        return found

    def leave_out(self, directory: LogDirectory, error: OSError) -> None:
        """Treat a directory whose disk refused during the start as missing, with its logs: none of them is in use yet,
        though they may be open.

        Raises:
            OSError: it is the only one, or one that was never in use.
        """
        path = next(path for path, found in self._in_use.items() if found is directory)
        self._leave_out(path, error)
        for directory_id, missed in self._known.missing.items():
            if missed.path == path:
                _tell(directory_id, missed)
        del self._in_use[path]
        directory.unlock()
        for log in directory.logs.values():
            log.local.close_files()
        for key in [key for key, found in self.by_log.items() if found is directory]:
            del self.by_log[key]

    def _leave_out(self, path: str, error: OSError) -> None:
        problem = error.strerror or str(error)
        if path not in self._noted or len(self._known.present) == 1:
            # A configured directory is created: FileNotFoundError says that there is nothing to create it in.
            is_barren = isinstance(error, FileNotFoundError)
            raise unusable(path, "nothing can be created there" if is_barren else problem) from error
        self._known = self._known.without(path, problem)

    def set_cluster_id(self, cluster_id: str) -> None:
        """Set the cluster of all directories, which `note` writes. Blocking.

        Raises:
            DirectoryMismatch: a directory belongs to another cluster.
        """
        for directory in self:
            directory.check_owner(self._node_id, cluster_id)
        self.cluster_id = cluster_id

    def note(self, cluster_id: str) -> None:
        """Write the cluster's id, and the note of all directories, into every directory. Blocking if something is new.
        Raises OSError.
        """
        for directory in self:
            directory.set_owner(self._node_id, cluster_id)
        for path, note in self._known.notes().items():
            self._in_use[path].write_note(note)

    # --- stopping

    def close(self) -> None:
        """Unlock all directories in use, for other processes."""
        for directory in self:
            directory.unlock()
        self._in_use = {}


def _tell(directory_id: str, missed: MissingDirectory) -> None:
    logger.error(
        "log directory %s is missing (%s): the partitions in it are offline until a start finds it."
        " To abandon it, delete the line of %s from %s in the other log directories",
        missed.path, missed.problem, directory_id, LOG_DIRECTORIES_FILE,
    )  # fmt: skip
