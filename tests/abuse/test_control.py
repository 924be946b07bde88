"""Strangers at the port of `serve --control`, whose process has a broker as well: they take from it neither its files,
nor its memory, nor the port from who has use for it."""

from __future__ import annotations

import gzip
import resource
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from barnabas.broker.http import connections
from barnabas.broker.http.connections import PAGES_MAX, HttpBounds
from barnabas.testing import Broker
from barnabas.testing.control.server import BODY_BYTES_MAX, BOUNDS
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import Record, build_batch
from tests.broker.http.test_http import METRICS, Page, Serving
from tests.support.smaller_limits import module as smaller
from tests.testing.control_client import ControlClient
from tools.attack.hostile import (
    MIB,
    Memory,
    ask,
    connect,
    connect_slow_reader,
    create_topic,
    eventually,
    is_closed,
    produce,
)
from tools.processes.barnabas import BarnabasControl
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("control")]
Figure = Callable[..., None]

BATCH = build_batch([Record(0, 1_700_000_000_000, None, b"v")])
FAIL = (
    b"POST /brokers/main/fail HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


@pytest.fixture
def module() -> str:
    return "barnabas"


@pytest.fixture
def attacked(module: str) -> Iterator[BarnabasControl]:
    with BarnabasControl(module=module) as process:
        yield process
        assert "Traceback" not in process.log_text()
        process.stop()


@pytest.fixture
def memory(attacked: BarnabasControl) -> Memory:
    ControlClient(attacked.url).done("POST", "/brokers/main/create_topic", name="before")
    memory = Memory(attacked.pid)
    memory.mark()
    return memory


def control_port(process: BarnabasControl) -> str:
    return process.url.removeprefix("http://")


def test_a37_idle_connections_to_the_control_port(attacked: BarnabasControl, figure: Figure) -> None:
    """Until no descriptor is left for them: topics are made, and written to, with those that are kept for files; who
    has a request gets an answer."""
    limit = 200
    _, hard = resource.prlimit(attacked.pid, resource.RLIMIT_NOFILE)
    with connect(attacked.bootstrap_servers) as live, ExitStack() as stack:
        create_topic(attacked.bootstrap_servers, "before")
        resource.prlimit(attacked.pid, resource.RLIMIT_NOFILE, (limit, hard))
        strangers = [stack.enter_context(connect(control_port(attacked))) for _ in range(limit + 20)]
        assert eventually(lambda: "the remaining descriptors are reserved for files" in attacked.log_text())
        control = ControlClient(attacked.url)

        def is_answered() -> bool:
            try:
                return control.ask("GET", "/brokers").status == 200
            except OSError:
                return False  # it was cut itself, and has made room

        assert eventually(is_answered)
        for number in range(5):
            create = CreatableTopic(name=f"during-{number}", num_partitions=3, replication_factor=1)
            made = ask(live, CreateTopicsRequest(topics=[create], timeout_ms=15_000), 5, CreateTopicsResponse)
            assert made.topics[0].error_code == ErrorCode.NONE
            response = ask(live, produce(f"during-{number}", BATCH), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        closed = sum(is_closed(stranger, 0.001) for stranger in strangers)
    figure(connections=limit + 20, closed=closed)
    assert closed >= 50


def test_a37_the_oldest_idle_connection_makes_room(attacked: BarnabasControl) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(control_port(attacked))) for _ in range(BOUNDS.connections_max)]
        for _ in range(3):
            assert ControlClient(attacked.url).ask("GET", "/brokers").status == 200
        assert is_closed(idle[0])
        assert not is_closed(idle[-1], 0.001)


def send_on(connections: list[tuple[socket.socket, memoryview]]) -> list[tuple[socket.socket, memoryview]]:
    """Send what is taken; what is left."""
    left = []
    for connection, data in connections:
        try:
            left.append((connection, data[connection.send(data) :]))
        except BlockingIOError:
            left.append((connection, data))
    return left


def test_a38_unfinished_bodies(attacked: BarnabasControl, memory: Memory, figure: Figure) -> None:
    """Sixty requests of 3.9 MB without their last byte: they have one budget, and nobody waits for them whose request
    is small."""
    size = BODY_BYTES_MAX - 100_000
    with ExitStack() as stack:
        unfinished = []
        for _ in range(60):
            connection = stack.enter_context(connect(control_port(attacked)))
            connection.setblocking(False)
            unfinished.append((connection, memoryview(FAIL % size + b'{"error": "' + bytes(size - 12))))
        rounds_without = 0
        while rounds_without < 3:
            before = sum(len(data) for _, data in unfinished)
            unfinished = send_on(unfinished)
            assert ControlClient(attacked.url).ask("POST", "/brokers/main/advance", duration_ms=-1).status == 400
            rounds_without = 0 if sum(len(data) for _, data in unfinished) < before else rounds_without + 1
    sent = sum(size - len(data) for _, data in unfinished)
    figure(connections=60, sent_mib=round(sent / MIB, 1), growth_mib=round(memory.growth / MIB, 1))
    assert memory.growth <= 96 * MIB


