"""What a broker takes from outside of itself, so that a test or a simulation can hand in something else."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barnabas.clock import Clock, SystemClock
from barnabas.storage.files import Files, OsFiles, UnsyncedFiles

if TYPE_CHECKING:
    from barnabas.controller.coordination.embedded import EmbeddedStore


@dataclass(frozen=True, slots=True)
class Environment:
    """Each part by itself is the machine's own where none is given.

    `clock` is the broker's time, `socket_clock` that of deadlines of its sockets (default: `clock`). `files` is how it
    reaches its log directories. A `metadata_store` that is handed in, open, is used instead of a file in a log
    directory, and stays open. `random_bytes(count)` and `random_below(limit)` are where ids come from.
    """

    clock: Clock = field(default_factory=SystemClock)
    socket_clock: Clock | None = None
    files: Files = field(default_factory=OsFiles)
    metadata_store: EmbeddedStore | None = None
    random_bytes: Callable[[int], bytes] = os.urandom
    random_below: Callable[[int], int] = secrets.randbelow

    @property
    def is_durable(self) -> bool:
        """Whether what the broker writes is to survive a power cut."""
        return not isinstance(self.files, UnsyncedFiles)

    def random_id(self) -> str:
        """A random UUID as text (member ids, log directories)."""
        digits = self.random_bytes(16).hex()
        variant = "89ab"[int(digits[16], 16) % 4]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
