"""Strangers at each port: what one of them can hold has a bound, and who is no stranger is served beside them.

`serve --brokers` has all ports but that of `serve --control`: the listeners of clients and of brokers, the pages of
HTTP, and ZooKeeper's. The limits of time are smaller than usual. A test runs for each listener that its mark names.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from barnabas.broker import server as broker_server
from barnabas.broker.cli.cluster_directory import NOTE_FILE, kept_secret
from barnabas.broker.configuration.listeners import BROKERS_LISTENER
from barnabas.broker.http import connections as http
from barnabas.broker.http.connections import HttpBounds
from barnabas.broker.network import connections as network
from barnabas.broker.network import socket_server
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.security.sasl import plain
from barnabas.controller.coordination.zookeeper_server import server as zookeeper
from barnabas.testing.control.server import BODY_BYTES_MAX, BODY_OF_WAITING_BYTES_MAX, BOUNDS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.abuse.test_requests import raw
from tests.abuse.test_zookeeper import EXISTS, begin_session, string
from tests.abuse.test_zookeeper import ask as ask_zookeeper
from tests.support.smaller_limits import module as smaller
from tools.attack.hostile import (
    MIB,
    Memory,
    ask,
    connect,
    connect_slow_reader,
    create_topic,
    eventually,
    frame,
    http_address,
    is_closed,
    open_sockets,
    receive,
)
from tools.processes.barnabas import BarnabasBrokers, BarnabasControl

pytestmark = [pytest.mark.slow, pytest.mark.live]
Figure = Callable[..., None]

CLIENTS_MAX = 60
ZOOKEEPER_MAX = 100
KEPT_BYTES_MAX = 4 * MIB
"""Of the unfinished requests of all clients."""
UNKNOWN_ID = 99
"""A broker that is not there, whose connection shows the secret of all brokers."""
SOON = smaller(
    {
        f"{network.__name__}.PARTIAL_FRAME_TIMEOUT_MS": 1_000,
        f"{socket_server.__name__}.DEFAULT_INFLIGHT_BYTES_MAX": KEPT_BYTES_MAX,
        f"{broker_server.__name__}.IDLE_CHECK_INTERVAL_MS": 200,
        f"{HttpBounds.__module__}.{HttpBounds.__name__}.exchange_timeout_s": 1,
        f"{zookeeper.__name__}.HANDSHAKE_MS_MAX": 1_000,
        f"{zookeeper.__name__}.CONNECTIONS_MAX": ZOOKEEPER_MAX,
    }
)
GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
FAIL, WAIT = b"/brokers/main/fail", b"/brokers/main/wait_records"


class Port(NamedTuple):
    """A port of a process. `is_served` is whether a connection with a request of somebody who is no stranger gets its
    answer; `half` is half a request; `too_large` are beginnings of requests, each with the beginning of the answer."""

    name: str
    address: str
    pid: int
    connections_max: int
    opened: Callable[[str], socket.socket]
    is_served: Callable[[socket.socket], bool]
    half: bytes
    too_large: list[tuple[bytes, bytes]]

    def known(self) -> socket.socket:
        """A connection of somebody who is no stranger."""
        return self.opened(self.address)

    def serves_newcomer(self) -> bool:
        try:
            with self.known() as connection:
                return self.is_served(connection)
        except OSError:
            return False  # it was cut itself, and has made room


def has_metadata(connection: socket.socket) -> bool:
    return len(ask(connection, MetadataRequest(topics=[]), 8, MetadataResponse).brokers) == 1


def has_znodes(connection: socket.socket) -> bool:
    return ask_zookeeper(connection, EXISTS, string("/") + b"\0") == 0


def has_page(path: bytes) -> Callable[[socket.socket], bool]:
    def answers(connection: socket.socket) -> bool:
        connection.sendall(GET % path)
        return connection.recv(15) == b"HTTP/1.1 200 OK"

    return answers


def with_session(address: str) -> socket.socket:
    return begin_session(connect(address))


def ports_of(brokers: BarnabasBrokers) -> Iterator[Port]:
    [node_id] = brokers.node_ids
    note = json.loads((brokers.log_dir / NOTE_FILE).read_text())[str(node_id)]
    addresses = dict(each.split("://") for each in note["given"]["listeners"].split(","))
    secret = kept_secret(brokers.log_dir)
    assert secret is not None

    def as_broker(address: str) -> socket.socket:
        connection = connect(address)
        try:
            ask(connection, SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
            shown = SaslAuthenticateRequest(auth_bytes=plain.encode(credentials_of_broker(UNKNOWN_ID, secret)))
            assert ask(connection, shown, 2, SaslAuthenticateResponse).error_code == ErrorCode.NONE
        except OSError:
            connection.close()
            raise
        return connection

    half, pid = struct.pack(">i", 40) + b"\0", brokers.broker_pid(node_id)
    too_large = [(struct.pack(">i", 100 * MIB + 1), b""), (raw(11, 5, bytes(8 * MIB), flexible=False), b"")]
    yield Port("clients", brokers.bootstrap_servers, pid, CLIENTS_MAX, connect, has_metadata, half, too_large)
    of_strangers = [(struct.pack(">i", 512 * 1024 + 1), b"")]
    yield Port(
        "brokers", addresses[BROKERS_LISTENER], pid, network.STRANGERS_MAX, as_broker, has_metadata, half, of_strangers
    )
    head = GET[:-2] % b"/healthz" + b"x: y\r\n" * (http.HEAD_BYTES_MAX // 6)
    yield Port(
        "http",
        http_address(brokers.log_text()),
        pid,
        http.CONNECTIONS_MAX,
        connect,
        has_page(b"/healthz"),
        GET[:-10] % b"/healthz",
        [(head, b"HTTP/1.1 431"), (POST % (b"/healthz", 10**9) + bytes(8 * MIB), b"HTTP/1.1 405")],
    )
    yield Port(
        "zookeeper",
        f"127.0.0.1:{note['store_port']}",
        brokers.pid,
        ZOOKEEPER_MAX,
        with_session,
        has_znodes,
        struct.pack(">i", 45) + b"\0",
        [(struct.pack(">i", MIB), b"")],
    )


def port_of(control: BarnabasControl) -> Port:
    large, of_waiting = POST % (FAIL, BODY_BYTES_MAX + 1), POST % (WAIT, BODY_OF_WAITING_BYTES_MAX + 1)
    return Port(
        "control",
        control.url.removeprefix("http://"),
        control.pid,
        BOUNDS.connections_max,
        connect,
        has_page(b"/brokers"),
        POST % (FAIL, 100) + b'{"error"',
        [(large, b"HTTP/1.1 413"), (of_waiting, b"HTTP/1.1 413")],
    )


@pytest.fixture(scope="module")
def brokers() -> Iterator[BarnabasBrokers]:
    overrides = {
        "barnabas.http.address": "127.0.0.1:0",
        "max.connections": str(CLIENTS_MAX),
    }
    with BarnabasBrokers(1, overrides, module=SOON) as process:
        yield process
        assert "Traceback" not in process.log_text()
        process.stop()


@pytest.fixture(scope="module")
def control() -> Iterator[BarnabasControl]:
    with BarnabasControl(module=SOON) as process:
        yield process
        assert "Traceback" not in process.log_text()
        process.stop()


@pytest.fixture
def port(listener: str, request: pytest.FixtureRequest) -> Port:
    """Of the listener that the test's mark names."""
    if listener == "control":
        return port_of(request.getfixturevalue("control"))
    found = {each.name: each for each in ports_of(request.getfixturevalue("brokers"))}
    return found[listener]