def test_a42_bodies_that_take_long_to_read(attacked: BarnabasControl, memory: Memory, figure: Figure) -> None:
    """Sixteen that become a million lists each, of 18 KB: one is looked into at a time, beside what others ask."""
    body = gzip.compress(b'{"error": [' + b"[]," * (BODY_BYTES_MAX // 3 - 10) + b"[]]}")
    head = FAIL.replace(b"Content-Length", b"Content-Encoding: gzip\r\nContent-Length") % len(body)
    answered = 0
    with ExitStack() as stack:
        asked = [stack.enter_context(connect(control_port(attacked))) for _ in range(16)]
        for connection in asked:
            connection.sendall(head + body)
        while not select.select([asked[-1]], [], [], 0)[0]:
            assert ControlClient(attacked.url).ask("GET", "/brokers").status == 200
            answered += 1
        for connection in asked:
            assert connection.recv(1_000).startswith(b"HTTP/1.1 400 ")
    figure(bodies=len(asked), answered=answered, growth_mib=round(memory.growth / MIB, 1))
    assert answered >= len(asked) // 2
    assert memory.growth <= 256 * MIB


SOON = smaller({f"{HttpBounds.__module__}.{HttpBounds.__name__}.exchange_timeout_s": 1})


@pytest.mark.parametrize("module", [SOON], ids=[""])
@pytest.mark.parametrize("start", [b"", FAIL[:40], FAIL % 100 + b'{"error"'], ids=["nothing", "head", "body"])
def test_a38_a_client_with_an_unfinished_request_is_cut(attacked: BarnabasControl, module: str, start: bytes) -> None:
    with connect(control_port(attacked)) as connection:
        connection.sendall(start)
        assert is_closed(connection)
    assert "it took longer than 1 s" in attacked.log_text()


@pytest.mark.parametrize("module", [SOON], ids=[""])
def test_a38_a_request_that_waits_is_not_cut(attacked: BarnabasControl, module: str) -> None:
    """Its time is its own, however long it takes: the deadline is for who sends a request and takes an answer."""
    control = ControlClient(attacked.url)
    with connect(control_port(attacked)) as silent:  # opened later, and cut before the other one is answered
        answer = control.ask("POST", "/brokers/main/wait_records", topic="nobody-writes", count=1, timeout_ms=2_500)
        assert answer.status == 504
        assert is_closed(silent, 0.001)


@pytest.mark.parametrize("module", [smaller({f"{connections.__name__}.UNREAD_BYTES_MAX": 16 * MIB})], ids=["16 MiB"])
def test_a39_unread_answers_are_bounded(attacked: BarnabasControl, module: str, memory: Memory, figure: Figure) -> None:
    """Thirty answers of 12 MiB each: the oldest are cut, and who reads gets its own."""
    control = ControlClient(attacked.url)
    for _ in range(16):
        control.done("POST", "/brokers/main/produce", topic="before", value="x" * (3 * MIB // 4))
    control.done("GET", "/brokers/main/records", topic="before")
    memory.mark()
    with ExitStack() as stack:
        unread = [stack.enter_context(connect_slow_reader(control_port(attacked))) for _ in range(30)]
        for connection in unread:
            connection.sendall(b"GET /brokers/main/records?topic=before HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(1) == b"H"
        assert len(control.done("GET", "/brokers/main/records", topic="before")["records"]) == 16
        cut = attacked.log_text().count("unread responses of all connections exceed their limit")
    figure(connections=30, cut=cut, growth_mib=round(memory.growth / MIB, 1))
    assert cut >= 25
    assert memory.growth <= 160 * MIB  # most of it for the one that is being made


@pytest.mark.listener("http")
def test_a39_unread_pages_are_bounded() -> None:
    """The same at the port of pages, each larger than a third of what all may have: the oldest is cut, though there may
    be four, and who reads gets its own."""
    page = Page(bytes(connections.UNREAD_BYTES_MAX // 3 + MIB))
    never_s = 2 * PATIENCE_S
    with (
        Broker() as broker,
        Serving(broker, metrics_page=page, exchange_timeout_s=never_s) as serving,
        ExitStack() as stack,
    ):
        slow = [stack.enter_context(connect_slow_reader(f"127.0.0.1:{serving.server.port}")) for _ in range(PAGES_MAX)]
        for connection in slow:
            connection.sendall(METRICS)
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert eventually(lambda: len(serving.server.connections) < PAGES_MAX)
        assert len(serving.ask(METRICS)) > len(page.content)
        assert is_closed(slow[0])


FEWER: Final = smaller(
    {
        "barnabas.testing.control.served.FAULTS_MAX": 20,
        "barnabas.testing.control.served.SNAPSHOTS_MAX": 3,
        "barnabas.testing.control.served.BROKERS_MAX": 4,
    }
)
"""What is kept on demand, with limits that a short attack reaches."""


@pytest.mark.parametrize("module", [FEWER])
def test_a51_what_is_kept_is_bounded(attacked: BarnabasControl, memory: Memory, figure: Figure) -> None:
    """Faults, snapshots and brokers, until they are refused; and faults of 3.9 MB."""
    control = ControlClient(attacked.url)
    fail = {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "topic": "t" * 3_900_000}
    large = [control.ask("POST", "/brokers/main/fail", **fail).status for _ in range(30)]
    faults = [control.ask("POST", "/brokers/main/hold").status for _ in range(25)]
    control.done("DELETE", "/brokers/main/faults")
    snapshots = [control.ask("POST", "/brokers/main/snapshots").status for _ in range(5)]
    single, cluster = control.ask("POST", "/brokers").status, control.ask("POST", "/brokers", brokers=3)
    figure(growth_mib=round(memory.growth / MIB, 1))
    assert large == [413] * 30
    assert faults == [201] * 20 + [409] * 5
    assert snapshots == [201] * 3 + [409] * 2
    assert (single, cluster.status) == (201, 409)
    assert cluster.content["error"] == "there may be 4 brokers at most: DELETE /brokers/NAME ends one"
    assert control.ask("POST", "/brokers", brokers=2).status == 201
    assert memory.growth <= 64 * MIB
