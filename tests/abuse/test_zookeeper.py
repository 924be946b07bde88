"""Strangers at `barnabas zookeeper`: its memory has an end, and a client that is there goes on."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from barnabas.controller.coordination.zookeeper_server import server as limits
from barnabas.storage.descriptors import descriptor_reserve
from tests.support.smaller_limits import module as smaller
from tools.attack.hostile import MIB, Memory, connect, connect_slow_reader, eventually, is_closed, receive
from tools.processes.barnabas import BarnabasZooKeeper

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.store, pytest.mark.listener("zookeeper")]
Figure = Callable[..., None]

CREATE, DELETE, EXISTS, GET_DATA, CHILDREN, MULTI, SET_WATCHES = 1, 2, 3, 4, 8, 14, 101
QUOTA_EXCEEDED = -125
STORED_BYTES = f"{limits.__name__}.STORED_BYTES_MAX"
LITTLE_ROOM = smaller({STORED_BYTES: 16 * MIB})
DESCRIPTORS = 150
"""The limit of open files of one server."""


@pytest.fixture
def module() -> str:
    return "barnabas"


@pytest.fixture
def server(module: str) -> Iterator[BarnabasZooKeeper]:
    with BarnabasZooKeeper(module=module) as process:
        yield process
        assert "Traceback" not in process.log_text()
        process.stop()


def string(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(op_code: int, body: bytes) -> bytes:
    return framed(struct.pack(">ii", 1, op_code) + body)


def creation(path: str, data: bytes = b"") -> bytes:
    acl = struct.pack(">ii", 1, 31) + string("world") + string("anyone")
    return string(path) + struct.pack(">i", len(data)) + data + acl + struct.pack(">i", 0)


def begin_session(connection: socket.socket) -> socket.socket:
    connection.sendall(framed(struct.pack(">iqiqi", 0, 0, 40_000, 0, 16) + bytes(16) + b"\0"))
    assert receive(connection) is not None
    return connection


def ask(connection: socket.socket, op_code: int, body: bytes) -> int:
    """The error code of the answer, or of the first write of a transaction."""
    connection.sendall(request(op_code, body))
    answer = receive(connection)
    assert answer is not None
    code: int = struct.unpack_from(">iqi", answer)[2]
    if op_code == MULTI and not code and struct.unpack_from(">i", answer, 16) == (-1,):
        (code,) = struct.unpack_from(">i", answer, 25)
    return code


def creations(start: int) -> bytes:
    """A transaction of 2,000 children of /many, with names of 30 characters."""
    each = (
        struct.pack(">ibi", CREATE, 0, -1) + creation(f"/many/{number:030}") for number in range(start, start + 2_000)
    )
    return b"".join(each) + struct.pack(">ibi", -1, 1, -1)


def make_children(connection: socket.socket, count: int) -> None:
    assert ask(connection, CREATE, creation("/many")) == 0
    for start in range(0, count, 2_000):
        assert ask(connection, MULTI, creations(start)) == 0


def test_a40_unread_answers_are_bounded(server: BarnabasZooKeeper, figure: Figure) -> None:
    """Forty clients ask 12 times each for the names of 20,000 znodes, and read nothing: 312 MiB, of which some is kept.
    Who reads is answered."""
    memory = Memory(server.pid)
    with begin_session(connect(server.address)) as reader, ExitStack() as stack:
        make_children(reader, 20_000)
        assert ask(reader, CHILDREN, string("/many") + b"\0") == 0
        memory.mark()
        for _ in range(40):
            connection = stack.enter_context(begin_session(connect_slow_reader(server.address)))
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(request(CHILDREN, string("/many") + b"\0") * 12)
            assert ask(reader, EXISTS, string("/many") + b"\0") == 0
        for _ in range(20):
            assert ask(reader, CHILDREN, string("/many") + b"\0") == 0
        cut = server.log_text().count("connections hold too many bytes in all")
    figure(connections=40, cut=cut, growth_mib=round(memory.growth / MIB, 1))
    assert cut >= 10
    assert memory.growth <= 160 * MIB


def test_a41_watches_that_are_set_again(server: BarnabasZooKeeper, figure: Figure) -> None:
    """100,000 in one request, by a client that goes when they are set; others are served meanwhile."""
    paths = [f"/{number:x}" for number in range(100_000)]
    body = (
        struct.pack(">qi", 0, 0) + struct.pack(">i", len(paths)) + b"".join(map(string, paths)) + struct.pack(">i", 0)
    )
    with begin_session(connect(server.address)) as other:
        served = 0
        with begin_session(connect(server.address)) as client:
            client.sendall(request(SET_WATCHES, body))
            while not select.select([client], [], [], 0)[0]:
                assert ask(other, EXISTS, string("/") + b"\0") == 0
                served += 1
            assert receive(client) is not None
        for _ in range(10):
            assert ask(other, EXISTS, string("/") + b"\0") == 0
    figure(watches=len(paths), served=served)
    assert served >= 20


@pytest.mark.parametrize(
    "module", [pytest.param(LITTLE_ROOM, id="16 MiB"), pytest.param("barnabas", marks=pytest.mark.full, id="real")]
)
@pytest.mark.parametrize("size", [900_000, 0], ids=["large", "small"])
def test_a44_znodes_are_bounded(server: BarnabasZooKeeper, module: str, size: int, figure: Figure) -> None:
    """Znodes of 900 kB, or without data and 2,000 in one transaction, until they are refused: what is there can be
    read and deleted, and makes room when it is."""
    limit = 16 * MIB if module == LITTLE_ROOM else limits.STORED_BYTES_MAX
    memory = Memory(server.pid)
    memory.mark()
    with begin_session(connect(server.address)) as stranger:
        assert ask(stranger, CREATE, creation("/many")) == 0
        count, code = 0, 0
        while not code:
            if size:
                code = ask(stranger, CREATE, creation(f"/many/{count:030}", bytes(size)))
            else:
                code = ask(stranger, MULTI, creations(count))
            count += 0 if code else 1 if size else 2_000
        assert code == QUOTA_EXCEEDED
        with begin_session(connect(server.address)) as other:
            assert ask(other, GET_DATA, string(f"/many/{0:030}") + b"\0") == 0
            assert ask(other, DELETE, string(f"/many/{0:030}") + struct.pack(">i", -1)) == 0
            assert ask(other, CREATE, creation("/new")) == 0
    figure(znodes=count, size=size, growth_mib=round(memory.growth / MIB, 1))
    assert count * (size + 600) >= limit * 0.9
    assert memory.growth <= limit + 32 * MIB


def test_a45_unfinished_requests_are_bounded(server: BarnabasZooKeeper, figure: Figure) -> None:
    """A hundred clients that each send a megabyte of a request without its end: who has waited longest is cut, and who
    sends whole requests is answered."""
    memory = Memory(server.pid)
    start = struct.pack(">i", MIB - 1) + bytes(MIB - 2)
    with begin_session(connect(server.address)) as other, ExitStack() as stack:
        memory.mark()
        for _ in range(100):
            stranger = stack.enter_context(begin_session(connect(server.address)))
            with suppress(ConnectionResetError, BrokenPipeError):
                stranger.sendall(start)
            assert ask(other, EXISTS, string("/") + b"\0") == 0
        assert eventually(lambda: ask(other, EXISTS, string("/") + b"\0") == 0)
        cut = server.log_text().count("connections hold too many bytes in all")
    figure(connections=100, cut=cut, growth_mib=round(memory.growth / MIB, 1))
    assert cut >= 30
    assert memory.growth <= 112 * MIB


@pytest.mark.parametrize("module", [f"tests.support.fewer_descriptors:{DESCRIPTORS}"], ids=[""])
def test_a46_descriptors(server: BarnabasZooKeeper, module: str, figure: Figure) -> None:
    """More idle connections than there are descriptors: those for files are left, and sessions go on."""
    with begin_session(connect(server.address)) as other, ExitStack() as stack:
        strangers = [stack.enter_context(connect(server.address)) for _ in range(DESCRIPTORS + 50)]
        for number in range(5):
            assert ask(other, CREATE, creation(f"/{number}", bytes(100_000))) == 0
        with begin_session(connect(server.address)) as another:
            assert ask(another, EXISTS, string("/0") + b"\0") == 0
        closed = sum(is_closed(stranger, 0.001) for stranger in strangers)
    figure(connections=len(strangers), closed=closed)
    assert closed >= 50 + descriptor_reserve(DESCRIPTORS)
