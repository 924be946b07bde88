"""Coroutines as tests, the coordination stores on which the contract is tested, and a controller that a test drives."""

import asyncio
import inspect
import random
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock, SystemClock
from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore
from barnabas.controller.coordination.interface import ConnectionLost, Operation, OperationResult
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.coordination.zookeeper_server.server import ZooKeeperServer as OwnZooKeeperServer
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.network import OsNetwork
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.wire.messages.update_metadata import UpdateMetadataResponse

ROOT = Path(__file__).resolve().parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for `tools`, which no wheel contains

from tests.support.manual_timers import ManualTimers  # noqa: E402
from tools.foreign.zookeeper import ZooKeeperServer  # noqa: E402
from tools.waiting import PATIENCE_S  # noqa: E402

SESSION_TIMEOUT_MS = 8000
"""Nearly the longest that the server of the tests grants: a busy machine should end no session."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests of this folder, each on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(_within_limit(pyfuncitem.obj(**arguments)))
    return True


async def _within_limit(test: Coroutine[Any, Any, None]) -> None:
    """Fail a test that takes too long, and print the stack of each task."""
    task = asyncio.create_task(test, name="the test")
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    if not done:
        for each in asyncio.all_tasks():
            each.print_stack(file=sys.stderr)
        raise TimeoutError(f"the test did not end within {PATIENCE_S:g} s")
    await task


class EmbeddedUnderTest:
    """The embedded store behind the few methods that a test needs beyond `CoordinationStore`. With `is_ours` the zxids
    and times depend on the test and its clock only."""

    is_ours = True
    znode_bytes_max = 1024 * 1024

    def __init__(self, path: str, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self.survives_restart = path != ":memory:"
        self._store = EmbeddedStore(path, clock)

    async def __aenter__(self) -> "EmbeddedUnderTest":
        await self._store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._store.close()

    async def session(self) -> EmbeddedSession:
        return await self._store.session()

    async def expire(self, session: EmbeddedSession) -> None:
        await self._store.expire(session)

    async def restart(self) -> None:
        await self._store.close()
        self._store = EmbeddedStore(self.path, self.clock)
        await self._store.open()


class ZooKeeperUnderTest:
    """A chroot of its own on a real ZooKeeper, behind the same methods."""

    is_ours = False
    survives_restart = True
    znode_bytes_max = 1024 * 1024 - 256  # a frame holds more than the data

    def __init__(self, server: ZooKeeperServer, chroot: str) -> None:
        self.server = server
        self.connect_string = f"{server.address}{chroot}"
        self._sessions: list[ZooKeeperSession] = []

    async def __aenter__(self) -> "ZooKeeperUnderTest":
        return self

    async def __aexit__(self, *_error: object) -> None:
        for session in self._sessions:
            await session.close()

    async def session(self) -> ZooKeeperSession:
        session = await ZooKeeperSession.open(
            self.connect_string, session_timeout_ms=SESSION_TIMEOUT_MS, connection_timeout_ms=10_000
        )
        self._sessions.append(session)
        return session

    async def expire(self, session: ZooKeeperSession) -> None:
        """End the session in ZooKeeper, behind its owner's back; returns when the owner has heard of it."""
        heard = asyncio.Event()
        session.on_expired(heard.set)
        await asyncio.to_thread(end_session, self.server.address, session._client.client_id)
        await heard.wait()

    async def restart(self) -> None:
        for session in self._sessions:
            await session.close()
        await asyncio.to_thread(self.server.stop)
        await asyncio.to_thread(self.server.start)


