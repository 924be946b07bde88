"""The real disk: `Files` over the operating system.

Nothing else in storage imports `os`; an `OsFiles` is passed to the code that uses it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import sys
from contextlib import suppress
from typing import ClassVar, Final

from barnabas.storage.descriptors import descriptor_reserve
from barnabas.storage.errors import DirectoryLocked, ReadWouldBlock, StateUnknown
from barnabas.storage.files import Buffer, DirectoryEntry, FileStat

_FULL_FSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None) if sys.platform == "darwin" else None
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


def boot_id() -> str:
    """An id of the time since the machine's last boot, which is the lifetime of its page cache; empty if the system
    does not provide one.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class OsFiles:
    """`Files` of the operating system."""

    is_durable: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    access: ClassVar[int] = os.O_RDWR

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        flags = self.access | os.O_CLOEXEC
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
        """Probe by reading a byte that was just written; removes the file afterwards."""
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
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, (found.st_dev, found.st_ino))

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

    def make_private(self, path: str) -> None:
        os.chmod(path, 0o600)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list(self, path: str) -> list[DirectoryEntry]:
        with os.scandir(path) as entries:
            return [DirectoryEntry(entry.name, _is_directory(entry)) for entry in entries]

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def lock(self, path: str) -> int:
        """Takes lockf's POSIX lock, the same as Java's FileLock: it excludes an Apache Kafka too.

        The process loses the lock when it closes any descriptor of the file, so no other code may open it.
        """
        descriptor = self.open(path, create=True)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _holder(descriptor) or 0
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise DirectoryLocked(f"{holder_text(pid)} holds {path}", pid) from None
            raise
        return descriptor

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def descriptor_limit(self) -> int:
        """Raises the soft limit to the hard one first: the default soft limit is for programs that use select()."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            wanted = 1 << 16 if hard == resource.RLIM_INFINITY else hard
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
            except (OSError, ValueError):
                pass
        return 1 << 16 if soft == resource.RLIM_INFINITY else soft


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether it is a directory, or a link to one; False if that is unknown, as for a link that leads to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False


class UnsyncedFiles(OsFiles):
    """The disk without waiting for it: written data survives the process, not the machine. For data that is not needed
    afterwards.
    """

    is_durable: ClassVar[bool] = False

    def sync(self, descriptor: int) -> None:
        """No-op: the kernel writes the data."""

    def sync_directory(self, path: str) -> None:
        """No-op: the kernel writes the names."""


class ReadOnlyFiles(OsFiles):
    """The disk for readers only, also on a file system that is mounted read-only, or without permission to write."""

    access: ClassVar[int] = os.O_RDONLY


def lock_holder(path: str) -> int | None:
    """The id of the process that has locked a file as `OsFiles.lock` does, or 0 if it is unknown; None if the file is
    not locked, is missing, or the platform does not tell (all but Linux). Locks nothing. Not for a file that this
    process has locked: it would lose the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def holder_text(pid: int) -> str:
    """The result of `lock_holder` as text."""
    return f"process {pid}" if pid else "another process"


def _holder(descriptor: int) -> int | None:
    """The id of the process that holds a file's POSIX lock, if the kernel knows it: process ids are not visible to
    other containers, nor through NFS.
    """
    if sys.platform == "linux":
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock
        with suppress(OSError):
            found = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            if found[0] != fcntl.F_UNLCK:
                return max(int(found[4]), 0)
    return None


def lower_priority() -> None:
    """Run this process only when no other process needs the processor."""
    with suppress(OSError):
        os.nice(19)


def is_reserved_descriptor(descriptor: int) -> bool:
    """Whether a new descriptor is in the reserve for files: then a connection must be closed.

    A new descriptor has the lowest free number, so one from the reserve means that all below it are taken.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - descriptor_reserve(limit)
