"""One broker of a cluster in a test: its runs on the event loop of the cluster, each with the port of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from barnabas.testing.waiting.timeouts import TIMEOUT_S, check_wait

if TYPE_CHECKING:
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.brokers.sessions import Sessions
    from barnabas.testing.faults.fault import Fault
    from barnabas.testing.faults.faults import Faults
    from barnabas.testing.interception.interception import Interception

T = TypeVar("T")


class Home(Protocol):
    """The cluster of a broker."""

    faults: Faults
    _interception: Interception

    @property
    def is_running(self) -> bool:
        """Whether it has an event loop."""
        ...

    def _not_running(self) -> RuntimeError:
        """The error of a use while the cluster does not run."""
        ...

    def _run_through(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that starts or stops brokers on the event loop."""
        ...

    async def _settle(self, topics: Collection[str] | None = None, *, in_faults: bool = False) -> None:
        """Wait until all running brokers know the controller's decisions. Errors: TimeoutError."""
        ...

    def _new_server(self, broker_id: int, port: int, on_failure: Callable[[str], None]) -> tuple[Server, Sessions]:
        """A broker that was not started yet, and its sessions with the metadata store."""
        ...

    def _hindering(self) -> Collection[Fault]:
        """The faults that may hinder the communication between brokers, or access to their data."""
        ...

    def _explained(self, error: TimeoutError) -> TimeoutError:
        """The error with the state of the cluster added to its text."""
        ...


class ClusterBroker:
    """One broker of a cluster; `number` is its index there, and its broker id."""

    def __init__(self, cluster: Home, number: int) -> None:
        self.number = number
        self._bootstrap_servers = ""
        self._cluster = cluster
        self._server: Server | None = None
        self._sessions: Sessions | None = None
        """The sessions of its latest run with the metadata store."""
        self._ending: asyncio.Task[None] | None = None
        """The ending of a broker that has failed by itself."""
        self._port = 0

    def __repr__(self) -> str:
        return f"<ClusterBroker {self.number} {self.bootstrap_servers if self.is_running else 'not running'}>"

    @property
    def is_running(self) -> bool:
        return self._server is not None

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, the same in all its runs while the cluster runs. Errors: RuntimeError when it was never started,
        or the cluster was stopped since.
        """
        if not self._bootstrap_servers or not self._cluster.is_running:
            raise self._not_running()
        return self._bootstrap_servers

    def _not_running(self) -> RuntimeError:
        if not self._cluster.is_running:
            return self._cluster._not_running()
        return RuntimeError(f"broker {self.number} does not run: start() it")

    @property
    def server(self) -> Server:
        """The broker itself; it belongs to the cluster's event loop (see `Cluster.call`)."""
        if self._server is None:
            raise self._not_running()
        return self._server

    def start(self, timeout: float = TIMEOUT_S, *, heard: bool = True) -> None:
        """Start it, on its former data and port if it ran before; returns when clients can connect, which requires that
        the controller has informed it of the cluster, and, with `heard`, when all brokers know it
        (`Cluster.wait_heard`).

        Errors: RuntimeError when it runs; TimeoutError after this many seconds of real time, for instance while it is
        cut off from the controller: then it is stopped, and can be started again.
        """
        check_wait(timeout)
        if self._server is not None:
            raise RuntimeError(f"broker {self.number} runs already")
        self._cluster._run_through(self._begin(timeout))
        self._cluster.faults._end_undone()
        self._have_others_hear(heard)

    def stop(self, *, heard: bool = True) -> None:
        """Stop it cleanly, once other brokers lead its partitions; does nothing if it does not run. With `heard` the
        other brokers know on return that it is gone (`Cluster.wait_heard`).
        """
        if self._server is not None or self._ending is not None:
            self._cluster._run_through(self._end())
            self._have_others_hear(heard)

    def _have_others_hear(self, heard: bool) -> None:
        if heard:
            self._cluster._run_through(self._cluster._settle())

    async def _end(self) -> None:
        """Like `stop`, on the event loop of the cluster."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
        await self._has_ended()

    def kill(self, *, heard: bool = True) -> None:
        """End this broker like `kill -9`. The metadata store expires its session at once, without the timeout. With
        `heard` other brokers lead its partitions on return, if they can, and all know it (`Cluster.wait_heard`).
        """
        server, self._server = self.server, None
        self._cluster._run_through(server.crash())
        self._have_others_hear(heard)

    def _is_gone(self) -> None:
        """Note that this broker does not run any more; the caller ends it."""
        self._server = None

    def _has_failed(self, reason: str) -> None:
        """End this broker like a process that cannot continue (its disk has failed): others lead its partitions."""
        server = self._server
        if server is not None:
            self._is_gone()
            self._ending = asyncio.get_running_loop().create_task(server.crash())

    async def _has_ended(self) -> None:
        """Wait for the end of a broker that has failed by itself."""
        if self._ending is not None:
            await self._ending
            self._ending = None

    async def _begin(self, timeout_s: float = TIMEOUT_S) -> None:
        """Like `start`, on the event loop of the cluster."""
        await self._has_ended()
        server, self._sessions = self._cluster._new_server(self.number, self._port, self._has_failed)
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await server.start()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._cluster._explained(TimeoutError(self._not_started(timeout_s))) from None
        self._server = server
        self._cluster._interception.attach(server)  # faults may have been added, and removed, meanwhile
        self._port = next(iter(server.socket_server.ports.values()))
        self._bootstrap_servers = server.socket_server.bootstrap_servers

    def _not_started(self, timeout_s: float) -> str:
        hindering = [repr(fault) for fault in self._cluster._hindering()]
        why = f"; faults that separate brokers: {', '.join(hindering)}" if hindering else ""
        return (
            f"broker {self.number} is not started: the controller has not informed it of the cluster{why}"
            f" (waited {timeout_s:g} s)"
        )
