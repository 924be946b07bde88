"""The interface of storage to a disk (`Files`), and functions that read, write and replace whole files through it.

All disk access of storage goes through a `Files` argument: the real one is `os_files.OsFiles`; tests use others that
record calls, refuse them or live in memory. Paths are plain strings.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from barnabas.storage.errors import StateUnknown

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"
"""The suffix of a file that is being written: once it is complete, it is renamed to its final name."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes, modification time in ms since the epoch, and the device and inode numbers. A copy of the file has
    other numbers; after a restart of the machine another file may have them.
    """

    size: int
    modified_ms: int
    identity: tuple[int, int] = (0, 0)


class Files(Protocol):
    """The operations of an operating system that storage uses. All methods raise OSError and may block, unless noted
    otherwise.

    Descriptors are plain ints. Implementations are used from several threads at once.
    """

    @property
    def is_durable(self) -> bool:
        """Whether `sync` makes written data survive a power cut. If not, nothing is expected to survive one: neither
        these files nor anything that belongs to them.
        """
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another process sees the same files under the same paths."""
        ...

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        """Open for reading and writing."""
        ...

    def close(self, descriptor: int) -> None: ...

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        """Write once; may write fewer bytes than given."""
        ...

    def pread(self, descriptor: int, size: int, position: int) -> Buffer:
        """Read up to `size` bytes; shorter only at the end of the file."""
        ...

    def pread_cached(self, descriptor: int, size: int, position: int) -> Buffer:
        """Read without waiting for the disk; returns fewer bytes if only a part is in the page cache. Raises
        ReadWouldBlock if nothing is.
        """
        ...

    def reads_cached(self, directory: str) -> bool:
        """Whether `pread_cached` works in this directory (tmpfs, overlays and other systems refuse it)."""
        ...

    def duplicate(self, descriptor: int) -> int:
        """Duplicate the descriptor; the caller closes the duplicate separately."""
        ...

    def send(self, socket: int, descriptor: int, size: int, position: int) -> int:
        """Have the kernel write up to `size` bytes of the file to a non-blocking socket; returns the number of bytes
        sent, 0 at the end of the file. Raises BlockingIOError if the socket's buffer is full. Blocks for the disk.
        """
        ...

    def stat(self, path: str) -> FileStat: ...

    def exists(self, path: str) -> bool: ...

    def truncate(self, descriptor: int, size: int) -> None: ...

    def sync(self, descriptor: int) -> None:
        """Flush the data, and the size needed to read it, to the disk (fdatasync). Raises StateUnknown."""
        ...

    def sync_directory(self, path: str) -> None:
        """Flush created, renamed and removed names to the disk. Raises StateUnknown; another OSError if the directory
        could not be opened.
        """
        ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_private(self, path: str) -> None:
        """Restrict reading and writing of the file to this process's user."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents; an existing directory is no error."""
        ...

    def remove_directory(self, path: str) -> None: ...

    def list(self, path: str) -> list[DirectoryEntry]: ...

    def real_path(self, path: str) -> str:
        """The absolute path without symbolic links, so that a directory has only one path."""
        ...

    def lock(self, path: str) -> int:
        """Create the file and lock it against other processes. Raises DirectoryLocked if another process holds the
        lock.
        """
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def descriptor_limit(self) -> int:
        """The maximum number of open descriptors of this process."""
        ...


def make_durable_directory(files: Files, path: str) -> None:
    """Create the directory and its parents, and flush the names of new ones to the disk. Blocking."""
    missing = []
    while path and not files.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    if missing:
        files.make_directory(missing[0])
        for made in reversed(missing):
            files.sync_directory(made.rpartition("/")[0] or "/")


def read_file(files: Files, path: str) -> bytes:
    """The whole file. Blocking."""
    descriptor = files.open(path)
    try:
        return bytes(files.pread(descriptor, files.stat(path).size, 0))
    finally:
        files.close(descriptor)


def write_fully(files: Files, descriptor: int, data: Buffer, position: int) -> None:
    """Write all of `data` at `position`, in as many calls as it takes."""
    written = files.pwrite(descriptor, data, position)
    size = len(data)
    if written == size:
        return
    with memoryview(data) as view:
        while written < size:
            count = files.pwrite(descriptor, view[written:], position + written)
            if count <= 0:
                raise OSError(errno.EIO, "the disk accepted no more bytes")
            written += count


def cut_back(files: Files, descriptor: int, size: int) -> None:
    """Truncate the remains of a failed write behind `size`. Raises StateUnknown."""
    try:
        files.truncate(descriptor, size)
    except OSError as error:
        raise StateUnknown(error.errno, f"truncating the file after a failed write failed: {error}") from error


def write_file(files: Files, path: str, data: Buffer, *, sync: bool = False) -> None:
    """Create or overwrite a file in place: for files whose loss or damage is detected and repaired. Blocking."""
    descriptor = files.open(path, create=True, truncate=True)
    try:
        write_fully(files, descriptor, data, 0)
        if sync:
            files.sync(descriptor)
    finally:
        files.close(descriptor)


def replace_file(files: Files, path: str, data: Buffer, *, sync: bool = True) -> None:
    """Replace a file so that a crash leaves the old or the new content: temporary file, sync, rename, sync of the
    directory. Blocking.
    """
    temporary = path + TEMPORARY_SUFFIX
    write_file(files, temporary, data, sync=sync)
    files.rename(temporary, path)
    if sync:
        files.sync_directory(path.rpartition("/")[0] or "/")


def unlink_if_exists(files: Files, path: str) -> bool:
    """Remove a name; returns whether it existed."""
    try:
        files.unlink(path)
    except FileNotFoundError:
        return False
    return True
