"""Our server of ZooKeeper's protocol beyond the contract of stores: what goes over the wire, sessions without a
connection, watches set again, hostile bytes."""

import asyncio
import random
import secrets
import sqlite3
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from barnabas.broker.cli.zookeeper_process import new_server
from barnabas.clock import ManualClock
from barnabas.controller.coordination.interface import Create
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.tree import ZNODE_BYTES
from barnabas.controller.coordination.zookeeper import ZooKeeperSession
from barnabas.controller.coordination.zookeeper_server.authentication import Authentication, ClientLogins
from barnabas.controller.coordination.zookeeper_server.connection import (
    LARGE_REQUEST_BYTES,
    TURN_MS,
    UNSENT_BYTES_MAX,
    Server,
    ZooKeeperConnection,
)
from barnabas.controller.coordination.zookeeper_server.jute import MalformedMessage
from barnabas.controller.coordination.zookeeper_server.messages import OPERATIONS_MAX, ConnectRequest
from barnabas.controller.coordination.zookeeper_server.server import (
    CLOSING_MS_MAX,
    CONNECTIONS_MAX,
    HANDSHAKE_MS_MAX,
    NEWCOMERS_MAX,
    TICK_MS,
    ZooKeeperServer,
)
from barnabas.controller.coordination.zookeeper_server.service import (
    ANSWER_BYTES_MAX,
    WATCHES_PER_TURN,
    Client,
    InPieces,
    LastRequest,
    TreeService,
)
from barnabas.controller.coordination.zookeeper_server.sessions import SESSION_TIMEOUT_MS_MIN, Session
from barnabas.network import OsNetwork
from tests.support.manual_timers import ManualTimers
from tests.support.watched_calls import TurnsTaken
from tools.waiting import PATIENCE_S, until

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, CHILDREN = 1, 2, 3, 4, 5, 8
SET_ACL, CHECK, MULTI, CREATE2, MULTI_READ = 7, 13, 14, 15, 22
SET_WATCHES, SET_WATCHES2 = 101, 105
SYSTEM_ERROR = -1
NO_NODE, MARSHALLING_ERROR, UNIMPLEMENTED, INVALID_ACL, BAD_VERSION, BAD_ARGUMENTS = -101, -5, -6, -114, -103, -8
QUOTA_EXCEEDED = -125


