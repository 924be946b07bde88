"""Faults of a store at the other end of a network: broken connections, expired sessions, event loops that hang."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from barnabas.clock import ManualClock
from barnabas.controller.coordination.interface import (
    ConnectionLost,
    EventType,
    NodeExists,
    SessionExpired,
    WatchedEvent,
)
from barnabas.controller.coordination.loop_handler import LoopHandler
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.coordination.zookeeper_errors import ConnectionTimedOut
from tests.controller.coordination.proxy import Proxy
from tools.foreign.zookeeper import ZooKeeperServer
from tools.processes import children
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.java

SESSION_TIMEOUT_MS = 8000
SHORT_SESSION_TIMEOUT_MS = 2000
USUAL_TICK_MS = 2000
"""`tickTime` of ZooKeeper's sample configuration."""


async def open_session(
    zookeeper: ZooKeeperServer, chroot: str, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> ZooKeeperSession:
    return await ZooKeeperSession.open(
        zookeeper.address + chroot, session_timeout_ms=session_timeout_ms, connection_timeout_ms=10_000
    )


async def test_everything_is_below_the_chroot(zookeeper: ZooKeeperServer, chroot: str) -> None:
    below, all_of_it = await open_session(zookeeper, chroot), await open_session(zookeeper, "")
    assert await below.get_children("/") == [], "the chroot was created"
    events: list[WatchedEvent] = []
    await below.exists("/a", events.append)
    assert await below.create("/a", b"x") == "/a"
    assert events == [WatchedEvent(EventType.CREATED, "/a")]
    assert await below.create("/a/s_", sequence=True) == "/a/s_0000000000"
    assert (await all_of_it.get(f"{chroot}/a"))[0] == b"x"
    with pytest.raises(NodeExists) as failure:
        await below.create("/a")
    assert failure.value.path == "/a"
    await below.close()
    await all_of_it.close()


async def test_an_address_without_a_server_is_an_error(unused_address: str) -> None:
    with pytest.raises(ConnectionTimedOut, match=rf"no connection to ZooKeeper at {unused_address} within 200 ms"):
        await ZooKeeperSession.open(unused_address, connection_timeout_ms=200)


@pytest.fixture(scope="module")
def slow_ticks() -> Iterator[ZooKeeperServer]:
    """A server with the usual ticks: its sessions are so long that a busy machine does not end them."""
    with ZooKeeperServer(tick_ms=USUAL_TICK_MS) as server:
        yield server


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(1, 2 * USUAL_TICK_MS), (2**31 - 1, 20 * USUAL_TICK_MS)])
async def test_any_session_timeout_makes_a_session(
    slow_ticks: ZooKeeperServer, chroot: str, asked_ms: int, granted_ms: int
) -> None:
    """The server grants the nearest timeout that it allows."""
    session = await open_session(slow_ticks, chroot, asked_ms)
    assert session.session_timeout_ms == granted_ms
    assert await session.create("/a", b"x") == "/a"
    await session.close()


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("asked_ms", [1, 2**31 - 1])
async def test_no_session_timeout_makes_a_client_spin(slow_ticks: ZooKeeperServer, chroot: str, asked_ms: int) -> None:
    session = await open_session(slow_ticks, chroot, asked_ms)
    assert await idle_cpu_share() < 0.2
    await session.close()


async def idle_cpu_share() -> float:
    """The share of a CPU that this process takes while it is idle: the minimum over some periods. A thread that spins
    takes it in each period, unlike other work, such as the garbage collector."""
    shares = []
    for _ in range(5):
        used_s, begun_s = time.process_time(), time.monotonic()
        await asyncio.sleep(0.1)  # Real time: what is measured is a span of it
        shares.append((time.process_time() - used_s) / (time.monotonic() - begun_s))
    return min(shares)


@pytest.mark.parametrize("session_timeout_ms", [1, 2**31 - 1])
async def test_a_slow_server_has_time_at_any_session_timeout(
    slow_ticks: ZooKeeperServer, chroot: str, session_timeout_ms: int
) -> None:
    """A busy machine needs more than a millisecond for a handshake."""
    async with Proxy(slow_ticks.address) as proxy:
        proxy.delay_s = 0.3
        session = await ZooKeeperSession.open(
            proxy.address + chroot, session_timeout_ms=session_timeout_ms, connection_timeout_ms=10_000
        )
        # The first attempt, where the machine is not busy; one of a millisecond would never have succeeded.
        assert 1 <= proxy.connections <= 3
        await session.close()


