"""The one seam between storage and the operating system: `Files`, and the cache of open descriptors above it.

Everything storage does to a disk goes through the `Files` protocol, so that a test can record the calls or inject
faults. Nothing else in storage imports `os`. Paths are plain strings.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from barnabas.storage.errors import DirectoryLocked, ReadWouldBlock, StorageError

Buffer: TypeAlias = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"
"""Of a file that is written in full before it gets its name."""

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_FULL_FSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_PASSING: Final = _NO_DESCRIPTORS | {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EAGAIN}
DESCRIPTOR_RESERVE_MAX: Final = 1_024
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC


class StateUnknown(OSError):
    """Nobody can tell what is on the disk, so that this is final whatever `errno` says: a sync failed (the kernel may
    have dropped what it was to write, and a second try would only seem to work), or what a refused write left behind
    could not be taken away.
    """


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes and time of the last change in ms since the epoch."""

    size: int
    modified_ms: int


class Files(Protocol):
    """What storage asks of an operating system. All methods raise OSError; all may block, except where said otherwise.

    Descriptors are plain ints. Implementations are used from several threads at once.
    """

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


class OsFiles:
    """The real disk."""

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        flags = _OPEN_FLAGS
        if create:
            flags |= os.O_CREAT
        if truncate:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        return os.pwrite(descriptor, data, position)

    def pread(self, descriptor: int, size: int, position: int) -> Buffer:
        first = os.pread(descriptor, size, position)
        if len(first) == size or not first:
            return first
        parts = [first]
        done = len(first)
        while done < size:
            part = os.pread(descriptor, size - done, position + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def pread_cached(self, descriptor: int, size: int, position: int) -> Buffer:
        buffer = bytearray(size)
        try:
            count = os.preadv(descriptor, [buffer], position, _NOWAIT)
        except BlockingIOError:
            raise ReadWouldBlock from None
        return buffer if count == size else memoryview(buffer)[:count]

    def duplicate(self, descriptor: int) -> int:
        return os.dup(descriptor)

    def send(self, socket: int, descriptor: int, size: int, position: int) -> int:
        return os.sendfile(socket, descriptor, position, size)

    def reads_cached(self, directory: str) -> bool:
        """Probe by reading a byte that was just written; the file is gone again afterwards."""
        if not _NOWAIT:
            return False
        path = f"{directory}/.nowait-probe-{os.getpid()}"
        try:
            descriptor = self.open(path, create=True, truncate=True)
        except OSError:
            return False
        try:
            os.pwrite(descriptor, b"x", 0)
            return os.preadv(descriptor, [bytearray(1)], 0, _NOWAIT) == 1
        except OSError:
            return False
        finally:
            os.close(descriptor)
            os.unlink(path)

    def stat(self, path: str) -> FileStat:
        found = os.stat(path)
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        try:
            if _FULL_FSYNC is not None:
                fcntl.fcntl(descriptor, _FULL_FSYNC)
            else:
                os.fdatasync(descriptor)
        except OSError as error:
            raise StateUnknown(*error.args) from error

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise StateUnknown(*error.args) from error
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as entries:
            return [DirectoryEntry(entry.name, entry.is_dir()) for entry in entries]

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def lock(self, path: str) -> int:
        """Takes lockf's POSIX lock, which is what Java's FileLock takes: it keeps an Apache Kafka out too.

        The lock is lost when this process closes any descriptor of the file, so nobody else may open it.
        """
        descriptor = self.open(path, create=True)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise DirectoryLocked(f"another process holds {path}") from None
            raise
        return descriptor

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def descriptor_limit(self) -> int:
        """Raises the soft limit to the hard one first: the default soft limit is meant for programs that use
        select().
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            wanted = 1 << 16 if hard == resource.RLIM_INFINITY else hard
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
            except (OSError, ValueError):
                pass
        return 1 << 16 if soft == resource.RLIM_INFINITY else soft


class UnsyncedFiles(OsFiles):
    """The disk, but nothing waits for it: what was written survives the process, not the machine. For data that
    nobody needs afterwards."""

    def sync(self, descriptor: int) -> None:
        """Leave it to the kernel."""

    def sync_directory(self, path: str) -> None:
        """Leave it to the kernel."""


def lower_priority() -> None:
    """Let this process run only when nobody else wants to."""
    with suppress(OSError):
        os.nice(19)


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


def is_passing(error: OSError) -> bool:
    """Whether the disk is whole and only has no room, or the process no descriptors or memory: that may change.

    The one place that decides it. What passes is refused and tried again; anything else is final. Callers make final
    what passes only where it leaves something on the disk that they cannot tell.
    """
    return error.errno in _PASSING and not isinstance(error, StateUnknown)


def refusal(what: str, error: OSError) -> StorageError:
    """What the callers of storage are told of an error of the operating system, and whether it passes."""
    return StorageError(f"{what} failed: {error}", passes=is_passing(error))


def descriptor_reserve(limit: int) -> int:
    """How many of a process's descriptors are kept for files, of the log and of the metadata store."""
    return min(limit // 4, DESCRIPTOR_RESERVE_MAX)


def is_reserved_descriptor(descriptor: int) -> bool:
    """Whether a descriptor that was just had is one of those kept for files: then a connection must be closed.

    A new descriptor has the lowest number that is free, so one from the reserve says that all below it are taken.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - descriptor_reserve(limit)


def lacks_descriptors(error: OSError) -> bool:
    """Whether a file could not be opened because the process or the machine has too many open already."""
    return error.errno in _NO_DESCRIPTORS


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


class LogFile:
    """A segment's `.log` file, open or not.

    `path` follows renames. `descriptor` is -1 while closed; only `DescriptorCache` opens and closes it. `holders`
    counts the reads and flushes that threads have yet to do: as long as there are some, the file is not unlinked.

    Ownership: the event loop; `holders` and `doomed` are guarded by the cache's lock because threads release.
    """

    __slots__ = ("descriptor", "doomed", "holders", "path", "recently_used")

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = -1
        self.recently_used = False
        self.holders = 0
        self.doomed = False


class DescriptorCache:
    """Keeps at most `limit` log files open and closes the least recently used ones (second chance, so that a use
    costs one store).

    Ownership: the event loop alone opens and closes cached descriptors, so that none is closed under a system call.
    Threads use `open_privately`,
    between a `hold` on the loop and a `release` wherever they end.
    """

    __slots__ = ("_crowded_from", "_lent", "_lock", "_open", "_pressure", "_retry", "files", "limit")

    def __init__(self, files: Files, limit: int | None = None) -> None:
        self.files = files
        descriptors = files.descriptor_limit()
        # A quarter stays free for sockets and for files that are open only for a moment.
        self.limit = max(8, descriptors * 3 // 4) if limit is None else limit
        # Connections leave a reserve to files (`is_reserved_descriptor`), of which idle files leave half to others.
        self._crowded_from = descriptors - descriptor_reserve(descriptors) // 2
        self._open: dict[LogFile, None] = {}
        self._lent = 0
        self._lock = threading.Lock()
        self._pressure = False
        self._retry = threading.Event()

    def __len__(self) -> int:
        return len(self._open)

    def descriptor(self, file: LogFile) -> int:
        """The file's descriptor, opening it if need be. Running out of descriptors closes idle ones and tries again."""
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
        """Close idle files where there are as many as there may be, before one more is opened or created."""
        while len(self._open) >= self.limit or self._pressure:
            self._pressure = False
            if not self._close_idle(max(1, len(self._open) // 8)):
                break

    def lend(self, file: LogFile) -> int:
        """Another descriptor of the open file for who closes it by `give_back`; -1 when so many are lent (a twelfth of
        the limit) that others would lack them. Raises OSError as `descriptor` does.
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
        """Close what `lend` returned. Any thread."""
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
        """Close the descriptor, if there is one; the file can be opened again."""
        descriptor, file.descriptor = file.descriptor, -1
        if descriptor >= 0:
            self._open.pop(file, None)
            self.files.close(descriptor)

    def _close_idle(self, count: int) -> int:
        """Close up to `count` files that were not used since this last looked at them; how many were closed."""
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
        """End a `hold`; unlinks the file if that was asked for meanwhile. Any thread."""
        with self._lock:
            file.holders -= 1
            unlink = file.doomed and file.holders == 0
        if unlink:
            unlink_if_exists(self.files, file.path)

    def unlink(self, file: LogFile) -> None:
        """Remove the file's name, now or when its last holder releases it. Any thread; the descriptor must have been
        closed on the loop.
        """
        with self._lock:
            file.doomed = True
            unlink = file.holders == 0
        if unlink:
            unlink_if_exists(self.files, file.path)

    def open_privately(self, file: LogFile) -> int:
        """Open a held file for the calling thread alone, which closes it. Blocking.

        A rename may come between reading the path and opening it, so a missing file is looked for again; and when
        descriptors have run out, the loop is asked to give some back, and has a second for that.
        """
        missing = exhausted = 0
        while True:
            try:
                return self.files.open(file.path)
            except FileNotFoundError:
                missing += 1
                if missing == 10:
                    raise
            except OSError as error:
                exhausted += 1
                if not lacks_descriptors(error):
                    raise
                if exhausted == 100:
                    raise
                self._pressure = True
            self._retry.wait(0.01)

    def close_all(self) -> None:
        """Close every descriptor."""
        for file in list(self._open):
            self.close(file)