@pytest.mark.listener("clients", "brokers", "http", "control", "zookeeper")
def test_a47_idle_connections(port: Port, figure: Figure) -> None:
    """More than there may be: clients beyond that are closed at once; elsewhere the oldest are cut, and who comes with
    a request gets its answer."""
    sockets = open_sockets(port.pid)
    with port.known() as known, ExitStack() as stack:
        strangers = [stack.enter_context(connect(port.address)) for _ in range(port.connections_max + 20)]
        assert eventually(lambda: open_sockets(port.pid) <= sockets + port.connections_max + 8)
        if port.name in ("clients", "brokers", "zookeeper"):
            assert port.is_served(known)
        if port.name != "clients":
            assert eventually(port.serves_newcomer)
        closed = sum(is_closed(stranger, 0.001) for stranger in strangers)
    figure(listener=port.name, connections=len(strangers), closed=closed)
    assert closed >= 20
    assert eventually(port.serves_newcomer)


@pytest.mark.listener("clients", "brokers", "http", "control", "zookeeper")
def test_a48_half_a_request(port: Port, figure: Figure) -> None:
    """It has a second here, and others are served meanwhile."""
    with ExitStack() as stack:
        strangers = [stack.enter_context(connect(port.address)) for _ in range(10)]
        for stranger in strangers:
            stranger.sendall(port.half)
        assert eventually(port.serves_newcomer)
        assert all(map(is_closed, strangers))
    figure(listener=port.name, connections=len(strangers))


