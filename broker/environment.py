"""The parts of a broker's environment, which a test or a simulation can replace."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from barnabas.clock import Clock, SystemClock
from barnabas.controller.coordination.interface import OpenSession, OpenStore
from barnabas.controller.coordination.owner_thread import OwnerThread, Worker
from barnabas.network import Network, OsNetwork
from barnabas.storage.files import Files
from barnabas.storage.os_files import OsFiles, boot_id, is_reserved_descriptor
from barnabas.threads import OsThreads, Threads


@dataclass(frozen=True, slots=True)
class Environment:
    """By default each part is the machine's own.

    `clock` is the broker's time, `socket_clock` that of the deadlines of its sockets and of its requests to other
    brokers (default: `clock`). `work_s()` measures, in seconds from any start, how long one part has worked while
    others wait for their turn. `files` gives access to the log directories, `network` to the network. A given
    `metadata_store` is used instead of a file in a log directory, and stays open; for a file, `store_worker()` creates
    the worker that reads and writes it. `open_session` begins sessions with ZooKeeper. `threads` run blocking jobs,
    `interpreter` is the Python that runs separate processes. `random_bytes(count)` and `random_below(limit)` are the
    source of ids. `boot_id()` changes after each boot of the machine. `broker_secret` is the shared secret of the
    brokers of a parent, which their listener requires; without one each broker makes its own.
    `is_reserved_descriptor(number)` returns whether a connection with that descriptor has to close, because the
    descriptor is reserved for files.
    """

    clock: Clock = field(default_factory=SystemClock)
    socket_clock: Clock | None = None
    work_s: Callable[[], float] = time.monotonic
    files: Files = field(default_factory=OsFiles)
    network: Network = field(default_factory=OsNetwork)
    metadata_store: OpenStore | None = None
    store_worker: Callable[[], Worker] = OwnerThread
    open_session: OpenSession | None = None
    threads: Threads = field(default_factory=OsThreads)
    interpreter: str = sys.executable
    random_bytes: Callable[[int], bytes] = os.urandom
    random_below: Callable[[int], int] = secrets.randbelow
    boot_id: Callable[[], str] = boot_id
    broker_secret: str | None = field(default=None, repr=False)
    is_reserved_descriptor: Callable[[int], bool] = is_reserved_descriptor

    def random_id(self) -> str:
        """A random UUID as text (member ids, log directories)."""
        digits = self.random_bytes(16).hex()
        variant = "89ab"[int(digits[16], 16) % 4]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