class ServedUnderTest:
    """Our own server of ZooKeeper's protocol on the test's loop, and clients with kazoo's sockets and thread. Znodes
    have the time of the test's clock, sessions have the time of the machine."""

    is_ours = True
    survives_restart = True
    znode_bytes_max = 1024 * 1024 - 256

    def __init__(self, path: str, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self.failures: list[str] = []
        self._port = 0
        self._sessions: list[ZooKeeperSession] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> "ServedUnderTest":
        clock = SystemClock()
        self.stored = StoredTree(self.path, self.clock, is_durable=True)
        self._timers = Timers(clock, asyncio.get_running_loop())
        self.server = OwnZooKeeperServer(
            self.stored, OsNetwork(), clock, self._timers, secrets.token_bytes, self.failures.append, version="test"
        )
        self.server.open()
        self._port = await self.server.listen("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_error: object) -> None:
        for session in self._sessions:
            await session.close()
        self.server.close()
        self._timers.close()

    async def session(self) -> ZooKeeperSession:
        session = await ZooKeeperSession.open(
            self.address, session_timeout_ms=SESSION_TIMEOUT_MS, connection_timeout_ms=10_000
        )
        self._sessions.append(session)
        return session

    async def expire(self, session: ZooKeeperSession) -> None:
        """As `ZooKeeperUnderTest.expire`."""
        heard = asyncio.Event()
        session.on_expired(heard.set)
        await asyncio.to_thread(end_session, self.address, session._client.client_id)
        await heard.wait()

    async def restart(self) -> None:
        await self.__aexit__()
        await self.__aenter__()


def end_session(address: str, client_id: tuple[int, bytes]) -> None:
    """Take a session over with a connection of one's own, and close it, as ZooKeeper's protocol has it."""
    host, _, port = address.rpartition(":")
    session_id, password = client_id
    connect = struct.pack("!iqiqi16s", 0, 0, SESSION_TIMEOUT_MS, session_id, len(password), password)
    close = struct.pack("!ii", 1, -11)
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(b"".join(struct.pack("!i", len(frame)) + frame for frame in (connect, close)))
        while connection.recv(1024):
            pass


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper; each test uses a chroot of its own, and leaves it running."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def chroot() -> str:
    """The path below which a test's znodes are."""
    return f"/tests/{secrets.token_hex(6)}"


@pytest.fixture(params=["memory", "file", "served", pytest.param("zookeeper", marks=pytest.mark.java)])
def stores(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, chroot: str
) -> EmbeddedUnderTest | ServedUnderTest | ZooKeeperUnderTest:
    """`async with stores:` opens it, `await stores.session()` gives a session."""
    if request.param == "served":
        return ServedUnderTest(str(tmp_path / "served.sqlite"), clock)
    if request.param == "zookeeper":
        return ZooKeeperUnderTest(request.getfixturevalue("zookeeper"), chroot)
    return EmbeddedUnderTest(":memory:" if request.param == "memory" else str(tmp_path / "metadata.sqlite"), clock)


async def own_broker_obeys(controller: Controller) -> None:
    """Return when the controller has processed the responses of its own broker to all requests; at once if this is not
    the controller."""
    request = AdminRequest[None](controller.context.timers, 0, lambda _: None)

    async def wait() -> None:
        controller.context.when_own_told(lambda: request.finish(None), request)

    controller.context.events.submit(wait, request)
    with suppress(ApiError):
        await request.answer()


class Crash(Exception):
    """The process died here."""


class FaultPlan:
    """Counts the effects of a controller on the outside world, and ends the controller before the effect number
    `fatal`."""

    def __init__(self) -> None:
        self.effects = 0
        self.fatal: int | None = None
        self._death = asyncio.Event()

    def effect(self) -> None:
        self.effects += 1
        if self.fatal is not None and self.effects >= self.fatal:
            self._death.set()
            raise Crash

    async def survives(self, work: Coroutine[Any, Any, object]) -> bool:
        """Run a step that may end the process; returns whether it lives."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self._death.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_alive = not self._death.is_set()
        self.fatal = None
        self._death.clear()
        return is_alive


class BreakingConnection:
    """Fails calls of a session as a broken connection does: before the store received them, or after. All writes fail
    with `refusal`, if there is one."""

    METHODS = ("multi", "set", "delete", "exists", "get_many", "get_children")
    WRITES = ("multi", "set", "delete")

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self._planned: list[tuple[str, str, str]] = []

    def break_at(self, method: str, when: str, path: str = "") -> None:
        """The next call of a method (that concerns a path), once those planned before have happened; `when` is "before"
        or "after"."""
        self._planned.append((method, when, path))

    @property
    def is_over(self) -> bool:
        """Whether all planned faults have happened."""
        return not self._planned

    def put_under(self, session: EmbeddedSession) -> None:
        for name in self.METHODS:
            setattr(session, name, self._breaking(name, getattr(session, name)))

    def _is_next(self, name: str, argument: Any) -> bool:
        if not self._planned:
            return False
        method, _, path = self._planned[0]
        paths = [operation.path for operation in argument] if name == "multi" else [argument]
        return name == method and (not path or path in paths)

    def _breaking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **keywords: Any) -> Any:
            if self.refusal is not None and name in self.WRITES:
                raise self.refusal
            when = self._planned.pop(0)[1] if self._is_next(name, arguments[0]) else None
            if when == "before":
                raise ConnectionLost
            result = await method(*arguments, **keywords)
            if when == "after":
                raise ConnectionLost
            return result

        return call


class RecordingChannel:
    """A broker that applies each request at once and records it; `errors` are the codes of its responses."""

    def __init__(self, faults: FaultPlan) -> None:
        self._faults = faults
        self.sent: list[Any] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.arrived = asyncio.Event()
        self.failure: Exception | None = None
        self.top_error = ErrorCode.NONE
        self.stop_error = ErrorCode.NONE
        """At the top of the answer to StopReplica."""
        self.errors: dict[tuple[str, int], ErrorCode] = {}

    def reaches(self, broker_id: int) -> bool:
        return True

    async def send(self, broker_id: int, request: Any) -> Any:
        self._faults.effect()
        self.arrived.set()
        await self.is_open.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.sent.append(request)
        if isinstance(request, LeaderAndIsrRequest):
            topics = [
                LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=[
                        LeaderAndIsrPartitionError(
                            partition_index=state.partition_index,
                            error_code=self.errors.get((topic.topic_name, state.partition_index), ErrorCode.NONE),
                        )
                        for state in topic.partition_states
                    ],
                )
                for topic in request.topic_states
            ]
            return LeaderAndIsrResponse(error_code=self.top_error, topics=topics)
        if isinstance(request, StopReplicaRequest):
            errors = [
                StopReplicaPartitionError(
                    topic_name=topic.topic_name,
                    partition_index=state.partition_index,
                    error_code=self.errors.get((topic.topic_name, state.partition_index), ErrorCode.NONE),
                )
                for topic in request.topic_states
                for state in topic.partition_states
            ]
            return StopReplicaResponse(error_code=self.stop_error or self.top_error, partition_errors=errors)
        return UpdateMetadataResponse(error_code=self.top_error)

    def take(self, kind: type) -> list[Any]:
        """Requests of one kind since the last call of `clear`."""
        return [request for request in self.sent if isinstance(request, kind)]

    def clear(self) -> None:
        self.sent.clear()


def told(requests: list[Any]) -> dict[tuple[str, int], Any]:
    """The last state of each partition in the requests."""
    return {
        (topic.topic_name, state.partition_index): state
        for request in requests
        for topic in request.topic_states
        for state in topic.partition_states
    }


class Node:
    """One broker's controller with all its parts, which can restart on the same file."""

    broker_id = 1

    def __init__(self, path: str, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self.settings = ControllerSettings()
        self.timers = ManualTimers()
        self.faults = FaultPlan()
        self.connection = BreakingConnection()
        self.channel = RecordingChannel(self.faults)
        self._random = random.Random(7)

    async def start(self) -> "Node":
        self.store = EmbeddedStore(self.path, self.clock)
        await self.store.open()
        self.session = await self.store.session()
        self._count_effects(self.session)
        self.connection.put_under(self.session)
        self.configs = ConfigRepository(self.session, self.clock, self.timers)
        self.make_controller(self.configs)
        await self.configs.start()
        await self.controller.start()
        return self

    def make_controller(self, configs: ConfigRepository) -> None:
        self.controller = Controller(
            self.session,
            BrokerRegistration(self.broker_id, (EndPoint("PLAINTEXT", "localhost", 9092),), rack="r1"),
            self.channel,
            self.clock,
            self.settings,
            self._random.randbytes,
            configs=configs,
            timers=self.timers,
        )

    def _count_effects(self, session: EmbeddedSession) -> None:
        multi = session.multi

        async def counted(operations: Sequence[Operation]) -> list[OperationResult]:
            self.faults.effect()
            return await multi(operations)

        session.multi = counted  # type: ignore[method-assign]

    async def stop(self) -> None:
        await self.configs.stop()
        await self.controller.stop()
        await self.store.close()

    async def crash(self) -> None:
        """Stop without a controlled shutdown of the controller."""
        task = self.controller._task
        if task is not None:
            task.cancel()
        await self.controller.context.brokers.stop()
        await self.configs.stop()
        await self.store.close()

    async def restart(self, znodes: Mapping[str, bytes] | None = None) -> None:
        """Stop and start; `znodes` are created by somebody else meanwhile."""
        await self.stop()
        store = EmbeddedStore(self.path, self.clock)
        await store.open()
        session = await store.session()
        for path, data in (znodes or {}).items():
            await session.create(path, data)
        await store.close()
        await self.start()

    async def __aenter__(self) -> "Node":
        return await self.start()

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def tree(self, root: str = "/") -> dict[str, bytes]:
        """All znodes below a path."""
        found = {}
        for name in await self.session.get_children(root):
            path = f"{root.rstrip('/')}/{name}"
            found[path] = (await self.session.get(path))[0]
            found |= await self.tree(path)
        return found


@pytest.fixture
def node(tmp_path: Path, clock: ManualClock) -> Node:
    """`async with node:` starts it."""
    return Node(str(tmp_path / "metadata.sqlite"), clock)
