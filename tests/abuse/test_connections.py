"""Attacks on sockets and memory: slow senders, impossible lengths, large frames at once, peers that do not read."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable

import pytest

from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import ProduceResponse
from barnabas.wire.records import Record, build_batch
from tools.barnabas_process import BarnabasProcess
from tools.hostile import (
    MIB,
    HealthyClient,
    Memory,
    answer,
    ask,
    connect,
    create_topic,
    eventually,
    frame,
    is_closed,
    open_sockets,
    produce,
)

pytestmark = pytest.mark.slow
Figure = Callable[..., None]


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(300, 36), pytest.param(2_000, 300, marks=[pytest.mark.full, pytest.mark.timeout(600)])],
)
def test_a3_slow_senders_are_closed(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, seconds: int
) -> None:
    """A byte every ten seconds, of a length, a header and a body of 100 MiB: each is closed within 35 s."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    starts = (b"\x00", struct.pack(">i", 40) + b"\x00", struct.pack(">ihhih", 100 * MIB, 1, 11, 1, -1) + b"\x00")
    selector, longest, refused = selectors.DefaultSelector(), 0.0, 0
    started = time.monotonic()
    for index in range(count):
        _slow_sender(broker, selector, starts[index % 3], time.monotonic())
    open_at_once = count
    held = memory.growth
    next_byte = time.monotonic() + 10
    while selector.get_map() and time.monotonic() - started < seconds + 40:
        for key, _ in selector.select(0.5):
            assert isinstance(key.fileobj, socket.socket)
            assert not _is_open(key.fileobj)
            longest = max(longest, time.monotonic() - key.data[1])
            refused += 1
            selector.unregister(key.fileobj)
            key.fileobj.close()
            if time.monotonic() - started < seconds - 36:  # the attack goes on for as long as asked
                _slow_sender(broker, selector, key.data[0], time.monotonic())
        if time.monotonic() >= next_byte:
            next_byte += 10
            for key in list(selector.get_map().values()):
                _send_one_byte(key.fileobj)  # type: ignore[arg-type]
    figure(connections=open_at_once, closed=refused, longest_s=round(longest, 1), growth_mib=round(held / MIB, 1),
           **healthy.figures)  # fmt: skip
    assert refused >= count
    assert not selector.get_map()
    assert longest <= 35
    assert memory.growth <= 25 * 1024 * count + 8 * MIB


def _slow_sender(broker: BarnabasProcess, selector: selectors.BaseSelector, start: bytes, now: float) -> None:
    connection = connect(broker.bootstrap_servers)
    connection.sendall(start)
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, (start, now))


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _send_one_byte(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed meanwhile: the loop will see it
        connection.send(b"\x00")


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 100 * MIB + 1])
def test_a4_impossible_lengths_close_the_connection(
    shared_broker: BarnabasProcess, shared_healthy: HealthyClient, figure: Figure, length: int
) -> None:
    broker, memory = shared_broker, Memory(shared_broker.pid)
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(struct.pack(">i", length) + b"x")
        assert is_closed(connection, 2)
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
    assert slowest <= 1


@pytest.mark.usefixtures("shared_healthy")
def test_a4_an_empty_frame_closes_the_connection(shared_broker: BarnabasProcess) -> None:
    with connect(shared_broker.bootstrap_servers) as connection:
        connection.sendall(struct.pack(">i", 0))
        assert is_closed(connection, 2)


@pytest.mark.parametrize("seconds", [6, pytest.param(120, marks=[pytest.mark.full, pytest.mark.timeout(400)])])
def test_a5_many_large_frames_at_once(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, seconds: int
) -> None:
    """50 connections send a Produce of 100 MiB each, all at the same time, and never quite finish."""
    senders = [connect(broker.bootstrap_servers) for _ in range(50)]
    start = struct.pack(">ihhih", 100 * MIB - 100, 0, 9, 1, -1)
    chunk = memoryview(bytes(MIB))
    sent = 0
    for sender in senders:
        sender.sendall(start)
        sender.setblocking(False)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for sender in senders:
            try:
                sent += sender.send(chunk)
            except BlockingIOError:
                continue
            except OSError:
                pass
        time.sleep(0.01)
    figure(frames=50, seconds=seconds, sent_mib=sent // MIB, growth_mib=round(memory.growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    for sender in senders:
        sender.close()
    assert memory.peak < 448 * MIB
    assert sent > 100 * MIB


@pytest.mark.parametrize(
    ("count", "seconds"), [(200, 6), pytest.param(200, 300, marks=[pytest.mark.full, pytest.mark.timeout(600)])]
)
def test_a10_peers_that_do_not_read(
    broker: BarnabasProcess, memory: Memory, healthy: HealthyClient, figure: Figure, count: int, seconds: int
) -> None:
    """200 connections ask for 50 MiB each and read nothing; half of them give up in the middle of the response."""
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
    time.sleep(seconds / 2)
    for reader in readers[::2]:
        reader.close()
    time.sleep(seconds / 2)
    growth = memory.growth
    figure(connections=count, seconds=seconds, growth_mib=round(growth / MIB, 1),
           **healthy.figures)  # fmt: skip
    for reader in readers:
        reader.close()
    assert eventually(lambda: open_sockets(broker.pid) <= sockets, 10)
    assert growth <= 64 * MIB


def test_a10_peers_that_do_not_read_are_closed_when_idle() -> None:
    """By `connections.max.idle.ms`, here 3 s, which is looked at every 2 s; not those that do read."""
    with BarnabasProcess({"connections.max.idle.ms": "3000"}) as broker:
        address = broker.bootstrap_servers
        create_topic(address, "big", max_message_bytes=str(2 * MIB))
        batch = build_batch([Record(0, 1_700_000_000_000, None, bytes(MIB))])
        with connect(address) as writer:
            for _ in range(20):
                ask(writer, produce("big", batch), 9, ProduceResponse)
        with HealthyClient(address) as healthy:
            sockets = open_sockets(broker.pid)
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
            request = FetchRequest(max_bytes=50 * MIB, topics=[FetchTopic(topic="big", partitions=[partition])])
            readers = [connect(address) for _ in range(20)]
            started = time.monotonic()
            for number, reader in enumerate(readers):
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.sendall(frame(request, 11, number))
            assert eventually(lambda: open_sockets(broker.pid) >= sockets + 20, 2)
            assert eventually(lambda: open_sockets(broker.pid) <= sockets, 10)
            assert time.monotonic() - started >= 3
            for reader in readers:
                reader.close()
            healthy.settle()
            assert healthy.errors == []


def test_a10_a_reader_that_starts_to_read_gets_everything(broker: BarnabasProcess) -> None:
    """What slow readers get less of is not lost: they ask again."""
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
