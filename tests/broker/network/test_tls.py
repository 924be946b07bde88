"""Listeners with TLS: who is admitted, how handshakes end, whose principal a client has, and what is on the wire."""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.network.tls_handshakes import HANDSHAKE_TIMEOUT_MS
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.wire import codec, headers
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.records import Record, build_batch
from tests.broker.running import running
from tests.support.certificates import Authority
from tests.support.event_loops import RUNS
from tools.attack.hostile import frame, produce
from tools.waiting import until

MIB = 1 << 20
FETCH_VERSION = 12

Run = Callable[[Coroutine[Any, Any, None]], None]
BOTH_LOOPS = pytest.mark.parametrize("run", RUNS)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(authority: Authority, **configs: str) -> Any:
    """A broker with the one listener SSL."""
    stores = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl_keystore_location": str(authority.key_store("broker")),
        "ssl_truststore_location": str(authority.trust_store),
    }
    async with running(authority.directory / "data", **stores, **configs) as broker:
        yield broker


class Client:
    """A connection to the first listener of a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, broker: Broker, context: ssl.SSLContext | None) -> "Client":
        host, _, port = broker.socket_server.bootstrap_servers.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=context, limit=64 * MIB))

    async def ask(self, request: Any, version: int) -> bytes:
        self.writer.write(frame(request, version))
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def is_cut(self) -> bool:
        """Whether the broker closes the connection, whatever it sends before."""
        with suppress(OSError):
            await self.reader.read()
        await self.close()
        return True


def handshakes(broker: Broker) -> Any:
    return broker._foundation.tls.handshakes  # type: ignore[union-attr]


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("client_auth", "shows", "principal"),
    [
        ("none", True, "User:ANONYMOUS"),
        ("requested", False, "User:ANONYMOUS"),
        ("requested", True, "User:CN=alice,OU=Tests,O=Example"),
        ("required", True, "User:CN=alice,OU=Tests,O=Example"),
    ],
)
def test_the_principal_of_a_client(
    run: Run, authority: Authority, client_auth: str, *, shows: bool, principal: str
) -> None:
    async def scenario() -> None:
        async with serving(authority, ssl_client_auth=client_auth) as broker:
            leaf = authority.issue("alice", common_name="alice") if shows else None
            client = await Client.connect(broker, authority.client(leaf))
            await client.ask(ApiVersionsRequest(), 0)
            assert [each.session.principal for each in broker.connections] == [principal]
            await client.close()

    run(scenario())


@BOTH_LOOPS
def test_failures_are_logged_once_and_counted(
    run: Run, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("alice")

    async def scenario() -> None:
        async with serving(authority, ssl_client_auth="required") as broker:
            for context, times in ((authority.client(), 2), (authority.client(stranger), 1), (None, 2)):
                for _ in range(times):
                    try:
                        client = await Client.connect(broker, context)
                        client.writer.write(frame(ApiVersionsRequest(), 0))
                    except OSError:
                        continue
                    assert await client.is_cut()
            await until(lambda: handshakes(broker).failed_count == 5)
            await until(lambda: len(broker.connections) == 0)
            assert handshakes(broker).running_count == 0

    with caplog.at_level(logging.WARNING):
        run(scenario())
    told = [record.getMessage() for record in caplog.records]
    beginning = "TLS handshakes from 127.0.0.1 on listener SSL fail: "
    assert told[0] == f"{beginning}the client shows no certificate (ssl.client.auth)"
    assert told[1].startswith(f"{beginning}the certificate of the other side is not accepted: ")
    assert told[2:] == [f"{beginning}the other side does not speak TLS"]
    assert not any(record.exc_info for record in caplog.records)


@BOTH_LOOPS
def test_limits_apply_before_the_handshake(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with serving(authority, max_connections="1") as broker:
            silent = await Client.connect(broker, None)
            await until(lambda: len(broker.connections) == 1)
            second = await Client.connect(broker, None)
            assert await second.is_cut()
            assert handshakes(broker).failed_count == 0
            await silent.close()

    run(scenario())


@BOTH_LOOPS
def test_a_handshake_has_a_deadline(run: Run, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Of the broker's clock, from the acceptance on; also for one that waits for its turn."""

    async def scenario() -> None:
        async with serving(authority) as broker:
            handshakes(broker)._handshakes_max = 1
            silent = [await Client.connect(broker, None) for _ in range(2)]
            await until(lambda: len(broker.connections) == 2 and handshakes(broker).running_count == 1)
            clock = broker.clock
            assert isinstance(clock, ManualClock)
            clock.advance(HANDSHAKE_TIMEOUT_MS + 1)
            broker.timers.fire_due()
            for each in silent:
                assert await each.is_cut()
            await until(lambda: len(broker.connections) == 0)
            assert handshakes(broker).failed_count == 2

    run(scenario())
    assert "fail: it took longer than 10 s" in caplog.text


