"""kazoo's handler with encrypted connections: what has been decrypted, and what cannot be."""

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from barnabas.clock import ManualClock
from barnabas.controller.coordination.loop_handler import LoopHandler
from barnabas.controller.coordination.session_security import SessionSecurity


class Encrypted:
    """One end of a pair, of which `decrypted` bytes have been read from the operating system already."""

    def __init__(self, connection: socket.socket, decrypted: int) -> None:
        self._connection = connection
        self._decrypted = decrypted

    def fileno(self) -> int:
        return self._connection.fileno()

    def pending(self) -> int:
        return self._decrypted


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def handler_of(security: SessionSecurity) -> LoopHandler:
    return LoopHandler(asyncio.get_running_loop(), 8_000, 1, ManualClock(), security)


async def test_decrypted_bytes_can_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """Two messages in one record of TLS: the second one comes without another byte from the network."""
    handler = handler_of(SessionSecurity(encrypt=lambda connection, _host: connection))
    ready, silent, plain = Encrypted(pair[0], 7), Encrypted(pair[1], 0), pair[1]
    assert handler.select([ready, silent, plain], [], [], 0) == ([ready], [], [])
    pair[0].send(b"x")
    readable, _, _ = handler.select([ready, plain], [], [], 0)
    assert set(readable) == {ready, plain}
    pair[1].send(b"x")
    assert handler.select([ready], [], [], 0)[0] == [ready], "once"


async def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo tries again and again, and hides the reason."""
    reasons = iter(["no trust", "no trust", "no version in common"])

    def encrypt(connection: socket.socket, host: str) -> socket.socket:
        raise OSError(next(reasons))

    handler = handler_of(SessionSecurity(encrypt=encrypt))
    with socket.create_server(("127.0.0.1", 0)) as server, caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(OSError, match=r"^no "):
                handler.create_connection(server.getsockname(), hostname="zk1")
    prefix = "the connection to ZooKeeper at zk1 cannot be encrypted: "
    assert [record.message for record in caplog.records] == [f"{prefix}no trust", f"{prefix}no version in common"]
    assert handler.last_failure == "no version in common"
