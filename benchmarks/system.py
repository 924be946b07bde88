"""The interface of a system that is compared: a broker that can be started, stopped, killed and measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from benchmarks.clusters import Cluster

BARNABAS, KAFKA, MESH, KFAKE, FLOOR = "barnabas", "kafka", "mesh", "kfake", "floor"
PEERS = (MESH, KFAKE)
"""Brokers that no goal is about."""


class Reachable(Protocol):
    """A broker or a cluster, for clients."""

    @property
    def bootstrap_servers(self) -> str: ...


class Process(Protocol):
    """A broker, for what is measured of it from outside."""

    @property
    def pid(self) -> int: ...


class Server(Protocol):
    """A broker in a process of its own. Stopped and started again it keeps its address and its data; as a context
    manager it runs, and is removed with all its data at the end."""

    log_dir: Path

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self, timeout_s: float = 30) -> None: ...

    def kill(self) -> None: ...

    def __enter__(self) -> "Server": ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Secured:
    """A running broker whose clients connect by TLS: the properties that Kafka's and librdkafka's need for that, and
    the file of the certificate to trust."""

    server: Server
    java: Mapping[str, str]
    librdkafka: Mapping[str, str]
    trusted: Path

    @property
    def bootstrap_servers(self) -> str:
        return self.server.bootstrap_servers

    @property
    def pid(self) -> int:
        return self.server.pid

    def with_properties(self, *, librdkafka: Mapping[str, str]) -> "Secured":
        """The same broker for clients with more properties."""
        return replace(self, librdkafka={**self.librdkafka, **librdkafka})


@dataclass(frozen=True, slots=True)
class System:
    """One make of broker. `flush_before_ack` are the settings with which it acknowledges only what the disk has;
    `prepare` has to have run before it is measured, and raises BuildFailed where it cannot be had. One that has no
    files forgets everything when it stops. `cluster` makes three of them that know of each other, for `with`;
    `beside_zookeeper` does so of the version that needs a ZooKeeper.
    """

    name: str
    title: str
    server: Callable[[Mapping[str, str]], Server]
    flush_before_ack: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    has_files: bool = True
    cluster: Callable[[], Cluster] = lambda: _no_cluster()
    beside_zookeeper: Callable[[], Cluster] = lambda: _no_cluster()

    def running(self, settings: Mapping[str, str] | None = None) -> Server:
        """A fresh broker, for `with`, with its defaults apart from `settings`."""
        return self.server(settings or {})


def _no_cluster() -> Cluster:
    raise RuntimeError("there is no cluster of these")
