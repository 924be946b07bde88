"""Attacks on sockets and memory: slow senders, impossible lengths, large frames at once, peers that do not read."""

from __future__ import annotations

import contextlib
import itertools
import resource
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable

import pytest

from barnabas.broker.http.connections import CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX
from barnabas.broker.network import connections as network
from barnabas.wire.codec import decode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import parse_response_header
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import ProduceRequest, ProduceResponse
from barnabas.wire.records import Record, build_batch
from tests.support.smaller_limits import module as smaller
from tools.attack.hostile import (
    MIB,
    HealthyClient,
    Memory,
    ThreadTimes,
    answer,
    ask,
    connect,
    create_topic,
    eventually,
    frame,
    http_address,
    is_closed,
    metrics_page,
    open_sockets,
    produce,
)
from tools.processes.barnabas import BarnabasProcess
from tools.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.live, pytest.mark.listener("clients")]
Figure = Callable[..., None]
UNFINISHED_PEAK_MAX = 448 * MIB
"""All of the broker while unfinished requests are at their limit, however slow it is: 40 MiB without them; 128 MiB,
and a quarter of that, as each connection grows once more before it is paused; 100 MiB, the one request that goes on;
25 MiB by which the largest buffer grows at once; about 80 MiB of gaps that buffers below 32 MiB leave in the C
library's heap. A request that is in memory twice does not fit in."""
IMPATIENT = smaller({f"{network.__name__}.PARTIAL_FRAME_TIMEOUT_MS": 3_000})


