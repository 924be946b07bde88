"""The HTTP side of a running broker."""

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

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


def test_an_address_in_use_is_said_plainly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="cannot serve HTTP on"):
            Broker(barnabas_http_address=f"127.0.0.1:{taken.getsockname()[1]}").start()
