"""A cache of open `.log` files, as descriptors are scarce, and the number of descriptors reserved for files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from barnabas.storage.errors import lacks_descriptors
from barnabas.storage.files import Files, unlink_if_exists

if TYPE_CHECKING:
    from barnabas.threads import Threads

DESCRIPTOR_RESERVE_MAX: Final = 1_024
"""The maximum number of descriptors that a process reserves for files."""

_RETRY_MS: Final = 10
_MISSING_MAX: Final = 10
_EXHAUSTED_MAX: Final = 100
"""The number of attempts to open a file that was renamed meanwhile, or for which there is no descriptor."""


def descriptor_reserve(limit: int) -> int:
    """The number of a process's descriptors that are reserved for files, of logs and of the metadata store."""
    return min(limit // 4, DESCRIPTOR_RESERVE_MAX)


class LogFile:
    """A segment's `.log` file, open or closed.

    `path` follows renames. `descriptor` is -1 while closed; only `DescriptorCache` opens and closes it. `holders`
    counts the pending reads and flushes of threads: the file is not unlinked before it is 0. Ownership: the event loop;
    the cache's lock guards `holders` and `doomed`, because threads release files.
    """

    __slots__ = ("descriptor", "doomed", "holders", "path", "recently_used")

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.recently_used = False
        self.holders = 0
        self.doomed = False


class DescriptorCache:
    """Keeps at most `limit` log files open and closes the least recently used ones (second chance, so that a use costs
    one store).

    Ownership: only the event loop opens and closes cached descriptors, so that none is closed during a system call.
    Threads use `open_privately`, between a `hold` on the loop and a `release` in any thread.
    """

    __slots__ = ("_crowded_from", "_lent", "_lock", "_open", "_pressure", "_threads", "files", "limit")

    def __init__(self, files: Files, threads: Threads, limit: int | None = None) -> None:
        self.files = files
        self._threads = threads
        descriptors = files.descriptor_limit()
        # A quarter stays free for sockets and for files that are opened only briefly.
        self.limit = max(8, descriptors * 3 // 4) if limit is None else limit
        # Connections leave a reserve for files (`is_reserved_descriptor`); idle files leave half of it to other files.
        self._crowded_from = descriptors - descriptor_reserve(descriptors) // 2
        self._open: dict[LogFile, None] = {}
        self._lent = 0
        self._lock = threading.Lock()
        self._pressure = False

    def __len__(self) -> int:
        return len(self._open)

    def descriptor(self, file: LogFile) -> int:
        """The file's descriptor; opens the file if it is closed, and closes idle files if no descriptor is free."""
        file.recently_used = True
        if file.descriptor >= 0:
            return file.descriptor
        self._make_room()
        while True:
            try:
                self.adopt(file, self.files.open(file.path))
            except OSError as error:
                if not lacks_descriptors(error) or not self._close_idle(max(1, len(self._open) // 8)):
                    raise
            else:
                return file.descriptor

    def _make_room(self) -> None:
        """Close idle files if the limit is reached, before another file is opened or created."""
        while len(self._open) >= self.limit or self._pressure:
            self._pressure = False
            if not self._close_idle(max(1, len(self._open) // 8)):
                break

    def lend(self, file: LogFile) -> int:
        """A duplicate descriptor of the file, which the caller closes by `give_back`; -1 if a twelfth of the limit is
        lent already, so that other files do not lack descriptors. Raises OSError as `descriptor` does.
        """
        with self._lock:
            if self._lent >= max(8, self.limit // 12):
                return -1
            self._lent += 1
        try:
            lent = self.files.duplicate(self.descriptor(file))
        except OSError as error:
            with self._lock:
                self._lent -= 1
            if lacks_descriptors(error):
                return -1
            raise
        if lent >= self._crowded_from:
            self.give_back(lent)
            return -1
        return lent

    def give_back(self, descriptor: int) -> None:
        """Close a descriptor that `lend` returned. Any thread."""
        self.files.close(descriptor)
        with self._lock:
            self._lent -= 1

    def adopt(self, file: LogFile, descriptor: int) -> None:
        """Take over the descriptor of a file that was just created."""
        file.descriptor = descriptor
        file.recently_used = True
        self._open[file] = None
        self._pressure |= descriptor >= self._crowded_from

    def create(self, path: str) -> LogFile:
        """Create an empty file and open it."""
        file = LogFile(path)
        self._make_room()
        while True:
            try:
                self.adopt(file, self.files.open(path, create=True, truncate=True))
            except OSError as error:
                if not lacks_descriptors(error) or not self._close_idle(max(1, len(self._open) // 8)):
                    raise
            else:
                return file

    def close(self, file: LogFile) -> None:
        """Close the descriptor, if the file is open; the file can be opened again."""
        descriptor, file.descriptor = file.descriptor, -1
        if descriptor >= 0:
            self._open.pop(file, None)
            self.files.close(descriptor)

    def _close_idle(self, count: int) -> int:
        """Close up to `count` files that were not used since the last call; returns the number of closed files."""
        closed = 0
        for file in list(self._open):
            if closed == count:
                return closed
            if file.recently_used:
                file.recently_used = False
                self._open[file] = self._open.pop(file)
            else:
                self.close(file)
                closed += 1
        for file in list(self._open)[: count - closed] if closed == 0 else ():
            self.close(file)
            closed += 1
        return closed

    def hold(self, file: LogFile) -> None:
        """Keep the file from being unlinked until `release`."""
        with self._lock:
            file.holders += 1

    def release(self, file: LogFile) -> None:
        """End a `hold`; unlinks the file if `unlink` was called meanwhile. Any thread."""
        with self._lock:
            file.holders -= 1
            unlink = file.doomed and file.holders == 0
        if unlink:
            unlink_if_exists(self.files, file.path)

    def unlink(self, file: LogFile) -> None:
        """Remove the file's name, now or when its last holder releases it. Any thread; the event loop must have closed
        the descriptor before.
        """
        with self._lock:
            file.doomed = True
            unlink = file.holders == 0
        if unlink:
            unlink_if_exists(self.files, file.path)

    def open_privately(self, file: LogFile) -> int:
        """Open a held file for the calling thread alone, which closes it. Blocking.

        A rename may come between reading the path and opening it, so opening a missing file is retried. Without free
        descriptors, the event loop is asked to close some, and opening is retried for one second.
        """
        missing = exhausted = 0
        while True:
            try:
                return self.files.open(file.path)
            except FileNotFoundError:
                missing += 1
                if missing == _MISSING_MAX:
                    raise
            except OSError as error:
                exhausted += 1
                if not lacks_descriptors(error):
                    raise
                if exhausted == _EXHAUSTED_MAX:
                    raise
                self._pressure = True
            self._threads.pause(_RETRY_MS)

    def close_all(self) -> None:
        """Close every descriptor."""
        for file in list(self._open):
            self.close(file)
