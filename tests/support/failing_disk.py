"""The broker on a disk that fails on request: `python -m tests.support.failing_disk CALL:PATH[:SEED] serve ...`.

CALL is a method of `OsFiles`. Once the file PATH exists, calls of it fail with EIO: every one, or with the probability
in the file. After the first failure every call fails, as on a broken disk. The first failure is noted in PATH.failed:
the time (`time.monotonic`, in s) and the affected file or directory.

`truncate` is called after an append for which there was no room: it fails together with that append. `no room` is a
full disk, as long as PATH exists: writes to the logs whose names contain PATH's name fail. `unnoticed sync` is a bug:
the sync of a log's records fails, and its flush reports success.
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
        """Whether the call fails this time. `name` is the affected file."""
        if not self.has_failed and self._trigger.exists():
            self.has_failed = self._chance.random() < float(self._trigger.read_text() or 1)
            if self.has_failed:
                Path(f"{self._trigger}.failed").write_text(f"{time.monotonic()} {name}")
        return self.has_failed

    def disk(self) -> OsFiles:
        """A disk with this fault."""
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
    """Make a call raise this error when `fails` returns true."""
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
