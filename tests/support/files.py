"""The real disk with the rules of a test, which may record its calls, hold them back, or let them fail."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.storage.errors import StateUnknown
from barnabas.storage.os_files import UnsyncedFiles
from tools.waiting import PATIENCE_S

CALLS: Final = (
    "open", "pwrite", "pread", "pread_cached", "duplicate", "stat", "truncate", "sync", "sync_directory", "rename",
    "unlink", "make_directory", "remove_directory", "list", "lock", "real_path",
)  # fmt: skip
"""All methods of `Files` whose failure matters; the result of `close` is never checked."""


def path_of(concerned: str | int) -> str:
    """The path that a call is about: it takes that, or a descriptor."""
    return os.readlink(f"/proc/self/fd/{concerned}") if isinstance(concerned, int) else concerned


class RuledFiles(UnsyncedFiles):
    """Syncs nothing, to be fast. `before` has rules by the name of a call: a rule is called first, with the arguments
    of the call, and may wait, or raise instead of the call.
    """

    def __init__(self, **before: Callable[..., object]) -> None:
        self.before = before
        self.refused: list[str] = []
        """The paths of the calls that were refused."""
        for name in CALLS:
            setattr(self, name, partial(self._call, name, getattr(self, name)))

    def refuse(self, name: str, error: int, is_refused: Callable[[str], bool]) -> None:
        """Let the calls of this name fail with `error` for these paths, until `heal`."""

        def fail(path: str, **_: Any) -> None:
            if is_refused(path):
                self.refused.append(path)
                raise OSError(error, os.strerror(error), path)

        self.before[name] = fail

    def heal(self) -> None:
        """Drop all rules."""
        self.before.clear()

    def _call(self, name: str, call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        rule = self.before.get(name)
        if rule is not None:
            rule(*arguments, **settings)
        return call(*arguments, **settings)


class Call(NamedTuple):
    """A method of `Files`, and the affected file or directory."""

    name: str
    path: str


Concern = Callable[[Call], bool]


class RefusingFiles(RuledFiles):
    """Files with a record of the calls for an activity, one of which fails. A sync that is to fail raises, too."""

    def __init__(self) -> None:
        super().__init__(**{name: partial(self._note, name) for name in CALLS})
        self.calls: list[Call] = []
        """The calls for the watched activity since `watch`."""
        self.refused_call: Call | None = None
        self._lock = threading.Lock()
        self._concerns: Concern = lambda _: False
        self._number = -1
        self._errno = 0

    def watch(self, concerns: Concern, *, refuse: int = -1, error: int = 0) -> None:
        """Count the calls for an activity from now on, and let the one with number `refuse` (from 0) fail."""
        self.calls, self.refused_call = [], None
        self._concerns, self._number, self._errno = concerns, refuse, error

    def heal(self) -> None:
        """Let no call fail any more, and record nothing."""
        self._concerns = lambda _: False

    def _note(self, name: str, concerned: str | int, *_: Any, **__: Any) -> None:
        path = path_of(concerned)
        call = Call(name, path)
        with self._lock:
            if not self._concerns(call):
                return
            number = len(self.calls)
            self.calls.append(call)
            if number != self._number:
                return
            self.refused_call = call
        # A directory must be opened before it is synced.
        is_open = name == "sync_directory" and self._errno in (errno.EMFILE, errno.ENFILE)
        kind = StateUnknown if name in ("sync", "sync_directory") and not is_open else OSError
        raise kind(self._errno, os.strerror(self._errno), path)


class SlowDisk(RuledFiles):
    """Syncs of the files of logs whose names begin with `name` wait until `go_on` is set, or `PATIENCE_S`."""

    def __init__(self, name: str) -> None:
        super().__init__(sync=self._wait)
        self._name = name
        self.begun: dict[str, str] = {}
        """The thread that was first to sync each log."""
        self.go_on = threading.Event()
        self._changed = threading.Condition()

    def _wait(self, descriptor: int) -> None:
        log = Path(path_of(descriptor)).parent.name
        if log.startswith(self._name):
            with self._changed:
                self.begun.setdefault(log, threading.current_thread().name)
                self._changed.notify_all()
            assert self.go_on.wait(PATIENCE_S)

    def wait_until_reached(self, count: int = 1) -> None:
        """Return when the syncs of `count` logs have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S), (
                f"{len(self.begun)} flushes began"
            )

    async def reached(self, count: int = 1) -> None:
        """Like `wait_until_reached`, on an event loop."""
        await asyncio.to_thread(self.wait_until_reached, count)
