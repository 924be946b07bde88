"""A disk that can refuse writes while a broker runs, without cost while it does not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from barnabas.storage.errors import StateUnknown
from barnabas.storage.files import Buffer, Files

_METHODS: Final = (
    "open", "close", "pwrite", "pread", "pread_cached", "reads_cached", "duplicate", "send", "stat", "exists",
    "truncate", "sync", "sync_directory", "rename", "unlink", "make_private", "make_directory", "remove_directory",
    "list", "real_path", "lock", "free_bytes", "total_bytes", "descriptor_limit",
)  # fmt: skip


class Refusing(NamedTuple):
    """A fault of a disk: `error_number` is the errno of refused calls, `is_hit` decides about a call, and counts."""

    error_number: int
    is_hit: Callable[[], bool]


class ExchangeableFiles:
    """`Files` whose methods are those of another object, which can be exchanged: without an additional call."""

    def __init__(self, files: Files) -> None:
        self.original = files
        self._exchange(files)

    def refuse(self, faults: Sequence[Refusing]) -> None:
        """Apply these faults to writes from now on; none: the original files."""
        self._exchange(cast(Files, _RefusingFiles(self.original, faults)) if faults else self.original)

    def as_files(self) -> Files:
        """This object as the `Files` that it implements."""
        return cast(Files, self)

    def _exchange(self, files: Files) -> None:
        self.is_durable, self.is_shared = files.is_durable, files.is_shared
        for name in _METHODS:
            setattr(self, name, getattr(files, name))


class _RefusingFiles:
    """Files whose writes may fail: of data, of new files, and, unless the disk is only full, syncs."""

    def __init__(self, files: Files, faults: Sequence[Refusing]) -> None:
        self._files = files
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, *, create: bool = False, truncate: bool = False) -> int:
        if create and not self._files.exists(path):
            self._may_fail(OSError)
        return self._files.open(path, create=create, truncate=truncate)

    def pwrite(self, descriptor: int, data: Buffer, position: int) -> int:
        self._may_fail(OSError)
        return self._files.pwrite(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._may_fail(StateUnknown, but_for=errno.ENOSPC)
        self._files.sync(descriptor)

    def _may_fail(self, kind: type[OSError], but_for: int = 0) -> None:
        for fault in self._faults:
            if fault.error_number != but_for and fault.is_hit():
                raise kind(fault.error_number, os.strerror(fault.error_number))