@pytest.mark.listener("clients", "brokers", "http", "control", "zookeeper")
def test_a49_requests_that_are_too_large(port: Port, figure: Figure) -> None:
    memory = Memory(port.pid)
    assert eventually(port.serves_newcomer)
    memory.mark()
    with ExitStack() as stack:
        strangers = [(stack.enter_context(connect(port.address)), *each) for each in port.too_large * 10]
        for stranger, data, told in strangers:
            with contextlib.suppress(OSError):
                stranger.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while len(received) < len(told) and (more := stranger.recv(len(told) - len(received))):
                    received += more
            assert received == told
        assert all(is_closed(stranger) for stranger, *_ in strangers)
    assert eventually(port.serves_newcomer)
    figure(listener=port.name, requests=len(port.too_large) * 10, growth_mib=round(memory.growth / MIB, 1))
    assert memory.growth <= 24 * MIB


@pytest.mark.listener("brokers")
def test_a49_requests_of_a_broker_that_are_too_large(port: Port) -> None:
    """The same for who has shown the secret."""
    with port.known() as broker:
        broker.sendall(struct.pack(">i", 100 * MIB + 1))
        assert is_closed(broker)
    assert port.serves_newcomer()


TOPICS = 2_000
"""The number of topics in a request of a broker that comes in pieces: 400 KB."""


def unfinished(address: str, size: int, count: int, stack: ExitStack) -> int:
    """So many connections that each send a request of this size, but for its last byte; the bytes that are taken."""
    taken = 0
    for _ in range(count):
        stranger = stack.enter_context(connect(address))
        stranger.setblocking(False)
        data = memoryview(struct.pack(">i", size) + bytes(size - 1))
        with contextlib.suppress(OSError):
            while data:
                sent = stranger.send(data)
                data, taken = data[sent:], taken + sent
    return taken


@pytest.mark.listener("brokers")
def test_a50_unfinished_requests_beside_brokers(port: Port, brokers: BarnabasBrokers, figure: Figure) -> None:
    """200 strangers at the listener of brokers, of whom 32 are left, and clients that have more under way than they
    may: a broker whose request comes in pieces is answered."""
    memory = Memory(port.pid)
    names = [MetadataRequestTopic(name=f"no-topic-{number:0200}") for number in range(TOPICS)]
    request = frame(MetadataRequest(topics=names, allow_auto_topic_creation=False), 8)
    with port.known() as broker, ExitStack() as stack:
        assert port.is_served(broker)
        memory.mark()
        taken = unfinished(port.address, 512 * 1024, 200, stack)
        of_clients = unfinished(brokers.bootstrap_servers, 2 * MIB, 12, stack)
        broker.sendall(request)
        assert receive(broker) is not None
        assert eventually(port.serves_newcomer)
        growth = memory.growth
    figure(sent_mib=round(taken / MIB, 1), of_clients_mib=round(of_clients / MIB, 1), growth_mib=round(growth / MIB, 1))
    assert growth <= 32 * MIB


@pytest.mark.listener("brokers")
@pytest.mark.parametrize("is_known", [False, True], ids=["stranger", "broker"])
def test_a50_unread_answers_to_brokers(port: Port, is_known: bool, figure: Figure) -> None:
    """The requests of who reads nothing are served one by one, as it reads: no more answers are kept than one."""
    memory = Memory(port.pid)
    asked = MetadataRequest(topics=None) if is_known else ApiVersionsRequest()
    request = frame(asked, 8 if is_known else 2)
    with port.known() as broker, ExitStack() as stack:
        assert port.is_served(broker)
        memory.mark()
        for _ in range(20):
            unread = stack.enter_context(port.known() if is_known else connect_slow_reader(port.address))
            unread.setblocking(False)
            with contextlib.suppress(OSError):
                while unread.send(request * 100):
                    pass
            assert port.is_served(broker)
        assert eventually(port.serves_newcomer)
        growth = memory.growth
    figure(is_known=is_known, connections=20, growth_mib=round(growth / MIB, 1))
    assert growth <= 32 * MIB


@pytest.mark.listener("brokers")
def test_a50_brokers_have_turns_beside_clients(port: Port, brokers: BarnabasBrokers, figure: Figure) -> None:
    """Clients ask all at once for what takes the event loop a second; a broker asks one by one, and gets a turn of its
    own each time."""
    create_topic(brokers.bootstrap_servers, "wide", 200)
    dear = frame(MetadataRequest(topics=None, allow_auto_topic_creation=False), 8)
    with port.known() as broker, ExitStack() as stack:
        clients = [stack.enter_context(connect(brokers.bootstrap_servers)) for _ in range(CLIENTS_MAX // 2)]
        for client in clients:
            client.sendall(dear * 16)
        answered = 0
        while not all(select.select([client], [], [], 0)[0] for client in clients):
            assert port.is_served(broker)
            answered += 1
        for client in clients:
            for _ in range(16):
                assert receive(client) is not None
    figure(requests=len(clients) * 16, answered=answered)
    assert answered >= 5
