"""What storage asks of a disk (`Files`), and reading, writing and replacing whole files through it.

Everything storage does to a disk goes through a `Files` that it is handed: the real one is `os_files.OsFiles`, tests
hand in others that record the calls, refuse them or live in memory. Paths are plain strings.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from barnabas.storage.errors import StateUnknown

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"
"""What a file's name ends with while it is written: it gets its own name by a rename, once it is whole."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes, time of the last change in ms since the epoch, and what a copy does not have: the numbers of the
    device and of the inode, which others may have after another start of the machine."""

    size: int
    modified_ms: int
    identity: tuple[int, int] = (0, 0)


class Files(Protocol):
    """What storage asks of an operating system. All methods raise OSError; all may block, except where said otherwise.

    Descriptors are plain ints. Implementations are used from several threads at once.
    """

    @property
    def is_durable(self) -> bool:
        """Whether `sync` makes what was written survive a power cut. Without it nothing is to survive one: neither
        what is in these files nor what belongs to them."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether another process finds the same files under the same paths."""
        ...

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        """Open for reading and writing."""
        ...

    def close(self, descriptor: int) -> None: ...

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        """Write once; may write less than asked."""
        ...

    def pread(self, descriptor: int, size: int, position: int) -> Buffer:
        """Read up to `size` bytes; shorter only at the end of the file."""
        ...

    def pread_cached(self, descriptor: int, size: int, position: int) -> Buffer:
        """Read without waiting for the disk; shorter when only a part is in the page cache. Raises ReadWouldBlock
        when nothing is.
        """
        ...

    def reads_cached(self, directory: str) -> bool:
        """Whether `pread_cached` works in this directory (tmpfs, overlays and other systems refuse it)."""
        ...

    def duplicate(self, descriptor: int) -> int:
        """Another descriptor of the same open file, to be closed by itself."""
        ...

    def send(self, socket: int, descriptor: int, size: int, position: int) -> int:
        """Have the kernel write up to `size` bytes of the file to a socket that does not block; returns how many it
        took, 0 where the file ends. Raises BlockingIOError when the socket takes none. Waits for the disk.
        """
        ...

    def stat(self, path: str) -> FileStat: ...

    def exists(self, path: str) -> bool: ...

    def truncate(self, descriptor: int, size: int) -> None: ...

    def sync(self, descriptor: int) -> None:
        """Bring data, and the size needed to read it, to the disk (fdatasync). Raises StateUnknown."""
        ...

    def sync_directory(self, path: str) -> None:
        """Bring created, renamed and removed names to the disk. Raises StateUnknown; another OSError if the directory
        could not be opened.
        """
        ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_private(self, path: str) -> None:
        """Let nobody but this process's user read or write the file."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory and its parents; an existing one is fine."""
        ...

    def remove_directory(self, path: str) -> None: ...

    def list(self, path: str) -> list[DirectoryEntry]: ...

    def real_path(self, path: str) -> str:
        """The absolute path without symbolic links, so that one directory has one name."""
        ...

    def lock(self, path: str) -> int:
        """Create the file and lock it against other processes. Raises DirectoryLocked when another one holds it."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def descriptor_limit(self) -> int:
        """How many descriptors this process may have open."""
        ...


def make_durable_directory(files: Files, path: str) -> None:
    """Create the directory and its parents, and bring the names of those that are new to the disk. Blocking."""
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
                raise OSError(errno.EIO, "the disk took no more bytes")
            written += count


def cut_back(files: Files, descriptor: int, size: int) -> None:
    """Take away what a write that failed left behind `size`. Raises StateUnknown."""
    try:
        files.truncate(descriptor, size)
    except OSError as error:
        raise StateUnknown(error.errno, f"cutting the file back failed: {error}") from error


def write_file(files: Files, path: str, data: Buffer, *, sync: bool = False) -> None:
    """Create or overwrite a file in place: for files whose loss or damage is noticed and repaired. Blocking."""
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
    """Remove a name; whether it was there."""
    try:
        files.unlink(path)
    except FileNotFoundError:
        return False
    return True