@BOTH_LOOPS
def test_handshakes_wait_for_their_turn(run: Run, authority: Authority) -> None:
    """What a client sends meanwhile is kept: it is served as soon as the one before has gone."""

    async def scenario() -> None:
        async with serving(authority) as broker:
            handshakes(broker)._handshakes_max = 1
            silent = await Client.connect(broker, None)
            await until(lambda: handshakes(broker).running_count == 1)
            connecting = asyncio.create_task(Client.connect(broker, authority.client()))
            await until(lambda: len(broker.connections) == 2)
            assert handshakes(broker).running_count == 1
            assert not connecting.done()
            await silent.close()
            client = await connecting
            assert await client.ask(ApiVersionsRequest(), 0)
            await client.close()

    run(scenario())


@BOTH_LOOPS
def test_a_large_fetch_is_encrypted_and_complete(run: Run, authority: Authority) -> None:
    """The kernel would send batches from files past TLS; here no byte of them is readable on the wire."""
    values = [b"readable" + os.urandom(64 * 1024) for _ in range(200)]

    async def scenario() -> None:
        async with serving(authority) as broker:
            client = await Client.connect(broker, authority.client())
            topic = CreatableTopic(name="large", num_partitions=1, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            for start in range(0, len(values), 10):
                records = [Record(n, 0, None, value) for n, value in enumerate(values[start : start + 10])]
                await client.ask(produce("large", build_batch(records)), 9)
            await client.close()

            wire = Wire(authority.client())
            host, _, port = broker.socket_server.bootstrap_servers.rpartition(":")
            wire.streams = await asyncio.open_connection(host, int(port), limit=64 * MIB)
            await wire.do(wire.tls.do_handshake)
            wire.tls.write(frame(fetch(), FETCH_VERSION))
            body = await wire.read_frame()
            partition = decoded(body).responses[0].partitions[0]
            assert all(value in bytes(partition.records) for value in values)
            assert b"readable" not in wire.received
            assert len(wire.received) > len(body)
            wire.streams[1].close()

    run(scenario())


def fetch() -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=32 * MIB)
    topic = FetchTopic(topic="large", partitions=[partition])
    return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=32 * MIB, topics=[topic])


def decoded(body: bytes) -> FetchResponse:
    _, position = headers.parse_response_header(memoryview(body), FetchRequest.API_KEY, FETCH_VERSION)
    response, _ = codec.decoder(FetchResponse, FETCH_VERSION)(memoryview(body), position, len(body))
    return response  # type: ignore[no-any-return]


class Wire:
    """A client that does TLS itself, and keeps all bytes that the broker sent."""

    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.received = bytearray()

    async def do(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self.streams[1].write(self._outgoing.read())
                data = await self.streams[0].read(MIB)
                assert data, "the broker closed the connection"
                self.received += data
                self._incoming.write(data)
            else:
                self.streams[1].write(self._outgoing.read())
                return result

    async def read_frame(self) -> bytes:
        data = bytearray()
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += await self.do(lambda: self.tls.read(MIB))
        return bytes(data[4:])
