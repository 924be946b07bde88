"""Partitions at their leaders, and the port by which topics find them: a broker, or a cluster."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from barnabas.broker.cluster.metadata import TopicMetadata
from barnabas.broker.replication.partition import Partition
from barnabas.broker.server import Broker as Server
from barnabas.clock import Clock

T = TypeVar("T")


class Led(NamedTuple):
    """A partition at its leader."""

    server: Server
    partition: Partition


class Partitions(Protocol):
    """A broker, or a cluster, whose topics a test reads and writes."""

    @property
    def clock(self) -> Clock:
        """The brokers' time."""
        ...

    @property
    def _recheck_s(self) -> float | None:
        """The interval at which waits check without a notification: brokers of a cluster start and stop."""
        ...

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on its event loop and return its result."""
        ...

    async def call_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `call`, from a coroutine on another event loop."""
        ...

    def live_servers(self) -> Sequence[Server]:
        """The running brokers."""
        ...

    def _known_topic(self, name: str) -> TopicMetadata:
        """The metadata of a topic. Errors: ApiError UNKNOWN_TOPIC_OR_PARTITION."""
        ...

    def _led(self, name: str, partition: int) -> Led | None:
        """A partition at its leader; None if it has no leader now. Errors: ApiError."""
        ...

    async def _leading(self, name: str, partition: int) -> Led:
        """A partition at its leader, once it has one. Errors: ApiError, TimeoutError."""
        ...

    def _explained(self, error: TimeoutError, more: Iterable[str] = ()) -> TimeoutError:
        """The error with `more` and the state of the brokers added to its text."""
        ...
