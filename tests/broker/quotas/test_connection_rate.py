"""Addresses that connect too often: the connection is not served, and closed later (KIP-612)."""

import asyncio
from pathlib import Path

import pytest

from barnabas.broker.server import Broker
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from tests.broker.quotas.clients import configure
from tests.broker.running import running
from tools.attack.hostile import frame
from tools.waiting import until

pytestmark = pytest.mark.anyio

SERVED = 10
"""The connections that a rate of one a second allows at once: the samples of the window that are complete."""


async def ask(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, on which a request has been sent."""
    host, _, port = broker.socket_server.bootstrap_servers.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame(ApiVersionsRequest(), 0))
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes before the end. The request that the broker did not read may make that a reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_an_address_beyond_its_rate_is_not_served(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await configure(broker, "ips", "127.0.0.1", connection_creation_rate="1")
        served = [await ask(broker) for _ in range(SERVED)]
        for reader, _ in served:
            assert await reader.readexactly(4)
        reader, writer = await ask(broker)
        await until(lambda: len(broker.connections) == SERVED + 1)
        broker.clock.advance(999)
        await broker.settle()
        assert not reader.at_eof()
        broker.clock.advance(1)
        await broker.settle()
        assert await rest_of(reader) == b""
        assert broker.quotas is not None
        assert broker.quotas.connections.throttles.total_ms == 1_000
        broker.clock.advance(11_000)
        await broker.settle()
        again, again_writer = await ask(broker)
        assert await again.readexactly(4)
        for each in (*(writer for _, writer in served), writer, again_writer):
            each.close()


async def test_a_connection_that_waits_for_its_end_may_go_before(tmp_path: Path) -> None:
    """A broker that stops closes those that it does not serve, too."""
    async with running(tmp_path) as broker:
        await configure(broker, "ips", "<default>", connection_creation_rate="0.01")
        reader, writer = await ask(broker)
        await until(lambda: len(broker.connections) == 1)
    assert await rest_of(reader) == b""
    writer.close()
