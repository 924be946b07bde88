"""The framing of a body in chunks, and its part that is passed on to the reader."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.http.chunks import FRAMING_BYTES_MAX, ChunkFraming
from barnabas.broker.http.connections import HttpBounds, HttpConnections

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def is_too_much(body: bytes, piece_bytes: int) -> bool:
    framing = ChunkFraming()
    for start in range(0, len(body), piece_bytes):
        framing.add(body[start : start + piece_bytes])
    return framing.is_too_much


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_lengths_line_ends_and_trailers_count(piece_bytes: int) -> None:
    """Lengths, line ends and what comes after the last chunk do, the body does not, line ends in it included."""
    chunk = b"a;name=value\r\n\r\n\r\n\r\n0\r\n\r\n\r\n"
    count = FRAMING_BYTES_MAX // (len(chunk) - 10)
    assert not is_too_much(chunk * count, piece_bytes)
    assert is_too_much(chunk * (count + 1), piece_bytes)
    large = b"%x\r\n%s\r\n" % (100_000, b"\n" * 100_000)
    rest = FRAMING_BYTES_MAX - (len(large) - 100_000) - len(b"0\r\n")
    assert not is_too_much(large + b"0\r\n" + b"t" * rest, piece_bytes)
    assert is_too_much(large + b"0\r\n" + b"t" * (rest + 1), piece_bytes)


@pytest.mark.parametrize("start", [b"", b"x\r\n", b"-1\r\n", b"0\r\n", b"5", b"5\r\n12345"])
def test_bytes_that_are_no_chunk_count(start: bytes) -> None:
    assert is_too_much(start + b"f" * (FRAMING_BYTES_MAX + 1), 1_000)


class Reader(asyncio.Protocol):
    """In place of aiohttp: what it is handed."""

    def __init__(self) -> None:
        self.received = bytearray()

    def data_received(self, data: bytes) -> None:
        self.received += data


@pytest.mark.parametrize("piece_bytes", [1_000, 256 * 1024])
def test_chunks_that_are_too_many_are_not_handed_on(piece_bytes: int) -> None:
    """A hundred thousand of one byte, in pieces as they come from a socket."""
    reader = Reader()

    async def scenario() -> bytes:
        connections = HttpConnections(lambda: reader, HttpBounds(takes_bodies=True, may_wait=True))
        server = await asyncio.get_running_loop().create_server(connections.new, "127.0.0.1", 0)
        async with server:
            from_server, to_server = await asyncio.open_connection(*server.sockets[0].getsockname())
            to_server.write(HEAD)
            body = b"1\r\nx\r\n" * 100_000
            for start in range(0, len(body), piece_bytes):
                to_server.write(body[start : start + piece_bytes])
            answer = await from_server.read()
            to_server.close()
            await to_server.wait_closed()
        return answer

    assert asyncio.run(scenario()).startswith(b"HTTP/1.1 413 ")
    assert reader.received.count(b"x\r\n") <= FRAMING_BYTES_MAX // 5 + 1