@pytest.mark.parametrize("broker", [{"socket.listen.backlog.size": "4096"}], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("module", "patience_s", "count", "seconds"),
    [
        pytest.param(IMPATIENT, 3, 300, 4, id="300-3"),
        pytest.param("barnabas", 30, 2_000, 120, marks=pytest.mark.full, id="2000-120"),
    ],
)
def test_a3_slow_senders_are_closed(
    broker: BarnabasProcess,
    memory: Memory,
    healthy: HealthyClient,
    figure: Figure,
    patience_s: int,
    count: int,
    seconds: int,
    is_timed: bool,
) -> None:
    """A byte every ten seconds, of a length, a header and a body of 100 MiB: each is closed after 30 s, or 5 more. The
    short attack sends a byte every second, and 3 s are what it has.

    With Kafka's 50 who may wait to be accepted, the system drops what the others of 2,000 that come at once send, and
    they are accepted, and their 30 s begin, when TCP has sent it again often enough: 25 s later at the seventh time.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    starts = (b"\x00", struct.pack(">i", 40) + b"\x00", struct.pack(">ihhih", 100 * MIB, 1, 11, 1, -1) + b"\x00")
    selector, longest, refused = selectors.DefaultSelector(), 0.0, 0
    started = time.monotonic()
    for index in range(count):
        _slow_sender(broker, selector, starts[index % 3])
    held = None
    next_byte = time.monotonic() + patience_s / 3
    while selector.get_map() and time.monotonic() - started < seconds + PATIENCE_S:
        for key, events in selector.select(0.5):
            sender = key.data
            if events & selectors.EVENT_WRITE:
                sender.begin(selector)
                continue
            assert not _is_open(sender.connection)
            longest = max(longest, time.monotonic() - sender.began)
            refused += 1
            selector.unregister(sender.connection)
            sender.connection.close()
            if time.monotonic() - started < seconds - patience_s - 6:  # the attack goes on for as long as asked
                _slow_sender(broker, selector, sender.start)
        if time.monotonic() >= next_byte:
            next_byte += patience_s / 3
            held = memory.growth if held is None else held  # of all of them: nobody has been closed yet
            for key in list(selector.get_map().values()):
                key.data.send_one_byte()
    assert held is not None
    figure(connections=count, closed=refused, longest_s=round(longest, 1), growth_mib=round(held / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert refused >= count
    assert not selector.get_map()
    assert patience_s <= longest
    assert longest <= patience_s + 5 or not is_timed
    assert memory.growth <= 25 * 1024 * count


class _SlowSender:
    """A connection whose time runs from its first bytes."""

    def __init__(self, connection: socket.socket, start: bytes) -> None:
        self.connection = connection
        self.start = start
        self.began = 0.0

    def begin(self, selector: selectors.BaseSelector) -> None:
        self.connection.send(self.start)
        self.began = time.monotonic()
        selector.modify(self.connection, selectors.EVENT_READ, self)

    def send_one_byte(self) -> None:
        if self.began:
            with contextlib.suppress(OSError):  # closed meanwhile: the loop will see it
                self.connection.send(b"\x00")


def _slow_sender(broker: BarnabasProcess, selector: selectors.BaseSelector, start: bytes) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex((host, int(port)))
    selector.register(connection, selectors.EVENT_WRITE, _SlowSender(connection, start))


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100 * MIB + 1])
def test_a4_impossible_lengths_close_the_connection(
    shared_broker: BarnabasProcess, shared_healthy: HealthyClient, figure: Figure, length: int, is_timed: bool
) -> None:
    broker, memory = shared_broker, Memory(shared_broker.pid)
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(struct.pack(">i", length) + b"x")
        assert is_closed(connection)
    memory.mark()
    slowest = 0.0
    for _ in range(1000):
        with connect(broker.bootstrap_servers) as connection:
            started = time.monotonic()
            connection.sendall(struct.pack(">i", length))
            assert is_closed(connection)
            slowest = max(slowest, time.monotonic() - started)
    figure(length=length, tries=1000, growth_mib=round(memory.growth / MIB, 2), slowest_ms=round(slowest * 1000, 1),
           **shared_healthy.figures)  # fmt: skip
    assert memory.growth <= 2 * MIB
    assert slowest <= 5 or not is_timed


@pytest.mark.usefixtures("shared_healthy")
def test_a4_an_empty_frame_closes_the_connection(shared_broker: BarnabasProcess) -> None:
    with connect(shared_broker.bootstrap_servers) as connection:
        connection.sendall(struct.pack(">i", 0))
        assert is_closed(connection)


@pytest.mark.parametrize("frames", [3, pytest.param(120, marks=[pytest.mark.full, pytest.mark.timeout(1200)])])
def test_a5_many_large_frames_at_once(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, frames: int
) -> None:
    """50 connections send a Produce of 100 MiB each, all at the same time, and go on with another one, until so many
    were answered. It is well-formed, so that each is: the batch is larger than its topic allows."""
    create_topic(broker.bootstrap_servers, "large")
    batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(100 * MIB - 1000))])
    data = memoryview(frame(produce("large", batch), 9))
    del batch
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        senders = [LargeFrames(broker.bootstrap_servers, data) for _ in range(50)]
        for sender in senders:
            stack.callback(sender.close)
        deadline = started + PATIENCE_S * (1 + frames / 3)
        while sum(len(sender.answers) for sender in senders) < frames:
            assert time.monotonic() < deadline, "they are taken no more"
            receiving, sending, _ = select.select(senders, senders, [], PATIENCE_S)
            for sender in {*receiving, *sending}:
                sender.go_on()
    sent = sum(sender.sent for sender in senders)
    answers = [code for sender in senders for code in sender.answers]
    figure(seconds=round(time.monotonic() - started), sent_mib=sent // MIB, answered=len(answers),
           closed=sum(sender.closed for sender in senders), growth_mib=round(memory.growth / MIB, 1),
           peak_mib=round(memory.peak / MIB, 1), **healthy.figures)  # fmt: skip
    assert memory.peak < UNFINISHED_PEAK_MAX
    assert set(answers) == {ErrorCode.MESSAGE_TOO_LARGE}


class LargeFrames:
    """Sends the same frame over and over as fast as it is taken, and counts; a connection that was closed is replaced
    by another."""

    def __init__(self, address: str, data: memoryview) -> None:
        self._address = address
        self._data = data
        self.sent = 0
        self.closed = 0
        self.answers: list[int] = []
        self._open()

    def _open(self) -> None:
        self._connection = connect(self._address)
        self._connection.setblocking(False)
        self._position = 0
        self._received = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def go_on(self) -> None:
        """Send and receive once, without waiting."""
        try:
            self._send()
            self._receive()
        except BlockingIOError:
            return
        except OSError:
            self.closed += 1
            self._connection.close()
            self._open()

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            count = self._connection.send(self._data[self._position : self._position + MIB])
            self.sent += count
            self._position = (self._position + count) % len(self._data)

    def _receive(self) -> None:
        data = self._connection.recv(4096)
        if not data:
            raise ConnectionResetError
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= (end := 4 + int.from_bytes(self._received[:4])):
            body = bytes(self._received[4:end])
            del self._received[:end]
            _, position = parse_response_header(body, ProduceRequest.API_KEY, 9)
            response = decode(ProduceResponse, 9, body, position)
            self.answers.append(response.responses[0].partition_responses[0].error_code)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize(("count", "records"), [(200, 100), pytest.param(200, 3_000, marks=pytest.mark.full)])
def test_a10_peers_that_do_not_read(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, records: int
) -> None:
    """200 connections ask for 50 MiB each and read nothing while the healthy client writes so many records; half of
    them give up in the middle of the response, and it writes as many more."""
    create_topic(broker.bootstrap_servers, "big", max_message_bytes=str(2 * MIB))
    batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(MIB))])
    with connect(broker.bootstrap_servers) as writer:
        for _ in range(60):
            response = ask(writer, produce("big", batch), 9, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
    sockets = open_sockets(broker.pid)
    memory.mark()
    healthy.mark()
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=50 * MIB, topics=[FetchTopic(topic="big", partitions=[partition])]
    )
    readers = []
    for index in range(count):
        reader = connect(broker.bootstrap_servers)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(frame(request, 11, index))
        readers.append(reader)
    healthy.write(records)
    for reader in readers[::2]:
        reader.close()
    healthy.write(records)
    growth = memory.growth
    figure(connections=count, records=2 * records, growth_mib=round(growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    for reader in readers:
        reader.close()
    assert eventually(lambda: open_sockets(broker.pid) <= sockets)
    assert growth <= 64 * MIB


@pytest.mark.parametrize("broker", [{"connections.max.idle.ms": "3000"}], indirect=True)
def test_a10_peers_that_do_not_read_are_closed_when_idle(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, is_timed: bool
) -> None:
    """By `connections.max.idle.ms`, here 3 s, which is looked at every 2 s; not one that does read, however slowly."""
    address = broker.bootstrap_servers
    sockets = open_sockets(broker.pid)
    create_topic(address, "big", max_message_bytes=str(2 * MIB))
    batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(MIB))])
    with connect(address) as writer:
        for _ in range(20):
            ask(writer, produce("big", batch), 9, ProduceResponse)
    assert eventually(lambda: open_sockets(broker.pid) <= sockets)
    memory.mark()
    healthy.mark()
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    request = FetchRequest(max_bytes=50 * MIB, topics=[FetchTopic(topic="big", partitions=[partition])])
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(connect(address)) for _ in range(21)]
        started = time.monotonic()
        for number, reader in enumerate(readers):
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if number else 64 * 1024)
            reader.sendall(frame(request, 11, number))
        slow = stack.enter_context(readers[0].makefile("rb"))
        left = int.from_bytes(slow.read(4))

        reads_at = time.monotonic()

        def others_are_closed() -> bool:
            nonlocal left, reads_at
            if time.monotonic() >= reads_at:
                reads_at += 0.2
                left -= len(slow.read(64 * 1024))
            return open_sockets(broker.pid) <= sockets + 2  # the slow reader's, and the one for its replies from files

        assert eventually(lambda: open_sockets(broker.pid) > sockets + 10)
        assert eventually(others_are_closed)
        taken = time.monotonic() - started
        assert left > MIB, "the slow reader has read so much that nothing would be left to close it for"
        assert len(slow.read(left)) == left
    figure(connections=20, closed_after_s=round(taken, 1), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert taken >= 3
    assert taken <= 12 or not is_timed
    assert memory.growth <= 64 * MIB


def test_a10_a_reader_that_starts_to_read_gets_everything(broker: BarnabasProcess) -> None:
    """Slow readers that get less lose nothing: they ask again."""
    create_topic(broker.bootstrap_servers, "big", max_message_bytes=str(2 * MIB))
    batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(MIB))])
    from barnabas.wire.messages.fetch import FetchResponse

    with connect(broker.bootstrap_servers) as connection:
        ask(connection, produce("big", batch), 9, ProduceResponse)
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
        request = FetchRequest(max_bytes=50 * MIB, topics=[FetchTopic(topic="big", partitions=[partition])])
        for number in range(20):
            connection.sendall(frame(request, 11, number))
        for _ in range(20):
            response = answer(connection, request, 11, FetchResponse)
            assert len(response.responses[0].partitions[0].records) == len(batch)


STRANGERS = {
    "silent": b"",
    "half a request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "a page that nobody reads": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "requests without end": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50_000,
    "headers without end": b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 100_000,
    "no request": b"x" * MIB,
    "lines that end otherwise": b"GET /healthz HTTP/1.1\nHost: x\n\n" * 30_000,
    "a body without end": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + bytes(MIB),
}


@pytest.mark.listener("http")
@pytest.mark.parametrize("broker", [{"barnabas.http.address": "127.0.0.1:0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("wanted", [330, pytest.param(20_000, marks=[pytest.mark.full, pytest.mark.timeout(1200)])])
def test_a20_strangers_at_the_http_port(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, wanted: int, is_timed: bool
) -> None:
    """300 connections of eight kinds at a time, and who is closed comes back, until there were so many. A health check
    is answered beside them, and they do not hold sockets or memory."""
    create_topic(broker.bootstrap_servers, "pages", 1_000)  # a page of half a megabyte
    sockets, most, longest, checks, opened = open_sockets(broker.pid), 0, 0.0, 0, 0
    address, kinds = http_address(broker.log_text()), itertools.cycle(STRANGERS.values())
    memory.mark()
    healthy.mark()
    strangers: list[tuple[socket.socket, bytes]] = []
    began = time.monotonic()
    while opened < wanted:
        assert time.monotonic() - began < PATIENCE_S * (1 + wanted / 1_000), "nobody is closed any more"
        strangers = [stranger for stranger in strangers if _goes_on(*stranger)]
        for _ in range(min(10, 300 - len(strangers))):
            stranger = connect(address)
            stranger.setblocking(False)
            strangers.append((stranger, next(kinds)))
            opened += 1
            _goes_on(*strangers[-1])
        started = time.monotonic()
        with connect(address) as check:
            check.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert check.recv(15) == b"HTTP/1.1 200 OK"
        checks += 1
        longest = max(longest, time.monotonic() - started)
        most = max(most, open_sockets(broker.pid))
    figure(opened=opened, checks=checks, slowest_check_ms=round(longest * 1000), sockets=most - sockets,
           growth_mib=round(memory.growth / MIB, 1), **healthy.figures)  # fmt: skip
    for connection, _ in strangers:
        connection.close()
    assert most <= sockets + HTTP_CONNECTIONS_MAX + 8  # some are on their way out
    assert longest <= 2 or not is_timed
    assert memory.growth <= 96 * MIB


def _goes_on(connection: socket.socket, data: bytes) -> bool:
    """Send what the broker takes; whether the connection is still there."""
    try:
        connection.send(data)
        if connection.recv(1, socket.MSG_PEEK):
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


@pytest.mark.listener("http")
@pytest.mark.alone
@pytest.mark.parametrize("broker", [{"barnabas.http.address": "127.0.0.1:0"}], indirect=True, ids=[""])
@pytest.mark.parametrize("is_timed", [True], ids=[""])
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.full)])
def test_a20_pages_without_end(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, seconds: int, is_timed: bool
) -> None:
    """A page of /metrics after the other, of half a megabyte each: they leave three quarters of a processor."""
    create_topic(broker.bootstrap_servers, "pages", 1_000)
    address = http_address(broker.log_text())
    metrics_page(address)
    memory.mark()
    healthy.mark()
    times, pages = ThreadTimes(broker.pid), 0
    while healthy.seconds < seconds:
        assert metrics_page(address).startswith(b"HTTP/1.1 200 OK")
        pages += 1
    share = (times.loop_ms + times.threads_ms) / 1000 / healthy.seconds
    figure(seconds=seconds, pages=pages, processor_share=round(share, 2), growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert share <= 0.6  # with the healthy client's requests; without the pause 0.94
    assert memory.growth <= 32 * MIB
