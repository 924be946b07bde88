"""The metadata store for several processes on one loop (`processes.py`), which reach it across a network
(`network.py`).

A process's requests and the responses are delayed, arrive in order, and wait while the network is cut. A process that
the store cannot reach, because it is cut off in either direction, paused or dead, loses its session after a session
timeout. As with ZooKeeper, it learns of that once the store can reach it. Any process with a session's id and password
may resume or end the session: brokers do that with the noted session of their former process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Any, Final, TypeVar, cast

from barnabas.clock import Clock
from barnabas.controller import znodes
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    Create,
    Delete,
    Operation,
    OperationResult,
    SessionCredentials,
    SetData,
    Stat,
)
from tools.simulation.world.loop import Answer
from tools.simulation.world.network import SimulatedNetwork, Way
from tools.simulation.world.processes import Process, current_process, resolve

HOST: Final = "store"
CHECK_INTERVAL_S: Final = 0.5

T = TypeVar("T")


class _Client:
    """A process as seen by the store. Replaces the loop on which the process's watches are called."""

    def __init__(self, network: SimulatedNetwork, process: Process) -> None:
        assert process.host is not None
        self.process = process
        self.host_name = process.host.name
        self.sessions: list[SimulatedSession] = []
        self.heard_of_s = network.loop.time()
        self._network = network
        self._asking = Way(network, self.host_name, HOST, lambda work: work())
        self._telling = Way(network, HOST, self.host_name, self._tell)

    @property
    def is_in_touch(self) -> bool:
        network, name = self._network, self.host_name
        is_cut = network.is_cut(name, HOST) or network.is_cut(HOST, name)
        return not (is_cut or self.process.is_dead or self.process.is_paused)

    def ask(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: Answer = Answer(loop=self._network.loop)
        future.lane = ("answer", id(self))

        def at_the_store() -> None:
            outcome: ThreadFuture[T] = ThreadFuture()
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - passed on to the awaiting code
                outcome.set_exception(error)
            self._telling.send(lambda: resolve(future, outcome))

        if not self.process.is_dead:
            self._asking.send(at_the_store)  # it is done even if the process dies meanwhile
        return cast("asyncio.Future[T]", future)

    def _tell(self, callback: Callable[[], object]) -> None:
        self._network.loop.call_soon(callback, context=self.process.context)

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Deliver a notification of the store, in order with its responses."""
        self._telling.send(lambda: callback(*arguments))

    def is_closed(self) -> bool:
        return False


class SimulatedSession(EmbeddedSession):
    """A session that outlives its process: a `ProcessSession`."""

    def __init__(self, store: SimulatedStore, credentials: SessionCredentials, client: _Client) -> None:
        super().__init__(store, credentials.session_id, cast(asyncio.AbstractEventLoop, client))
        self.credentials = credentials
        self.client = client
        self.was_ended = False
        self._timeout_ms = store.session_timeout_ms

    @property
    def session_timeout_ms(self) -> int:
        return self._timeout_ms

    async def close(self) -> None:
        self.was_ended = self.client.is_in_touch
        await super().close()


class SimulatedStore(EmbeddedStore):
    """The store. A session belongs to the process that opened it."""

    def __init__(self, network: SimulatedNetwork, clock: Clock, session_timeout_s: float) -> None:
        super().__init__(":memory:", clock, worker=_Worker(self))
        self._network = network
        self._timeout_s = session_timeout_s
        self.session_timeout_ms = round(session_timeout_s * 1000)
        self._clients: dict[Process, _Client] = {}
        self.loses: Callable[[], bool] = lambda: False
        """Whether the writer's connection breaks now, so that the result of the write stays unknown."""
        self.taken_over = 0
        """The number of sessions that were resumed by another process, the next one after a kill."""
        self.expired = 0
        """The number of sessions that expired because their process was unreachable."""
        self.written: Callable[[str, bytes, Stat], None] = lambda path, data, stat: None
        """Called with each znode written by a transaction, after the whole transaction."""
        network.host(HOST)
        network.call_at(network.loop.time() + CHECK_INTERVAL_S, self._check)

    def client(self, process: Process) -> _Client:
        if process not in self._clients:
            self._clients[process] = _Client(self._network, process)
        return self._clients[process]

    async def open_session(
        self, connect_string: str, /, *, former: SessionCredentials | None = None, **_: Any
    ) -> SimulatedSession:
        """Open a session, like `OpenSession`. Waits for the store as long as necessary."""
        process = current_process()
        assert process is not None, "a session belongs to a process"
        client = self.client(process)
        session = await self._submit(lambda: self._go_on_with(former, client) or self._begin(client))
        client.heard_of_s = self._network.loop.time()
        return session

    def _go_on_with(self, former: SessionCredentials | None, client: _Client) -> SimulatedSession | None:
        """Give the session to another process, which gets no notifications of the former one's watches."""
        session = None if former is None else self._sessions.get(former.session_id)
        if not isinstance(session, SimulatedSession) or session.credentials != former:
            return None
        session.client.sessions.remove(session)
        self.taken_over += 1
        return self._hand_out(session.credentials, client)

    def _begin(self, client: _Client) -> SimulatedSession:
        session_id = self._stored.new_session_id()
        return self._hand_out(SessionCredentials(session_id, b"password of %d" % session_id), client)

    def _hand_out(self, credentials: SessionCredentials, client: _Client) -> SimulatedSession:
        session = self._sessions[credentials.session_id] = SimulatedSession(self, credentials, client)
        client.sessions.append(session)
        return session

    def expire_sessions_of(self, process: Process) -> None:
        """Expire a process's sessions, as if it had been unreachable for too long."""
        sessions, self.client(process).sessions = self.client(process).sessions, []
        for session in sessions:
            self.expired += 1
            self._end_session(session.session_id, expired=True)

    def _multi(self, session_id: int, operations: Sequence[Operation]) -> list[OperationResult]:
        is_lost = ConnectionLost(operations[0].path, "the connection broke")
        if self.loses():
            raise is_lost
        results = super()._multi(session_id, operations)
        if self.loses():
            raise is_lost
        return results

    def controller_id(self) -> int | None:
        """The broker that is the controller; None if there is none."""
        found = self._stored.tree.get(znodes.CONTROLLER)
        return None if found is None else znodes.decode_controller(found[0])

    def depose_controller(self) -> None:
        """Delete the controller's znode, as operators do to elect another controller; its session remains."""
        if self._stored.tree.get(znodes.CONTROLLER) is not None:
            self._change([Delete(znodes.CONTROLLER)], session_id=0)

    def _change(self, operations: Sequence[Operation], session_id: int) -> list[OperationResult]:
        results = super()._change(operations, session_id)
        for operation in operations:
            found = self._stored.tree.get(operation.path)
            if found is not None and isinstance(operation, Create | SetData):
                self.written(operation.path, *found)
        return results

    def _check(self) -> None:
        now_s = self._network.loop.time()
        for client in list(self._clients.values()):
            if client.is_in_touch:
                client.heard_of_s = now_s
            elif now_s - client.heard_of_s > self._timeout_s:
                self.expire_sessions_of(client.process)
                if client.process.is_dead:
                    del self._clients[client.process]
        if not self._closed:
            self._network.call_at(now_s + CHECK_INTERVAL_S, self._check)


class _Worker:
    """Passes the work of processes to the store and back, with delays; other work is done at once."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        process = current_process()
        if process is not None:
            return self._store.client(process).ask(work)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.set_result(work())
        return future

    def stop(self) -> None:
        """Do nothing: there is no thread."""
