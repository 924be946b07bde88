"""The HTTP side of a running broker."""

import contextlib
import os
import re
import resource
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.broker.http.connections import CONNECTIONS_MAX, EXCHANGE_TIMEOUT_S, PAGES_MAX, HttpBounds
from barnabas.broker.http.figures import Snapshot
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.broker.http.pages import Pages
from barnabas.broker.http.server import HttpServer
from barnabas.network import OsNetwork
from barnabas.storage.os_files import is_reserved_descriptor
from barnabas.testing import Broker
from barnabas.threads import OsThreads
from tools.waiting import PATIENCE_S, wait_until

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
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
        status, index = get(base)
        assert status == 200
        assert re.findall(r'<a href="(.*?)">', index) == ["/metrics", "/healthz", "/readyz"]
        assert "clients are accepted" in index
        assert get(f"{base}/elsewhere")[0] == 404
    with pytest.raises(urllib.error.URLError):
        get(f"{base}/healthz")


class Serving:
    """A broker, and an HTTP server of its pages, of which /metrics is the one that the test says."""

    def __init__(
        self, broker: Broker, *, metrics_page: MetricsPage | None = None, exchange_timeout_s: float = EXCHANGE_TIMEOUT_S
    ) -> None:
        self.broker = broker
        assert broker.server is not None
        pages = Pages(broker.server.metric_sources(), OsThreads(), metrics_page)
        self.server = HttpServer(
            pages.routes(),
            "127.0.0.1:0",
            OsNetwork(),
            HttpBounds(exchange_timeout_s=exchange_timeout_s),
            is_reserved_descriptor=is_reserved_descriptor,
        )

    def __enter__(self) -> "Serving":
        self.broker.call(self.server.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.call(self.server.stop())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE_S)

    def ask(self, request: bytes) -> bytes:
        """All that comes back until the broker closes the connection."""
        with self.connect() as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def serving(broker: Broker) -> Iterator[Serving]:
    with Serving(broker) as serving:
        yield serving


class Page(MetricsPage):
    """Another page of /metrics, which is made in so many seconds, or when a test says so."""

    def __init__(self, content: bytes, work_s: float = 0) -> None:
        super().__init__()
        self.content = content
        self.work_s = work_s
        self.may_be_made = threading.Event()
        self.may_be_made.set()
        self.made: list[tuple[float, float]] = []

    def render(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        began_s = time.monotonic()
        self.may_be_made.wait()
        time.sleep(self.work_s)  # Real time: the work of a large page, which its server counts
        self.made.append((began_s, time.monotonic()))
        return self.content, "text/plain"


def test_requests_that_are_none(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
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
        assert serving.ask(request).split(b" ")[1] == b"%d" % status, request[:80]
    head = serving.ask(b"HEAD /healthz?x=1 HTTP/1.0\r\nHost: x\r\n\r\n")
    assert head.split(b" ")[1] == b"200"
    assert b"Content-Length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("start", "spoken"), [(bytes.fromhex("0000002400120003"), "Kafka's protocol"), (b"\x16\x03\x01\x02\x00", "TLS")]
)
def test_a_client_of_another_port_is_told_at_once(
    serving: Serving, start: bytes, spoken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not after the 30 s that a request may take: what it sends first is no beginning of one."""
    caplog.set_level("INFO")
    assert serving.ask(start).split(b" ")[1] == b"400"
    (line,) = [message for message in caplog.messages if "the peer speaks" in message]
    assert re.search(
        rf"^closing HTTP connections from 127\.0\.0\.1: the peer speaks {spoken}.*; this port is for HTTP$", line
    )


def test_the_newest_format_that_is_accepted(serving: Serving) -> None:
    page = serving.ask(METRICS.replace(b"Host: x", b"Host: x\r\naccept: application/openmetrics-text"))
    assert b"Content-Type: application/openmetrics-text;" in page
    assert page.endswith(b"# EOF\n")


def test_silent_connections_make_room_for_others(serving: Serving) -> None:
    """One place is never lost to strangers, and the broker does not hold more connections than it says."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(serving.connect()) for _ in range(CONNECTIONS_MAX + 10)]
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\n")
        for _ in range(3):
            assert serving.ask(HEALTHZ).endswith(b"ok\n")
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"Host: x\r\n\r\n")
        assert silent[-1].recv(15) == b"HTTP/1.1 200 OK"


@contextlib.contextmanager
def few_descriptors_left() -> Iterator[None]:
    """The next descriptors are of the last quarter, which is kept for files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        taken = -1
        while taken < 100:
            taken = stack.enter_context(open(os.devnull)).fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 10, limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        yield


def test_the_descriptors_that_are_left_are_for_files(serving: Serving) -> None:
    with few_descriptors_left(), contextlib.suppress(ConnectionResetError, BrokenPipeError):
        assert serving.ask(HEALTHZ) == b""
    assert serving.ask(HEALTHZ).endswith(b"ok\n")


@pytest.mark.parametrize("start", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["nothing", "half a request"])
def test_a_connection_without_a_request_is_cut(broker: Broker, start: bytes) -> None:
    with Serving(broker, exchange_timeout_s=0.3) as serving:
        assert serving.ask(start) == b""


def test_unread_pages_are_bounded(broker: Broker) -> None:
    """Of a large page few are held, and one who reads gets it while others do not."""
    page = Page(bytes(8_000_000))
    with Serving(broker, metrics_page=page) as serving, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(serving.connect()) for _ in range(PAGES_MAX * 3)]
        for connection in slow:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert len(serving.server.connections) <= PAGES_MAX
        assert len(serving.ask(METRICS)) > len(page.content)


@pytest.mark.slow
def test_an_unread_page_has_a_deadline(broker: Broker) -> None:
    page = Page(bytes(8_000_000))
    with Serving(broker, metrics_page=page, exchange_timeout_s=2.0) as serving, serving.connect() as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: not serving.server.connections)
        with contextlib.suppress(ConnectionResetError):
            assert sum(map(len, iter(lambda: slow.recv(1_000_000), b""))) < len(page.content)


@pytest.mark.full
@pytest.mark.alone
def test_pages_leave_three_quarters_of_the_time_to_others(broker: Broker) -> None:
    page = Page(b"", work_s=0.1)
    with Serving(broker, metrics_page=page) as serving:
        for _ in range(2):
            serving.ask(METRICS)
    (_, first_ended_s), (second_began_s, _) = page.made
    assert second_began_s - first_ended_s >= 3 * 0.1


def test_no_page_is_made_for_a_closed_connection(broker: Broker) -> None:
    """They would wait for their pages, and be kept, for as long as these take one after the other."""
    page = Page(b"")
    page.may_be_made.clear()
    with Serving(broker, metrics_page=page) as serving:
        for _ in range(50):
            with serving.connect() as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: not serving.server.connections)
        page.may_be_made.set()
        assert serving.ask(METRICS).startswith(b"HTTP/1.1 200 OK")
    assert 1 <= len(page.made) <= 2, "one was asked for when the first of those who went was still there"


def test_an_address_in_use_is_said_plainly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="cannot serve HTTP on"):
            Broker(barnabas_http_address=f"127.0.0.1:{taken.getsockname()[1]}").start()
