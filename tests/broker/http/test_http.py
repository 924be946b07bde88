"""The HTTP side of a running broker."""

import contextlib
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.broker.http import connections as http_connections
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.testing import Broker


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: Any = probe.getsockname()[1]
        return int(port)


def test_pages(free_port: int) -> None:
    base = f"http://127.0.0.1:{free_port}"
    with Broker(barnabas_http_address=f"127.0.0.1:{free_port}"):
        assert get(f"{base}/healthz") == (200, "ok\n")
        assert get(f"{base}/readyz") == (200, "ready\n")
        status, page = get(f"{base}/metrics")
        assert status == 200
        assert "barnabas_ready 1.0" in page.splitlines()
        assert get(f"{base}/elsewhere")[0] == 404
    with pytest.raises(urllib.error.URLError):
        get(f"{base}/healthz")


def connect(broker: Broker) -> socket.socket:
    http = broker.server._http  # type: ignore[union-attr]
    assert http is not None
    return socket.create_connection(("127.0.0.1", http.port), timeout=20)


def ask(broker: Broker, request: bytes) -> bytes:
    """All that comes back until the broker closes the connection."""
    with connect(broker) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def serving() -> Iterator[Broker]:
    with Broker(barnabas_http_address="127.0.0.1:0") as broker:
        yield broker


def test_requests_that_are_none(serving: Broker, caplog: pytest.LogCaptureFixture) -> None:
    for request, status in [
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n", 405),
        (b"GET\r\n\r\n", 400),
        (b"GET / SPDY/1\r\n\r\n", 400),
        (b"\x00\x00\x00\x0a\x00\x12\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\nHost: x\n\n" * 1_000, 431),
        (b"x" * 100_000, 431),
    ]:
        assert ask(serving, request).split(b" ")[1] == b"%d" % status, request[:80]
    head = ask(serving, b"HEAD /healthz?x=1 HTTP/1.0\r\nHost: x\r\n\r\n")
    assert head.split(b" ")[1] == b"200"
    assert b"Content-Length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]


def test_the_newest_format_that_is_accepted(serving: Broker) -> None:
    page = ask(serving, b"GET /metrics HTTP/1.1\r\nHost: x\r\naccept: application/openmetrics-text\r\n\r\n")
    assert b"Content-Type: application/openmetrics-text;" in page
    assert page.endswith(b"# EOF\n")


def test_who_says_nothing_makes_room_for_others(serving: Broker) -> None:
    """One place is never lost to strangers, and the broker does not hold more connections than it says."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(serving)) for _ in range(http_connections.CONNECTIONS_MAX + 10)]
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(3):
            assert ask(serving, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"ok\n")
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"Host: x\r\n\r\n")
        assert silent[-1].recv(15) == b"HTTP/1.1 200 OK"


def test_the_descriptors_that_are_left_are_for_files(monkeypatch: pytest.MonkeyPatch, serving: Broker) -> None:
    monkeypatch.setattr(http_connections, "is_reserved_descriptor", lambda _: True)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        assert ask(serving, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""


@pytest.mark.parametrize("start", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["nothing", "half a request"])
def test_who_does_not_ask_is_cut(monkeypatch: pytest.MonkeyPatch, serving: Broker, start: bytes) -> None:
    monkeypatch.setattr(http_connections, "EXCHANGE_TIMEOUT_S", 0.3)
    assert ask(serving, start) == b""


def test_pages_that_nobody_reads(monkeypatch: pytest.MonkeyPatch, serving: Broker) -> None:
    """Of a large page few are held, and one who reads gets it while others do not."""
    page = bytes(8_000_000)
    monkeypatch.setattr(MetricsPage, "render", lambda *_: (page, "text/plain"))
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(serving)) for _ in range(http_connections.PAGES_MAX * 3)]
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        server = serving.server._http  # type: ignore[union-attr]
        assert server is not None
        assert len(server.connections) <= http_connections.PAGES_MAX
        assert len(ask(serving, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")) > len(page)


def test_a_page_that_nobody_reads_has_a_deadline(monkeypatch: pytest.MonkeyPatch, serving: Broker) -> None:
    monkeypatch.setattr(http_connections, "EXCHANGE_TIMEOUT_S", 0.3)
    page = bytes(8_000_000)
    monkeypatch.setattr(MetricsPage, "render", lambda *_: (page, "text/plain"))
    with connect(serving) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        server = serving.server._http  # type: ignore[union-attr]
        assert server is not None
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: not server.connections)
        with contextlib.suppress(ConnectionResetError):
            assert sum(map(len, iter(lambda: slow.recv(1_000_000), b""))) < len(page)


def test_pages_leave_three_quarters_of_the_time_to_others(monkeypatch: pytest.MonkeyPatch, serving: Broker) -> None:
    began_s, ended_s = [], []

    def render(*_: object) -> tuple[bytes, str]:
        began_s.append(time.monotonic())
        time.sleep(0.1)
        ended_s.append(time.monotonic())
        return b"", "text/plain"

    monkeypatch.setattr(MetricsPage, "render", render)
    for _ in range(2):
        ask(serving, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert began_s[1] - ended_s[0] >= 3 * 0.1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_address_in_use_is_said_plainly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="cannot serve HTTP on"):
            Broker(barnabas_http_address=f"127.0.0.1:{taken.getsockname()[1]}").start()
