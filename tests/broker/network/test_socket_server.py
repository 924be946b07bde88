"""A broker on a network that is no operating system's: what it does with sockets, it does with what it was handed."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from barnabas.broker.cli.process import ready_line
from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.network.connection import Connection
from barnabas.broker.server import Broker
from barnabas.network import BACKLOG, BoundSocket, NewProtocol
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.wire.codec import decode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.attack.hostile import frame, produce

HEADER_BYTES = 4 + 4
"""Length and correlation id, with which a reply of a version begins that is not flexible."""

P = TypeVar("P", bound=asyncio.BaseProtocol)


class ImaginaryNetwork:
    """Machines of any name, without a socket; ports are given out from 1 on."""

    def __init__(self) -> None:
        self.bound: dict[int, ImaginarySocket] = {}
        self.asked: list[tuple[str | None, int | None, int | None]] = []

    def host_name(self) -> str:
        return "imaginary"

    async def addresses(self, host: str) -> Sequence[str]:
        return (host,)

    def bind(
        self,
        host: str | None,
        port: int,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> BoundSocket:
        self.asked.append((host, receive_buffer_bytes, send_buffer_bytes))
        port = port or len(self.bound) + 1
        if port in self.bound:
            raise OSError(errno.EADDRINUSE, "taken")
        self.bound[port] = ImaginarySocket(self, port)
        return self.bound[port]

    async def connect(self, host: str, port: int, new_protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody is connected to")

    def client(self, port: int) -> "Client":
        listening = self.bound[port]
        if listening.new_protocol is None:
            raise ConnectionRefusedError
        return Client(cast(Connection, listening.new_protocol()))


class ImaginarySocket:
    def __init__(self, network: ImaginaryNetwork, port: int) -> None:
        self._network = network
        self.port = port
        self.new_protocol: NewProtocol | None = None

    async def listen(self, new_protocol: NewProtocol, backlog: int = BACKLOG) -> None:
        self.new_protocol = new_protocol

    def close(self) -> None:
        self._network.bound.pop(self.port, None)


class Client(asyncio.Transport):
    """The other end of a connection, and the transport between: what is written is there at once."""

    def __init__(self, connection: Connection) -> None:
        super().__init__({"peername": ("10.0.0.1", 4711)})
        self.connection = connection
        self._received = bytearray()
        self._has_received = asyncio.Event()
        self.is_closed = self.is_cut = False
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self._received += data
        self._has_received.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.is_cut = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    async def ask(self, request: Message, version: int, response_class: type[Any]) -> Any:
        data = frame(request, version)
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]
        await self._has_received.wait()
        self._has_received.clear()
        reply, self._received = bytes(self._received), bytearray()
        return decode(response_class, version, reply, HEADER_BYTES)


def new_broker(data_dir: Path, network: ImaginaryNetwork, **overrides: str) -> Broker:
    options = {"listeners": "PLAINTEXT://:0", "log.dirs": str(data_dir)} | overrides
    return Broker(config.load(options=options), Environment(network=network, files=UnsyncedFiles()))


def test_a_connection_that_is_heard_of_after_the_stop_is_closed(tmp_path: Path) -> None:
    """The loop had accepted it before, and tells of it in a later turn: a broker that is no more would answer it."""

    async def run() -> None:
        network = ImaginaryNetwork()
        broker = new_broker(tmp_path, network)
        await broker.start()
        listening = network.bound[1]
        await broker.stop()
        assert listening.new_protocol is not None
        client = Client(cast(Connection, listening.new_protocol()))
        assert client.is_closed
        await asyncio.sleep(0)
        assert len(broker.connections) == 0

    asyncio.run(run())


def test_a_broker_serves_on_the_network_that_it_is_handed(tmp_path: Path) -> None:
    async def run() -> None:
        network = ImaginaryNetwork()
        broker = new_broker(tmp_path, network)
        await broker.start()
        assert ready_line(broker).startswith("ready: PLAINTEXT://imaginary:1 ")
        client = network.client(1)
        metadata = await client.ask(MetadataRequest(topics=[]), 8, MetadataResponse)
        assert [(node.host, node.port) for node in metadata.brokers] == [("imaginary", 1)]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        created = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 4, CreateTopicsResponse)
        assert ErrorCode.of(created.topics[0].error_code) is ErrorCode.NONE
        batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * 300_000)])  # as much as is sent from files
        await client.ask(produce("t", batch), 8, ProduceResponse)
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[asked])]
        fetch = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
        fetched = await client.ask(fetch, 11, FetchResponse)
        assert b"x" * 300_000 in bytes(fetched.responses[0].partitions[0].records)
        await broker.stop()
        assert (client.is_closed, client.is_cut) == (True, False)
        assert len(broker.connections) == 0
        assert not network.bound

    asyncio.run(run())


def test_a_crash_cuts_connections(tmp_path: Path) -> None:
    async def run() -> None:
        network = ImaginaryNetwork()
        broker = new_broker(tmp_path, network)
        await broker.start()
        client = network.client(1)
        await broker.crash()
        assert (client.is_closed, client.is_cut) == (False, True)

    asyncio.run(run())


def test_ports_are_taken_first_and_given_back_when_a_start_fails(tmp_path: Path) -> None:
    async def run() -> None:
        network = ImaginaryNetwork()
        network.bind(None, 7)
        two = {
            "listeners": "A://a:0,B://b:7",
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            "inter.broker.listener.name": "A",
        }
        with pytest.raises(OSError, match="cannot listen on B://b:7: taken"):
            await new_broker(tmp_path, network, **two).start()
        assert list(network.bound) == [7]
        assert not (tmp_path / "metadata.sqlite").exists()

    asyncio.run(run())


def test_buffers_have_the_sizes_that_were_asked_for(tmp_path: Path) -> None:
    network = ImaginaryNetwork()

    async def run(**overrides: str) -> None:
        new_broker(tmp_path, network, listeners="PLAINTEXT://a:0", **overrides).socket_server.bind()

    asyncio.run(run())
    asyncio.run(run(**{"socket.receive.buffer.bytes": "4096", "socket.send.buffer.bytes": "8192"}))
    asyncio.run(run(**{"socket.receive.buffer.bytes": "-1"}))
    assert network.asked == [("a", None, None), ("a", 4096, 8192), ("a", None, None)]


def test_the_server_tells_advertised_listeners_only(tmp_path: Path) -> None:
    async def run() -> None:
        several = {
            "listeners": "A://:0,B://b:0,C://::1:0",
            "advertised.listeners": "B://elsewhere:9,C://[2001:db8::1]:0",
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT",
            "inter.broker.listener.name": "B",
        }
        server = new_broker(tmp_path, ImaginaryNetwork(), **several).socket_server
        server.bind()
        assert server.ports == {"A": 1, "B": 2, "C": 3}
        assert list(map(str, server.advertised)) == ["B://elsewhere:9", "C://[2001:db8::1]:3"]
        assert server.bootstrap_servers == "imaginary:1"

    asyncio.run(run())
