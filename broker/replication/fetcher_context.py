"""The context that all fetchers of a broker share: the parts of the broker that they use, and their common state."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from barnabas.broker.replication.fetcher import FetchSettings
from barnabas.broker.replication.follower_reads import FollowerReads
from barnabas.broker.replication.throttles import Throttle
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_manager import LogManager
from barnabas.timers import Timers
from barnabas.wire.schema import Message

FlushLog = Callable[[PartitionLog], Coroutine[Any, Any, None]]


class LeaderConnection(Protocol):
    """A connection to a leader (`network.peer_connection.PeerConnection`)."""

    def send(self, request: Message, version: int, timeout_ms: int | None = None) -> "asyncio.Future[Any]":
        """Send a request; the future is its response, or fails with OSError."""
        ...


@dataclass(slots=True, eq=False)
class FetcherContext:
    """The context of all lanes and truncations of one broker; owned by the event loop.

    Args:
        replica_id: this broker's id.
        broker_epoch: returns the epoch of its current registration.
        connection: the connection to a broker for a purpose, always the same one (`Peers.connection`).
        log_manager: truncates logs, in its threads.
        clock: the time of appends.
        network_clock: the time by which partitions are delayed after errors.
        timers: end such delays.
        settings: sizes and times of fetches.
        flush: flushes a log. Given with `barnabas.flush.before.ack`: this replica then fetches only from offsets up to
            which its log is flushed, since its leader counts the fetch offset. Raises StorageError.
        throttle: delays partitions that are not in sync.
    """

    replica_id: int
    broker_epoch: Callable[[], int]
    connection: Callable[[int, str], LeaderConnection]
    log_manager: LogManager
    clock: Clock
    network_clock: Clock
    timers: Timers
    settings: FetchSettings
    flush: FlushLog | None = None
    throttle: Throttle | None = None

    reads: FollowerReads = field(init=False)
    """The followed partitions that consumers read here."""
    set_aside: SetAside[str] = field(init=False)
    """Lanes with an unexpected exception; their fetchers decide when they fetch again."""
    tasks: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)
    """The tasks that run beside the lanes."""
    appended_bytes: int = field(default=0, init=False)
    """The bytes appended from leaders, since the start."""

    def __post_init__(self) -> None:
        self.reads = FollowerReads(self.network_clock)
        self.set_aside = SetAside[str]("fetching", self.network_clock, first_delay_ms=0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task beside the fetching."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
