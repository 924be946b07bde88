"""Strangers at the ports with TLS of `barnabas zookeeper`, `serve --control` and `--http`: handshakes are limited in
number and time, and a client that speaks TLS is served all the same."""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from barnabas.broker.cli.zookeeper_config import ZooKeeperConfig
from barnabas.broker.cli.zookeeper_process import HANDSHAKES_MAX as OF_ZOOKEEPER
from barnabas.broker.cli.zookeeper_process import MEMORY, port_tls
from barnabas.broker.http.connections import CONNECTIONS_MAX as OF_PAGES
from barnabas.broker.http.routes import Route
from barnabas.broker.http.server import HttpServer
from barnabas.broker.network.port_tls import PortTls
from barnabas.broker.network.tls_handshakes import HANDSHAKE_TIMEOUT_MS
from barnabas.broker.security.tls.contexts import TlsSettings
from barnabas.broker.security.tls.key_stores import StoreSettings
from barnabas.clock import ManualClock
from barnabas.controller.coordination.stored_tree import StoredTree
from barnabas.controller.coordination.zookeeper_server.server import ZooKeeperServer
from barnabas.network import OsNetwork
from barnabas.testing.control.served import ServedBrokers
from barnabas.testing.control.server import HANDSHAKES_MAX as OF_CONTROL
from barnabas.testing.control.server import ControlServer
from barnabas.threads import OneThread
from tests.support.certificates import Authority
from tests.support.manual_timers import ManualTimers
from tools.waiting import until

pytestmark = pytest.mark.listener("zookeeper", "control")
PORTS = pytest.mark.parametrize(("kind", "handshakes_max"), [("zookeeper", OF_ZOOKEEPER), ("control", OF_CONTROL)])


def settings_of(authority: Authority) -> TlsSettings:
    """Those of a port whose clients show no certificate."""

    def store(kind: str, location: Path) -> StoreSettings:
        return StoreSettings(kind, "", "PEM", str(location), None)

    return TlsSettings.read(lambda _key: None, "", "none").with_stores(
        store("keystore", authority.key_store("port")), store("truststore", authority.trust_store)
    )


@asynccontextmanager
async def serving(kind: str, authority: Authority, timers: ManualTimers) -> AsyncIterator[tuple[PortTls, int]]:
    """A port, and its TLS, by timers of the test."""
    settings = settings_of(authority)
    if kind == "control":
        tls = PortTls("the control port", settings, timers, OneThread(), OF_CONTROL)
        control = ControlServer(ServedBrokers(), "127.0.0.1:0", None, tls)
        await control.start()
        try:
            yield tls, int(control.url.rpartition(":")[2])
        finally:
            await control.stop()
        return
    clock = ManualClock(now_ms=1_700_000_000_000)
    stored = StoredTree(MEMORY, clock, is_durable=False)
    network = OsNetwork()
    server = ZooKeeperServer(stored, network, clock, timers, secrets.token_bytes, lambda _reason: None, version="test")
    server.open()
    try:
        tls = port_tls(ZooKeeperConfig(tls=settings), timers, OneThread())
        yield tls, await server.listen("127.0.0.1", 0, tls.before)
    finally:
        server.close()


async def is_cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the other side has closed the connection."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def answer_of(kind: str, port: int, context: ssl.SSLContext) -> bytes:
    """What a client of the port gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"ruok" if kind == "zookeeper" else b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read(4)
    writer.close()
    return answer


@PORTS
def test_handshakes_wait_for_their_turn(kind: str, handshakes_max: int, tmp_path: Path) -> None:
    """Clients that say nothing hold all places; the next one is served when one of them has gone."""
    authority, timers = Authority(tmp_path), ManualTimers()

    async def scenario() -> None:
        async with serving(kind, authority, timers) as (tls, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(handshakes_max)]
            await until(lambda: tls.handshakes.running_count == handshakes_max)
            answer = asyncio.create_task(answer_of(kind, port, authority.client()))
            await until(lambda: len(tls.handshakes._waiting) == 1)
            assert not answer.done()
            silent[0][1].close()
            assert await answer in (b"imok", b"HTTP")
            for _, writer in silent:
                writer.close()

    asyncio.run(scenario())


@PORTS
def test_handshakes_have_a_deadline(kind: str, handshakes_max: int, tmp_path: Path) -> None:
    """Also those that wait for their turn."""
    authority, timers = Authority(tmp_path), ManualTimers()

    async def scenario() -> None:
        async with serving(kind, authority, timers) as (tls, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(handshakes_max + 1)]
            await until(lambda: len(tls.handshakes._waiting) == 1)
            await until(lambda: sum(each.delay_ms == HANDSHAKE_TIMEOUT_MS for each in timers.waiting) == len(silent))
            timers.fire(HANDSHAKE_TIMEOUT_MS)
            for each in silent:
                assert await is_cut(*each)
            assert tls.handshakes.failed_count == len(silent)
            assert await answer_of(kind, port, authority.client()) in (b"imok", b"HTTP")

    asyncio.run(scenario())


@pytest.mark.listener("http")
def test_handshakes_with_pages_have_a_deadline(tmp_path: Path) -> None:
    """There are as many handshakes as connections, of which the oldest makes room for another one."""
    authority, timers = Authority(tmp_path), ManualTimers()

    async def ready(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(text="ready")

    async def scenario() -> None:
        tls = PortTls("pages", settings_of(authority), timers, OneThread(), OF_PAGES)
        routes = [Route("GET", "/openapi.json", ready)]
        server = HttpServer(routes, "127.0.0.1:0", OsNetwork(), tls=tls, timers=timers)
        await server.start()
        try:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(OF_PAGES + 1)]
            assert await is_cut(*silent.pop(0))
            await until(lambda: sum(each.delay_ms == HANDSHAKE_TIMEOUT_MS for each in timers.waiting) >= len(silent))
            timers.fire(HANDSHAKE_TIMEOUT_MS)
            for each in silent:
                assert await is_cut(*each)
            assert await answer_of("http", server.port, authority.client()) == b"HTTP"
        finally:
            await server.stop()

    asyncio.run(scenario())
