"""Strangers at `barnabas zookeeper`: its memory has an end, and a client that is there goes on."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tools.attack.hostile import MIB, Memory, connect, connect_slow_reader, receive
from tools.processes.barnabas import BarnabasZooKeeper

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.store]
Figure = Callable[..., None]

CREATE, EXISTS, CHILDREN, MULTI, SET_WATCHES = 1, 3, 8, 14, 101


@pytest.fixture
def server() -> Iterator[BarnabasZooKeeper]:
    with BarnabasZooKeeper() as process:
        yield process
        assert "Traceback" not in process.log_text()
        process.stop()


def string(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(op_code: int, body: bytes) -> bytes:
    return framed(struct.pack(">ii", 1, op_code) + body)


def creation(path: str) -> bytes:
    acl = struct.pack(">ii", 1, 31) + string("world") + string("anyone")
    return string(path) + struct.pack(">i", 0) + acl + struct.pack(">i", 0)


def begin_session(connection: socket.socket) -> socket.socket:
    connection.sendall(framed(struct.pack(">iqiqi", 0, 0, 40_000, 0, 16) + bytes(16) + b"\0"))
    assert receive(connection) is not None
    return connection


def ask(connection: socket.socket, op_code: int, body: bytes) -> int:
    """The error code of the answer."""
    connection.sendall(request(op_code, body))
    answer = receive(connection)
    assert answer is not None
    code: int = struct.unpack_from(">iqi", answer)[2]
    return code


def make_children(connection: socket.socket, count: int) -> None:
    """Children of /many, with names of 30 characters."""
    assert ask(connection, CREATE, creation("/many")) == 0
    for start in range(0, count, 2_000):
        creations = (
            struct.pack(">ibi", CREATE, 0, -1) + creation(f"/many/{number:030}")
            for number in range(start, start + 2_000)
        )
        assert ask(connection, MULTI, b"".join(creations) + struct.pack(">ibi", -1, 1, -1)) == 0


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