class ServerUnderTest:
    """A server by the test's clock: `pass_time` moves it, and lets the server look at its sessions at each tick."""

    def __init__(
        self, path: str = ":memory:", connections_max: int = CONNECTIONS_MAX, *, now_ms: int = 1_700_000_000_000
    ) -> None:
        self.clock = ManualClock(now_ms=now_ms)
        self.timers = ManualTimers()
        self.failures: list[str] = []
        self.stored = StoredTree(path, self.clock, is_durable=False)
        self.server = ZooKeeperServer(
            self.stored,
            OsNetwork(),
            self.clock,
            self.timers,
            secrets.token_bytes,
            self.failures.append,
            version="9.9",
            connections_max=connections_max,
        )

    async def __aenter__(self) -> "ServerUnderTest":
        self.server.open()
        self.port = await self.server.listen("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.server.close()

    @property
    def paths(self) -> set[str]:
        return set(self.stored.tree._znodes) - {"/"}

    def pass_time(self, duration_ms: int) -> None:
        for _ in range(duration_ms // TICK_MS):
            self.stand_still(TICK_MS)

    def stand_still(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.fire(TICK_MS)


def string(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()


def strings(*texts: str) -> bytes:
    return struct.pack(">i", len(texts)) + b"".join(map(string, texts))


OPEN_ACL = struct.pack(">ii", 1, 31) + string("world") + string("anyone")


def creation(path: str, data: bytes = b"", flags: int = 0, acl: bytes = OPEN_ACL) -> bytes:
    return string(path) + struct.pack(">i", len(data)) + data + acl + struct.pack(">i", flags)


class Peer:
    """A client that sends and receives bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.timeout_ms = self.session_id = 0
        self.password = b""

    @classmethod
    async def open(cls, port: int) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def connect(self, timeout_ms: int = 6_000, session_id: int = 0, password: bytes = bytes(16)) -> "Peer":
        self.send(struct.pack(">iqiqi", 0, 0, timeout_ms, session_id, len(password)) + password + b"\0")
        answer = await self.receive()
        _version, self.timeout_ms, self.session_id, length = struct.unpack_from(">iiqi", answer)
        self.password = answer[20 : 20 + length]
        assert answer[20 + length :] == b"\0", "no server that can only be read from"
        return self

    async def ask(self, op_code: int, body: bytes = b"", xid: int = 1) -> tuple[int, bytes]:
        """Error code and body of the response."""
        self.send(struct.pack(">ii", xid, op_code) + body)
        answer_xid, _zxid, error, answer = self.split(await self.receive())
        assert answer_xid == xid
        return error, answer

    def split(self, answer: bytes) -> tuple[int, int, int, bytes]:
        return *struct.unpack_from(">iqi", answer), answer[16:]

    async def is_closed(self) -> bool:
        return await self.reader.read(1) == b""

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def peer(server: ServerUnderTest, *, connects: bool = True) -> AsyncIterator[Peer]:
    one = await Peer.open(server.port)
    try:
        yield await one.connect() if connects else one
    finally:
        one.close()


# -- sessions


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(0, 4_000), (6_000, 6_000), (2**31 - 1, 40_000), (-1, 4_000)])
async def test_the_server_bounds_the_session_timeout(asked_ms: int, granted_ms: int) -> None:
    async with ServerUnderTest() as server, peer(server, connects=False) as one:
        assert (await one.connect(asked_ms)).timeout_ms == granted_ms
        assert one.session_id > 0
        assert len(one.password) == 16


async def test_a_session_goes_on_over_another_connection() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        assert await one.ask(CREATE, creation("/e", flags=1)) == (0, string("/e"))
        one.close()
        other = await Peer.open(server.port)
        await other.connect(8_000, one.session_id, one.password)
        assert (other.session_id, other.timeout_ms) == (one.session_id, 8_000)
        assert "/e" in server.paths
        other.close()


async def test_a_session_that_is_taken_over_leaves_its_connection() -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server, connects=False) as other:
        await other.connect(6_000, one.session_id, one.password)
        assert await one.is_closed()
        assert await other.ask(CREATE, creation("/a")) == (0, string("/a"))


@pytest.mark.parametrize("what", ["another id", "another password", "no password"])
async def test_a_session_that_is_none_is_over(what: str) -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server, connects=False) as other:
        session_id = one.session_id + (what == "another id")
        password = {"another password": bytes(16), "no password": b""}.get(what, one.password)
        await other.connect(6_000, session_id, password)
        assert (other.session_id, other.timeout_ms, other.password) == (0, 0, bytes(16))
        assert await other.is_closed()
        assert await one.ask(CREATE, creation("/a")) == (0, string("/a")), "the real one goes on"


async def test_a_session_silent_for_too_long_expires() -> None:
    async with ServerUnderTest() as server, peer(server) as silent, peer(server) as talking:
        await silent.ask(CREATE, creation("/silent", flags=1))
        await talking.ask(CREATE, creation("/talking", flags=1))
        server.pass_time(4_000)
        assert await talking.ask(11, xid=-2) == (0, b""), "a ping"
        server.pass_time(2_500)
        assert await silent.is_closed()
        assert server.paths == {"/talking"}
        again = await Peer.open(server.port)
        assert (await again.connect(6_000, silent.session_id, silent.password)).timeout_ms == 0
        again.close()


async def test_a_server_that_stood_still_ends_no_session() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/e", flags=1))
        server.stand_still(3_600_000)
        server.pass_time(5_000)
        assert server.paths == {"/e"}
        server.pass_time(2_000)
        assert server.paths == set()


async def test_a_session_ends_although_every_look_at_it_is_late() -> None:
    """The server is always busy, or its machine is slow."""
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/e", flags=1))
        for _ in range(11):
            server.stand_still(3 * TICK_MS)
        assert server.paths == {"/e"}, "it may have been heard in each tick, but for these"
        server.stand_still(3 * TICK_MS)
        assert server.paths == set()


async def test_a_session_heard_after_a_standstill_has_its_timeout() -> None:
    """The session has one timeout and no more: requests that arrived during the standstill are served before the
    overdue tick."""
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/e", flags=1))
        server.clock.advance(3_600_000)
        assert await one.ask(11, xid=-2) == (0, b""), "a ping"
        server.timers.fire(TICK_MS)
        server.pass_time(5_000)
        assert server.paths == {"/e"}
        server.pass_time(2_000)
        assert server.paths == set()


async def test_a_request_has_so_many_operations_and_no_more() -> None:
    checks = [(CHECK, string("/") + struct.pack(">i", -1))] * OPERATIONS_MAX
    reads = [(GET_DATA, string("/") + b"\0")] * OPERATIONS_MAX
    async with ServerUnderTest() as server, peer(server) as one:
        for number, operations in ((MULTI, checks), (MULTI_READ, reads)):
            assert (await one.ask(number, multi(*operations)))[0] == 0
            assert await one.ask(number, multi(*operations, operations[0])) == (UNIMPLEMENTED, b"")


async def test_a_session_has_so_many_ephemerals_and_no_more() -> None:
    """They are deleted in one transaction. The same client can create other znodes, and other clients can create
    ephemerals."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        server.server._service.ephemerals_max = 3
        for number in range(3):
            assert (await one.ask(CREATE, creation(f"/{number}", flags=1)))[0] == 0
        assert await one.ask(CREATE, creation("/more", flags=1)) == (SYSTEM_ERROR, b"")
        error, answer = await one.ask(MULTI, multi((CREATE, creation("/a")), (CREATE, creation("/b", flags=1))))
        assert (error, struct.unpack_from(">ibii", answer, 13)) == (0, (-1, 0, SYSTEM_ERROR, SYSTEM_ERROR))
        assert server.paths == {"/0", "/1", "/2"}
        assert (await one.ask(CREATE, creation("/lasting")))[0] == 0
        assert (await other.ask(CREATE, creation("/other", flags=1)))[0] == 0
        assert (await one.ask(DELETE, string("/0") + struct.pack(">i", -1)))[0] == 0
        assert (await one.ask(CREATE, creation("/more", flags=1)))[0] == 0
        assert (await one.ask(-11))[0] == 0
        assert server.paths == {"/lasting", "/other"}


def new_data(path: str, data: bytes) -> bytes:
    return string(path) + struct.pack(">i", len(data)) + data + struct.pack(">i", -1)


async def test_znodes_have_so_much_room_and_no_more() -> None:
    """What takes no more memory is accepted, also in one transaction with a deletion."""
    acl = struct.pack(">ii", 1, 31) + string("sasl") + string("x" * 1_000)
    async with ServerUnderTest() as server, peer(server) as one:
        assert (await one.ask(CREATE, creation("/a", bytes(10_000))))[0] == 0
        server.stored.bytes_max = server.stored.tree.held_bytes
        for op_code, body in (
            (CREATE, creation("/b")),
            (CREATE2, creation("/b", flags=1)),
            (SET_DATA, new_data("/a", bytes(10_001))),
            (SET_ACL, string("/a") + acl + struct.pack(">i", -1)),
        ):
            assert await one.ask(op_code, body) == (QUOTA_EXCEEDED, b"")
        check = (CHECK, string("/a") + struct.pack(">i", -1))
        error, answer = await one.ask(MULTI, multi(check, (CREATE, creation("/b"))))
        assert (error, struct.unpack_from(">ibii", answer, 13)) == (0, (-1, 0, QUOTA_EXCEEDED, QUOTA_EXCEEDED))
        assert server.paths == {"/a"}
        assert (await one.ask(SET_DATA, new_data("/a", bytes(8_000))))[0] == 0
        assert (await one.ask(CREATE, creation("/b", bytes(1_000))))[0] == 0
        replacing = multi((CREATE, creation("/c", bytes(1_000))), (DELETE, string("/b") + struct.pack(">i", -1)))
        server.stored.bytes_max = 0
        assert (await one.ask(MULTI, replacing))[0] == 0
        assert server.paths == {"/a", "/c"}


async def test_a_file_with_more_than_there_is_room_for_is_opened(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes")
    async with ServerUnderTest(path) as server, peer(server) as one:
        assert (await one.ask(CREATE, creation("/a", bytes(1_000))))[0] == 0
        held = server.stored.tree.held_bytes
    async with ServerUnderTest(path) as server, peer(server) as one:
        assert server.stored.tree.held_bytes == held
        server.stored.bytes_max = 0
        assert (await one.ask(CREATE, creation("/b")))[0] == QUOTA_EXCEEDED
        assert (await one.ask(GET_DATA, string("/a") + b"\0"))[0] == 0
        assert (await one.ask(DELETE, string("/a") + struct.pack(">i", -1)))[0] == 0


async def test_znodes_are_counted_by_the_memory_that_they_take() -> None:
    """Those that go leave nothing behind; a session that ends is not hindered."""
    async with ServerUnderTest() as server, peer(server) as one:
        empty = server.stored.tree.held_bytes
        assert (await one.ask(CREATE, creation("/e", bytes(1_000), flags=1)))[0] == 0
        assert server.stored.tree.held_bytes - empty == ZNODE_BYTES + 2 * len("/e") + 1_000
        server.stored.bytes_max = 0
        assert (await one.ask(-11))[0] == 0
        assert server.stored.tree.held_bytes == empty


async def test_sessions_that_end_at_the_same_time_do_so_in_turns() -> None:
    """A session whose client sends a request before its turn goes on."""
    async with ServerUnderTest() as server, AsyncExitStack() as stack:
        server.server._service.ephemerals_max = 2
        peers = [await stack.enter_async_context(peer(server)) for _ in range(4)]
        for number, one in enumerate(peers):
            for name in ("a", "b"):
                await one.ask(CREATE, creation(f"/{number}{name}", flags=1))
        server.stand_still(5_000)  # as if each of them had been heard of before
        server.clock.advance(1_000)
        for session in server.server._sessions:
            session.deadline_ms = server.clock.monotonic_ms()
        server.timers.fire(TICK_MS)
        assert len(server.paths) == 6
        heard = next(session for session in server.server._sessions if session.session_id == peers[-1].session_id)
        server.server._sessions.heard_of(heard, server.clock.monotonic_ms())
        await asyncio.sleep(0)
        assert len(server.paths) == 4
        await until(lambda: not server.server._ending)
        assert server.paths == {"/3a", "/3b"}


async def test_a_closed_session_is_over_before_the_answer() -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await one.ask(CREATE, creation("/e", flags=1))
        await other.ask(EXISTS, string("/e") + b"\1")
        assert await one.ask(-11) == (0, b"")
        assert await one.is_closed()
        assert server.paths == set()
        xid, _zxid, _error, event = other.split(await other.receive())
        assert (xid, event) == (-1, struct.pack(">ii", 2, 3) + string("/e"))


async def test_whose_process_has_died_is_over_at_once() -> None:
    """The parent of the processes gives each a port of its own."""
    async with ServerUnderTest() as server, peer(server) as one:
        second = await server.server.listen("127.0.0.1", 0)
        other = await (await Peer.open(second)).connect()
        await one.ask(CREATE, creation("/one", flags=1))
        await other.ask(CREATE, creation("/other", flags=1))
        assert server.server.end_sessions(second) == 1
        assert server.paths == {"/one"}
        assert await other.is_closed()
        other.close()


async def test_a_connection_without_a_session_is_closed() -> None:
    async with ServerUnderTest() as server, peer(server, connects=False) as one:
        one.writer.write(b"\0")
        await one.writer.drain()
        async with peer(server):
            server.pass_time(HANDSHAKE_MS_MAX + TICK_MS)
        assert await one.is_closed()


async def test_the_number_of_sessions_is_bounded() -> None:
    """The present sessions go on, also those without a connection."""
    async with ServerUnderTest(connections_max=NEWCOMERS_MAX + 3) as server, peer(server) as one, peer(server) as two:
        async with peer(server) as gone:
            pass
        async with peer(server, connects=False) as late:
            late.send(struct.pack(">iqiqi", 0, 0, 6_000, 0, 0) + b"\0")
            assert await late.is_closed()
        for each in (one, two):
            assert (await each.ask(EXISTS, string("/") + b"\0"))[0] == 0
        async with peer(server, connects=False) as back:
            await back.connect(6_000, gone.session_id, gone.password)
            assert back.session_id == gone.session_id
            assert (await back.ask(-11))[0] == 0
        async with peer(server) as late:
            assert late.session_id > 0


async def test_a_returning_session_finds_its_place() -> None:
    """However many other clients have sessions, or connections without a session."""
    async with ServerUnderTest(connections_max=NEWCOMERS_MAX + 5) as server, AsyncExitStack() as stack:
        async with peer(server) as broker:
            await broker.ask(CREATE, creation("/e", flags=1))
            strangers = [await stack.enter_async_context(peer(server)) for _ in range(4)]
        silent = [await stack.enter_async_context(peer(server, connects=False)) for _ in range(3 * NEWCOMERS_MAX)]
        async with peer(server, connects=False) as back:
            await back.connect(6_000, broker.session_id, broker.password)
            assert back.session_id == broker.session_id
            assert (await back.ask(EXISTS, string("/e") + b"\0"))[0] == 0
            for stranger in strangers:
                assert (await stranger.ask(EXISTS, string("/e") + b"\0"))[0] == 0
        assert await silent[0].is_closed()
        assert len(server.server._connections) <= NEWCOMERS_MAX + 5


async def test_connections_have_no_more_descriptors_than_the_process() -> None:
    server = new_server(":memory:", lambda _reason: None, descriptors=200)
    assert (server._connections_max, server._sessions_max) == (150, 150 - NEWCOMERS_MAX)
    assert new_server(":memory:", lambda _reason: None, descriptors=1_048_576)._connections_max == CONNECTIONS_MAX


@pytest.mark.slow
async def test_responses_to_a_client_that_does_not_read_are_bounded() -> None:
    """Thousands of requests come in one read; their responses are kept until the client reads them."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        data, count = bytes(500_000), 2_000
        await one.ask(CREATE, creation("/a", data))
        frame = struct.pack(">ii", 1, GET_DATA) + string("/a") + b"\0"
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one.writer.write((struct.pack(">i", len(frame)) + frame) * count)
        await one.writer.drain()
        for _ in range(10):
            assert (await other.ask(EXISTS, string("/a") + b"\0"))[0] == 0
        (slow,) = [found for found in server.server._connections if found._is_full]
        assert slow._transport is not None
        assert slow._transport.get_write_buffer_size() <= UNSENT_BYTES_MAX + 2 * len(data)
        one.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(count):
            assert len(await one.receive()) > len(data)
        assert (await one.ask(EXISTS, string("/a") + b"\0"))[0] == 0


async def test_all_clients_together_have_so_much_to_read_and_no_more() -> None:
    """The client that has read nothing for the longest time is disconnected; clients that read receive responses."""
    async with ServerUnderTest() as server, peer(server) as reader, AsyncExitStack() as stack:
        server.server._held_bytes_max = 8 * 1024 * 1024
        await reader.ask(CREATE, creation("/a", bytes(1_000_000)))
        unread = [await stack.enter_async_context(peer(server)) for _ in range(10)]
        question = struct.pack(">ii", 1, GET_DATA) + string("/a") + b"\0"
        for one in unread:
            server.clock.advance(1)
            one.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(20):
                one.send(question)
            await one.writer.drain()
            for _ in range(25):  # more than the system keeps on the way
                assert (await reader.ask(GET_DATA, string("/a") + b"\0"))[0] == 0
            assert server.server._held_bytes <= 9_100_000
        left = [session for session in server.server._sessions if session.connection is not None]
        assert {one.session_id for one in left} >= {reader.session_id, unread[-1].session_id}
        assert unread[0].session_id not in {one.session_id for one in left}
        for one in unread:
            one.close()
        await until(lambda: len(server.server._connections) == 1)
        assert server.server._held_bytes == 0


async def test_unfinished_requests_have_a_limit() -> None:
    """The limit is for all connections together. Beyond it the connection that has finished no request for the longest
    time is closed."""
    async with ServerUnderTest() as server, peer(server) as busy, AsyncExitStack() as stack:
        server.server._held_bytes_max = 1_000_000
        unfinished = [await stack.enter_async_context(peer(server)) for _ in range(8)]
        for one in unfinished:
            server.clock.advance(1)
            one.writer.write(struct.pack(">i", 1_000_000) + bytes(300_000))
            held_bytes = server.server._held_bytes
            await until(lambda held_bytes=held_bytes: server.server._held_bytes != held_bytes)  # type: ignore[misc]
            assert (await busy.ask(CREATE, creation(f"/{one.session_id}", bytes(100_000))))[0] == 0
            assert server.server._held_bytes <= 1_000_000
        for one in unfinished[:5]:
            assert await one.is_closed()
        await until(lambda: not server.server.is_crowded)
        connected = [session for session in server.server._sessions if session.connection is not None]
        assert unfinished[-1].session_id in {session.session_id for session in connected}


async def test_responses_read_meanwhile_do_not_count() -> None:
    """A transport does not report what it could send later, below its mark."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        server.server._held_bytes_max = 2_000
        connections = list(server.server._connections)
        connections[0].held_bytes = server.server._held_bytes = 1_990
        connections[1].held_bytes = -15  # so that it is found to hold 15 more than was told
        connections[1].look_at_held()
        assert server.server._held_bytes == 15
        assert not server.server.is_crowded
        server.server._held_bytes = 0
        for each in (one, other):
            assert (await each.ask(EXISTS, string("/") + b"\0"))[0] == 0


async def test_a_closed_connection_does_not_wait_for_its_client() -> None:
    """The client does not read. A connection that waited would keep its unsent data, and its place among the
    connections, for ever."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await other.ask(CREATE, creation("/a", bytes(500_000)))
        frame = struct.pack(">ii", 1, GET_DATA) + string("/a") + b"\0"
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one.writer.write((struct.pack(">i", len(frame)) + frame) * 100)
        await one.writer.drain()
        for _ in range(10):
            await other.ask(EXISTS, string("/a") + b"\0")
        server.pass_time(one.timeout_ms // 2)
        await other.ask(EXISTS, string("/a") + b"\0")
        server.pass_time(one.timeout_ms // 2 + TICK_MS)
        await other.ask(EXISTS, string("/a") + b"\0")
        assert len(server.server._sessions) == 1
        assert len(server.server._connections) == 2
        server.pass_time(CLOSING_MS_MAX)
        await other.ask(EXISTS, string("/a") + b"\0")
        assert len(server.server._connections) == 1


async def test_a_client_of_another_tree_is_turned_away() -> None:
    """A client that has seen a later zxid was connected before the file was lost."""
    async with ServerUnderTest() as server, peer(server, connects=False) as one:
        one.send(struct.pack(">iqiqi", 0, 7, 6_000, 0, 0) + b"\0")
        assert await one.is_closed()


async def test_sessions_do_not_survive_the_server(tmp_path: Path) -> None:
    path = str(tmp_path / "tree.sqlite")
    async with ServerUnderTest(path) as server, peer(server) as one:
        await one.ask(CREATE, creation("/p"))
        await one.ask(CREATE, creation("/e", flags=1))
    async with ServerUnderTest(path) as server, peer(server, connects=False) as other:
        assert server.paths == {"/p"}
        assert (await other.connect(6_000, one.session_id, one.password)).timeout_ms == 0


async def test_no_id_of_a_session_comes_again(tmp_path: Path) -> None:
    """Also after a life of the server that has written nothing."""
    ids = []
    for life in range(3):
        server = ServerUnderTest(str(tmp_path / "tree"))
        server.clock.advance(life)
        async with server, peer(server) as one, peer(server) as other:
            ids += [one.session_id, other.session_id]
        assert server.stored.last_zxid == 0
    assert ids == sorted(set(ids))
    assert 0 < ids[0] < 2**56 > ids[-1]


async def test_no_id_of_a_session_comes_again_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """Each life begins more sessions than one write reserves ids for, in the same millisecond, and writes nothing."""
    seen: list[int] = []
    for life in range(3):
        server = ServerUnderTest(str(tmp_path / "tree"), now_ms=1_700_000_000_000 - 1_000 * life)
        async with server, peer(server) as one:
            seen += [one.session_id, *(server.stored.new_session_id() for _ in range(70_000 * (life != 1)))]
    assert seen == sorted(set(seen))


async def test_ids_of_sessions_are_written_at_a_start_not_for_each_session(tmp_path: Path) -> None:
    server = ServerUnderTest(str(tmp_path / "tree"))
    commits = 0

    def trace(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    async with server:
        assert server.stored._database is not None
        server.stored._database.set_trace_callback(trace)
        for number in range(2, 2**16 + 1):
            assert server.stored.new_session_id() < server.stored._session_ids_end, number
        assert commits == 0
        server.stored.new_session_id()
        server.stored.new_session_id()
        assert commits == 1


class _FullDisk:
    """A connection that has no room for any transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self.database.execute(statement, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


async def test_ids_of_sessions_that_a_full_disk_did_not_take_are_written_with_the_next_transaction(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "tree")
    async with ServerUnderTest(path) as server, peer(server) as one:
        assert server.stored._database is not None
        full = _FullDisk(server.stored._database)
        server.stored._database = full  # type: ignore[assignment]
        ids = [server.stored.new_session_id() for _ in range(2**16)]
        server.stored._database = full.database
        await one.ask(CREATE, creation("/p"))
    back = ServerUnderTest(path, now_ms=1_600_000_000_000)
    async with back, peer(back) as other:
        assert other.session_id > ids[-1]


async def test_on_a_full_disk_a_session_that_is_over_is_ended_later(tmp_path: Path) -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await one.ask(CREATE, creation("/e", flags=1))
        assert server.stored._database is not None
        full = _FullDisk(server.stored._database)
        server.stored._database = full  # type: ignore[assignment]
        assert (await other.ask(CREATE, creation("/more")))[0] == -1, "an error of the system, and of nobody else"
        await one.ask(-11)
        assert server.paths == {"/e"}
        again = await Peer.open(server.port)
        assert (await again.connect(6_000, one.session_id, one.password)).timeout_ms == 0, "over all the same"
        again.close()
        server.stored._database = full.database
        server.pass_time(TICK_MS)
        assert server.paths == set()
        assert server.failures == []


class _BrokenDisk(_FullDisk):
    """A connection whose transactions fail as on a dying disk."""

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return self.database.execute(statement, *arguments)


class _NoWayBack(_FullDisk):
    """A full disk that fails when a transaction is rolled back."""

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "ROLLBACK":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return super().execute(statement, *arguments)


async def test_a_transaction_that_cannot_be_rolled_back_is_final() -> None:
    """The server ends, also if the transaction is its own, at a check of the sessions."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await one.ask(CREATE, creation("/e", flags=1))
        assert server.stored._database is not None
        server.stored._database = _NoWayBack(server.stored._database)  # type: ignore[assignment]
        server.pass_time(6_000 + TICK_MS)
        assert await other.is_closed()
        assert server.failures == ["disk I/O error"]


class _ForeseenByNobody(_FullDisk):
    def execute(self, statement: str, *arguments: Any) -> Any:
        raise MemoryError(statement)


async def test_sessions_are_checked_again_after_an_unexpected_error() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/e", flags=1))
        assert server.stored._database is not None
        odd = _ForeseenByNobody(server.stored._database)
        server.stored._database = odd  # type: ignore[assignment]
        with pytest.raises(MemoryError):
            server.pass_time(6_000 + TICK_MS)
        server.stored._database = odd.database
        server.pass_time(TICK_MS)
        assert server.paths == set()


async def test_a_broken_disk_ends_everything() -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        assert server.stored._database is not None
        server.stored._database = _BrokenDisk(server.stored._database)  # type: ignore[assignment]
        one.send(struct.pack(">ii", 1, CREATE) + creation("/a"))
        assert await other.is_closed()
        assert server.failures == ["disk I/O error"]


# -- watches


@pytest.mark.parametrize(("op_code", "persistent"), [(SET_WATCHES, b""), (SET_WATCHES2, strings() * 2)])
async def test_watches_set_again_tell_what_was_missed(op_code: int, persistent: bytes) -> None:
    """The newer request may contain persistent watches, too; without them it is the same."""
    async with ServerUnderTest() as server, peer(server) as writer, peer(server) as one:
        for name in ("same", "changed", "deleted", "parent", "quiet"):
            await writer.ask(CREATE, creation(f"/{name}"))
        seen = server.stored.last_zxid
        await writer.ask(SET_DATA, string("/changed") + struct.pack(">ii", 0, -1))
        await writer.ask(DELETE, string("/deleted") + struct.pack(">i", -1))
        await writer.ask(CREATE, creation("/parent/child"))
        await writer.ask(CREATE, creation("/created"))
        body = struct.pack(">q", seen) + strings("/same", "/changed", "/deleted")
        body += strings("/created", "/nothing") + strings("/parent", "/quiet", "/deleted")
        one.send(struct.pack(">ii", -8, op_code) + body + persistent)
        events = []
        while (answer := one.split(await one.receive()))[0] == -1:
            events.append((struct.unpack_from(">i", answer[3])[0], answer[3][12:].decode()))
        assert answer[:3] == (-8, server.stored.last_zxid, 0)
        assert events == [(3, "/changed"), (2, "/deleted"), (1, "/created"), (4, "/parent"), (2, "/deleted")]
        for path in ("/same", "/nothing", "/quiet/child"):
            if path == "/same":
                await writer.ask(SET_DATA, string(path) + struct.pack(">ii", 0, -1))
            else:
                await writer.ask(CREATE, creation(path))
        told = [one.split(await one.receive())[3] for _ in range(3)]
        assert [(struct.unpack_from(">i", body)[0], body[12:].decode()) for body in told] == [
            (3, "/same"),
            (1, "/nothing"),
            (4, "/quiet"),
        ]


class _SlowClock(ManualClock):
    """Each read of it takes as long as a turn."""

    def monotonic_ms(self) -> int:
        self.advance(TURN_MS)
        return super().monotonic_ms()


async def test_watches_are_set_again_in_turns() -> None:
    """Other clients have their turns meanwhile. Their changes trigger each watch, whether it is set yet or not. The
    response comes last."""
    async with ServerUnderTest() as server, peer(server) as writer, peer(server) as one:
        paths = [f"/{number}" for number in range(10 * WATCHES_PER_TURN)]
        body = struct.pack(">q", server.stored.last_zxid) + strings() + strings(*paths) + strings()
        connection = list(server.server._connections)[1]
        connection._clock = _SlowClock()
        one.send(struct.pack(">ii", -8, SET_WATCHES) + body)
        one.send(struct.pack(">ii", 5, EXISTS) + string("/0") + b"\0")
        table = server.server._service._watches
        for _ in range(100):
            await asyncio.sleep(0)
            if table.held_bytes:
                break
        first, last = paths[0], paths[-1]
        assert not table.has(last, connection, of_data=True, of_children=False)
        changed = [server.server._service._change([Create(path)], 0) for path in (first, last)]
        assert [len(change.events) for change in changed] == [2, 2]
        told = [one.split(await one.receive()) for _ in range(4)]
        assert [answer[0] for answer in told] == [-1, -1, -8, 5]
        assert [answer[3][12:].decode() for answer in told[:2]] == [first, last]
        assert not table.has(first, connection, of_data=True, of_children=False), "it was told"
        assert table.has(paths[1], connection, of_data=True, of_children=False)
        assert (await writer.ask(EXISTS, string(first) + b"\0"))[0] == 0


async def test_a_gone_clients_watches_are_removed_in_turns() -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        table = server.server._service._watches
        paths = [f"/{number}" for number in range(3 * WATCHES_PER_TURN + 1)]
        body = struct.pack(">q", 0) + strings() + strings(*paths) + strings(*paths)
        assert (await other.ask(CREATE, creation("/stays")))[0] == 0
        one.send(struct.pack(">ii", -8, SET_WATCHES) + body)
        while one.split(await one.receive())[0] != -8:
            pass
        assert (await other.ask(EXISTS, string(paths[0]) + b"\1"))[0] == NO_NODE
        gone = next(iter(server.server._connections))
        server.server.forget(gone)
        assert len(table._held[gone][0]) == len(paths) - WATCHES_PER_TURN
        server.server._service._change([Create(paths[0])], 0)
        assert other.split(await other.receive())[3][12:].decode() == paths[0], "which another client watches, too"
        await until(lambda: not table._gone)
        assert (table._data, table._children, table._held, table.held_bytes) == ({}, {}, {}, 0)


@pytest.mark.parametrize("what", ["too many", "not a string"])
async def test_watches_that_cannot_all_be_set_end_the_connection(what: str) -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        if what == "too many":
            server.server._service._watches_bytes_max = 1_000 * WATCHES_PER_TURN
        paths = strings(*(f"/{number}" for number in range(5 * WATCHES_PER_TURN)))
        body = struct.pack(">q", 0) + strings() + (paths if what == "too many" else paths[:-1] + b"\xff")
        one.send(struct.pack(">ii", -8, SET_WATCHES) + body + strings())
        if what == "not a string":
            assert one.split(await one.receive())[:3:2] == (-8, MARSHALLING_ERROR)
        assert await one.is_closed()
        await until(lambda: not server.server._service._watches._held)


async def test_a_watch_goes_with_its_connection() -> None:
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as writer:
        await one.ask(EXISTS, string("/a") + b"\1")
        one.close()
        await one.writer.wait_closed()
        other = await (await Peer.open(server.port)).connect(6_000, one.session_id, one.password)
        await writer.ask(CREATE, creation("/a"))
        assert (await other.ask(EXISTS, string("/a") + b"\0"))[0] == 0, "and no event before it"
        assert server.server._service._watches._held == {}
        other.close()


async def test_watches_have_so_much_room_and_no_more() -> None:
    """Of all connections together; removed watches make room."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        tree_service = server.server._service
        tree_service._watches_bytes_max = 10 * 1_330
        for number in range(5):
            for who in (one, other):
                assert (await who.ask(EXISTS, string(f"/{number}".ljust(1_000, "x")) + b"\1"))[0] == NO_NODE
        assert tree_service._watches.held_bytes == 10 * 1_330
        async with peer(server) as late:
            late.send(struct.pack(">ii", 1, EXISTS) + string("/more") + b"\1")
            assert await late.is_closed()
        async with peer(server) as third:
            await third.ask(CREATE, creation("/0".ljust(1_000, "x")))
            assert tree_service._watches.held_bytes == 8 * 1_330
            assert (await third.ask(EXISTS, string("/more") + b"\1"))[0] == NO_NODE


async def test_watches_are_counted_by_the_memory_that_they_take() -> None:
    """One wide character makes its whole path wide. A removed watch is subtracted as it was added, to the byte."""
    async with ServerUnderTest() as server, peer(server) as one:
        table = server.server._service._watches
        path = "/" + "x" * 1_000 + "\N{SLIGHTLY SMILING FACE}"
        assert (await one.ask(EXISTS, string(path) + b"\1"))[0] == NO_NODE
        assert table.held_bytes > sys.getsizeof(path) > 4_000
        assert (await one.ask(18, string(path) + struct.pack(">i", 2)))[0] == 0
        assert table.held_bytes == 0


async def test_watches_are_removed() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/a"))
        await one.ask(GET_DATA, string("/a") + b"\1")
        data_watch = string("/a") + struct.pack(">i", 2)
        assert (await one.ask(17, data_watch))[0] == 0
        assert (await one.ask(18, string("/a") + struct.pack(">i", 1)))[0] == -121, "none of children"
        assert (await one.ask(18, data_watch))[0] == 0
        assert (await one.ask(17, data_watch))[0] == -121
        assert (await one.ask(SET_DATA, string("/a") + struct.pack(">ii", 0, -1)))[0] == 0, "and no event before it"


# -- requests


def multi(*operations: tuple[int, bytes]) -> bytes:
    parts = (struct.pack(">ibi", op_code, 0, -1) + body for op_code, body in operations)
    return b"".join(parts) + struct.pack(">ibi", -1, 1, -1)


async def test_a_transaction_answers_for_each_operation() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        error, answer = await one.ask(MULTI, multi((CREATE, creation("/a")), (13, string("/a") + struct.pack(">i", 0))))
        assert error == 0
        head = struct.Struct(">ibi")
        assert answer == head.pack(1, 0, 0) + string("/a") + head.pack(13, 0, 0) + head.pack(-1, 1, -1)
        wrong = string("/a") + struct.pack(">i", 7)
        error, answer = await one.ask(
            MULTI, multi((CREATE, creation("/b")), (13, wrong), (DELETE, string("/a") + struct.pack(">i", -1)))
        )
        assert error == 0, "as ZooKeeper has it, the errors are those of the operations"
        codes = b"".join(head.pack(-1, 0, code) + struct.pack(">i", code) for code in (0, BAD_VERSION, -2))
        assert answer == codes + head.pack(-1, 1, -1)
        assert server.paths == {"/a"}


async def test_an_invalid_path_fails_its_operation_of_a_transaction() -> None:
    """As in ZooKeeper, the request itself succeeds."""
    async with ServerUnderTest() as server, peer(server) as one:
        error, answer = await one.ask(MULTI, multi(*((CREATE, creation(path)) for path in ("/a", "/..", "/c"))))
        head = struct.Struct(">ibi")
        codes = b"".join(head.pack(-1, 0, code) + struct.pack(">i", code) for code in (0, BAD_ARGUMENTS, -2))
        assert (error, answer) == (0, codes + head.pack(-1, 1, -1))
        assert server.paths == set()


async def test_a_transaction_answers_what_each_creation_made() -> None:
    """Each stat is that of its own operation: the znode may be changed after it, or be deleted."""
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await other.ask(EXISTS, string("/gone") + b"\1")
        error, answer = await one.ask(
            MULTI,
            multi(
                (CREATE2, creation("/gone", b"abc", flags=1)),
                (DELETE, string("/gone") + struct.pack(">i", -1)),
                (CREATE2, creation("/a", b"abc")),
                (SET_DATA, string("/a") + struct.pack(">i", 5) + b"later" + struct.pack(">i", 0)),
                (CREATE2, creation("/a/b")),
                (CREATE2, creation("/gone", b"again")),
            ),
        )
        zxid, now_ms = server.stored.last_zxid, server.clock.now_ms()
        head = struct.Struct(">ibi")

        def stat(version: int, owner: int, length: int) -> bytes:
            return struct.pack(">4q3iq2iq", zxid, zxid, now_ms, now_ms, version, 0, 0, owner, length, 0, zxid)

        results = [
            head.pack(CREATE2, 0, 0) + string("/gone") + stat(0, one.session_id, 3),
            head.pack(DELETE, 0, 0),
            head.pack(CREATE2, 0, 0) + string("/a") + stat(0, 0, 3),
            head.pack(SET_DATA, 0, 0) + stat(1, 0, 5),
            head.pack(CREATE2, 0, 0) + string("/a/b") + stat(0, 0, 0),
            head.pack(CREATE2, 0, 0) + string("/gone") + stat(0, 0, 5),
        ]
        assert (error, answer) == (0, b"".join(results) + head.pack(-1, 1, -1))
        assert server.paths == {"/a", "/a/b", "/gone"}
        assert other.split(await other.receive())[0] == -1, "those who watch hear of it"


async def test_several_reads_answer_each_for_itself() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/a", b"x"))
        _, alone = await one.ask(GET_DATA, string("/a") + b"\0")
        asked = ((GET_DATA, "/a"), (GET_DATA, "/b"), (CHILDREN, "/"), (GET_DATA, "/a"))
        error, answer = await one.ask(MULTI_READ, multi(*((op_code, string(path) + b"\0") for op_code, path in asked)))
        read, missing = struct.pack(">ibi", GET_DATA, 0, 0) + alone, struct.pack(">ibii", -1, 0, NO_NODE, NO_NODE)
        names = struct.pack(">ibi", CHILDREN, 0, 0) + strings("a")
        assert (error, answer) == (0, read + missing + names + read + struct.pack(">ibi", -1, 1, -1))


async def test_several_reads_that_answer_too_much_are_asked_one_by_one() -> None:
    """As at a ZooKeeper before 3.6, which knows no such request."""
    async with ServerUnderTest() as server:
        session = await ZooKeeperSession.open(f"127.0.0.1:{server.port}")
        data = b"x" * (ANSWER_BYTES_MAX // 5)
        paths = [f"/{number}" for number in range(6)]
        for path in paths:
            await session.create(path, data)
        for _ in range(2):
            assert [found and found[0] for found in await session.get_many([*paths, "/none"])] == [data] * 6 + [None]
        await session.close()


async def test_a_sequential_znode_may_have_a_number_and_no_other_name() -> None:
    """As in ZooKeeper the path has to be valid only with its number: it may end with a slash, or a dot."""
    async with ServerUnderTest() as server, peer(server) as one:
        await one.ask(CREATE, creation("/q"))
        assert await one.ask(CREATE, creation("/q/", flags=2)) == (0, string("/q/0000000000"))
        both = multi((CREATE, creation("/q/", flags=3)), (CREATE, creation("/", flags=2)))
        error, answer = await one.ask(MULTI, both)
        head = struct.Struct(">ibi")
        created = head.pack(CREATE, 0, 0) + string("/q/0000000001") + head.pack(CREATE, 0, 0) + string("/0000000001")
        assert (error, answer) == (0, created + head.pack(-1, 1, -1))
        assert await one.ask(CREATE, creation("/q/.", flags=2)) == (0, string("/q/.0000000002"))
        for path in ("", "//", "/q/\0/"):
            assert await one.ask(CREATE, creation(path, flags=2)) == (BAD_ARGUMENTS, b"")
        assert await one.ask(CREATE, creation("/none/", flags=2)) == (NO_NODE, b"")
        assert await one.ask(CREATE, creation("/q/")) == (BAD_ARGUMENTS, b""), "without a number"
        assert server.paths == {"/q", "/q/0000000000", "/q/0000000001", "/0000000001", "/q/.0000000002"}


@pytest.mark.parametrize(
    "character", ["\x01", "\x1f", "\x7f", "\x9f", "\ue000", "\uf8ff", "\ufff0", "\uffff", "\U0001f642"]
)
async def test_characters_that_zookeeper_refuses_are_in_no_path(character: str) -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        path = f"/a{character}b"
        assert await one.ask(CREATE, creation(path)) == (BAD_ARGUMENTS, b"")
        assert await one.ask(CREATE, creation(path, flags=2)) == (BAD_ARGUMENTS, b"")
        assert (await one.ask(SET_DATA, string(path) + struct.pack(">ii", 0, -1)))[0] == BAD_ARGUMENTS
        assert (await one.ask(DELETE, string(path) + struct.pack(">i", -1)))[0] == NO_NODE
        assert server.paths == set()


async def test_other_characters_may_be_in_paths() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        path = "/ ~\xa0\u20ac\ud7ff\uf900\uffef"
        assert await one.ask(CREATE, creation(path)) == (0, string(path))
        assert server.paths == {path}


async def test_the_root_is_not_deleted() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        for _ in ("alone", "with a child"):
            assert await one.ask(DELETE, string("/") + struct.pack(">i", -1)) == (BAD_ARGUMENTS, b"")
            await one.ask(CREATE, creation("/a"))
        assert server.paths == {"/a"}


@pytest.mark.parametrize(
    ("op_code", "body"),
    [
        (19, creation("/a", flags=4)),
        (21, creation("/a", flags=5)),
        (CREATE, creation("/a", flags=4)),
        (106, string("/a") + struct.pack(">i", 0)),
        (SET_WATCHES2, struct.pack(">q", 0) + strings() * 3 + strings("/a") + strings()),
        (SET_WATCHES2, struct.pack(">q", 0) + strings() * 4 + strings("/a")),
        (16, b""),
        (13, string("/a") + struct.pack(">i", 0)),
        (-1000, b""),
        (MULTI, multi((21, creation("/a")))),
        (MULTI_READ, multi((GET_DATA, string("/") + b"\1"))),
        (MULTI_READ, multi((EXISTS, string("/") + b"\0"))),
    ],
)
async def test_requests_that_are_not_served_are_an_error(op_code: int, body: bytes) -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        assert await one.ask(op_code, body) == (UNIMPLEMENTED, b"")
        assert await one.ask(CREATE, creation("/b")) == (0, string("/b")), "and the connection goes on"


@pytest.mark.parametrize(("word", "answer"), [(b"ruok", b"imok"), (b"srvr", b"Mode: standalone"), (b"stat", b"9.9")])
async def test_four_letter_words(word: bytes, answer: bytes) -> None:
    async with ServerUnderTest() as server, peer(server, connects=False) as one:
        one.writer.write(word)
        assert answer in await one.reader.read()


# -- hostile bytes


@pytest.mark.parametrize(
    "beginning",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 1024 * 1024),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 4) + b"abcd",
        struct.pack(">iiqiqi", 32, 0, 0, 4000, 0, 2**31 - 1) + b"1234",
    ],
)
async def test_an_invalid_first_request_closes_the_connection(beginning: bytes) -> None:
    async with ServerUnderTest() as server, peer(server) as bystander, peer(server, connects=False) as one:
        one.writer.write(beginning)
        assert await one.is_closed()
        assert await bystander.ask(CREATE, creation("/a")) == (0, string("/a"))


@pytest.mark.parametrize(
    "body", [b"", struct.pack(">i", 2**31 - 1), struct.pack(">i", -2), string("/a")[:-1], b"\0\0\0\1\xff"]
)
@pytest.mark.parametrize("op_code", [CREATE, GET_DATA, CHILDREN, MULTI, SET_WATCHES])
async def test_a_malformed_body_is_refused_and_ends_the_connection(op_code: int, body: bytes) -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        if op_code == SET_WATCHES:
            body = struct.pack(">q", 0) + body
        assert await one.ask(op_code, body) == (MARSHALLING_ERROR, b"")
        assert await one.is_closed()
        assert server.paths == set()


async def test_frames_come_in_any_pieces() -> None:
    async with ServerUnderTest() as server, peer(server) as one:
        frame = struct.pack(">ii", 5, CREATE) + creation("/a")
        for byte in struct.pack(">i", len(frame)) + frame:
            one.writer.write(bytes([byte]))
            await one.writer.drain()
            await asyncio.sleep(0)
        one.send(struct.pack(">ii", 6, EXISTS) + string("/a") + b"\0")
        assert one.split(await one.receive())[0] == 5
        assert one.split(await one.receive())[0] == 6


class _SlowServer(Server):
    """A server that takes time for each request, by the test's clock."""

    def __init__(self, clock: ManualClock, request_ms: int) -> None:
        self._clock, self._request_ms = clock, request_ms

    def meet(self, logins: ClientLogins, host: str, certificate: bytes | None) -> None:
        assert certificate is None

    def accept(self, connection: ZooKeeperConnection) -> None:
        pass

    def forget(self, connection: ZooKeeperConnection) -> None:
        pass

    @property
    def is_crowded(self) -> bool:
        return False

    def add_held(self, size: int) -> None:
        pass

    def wait_for_turn(self, connection: ZooKeeperConnection) -> None:
        raise AssertionError("no request is large")

    def connect(self, connection: ZooKeeperConnection, request: ConnectRequest) -> bytes:
        connection.session = Session(1, bytes(16), SESSION_TIMEOUT_MS_MIN, 0, connection.port)
        return b""

    def serve(self, session: Session[Client], connection: ZooKeeperConnection, frame: bytes) -> bytes:
        self._clock.advance(self._request_ms)
        return frame

    def four_letter_word(self, word: bytes) -> bytes | None:
        return None


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("request_ms", "turn"), [(TURN_MS // 2, 2), (3 * TURN_MS, 1)])
async def test_a_client_with_many_requests_leaves_others_turns(request_ms: int, turn: int) -> None:
    clock = ManualClock()
    connection, transport = ZooKeeperConnection(_SlowServer(clock, request_ms), 1, clock), _Transport()
    connection.connection_made(transport)
    hello = struct.pack(">iqiqi", 0, 0, 6_000, 0, 16) + bytes(16)
    connection.data_received(struct.pack(">i", len(hello)) + hello)
    transport.written.clear()
    frames = [struct.pack(">ii", 4, number) for number in range(5)]
    connection.data_received(b"".join(frames[:4]) + frames[4][:5])
    for served in range(turn, 5, turn):
        assert transport.written == frames[:served]
        assert transport.is_read == (served == 4)
        if served < 4:
            connection.pause_writing()
            connection.resume_writing()
            assert transport.written == frames[:served], "its turn is over, whatever it has read"
            await asyncio.sleep(0)
    connection.data_received(frames[4][5:])
    assert transport.written == frames
    assert transport.is_read


async def test_a_client_with_unread_responses_waits_in_its_turn() -> None:
    clock = ManualClock()
    connection, transport = ZooKeeperConnection(_SlowServer(clock, TURN_MS), 1, clock), _Transport()
    connection.connection_made(transport)
    hello = struct.pack(">iqiqi", 0, 0, 6_000, 0, 16) + bytes(16)
    connection.data_received(struct.pack(">i", len(hello)) + hello)
    transport.written.clear()
    frames = [struct.pack(">ii", 4, number) for number in range(2)]
    connection.data_received(b"".join(frames))
    connection.pause_writing()
    await asyncio.sleep(0)
    assert (transport.written, transport.is_read) == (frames[:1], False)
    connection.resume_writing()
    assert (transport.written, transport.is_read) == (frames, True)


async def test_large_requests_of_all_connections_have_turns() -> None:
    """One per round of the event loop, of each connection in turn; clients with small requests do not wait for them."""
    check = struct.pack(">ibi", CHECK, 0, -1) + string("/") + struct.pack(">i", -1)
    multi = struct.pack(">ii", 7, MULTI) + check * (LARGE_REQUEST_BYTES // len(check) + 1)
    async with ServerUnderTest() as server, AsyncExitStack() as stack, peer(server) as other:
        peers = [await stack.enter_async_context(peer(server)) for _ in range(5)]
        turns = TurnsTaken()
        turns.watch(TreeService, "_multi")
        try:
            for one in peers:
                for _ in range(10):
                    one.send(multi + struct.pack(">ibi", -1, 1, -1))
            await until(lambda: turns.calls("_multi")[0] > 0)
            for _ in range(3):
                assert (await other.ask(EXISTS, string("/") + b"\0"))[0] == 0
            assert turns.calls("_multi")[0] < 50
            peers[4].close()
            for one in peers[:4]:
                assert [one.split(await one.receive())[2] for _ in range(10)] == [0] * 10
        finally:
            turns.end()
        total, most = turns.calls("_multi")
        assert (total >= 40, most) == (True, 1)


def whole(answer: bytes | InPieces) -> bytes:
    """A response, also one that takes several turns."""
    while not isinstance(answer, bytes):
        try:
            next(answer)
        except StopIteration as done:
            answer = done.value
    return answer


class _Deaf:
    def __init__(self) -> None:
        self.logins = ClientLogins()

    def send(self, message: bytes, /) -> None:
        assert message


FRAMES = st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda op_code, body: struct.pack(">ii", 1, op_code) + body,
        st.sampled_from([*range(-12, 23), *range(100, 108)]),
        st.lists(
            st.one_of(
                st.sampled_from(["", "/", "/a", "/a/b", "a", "//", "/\0"]).map(string),
                st.integers(-2, 5).map(lambda number: struct.pack(">i", number)),
                st.booleans().map(lambda value: bytes([value])),
                st.just(OPEN_ACL),
                st.just(creation("/a")),
                st.binary(max_size=9),
            ),
            max_size=6,
        ).map(b"".join),
    ),
)


@settings(max_examples=300, deadline=None)
@given(frames=st.lists(FRAMES, max_size=20))
@pytest.mark.slow
def test_any_bytes_are_answered_or_end_the_connection(frames: list[bytes]) -> None:
    stored = StoredTree(":memory:", ManualClock(), is_durable=False)
    stored.open()
    service = TreeService(stored, lambda _session: None, Authentication(secrets.token_bytes))
    session: Session[Any] = Session(7, bytes(16), SESSION_TIMEOUT_MS_MIN, 0, 1)
    for frame in frames:
        try:
            answer = whole(service.serve(session, _Deaf(), frame))
        except LastRequest as last:
            answer = last.answer
        except MalformedMessage:
            assert len(frame) < 8
            continue
        assert answer[:4] == frame[:4], "its xid"
    stored.close()


# -- kazoo


async def test_kazoo_works(chroot: str) -> None:
    """In its own thread, and with requests that brokers do not use."""

    def work(address: str) -> None:
        client = KazooClient(address, timeout=10)  # Real time: of a session, which the client renews
        client.start(timeout=PATIENCE_S)
        try:
            client.ensure_path("/x/y")
            path, stat = client.create("/x/z", b"1", include_data=True, ephemeral=True, sequence=True)
            assert (path, stat.ephemeralOwner) == ("/x/z0000000001", client.client_id[0])
            assert client.create("/q/", b"1", sequence=True, makepath=True) == "/q/0000000000"
            assert client.create("/q/", sequence=True) == "/q/0000000001"
            assert client.get("/q/0000000000")[0] == b"1"
            names, stat = client.get_children("/x", include_data=True)
            assert (sorted(names), stat.numChildren) == (["y", "z0000000001"], 2)
            assert client.sync("/x") == "/x"
            events: list[WatchedEvent] = []
            client.get("/x/y", watch=events.append)
            transaction = client.transaction()
            transaction.set_data("/x/y", b"2")
            transaction.check("/x/y", 1)
            transaction.create("/x/new")
            assert [type(result).__name__ for result in transaction.commit()] == ["ZnodeStat", "bool", "str"]
            assert client.get("/x/y")[0] == b"2"
            assert [(event.type, event.path) for event in events] == [(EventType.CHANGED, "/x/y")]
            transaction = client.transaction()
            transaction.create("/x/more")
            transaction.create("/x/new")
            transaction.create("/x/last")
            failures = transaction.commit()
            assert [type(failure) for failure in failures] == [
                exceptions.RolledBackError,
                exceptions.NodeExistsError,
                exceptions.RuntimeInconsistency,
            ]
            with pytest.raises(exceptions.NoNodeError):
                client.create("/none/of/this")
            acls, _ = client.get_acls("/x")
            assert [(acl.perms, acl.id.scheme, acl.id.id) for acl in acls] == [(31, "world", "anyone")]
            lock, election = client.Lock("/lock"), client.Election("/election")
            with lock:
                assert lock.contenders() == [""]
            election.run(lambda: None)
            client.delete("/x", recursive=True)
        finally:
            client.stop()
            client.close()

    async with ServerUnderTest() as server:
        await asyncio.to_thread(work, f"127.0.0.1:{server.port}")
        assert not any(server.stored.tree.ephemerals())


async def test_writers_beside_each_other_lose_nothing() -> None:
    """Sequential znodes and conditional writes of many clients, with concurrent requests."""
    chance = random.Random(11)
    async with ServerUnderTest() as server, peer(server) as one, peer(server) as other:
        await one.ask(CREATE, creation("/s"))
        for number in range(200):
            chance.choice((one, other)).send(struct.pack(">ii", number, CREATE) + creation("/s/n-", flags=2))
        server_side = server.stored.tree
        for each in (one, other):
            each.send(struct.pack(">ii", 1_000, EXISTS) + string("/s") + b"\0")
            while each.split(await each.receive())[0] != 1_000:
                pass
        assert server_side.children("/s") == [f"n-{number:010d}" for number in range(200)]