@pytest.mark.parametrize(
    ("session_timeout_ms", "server_count", "attempt_s"),
    [(1, 1, 1), (6_000, 1, 1.5), (18_000, 3, 4.5), (18_000, 9, 2), (18_000, 100, 1), (2**31 - 1, 1, 10)],
)
async def test_the_session_timeout_bounds_a_servers_answer(
    session_timeout_ms: int, server_count: int, attempt_s: float
) -> None:
    handler = LoopHandler(asyncio.get_running_loop(), session_timeout_ms, server_count, ManualClock())
    assert handler.attempt_s == attempt_s


@pytest.fixture
def unused_address() -> str:
    """An address without a listener: the port of a server that has stopped."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_a_session_outlives_a_restart_of_zookeeper(zookeeper: ZooKeeperServer, chroot: str) -> None:
    session = await open_session(zookeeper, chroot)
    session_id = session.session_id
    await session.create("/e", b"1", ephemeral=True)
    events: asyncio.Queue[WatchedEvent] = asyncio.Queue()
    await session.get("/e", events.put_nowait)
    await session.get_children("/", events.put_nowait)
    await asyncio.to_thread(zookeeper.stop)
    reading = asyncio.create_task(session.get("/e"))
    writing = asyncio.create_task(session.set("/e", b"2"))
    await asyncio.to_thread(zookeeper.start)
    assert (await reading)[1].ephemeral_owner == session_id
    try:
        await writing
    except ConnectionLost:
        # It was sent before the connection was known to be lost.
        await session.set("/e", b"2")
    told = {await events.get(), await events.get()}
    assert told == {
        WatchedEvent(EventType.DATA_CHANGED, "/e"),
        WatchedEvent(EventType.CHILDREN_CHANGED, "/"),
    }, "the watches of the lost connection report"
    assert session.session_id == session_id
    await session.close()


async def test_the_outcome_of_a_write_under_way_is_unknown(zookeeper: ZooKeeperServer, chroot: str) -> None:
    session = await open_session(zookeeper, chroot)
    children.pause(zookeeper.pid)
    writing = asyncio.create_task(session.create("/a"))
    await asyncio.sleep(0)
    await asyncio.to_thread(zookeeper.kill)
    with pytest.raises(ConnectionLost):
        await writing
    await asyncio.to_thread(zookeeper.start)
    await session.get_children("/")
    await session.close()


async def test_closing_does_not_wait_for_zookeeper(zookeeper: ZooKeeperServer, chroot: str) -> None:
    session = await open_session(zookeeper, chroot)
    await asyncio.to_thread(zookeeper.stop)
    reading = asyncio.create_task(session.get("/"))
    await asyncio.sleep(0)
    await session.close()
    with pytest.raises(SessionExpired):
        await reading
    await asyncio.to_thread(zookeeper.start)


async def test_a_session_ends_when_its_event_loop_hangs(zookeeper: ZooKeeperServer, chroot: str) -> None:
    other = KazooClient(zookeeper.address)
    await asyncio.to_thread(other.start)
    session = await open_session(zookeeper, chroot, SHORT_SESSION_TIMEOUT_MS)
    expired = asyncio.Event()
    session.on_expired(expired.set)
    await session.create("/e", ephemeral=True)
    gone = threading.Event()
    if await asyncio.to_thread(other.exists, f"{chroot}/e", watch=lambda _event: gone.set()) is None:
        gone.set()  # the machine is busy
    assert gone.wait(PATIENCE_S), "kazoo's own thread kept the session alive"
    await expired.wait()
    with pytest.raises(SessionExpired):
        await session.get("/")
    await asyncio.to_thread(other.stop)
    await asyncio.to_thread(other.close)
    await session.close()


async def test_an_unanswered_handshake_is_given_up_in_time(zookeeper: ZooKeeperServer, chroot: str) -> None:
    """A server that is starting may accept a connection and forget it; the next attempt must come before the session
    expires."""
    async with Proxy(zookeeper.address) as proxy:
        proxy.forgets_first = True
        session = await ZooKeeperSession.open(
            proxy.address + chroot, session_timeout_ms=SHORT_SESSION_TIMEOUT_MS, connection_timeout_ms=10_000
        )
        assert await session.get_children("/") == []
        assert proxy.connections >= 2, "forgotten once"
        await session.close()


async def test_requests_beyond_the_limit_wait_their_turn(zookeeper: ZooKeeperServer, chroot: str) -> None:
    session = await ZooKeeperSession.open(zookeeper.address + chroot, connection_timeout_ms=10_000, in_flight_max=1)
    await asyncio.gather(*(session.create(f"/{number}") for number in range(20)))
    czxids = [answer[1].czxid for answer in await session.get_many([f"/{n}" for n in range(20)]) if answer]
    assert czxids == sorted(czxids)
    await session.close()
