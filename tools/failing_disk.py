"""The broker on a disk that fails when told to: `python -m tools.failing_disk CALL:PATH[:SEED] serve ...`.

CALL is a method of `OsFiles`; once the file PATH exists, calls of it fail with EIO: every one, or with the probability
that the file says. The first failure ends the chance: from then on every call fails, as on a disk that is gone. It is
noted in PATH.failed: the time (`time.monotonic`, in s) and the file or directory that was concerned.

`truncate` is called where there was no room for an append: it fails together with the append that makes it necessary.
`no room` is a full disk, for as long as PATH exists: writes to the logs whose names contain PATH's are refused.
`unnoticed sync` is a bug: the sync of a log's records fails, and its flush says that it worked.
"""

import errno
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from barnabas.__main__ import main as barnabas
from barnabas.broker.environment import Environment
from barnabas.storage.flush import FlushTask
from barnabas.storage.os_files import OsFiles


class FailingCall:
    """One call of the disk, which may fail."""

    def __init__(self, call: str, path: str, seed: str) -> None:
        self._call = call
        self._trigger = Path(path)
        self._chance = random.Random(seed)
        self.has_failed = False

    def fails(self, name: str) -> bool:
        """Whether the call fails this time. `name` is what it concerns."""
        if not self.has_failed and self._trigger.exists():
            self.has_failed = self._chance.random() < float(self._trigger.read_text() or 1)
            if self.has_failed:
                Path(f"{self._trigger}.failed").write_text(f"{time.monotonic()} {name}")
        return self.has_failed

    def disk(self) -> OsFiles:
        """A disk that fails so."""
        disk = OsFiles()
        if self._call == "truncate":
            _wrap(disk, "pwrite", errno.ENOSPC, lambda name: name.endswith(".log") and self.fails(name))
            _wrap(disk, "truncate", errno.EIO, lambda _: self.has_failed)
        elif self._call == "no room":
            concerned = f"/{self._trigger.name}-"
            _wrap(disk, "pwrite", errno.ENOSPC, lambda name: concerned in name and self._trigger.exists())
        elif self._call == "unnoticed sync":
            _wrap(disk, "sync", errno.EIO, lambda name: name.endswith(".log") and self.fails(name))
            setattr(FlushTask, "error", property(lambda _: None, lambda *_: None))  # noqa: B010 (a slot's type differs)
        else:
            _wrap(disk, self._call, errno.EIO, self.fails)
        return disk


def _wrap(disk: OsFiles, call: str, number: int, fails: Callable[[str], bool]) -> None:
    """Have a call raise this error where it `fails`."""
    original = getattr(disk, call)

    def wrapped(concerned: str | int, *arguments: Any, **settings: Any) -> Any:
        name = os.readlink(f"/proc/self/fd/{concerned}") if isinstance(concerned, int) else concerned
        if fails(name):
            raise OSError(number, f"{call} failed on purpose")
        return original(concerned, *arguments, **settings)

    setattr(disk, call, wrapped)


if __name__ == "__main__":
    call, path, *seed = sys.argv[1].split(":")
    disk = FailingCall(call, path, *(seed or ["0"])).disk()
    barnabas(sys.argv[2:], Environment(files=disk))
