"""Faults of a single machine in a simulated cluster: a clock that differs from the others, and a disk that is full for
a while, or fails.
"""

from __future__ import annotations

import errno
import os
import random
from typing import Final, Protocol

from barnabas.clock import Clock
from barnabas.storage.errors import StateUnknown

_SYNCS: Final = ("sync", "sync_directory")
_TAKES_ROOM: Final = ("create", "pwrite", "make_directory")


class MachineClock:
    """A clock with a wrong wall time that jumps; other machines' clocks and its monotonic time are not affected."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._off_ms = 0

    def now_ms(self) -> int:
        return self._base.now_ms() + self._off_ms

    def monotonic_ms(self) -> int:
        return self._base.monotonic_ms()

    def set_off_by(self, off_ms: int) -> None:
        """Set the difference from now on, ahead or behind."""
        self._off_ms = off_ms


class DiskTrouble(Protocol):
    """Called with the name of each call to a disk, before it is done. Raises OSError if it fails."""

    def __call__(self, call: str) -> None: ...


class FullDisk:
    """There is no room for new data; existing data can be overwritten, synced and read."""

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, call: str) -> None:
        if call in _TAKES_ROOM:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FailingDisk:
    """Some calls fail, as with a disk controller that loses contact: data of a failed sync may be missing."""

    def __init__(self, draw: random.Random, probability: float) -> None:
        self.refused = 0
        self._draw = draw
        self._probability = probability

    def __call__(self, call: str) -> None:
        if self._draw.random() < self._probability:
            self.refused += 1
            kind = StateUnknown if call in _SYNCS else OSError
            raise kind(errno.EIO, os.strerror(errno.EIO))
