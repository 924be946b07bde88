"""Reading and refreshing of the issuer's keys."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from barnabas.broker.security.sasl import jwks, urls
from barnabas.broker.security.sasl.jwks import Jwks
from barnabas.broker.security.sasl.oauthbearer import InvalidToken
from barnabas.broker.security.sasl.urls import CONTENT_BYTES_MAX
from barnabas.clock import Clock, ManualClock
from barnabas.threads import OsThreads

KEY: Final = ECKey.generate_key("P-256", {"kid": "one"}).as_dict(private=False)

pytestmark = pytest.mark.anyio


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


class Issuer:
    """Answers with `content`, or fails if that is None, and counts."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.reads = 0

    def read(self, url: str, clock: Clock) -> bytes:
        self.reads += 1
        if self.content is None:
            raise OSError("nobody answers")
        return self.content


def source(issuer: Issuer, clock: ManualClock) -> Jwks:
    return Jwks("https://issuer/jwks", 60_000, 100, 1_000, OsThreads(), clock, issuer.read)


async def test_refresh_when_old() -> None:
    """The known keys serve while older ones than `refresh_ms` are read again."""
    issuer, clock = Issuer(key_set(KEY)), ManualClock(0)
    ours = source(issuer, clock)
    assert set(await ours.keys()) == set(await ours.keys()) == {"one"}
    assert issuer.reads == 1
    clock.advance(60_000)
    issuer.content = key_set({**KEY, "kid": "two"})
    assert set(await ours.keys()) == {"one"}
    assert ours._reading is not None
    await ours._reading
    assert set(await ours.keys()) == {"two"}
    assert issuer.reads == 2


async def test_refresh_at_unknown_keys() -> None:
    """At most once in `retry_backoff_ms`, and what is known stays where the issuer fails."""
    issuer, clock = Issuer(key_set(KEY)), ManualClock(0)
    ours = source(issuer, clock)
    await ours.keys()
    await ours.newer_keys()
    assert issuer.reads == 1
    clock.advance(100)
    issuer.content = None
    assert set(await ours.newer_keys()) == {"one"}
    assert issuer.reads == 2


async def test_issuer_out_of_reach() -> None:
    """Without keys no token is valid; the next attempt comes later."""
    issuer, clock = Issuer(None), ManualClock(0)
    ours = source(issuer, clock)
    for _ in range(3):
        with pytest.raises(InvalidToken, match="unknown"):
            await ours.keys()
    assert issuer.reads == 1
    clock.advance(100)
    issuer.content = key_set(KEY)
    assert set(await ours.keys()) == {"one"}


async def test_pauses_between_attempts() -> None:
    """Twice as long after each failure, at most `retry_backoff_max_ms`, and the first one again after a success."""
    issuer, clock = Issuer(None), ManualClock(0)
    ours = source(issuer, clock)

    async def attempts_after(*pauses_ms: int) -> list[int]:
        counts = []
        for pause_ms in pauses_ms:
            clock.advance(pause_ms)
            with contextlib.suppress(InvalidToken):
                await ours.newer_keys()
            counts.append(issuer.reads)
        return counts

    assert await attempts_after(0, 99, 1, 199, 1, 399, 1, 799, 1, 999, 1, 999, 1) == [
        1,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
        6,
        6,
        7,
    ]
    issuer.content = key_set(KEY)
    assert await attempts_after(1_000, 99, 1) == [8, 8, 9]


def test_parse() -> None:
    """Keys for signatures only: no secrets, none for encryption, none that is broken."""
    rsa = RSAKey.generate_key(2048).as_dict(private=False)
    secret = OctKey.generate_key(256).as_dict(private=True)
    found = jwks.parse(key_set(KEY, rsa, secret, {**KEY, "use": "enc"}, {"kty": "EC"}, 5))
    assert set(found) == {"one", "#1"}
    for broken in (b"", b"[]", b"{}", b'{"keys": 5}', key_set(secret), b"[" * 100_000, b"\xff"):
        with pytest.raises(ValueError, match="it "):
            jwks.parse(broken)


def test_file(tmp_path: Path) -> None:
    """A file:// URL, whose content has a limit."""
    path = tmp_path / "key set.json"
    path.write_bytes(key_set(KEY))
    assert urls.read_url(path.as_uri(), ManualClock()) == key_set(KEY)
    path.write_bytes(bytes(CONTENT_BYTES_MAX + 1))
    with pytest.raises(OSError, match="more than"):
        urls.read_url(path.as_uri(), ManualClock())


@pytest.mark.parametrize("url", ["", "ftp://issuer/", "https:///jwks", "issuer/jwks", "http://issuer:0/"])
def test_other_urls(url: str) -> None:
    """Only http, https and file."""
    with pytest.raises(ValueError, match="it is not a URL"):
        urls.check_url(url)


@contextmanager
def serving(status: int, content: bytes, **headers: str) -> Iterator[str]:
    """A web server that answers each request the same."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jwks"
        finally:
            server.shutdown()
            thread.join()


def test_web_server() -> None:
    """The content of a page; no redirections, which could lead to files of the broker or other hosts."""
    with serving(200, key_set(KEY)) as url:
        assert urls.read_url(url, ManualClock()) == key_set(KEY)
    with serving(302, b"", Location="file:///etc/passwd") as url, pytest.raises(OSError, match="302"):
        urls.read_url(url, ManualClock())
    with serving(404, b"none") as url, pytest.raises(OSError, match="404"):
        urls.read_url(url, ManualClock())


def test_a_server_of_something_else() -> None:
    """An answer that is not HTTP is an error like no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="not one of HTTP"):
            urls.read_url(f"http://127.0.0.1:{server.getsockname()[1]}/", ManualClock())
        thread.join()


def test_headers_that_take_long() -> None:
    """The time for an answer includes its headers."""
    clock = ManualClock()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                clock.advance(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="not complete within 10 s"):
            urls.read_url(f"http://127.0.0.1:{server.getsockname()[1]}/", clock)
        thread.join()
