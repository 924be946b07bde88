"""A connection of an HTTP port takes one request after the other, and what is not plainly a request ends it."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from aiohttp import web

from barnabas.broker.http.connections import AHEAD_BYTES_MAX, HttpBounds
from barnabas.broker.http.framing import Framing, framing_of
from barnabas.broker.http.routes import Route
from barnabas.broker.http.server import HttpServer
from barnabas.network import OsNetwork

BODY_BYTES_MAX: Final = 200_000

GET: Final = b"GET /names/a HTTP/1.1\r\nHost: x\r\n\r\n"
LAST: Final = b"GET /names/z HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def name(request: web.Request, _body: bytes) -> web.StreamResponse:
    return web.Response(text=f"name {request.match_info['name']}\n")


async def size(_request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response(text=f"size {len(body)}\n")


async def broken(_request: web.Request, _body: bytes) -> web.StreamResponse:
    raise RuntimeError("a mistake")


PAGES: Final = (Route("GET", "/names/{name}", name), Route("GET", "/broken", broken))
WITH_BODIES: Final = (*PAGES, Route("POST", "/sizes", size, body_bytes_max=BODY_BYTES_MAX))

Talk = Callable[["Peer"], Awaitable[None]]


class Peer:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def response(self) -> tuple[int, bytes, str]:
        """Status, head and body of the next response."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        assert length is not None
        body = await self._reader.readexactly(int(length[1]))
        return int(head.split(b" ")[1]), head, body.decode()

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        return await self._reader.read()


def serve(routes: tuple[Route, ...], *talks: Talk, bounds: HttpBounds | None = None) -> None:
    """Each talk has a connection to a server of these routes, one after the other, until the end."""

    async def scenario() -> None:
        server = HttpServer(routes, "127.0.0.1:0", OsNetwork(), bounds or HttpBounds())
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            for talk in talks:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                stack.callback(writer.close)
                await talk(Peer(reader, writer))

    asyncio.run(scenario())


def test_a_connection_takes_one_request_after_the_other() -> None:
    async def talk(peer: Peer) -> None:
        for expected in ("a", "b", "c"):
            peer.send(GET.replace(b"/a", b"/" + expected.encode()))
            status, head, body = await peer.response()
            assert (status, body) == (200, f"name {expected}\n")
            assert b"Connection" not in head
        peer.send(b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.response())[0] == 404
        peer.send(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await peer.response())[::2] == (500, "an internal error\n")
        peer.send(LAST)
        status, head, _ = await peer.response()
        assert status == 200
        assert b"\r\nConnection: close\r\n" in head
        assert await peer.rest() == b""

    serve(PAGES, talk)


def test_requests_that_are_sent_ahead_are_answered_in_order() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(GET + b"\r\n" + GET.replace(b"/a", b"/b")[:20])
        assert (await peer.response())[2] == "name a\n"
        peer.send(GET.replace(b"/a", b"/b")[20:] + LAST + GET)
        assert (await peer.response())[2] == "name b\n"
        assert (await peer.response())[2] == "name z\n"
        assert await peer.rest() == b""

    serve(PAGES, talk)


def test_too_much_that_is_sent_ahead_ends_a_connection() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(GET * (AHEAD_BYTES_MAX // len(GET) + 3))
        status, head, body = await peer.response()
        assert (status, body) == (200, "name a\n")
        assert b"\r\nConnection: close\r\n" in head

    serve(PAGES, talk)


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_has_one_request(connection: bytes) -> None:
    async def talk(peer: Peer) -> None:
        peer.send(b"GET /names/a HTTP/1.0\r\n" + connection + b"\r\n")
        assert (await peer.rest()).endswith(b"name a\n")

    serve(PAGES, talk)


def test_bodies_end_where_their_length_says() -> None:
    async def talk(peer: Peer) -> None:
        for body in (b"abc", bytes(BODY_BYTES_MAX), b"", b"GET / HTTP/1.1\r\n\r\n"):
            peer.send(b"POST /sizes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert (await peer.response())[::2] == (200, f"size {len(body)}\n")
        head = b"POST /sizes HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
        peer.send(head + b"abc" + head + b"d")
        assert (await peer.response())[2] == "size 3\n"
        peer.send(b"ef" + LAST)
        assert (await peer.response())[2] == "size 3\n"
        assert (await peer.response())[2] == "name z\n"
        assert await peer.rest() == b""

    serve(WITH_BODIES, talk)


POST: Final = b"POST /sizes HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200),
        (POST + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (2 * BODY_BYTES_MAX) + bytes(2 * BODY_BYTES_MAX), 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n", 400),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 0\r\nContent-Length: 3\r\n\r\n", 400),
        (POST + b"Content-Length: +3\r\n\r\nabc", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length : 3\r\n\r\nabc", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"\x7fGET / HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_an_ambiguous_request_is_the_last_of_its_connection(request_bytes: bytes, status: int) -> None:
    """The bytes after it might be its body: they are not served."""

    async def talk(peer: Peer) -> None:
        peer.send(request_bytes + GET)
        answer = await peer.rest()
        [told] = re.findall(rb"HTTP/1\.[01] (\d+) ", answer)
        assert int(told) == status
        assert b"name a" not in answer

    serve(WITH_BODIES, talk)


def test_a_body_that_no_route_takes_ends_the_connection() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(POST + b"Content-Length: %d\r\n\r\n" % len(GET) + GET + GET)
        answer = await peer.rest()
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert answer.count(b"HTTP/1.1 ") == 1

    serve(PAGES, talk)


def test_an_idle_connection_is_closed() -> None:
    async def talk(peer: Peer) -> None:
        peer.send(GET)
        assert (await peer.response())[0] == 200
        assert await peer.rest() == b""

    serve(PAGES, talk, bounds=HttpBounds(exchange_timeout_s=0.3))


def test_the_connection_idle_for_longest_makes_room() -> None:
    peers: list[Peer] = []

    async def ask(peer: Peer) -> None:
        peers.append(peer)
        peer.send(GET)
        assert (await peer.response())[0] == 200

    async def ask_after_the_first(peer: Peer) -> None:
        await ask(peer)
        await ask(peers[0])

    async def ask_as_the_third(peer: Peer) -> None:
        await ask(peer)
        assert await peers[1].rest() == b""
        await ask(peers[0])

    serve(PAGES, ask, ask_after_the_first, ask_as_the_third, bounds=HttpBounds(connections_max=2))


@pytest.mark.parametrize(
    ("fields", "framing"),
    [
        (b"", Framing()),
        (b"content-LENGTH:  12 \r\n", Framing(12)),
        (b"Upgrade-Insecure-Requests: 1\r\n", Framing()),
        (b"Upgrade: websocket\r\n", Framing(None, is_last=True)),
        (b"Transfer-Encoding: chunked\r\n", Framing(None, is_chunked=True, is_last=True)),
        (b"X: y\r\n Content-Length: 3\r\n", Framing(None, is_last=True)),
        (b"X: y\nContent-Length: 3\r\n", Framing(None, is_last=True)),
        (b"Content-Length: 3, 3\r\n", Framing(None, is_last=True)),
        (b"X-Content-Length: 3\r\n", Framing(None, is_last=True)),
        (b"Content-Length: 9999999999999999999\r\n", Framing(None, is_last=True)),
    ],
)
def test_the_framing_of_a_request(fields: bytes, framing: Framing) -> None:
    assert framing_of(b"GET / HTTP/1.1\r\n" + fields + b"\r\n") == framing
