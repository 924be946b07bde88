"""The real disk, with a record of its calls, one of which fails on request: `Files` for a test's broker."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from barnabas.storage.errors import StateUnknown
from barnabas.storage.os_files import UnsyncedFiles

CALLS: Final = (
    "open", "pwrite", "pread", "pread_cached", "duplicate", "stat", "truncate", "sync", "sync_directory", "rename",
    "unlink", "make_directory", "remove_directory", "list", "lock",
)  # fmt: skip
"""All methods of `Files` whose failure matters; the result of `close` is never checked."""


class Call(NamedTuple):
    """A method of `Files`, and the affected file or directory."""

    name: str
    path: str


Concern = Callable[[Call], bool]


class RefusingFiles(UnsyncedFiles):
    """Syncs nothing, to be fast; a sync that is to fail raises nevertheless."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """The calls for the watched activity since `watch`."""
        self.refused: Call | None = None
        self._lock = threading.Lock()
        self._concerns: Concern = lambda _: False
        self._number = -1
        self._errno = 0

    def watch(self, concerns: Concern, *, refuse: int = -1, error: int = 0) -> None:
        """Count the calls for an activity from now on, and let the one with number `refuse` (from 0) fail."""
        self.calls, self.refused = [], None
        self._concerns, self._number, self._errno = concerns, refuse, error

    def heal(self) -> None:
        """Let no call fail any more, and record nothing."""
        self._concerns = lambda _: False

    def _note(self, name: str, concerned: str | int) -> None:
        path = os.readlink(f"/proc/self/fd/{concerned}") if isinstance(concerned, int) else concerned
        call = Call(name, path)
        with self._lock:
            if not self._concerns(call):
                return
            number = len(self.calls)
            self.calls.append(call)
            if number != self._number:
                return
            self.refused = call
        # A directory must be opened before it is synced.
        is_open = name == "sync_directory" and self._errno in (errno.EMFILE, errno.ENFILE)
        kind = StateUnknown if name in ("sync", "sync_directory") and not is_open else OSError
        raise kind(self._errno, os.strerror(self._errno), path)


def _noting(name: str) -> Callable[..., Any]:
    original = getattr(UnsyncedFiles, name)

    def call(self: RefusingFiles, concerned: str | int, *arguments: Any, **settings: Any) -> Any:
        self._note(name, concerned)
        return original(self, concerned, *arguments, **settings)

    return call


for _name in CALLS:
    setattr(RefusingFiles, _name, _noting(_name))
