"""What a broker takes from outside of itself, so that a test or a simulation can hand in something else."""

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
    """Each part by itself is the machine's own where none is given.

    `clock` is the broker's time, `socket_clock` that of deadlines of its sockets and of what it asks other brokers
    (default: `clock`). `work_s()` measures, in seconds from any start, how long one part has worked while others wait
    for their turn. `files` is how it reaches its log directories, `network` where it listens. A `metadata_store`
    that is handed in is used instead of a file in a log directory, and stays open; where there is a file,
    `store_worker()` is what reads and writes it. `open_session` begins sessions with ZooKeeper. `threads` are where
    jobs run that block, `interpreter` is the Python that runs what has a process of its own. `random_bytes(count)` and
    `random_below(limit)` are where ids come from. `boot_id()` is another one after the machine went down.
    `broker_secret` is what the brokers of a parent show each other, and ask for on their listener; without one they
    make their own. `is_reserved_descriptor(number)` says whether a connection that has just got that descriptor has to
    leave it to files.
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
