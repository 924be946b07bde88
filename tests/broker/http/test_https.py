"""The HTTP port with TLS, by keys that begin with listener.name.http."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.http.connections import CONNECTIONS_MAX
from barnabas.broker.server import Broker
from tests.broker.running import running
from tests.support.certificates import Authority
from tests.support.event_loops import RUNS
from tools.waiting import until

Run = Callable[[Coroutine[Any, Any, None]], None]


async def get(broker: Broker, context: ssl.SSLContext | None) -> bytes:
    assert broker._http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", broker._http.port, ssl=context)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.mark.parametrize("run", RUNS)
def test_pages_are_encrypted(run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    configs = {
        "barnabas_http_address": "127.0.0.1:0",
        "listener_name_http_ssl_keystore_location": str(authority.key_store("http")),
    }

    async def scenario() -> None:
        async with running(tmp_path / "data", **configs) as broker:
            assert (await get(broker, authority.client())).startswith(b"HTTP/1.1 200 OK\r\n")
            assert await get(broker, None) == b""  # no TLS, no answer
            assert broker._http is not None
            silent = [await asyncio.open_connection("127.0.0.1", broker._http.port) for _ in range(CONNECTIONS_MAX + 3)]
            await until(lambda: len(broker._http.connections) == CONNECTIONS_MAX)  # type: ignore[union-attr]
            assert (await get(broker, authority.client())).startswith(b"HTTP/1.1 200 OK\r\n")
            for _, writer in silent:
                writer.close()
            await until(lambda: len(broker._http.connections) == 0)  # type: ignore[union-attr]

    run(scenario())
