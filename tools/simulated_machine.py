"""What is wrong with one machine by itself, in a simulated cluster: a clock that others do not agree with, a disk that
has no room for a while, or fails.
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
    """A clock whose wall time is off, and jumps: nobody else's is touched, nor is monotonic time."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self._off_ms = 0

    def now_ms(self) -> int:
        return self._base.now_ms() + self._off_ms

    def monotonic_ms(self) -> int:
        return self._base.monotonic_ms()

    def set_off_by(self, off_ms: int) -> None:
        """Be so much ahead (or behind) from now on."""
        self._off_ms = off_ms


class DiskTrouble(Protocol):
    """Called with the name of what a disk is asked for, before it is done. Raises OSError: it is not done."""

    def __call__(self, call: str) -> None: ...


class FullDisk:
    """There is no room for anything new; what is there can be written over, synced and read."""

    def __init__(self) -> None:
        self.refused = 0

    def __call__(self, call: str) -> None:
        if call in _TAKES_ROOM:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FailingDisk:
    """Some calls fail, as with a controller that loses contact: whatever a failed sync was for may not be there."""

    def __init__(self, draw: random.Random, probability: float) -> None:
        self.refused = 0
        self._draw = draw
        self._probability = probability

    def __call__(self, call: str) -> None:
        if self._draw.random() < self._probability:
            self.refused += 1
            kind = StateUnknown if call in _SYNCS else OSError
            raise kind(errno.EIO, os.strerror(errno.EIO))
