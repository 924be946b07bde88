"""Large fetches, whose batches the kernel sends from the log files, over real sockets."""

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from barnabas.broker.network.file_sender import FileSender
from barnabas.broker.server import IDLE_CHECK_INTERVAL_MS
from barnabas.clock import ManualClock
from barnabas.storage.os_files import OsFiles
from barnabas.testing import Broker
from barnabas.threads import OsThreads
from barnabas.wire import codec, headers
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.produce import ProduceRequest, ProduceResponse
from barnabas.wire.records import Record, build_batch
from tools.attack.hostile import answer, ask, connect, frame, is_closed, produce, receive
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

MIB = 1 << 20
BATCHES, RECORDS_PER_BATCH, RECORD_BYTES = 400, 16, 1000
FETCH_VERSION, PRODUCE_VERSION = 12, 9


class Sendings(OsFiles):
    """Files that count what the kernel is asked to send; a test may spoil that, or refuse descriptors for it."""

    def __init__(self) -> None:
        self.bytes = 0
        self.error: int | None = None
        self.has_descriptors = True

    def send(self, target: int, descriptor: int, size: int, position: int) -> int:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        count = super().send(target, descriptor, size, position)
        self.bytes += count
        return count

    def duplicate(self, descriptor: int) -> int:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().duplicate(descriptor)


@pytest.fixture
def sendings() -> Sendings:
    return Sendings()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture
def broker(request: pytest.FixtureRequest, sendings: Sendings, clock: ManualClock, tmp_path: Path) -> Iterator[Broker]:
    """With 400 batches in a topic. Parametrized (indirectly) it has these settings."""
    if not OsFiles().reads_cached(str(tmp_path)):
        pytest.skip("this file system does not tell what is in the page cache: nothing is sent from files")
    with Broker(data_dir=tmp_path, clock=clock, files=sendings, **getattr(request, "param", {})) as broker:
        broker.create_topic("large")
        with connect(broker.bootstrap_servers) as connection:
            for number in range(BATCHES):
                records = [
                    Record(each, 0, None, b"%8d" % number + os.urandom(RECORD_BYTES))
                    for each in range(RECORDS_PER_BATCH)
                ]
                request = produce("large", build_batch(records))
                written = ask(connection, request, PRODUCE_VERSION, ProduceResponse)
                assert written.responses[0].partition_responses[0].error_code == 0
        yield broker


def fetch(offset: int, max_bytes: int = MIB) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = FetchTopic(topic="large", partitions=[partition])
    return FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=50 * MIB, topics=[topic])


EVERYTHING = fetch(0, 50 * MIB)
"""More than the kernel takes for a peer that reads nothing."""


def records_of(response: FetchResponse) -> bytes:
    (partition,) = response.responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records)


def log_file(broker: Broker) -> bytes:
    assert broker.data_dir is not None
    (path,) = Path(broker.data_dir).glob("**/large-0/*.log")
    return path.read_bytes()


def count_of(records: bytes) -> int:
    """How many of the batches, which are all of one size."""
    size = int.from_bytes(records[8:12], "big") + 12
    assert len(records) % size == 0
    return len(records) // size


def slow_reader(broker: Broker, request: FetchRequest) -> socket.socket:
    """Has asked, and reads nothing; its buffer is small."""
    host, _, port = broker.bootstrap_servers.rpartition(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(PATIENCE_S)
    reader.connect((host, int(port)))
    reader.sendall(frame(request, FETCH_VERSION))
    return reader


def test_a_reader_gets_the_whole_log(broker: Broker, sendings: Sendings) -> None:
    found, offset = b"", 0
    with connect(broker.bootstrap_servers) as connection:
        while offset < BATCHES * RECORDS_PER_BATCH:
            records = records_of(ask(connection, fetch(offset), FETCH_VERSION, FetchResponse))
            offset += count_of(records) * RECORDS_PER_BATCH
            found += records
    assert found == log_file(broker)
    assert sendings.bytes > 0.8 * len(found)


def test_several_partitions_and_the_fields_behind_them(broker: Broker, sendings: Sendings) -> None:
    request = fetch(0)
    request.topics.append(FetchTopic(topic="large", partitions=[FetchPartition(partition=7, fetch_offset=0)]))
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, request, FETCH_VERSION, FetchResponse)
    assert sendings.bytes
    by_partition = {each.partition_index: each for topic in response.responses for each in topic.partitions}
    assert log_file(broker).startswith(bytes(by_partition[0].records))
    assert by_partition[7].error_code == 3


def test_replies_keep_the_order_of_requests(broker: Broker, sendings: Sendings) -> None:
    record = Record(0, 0, None, b"later")
    wanted = [
        (fetch(0), FETCH_VERSION),
        (ApiVersionsRequest(), 0),
        (fetch(160), FETCH_VERSION),
        (fetch(1600), FETCH_VERSION),
        (produce("large", build_batch([record])), PRODUCE_VERSION),
        (ApiVersionsRequest(), 0),
        (fetch(0), FETCH_VERSION),
    ]
    expected = log_file(broker)
    with connect(broker.bootstrap_servers) as connection:
        connection.sendall(b"".join(frame(request, version, 100 + n) for n, (request, version) in enumerate(wanted)))
        for number, (request, version) in enumerate(wanted):
            body = receive(connection)
            assert body is not None
            assert int.from_bytes(body[:4], "big") == 100 + number
            if isinstance(request, FetchRequest):
                _, position = headers.parse_response_header(body, 1, version)
                records = records_of(codec.decode(FetchResponse, version, body, position))
                assert len(records) > MIB // 2
                start = request.topics[0].partitions[0].fetch_offset // RECORDS_PER_BATCH
                assert expected[start * len(records) // count_of(records) :].startswith(records)
            elif isinstance(request, ProduceRequest):
                _, position = headers.parse_response_header(body, 0, version)
                written = codec.decode(ProduceResponse, version, body, position)
                assert written.responses[0].partition_responses[0].error_code == 0
    assert sendings.bytes > 4 * MIB // 2


def test_a_slow_reader_does_not_delay_other_readers(broker: Broker, sendings: Sendings) -> None:
    expected = log_file(broker)
    readers = [slow_reader(broker, EVERYTHING) for _ in range(20)]
    with connect(broker.bootstrap_servers) as connection:
        for _ in range(20):
            assert expected.startswith(records_of(ask(connection, fetch(0), FETCH_VERSION, FetchResponse)))
    for reader in readers:
        with reader:
            response = answer(reader, fetch(0), FETCH_VERSION, FetchResponse)
        assert expected.startswith(records_of(response))
    assert sendings.bytes > (20 + 20 * 5) * MIB // 2


@pytest.mark.parametrize("broker", [{"socket_send_buffer_bytes": MIB // 8}], indirect=True)
@pytest.mark.parametrize("are_copied", [False, True], ids=["from files", "copied"])
def test_a_slow_reader_is_not_idle_until_it_stops(
    broker: Broker, clock: ManualClock, sendings: Sendings, *, are_copied: bool
) -> None:
    """A part of a reply in every 7 minutes of the 10 that are allowed."""
    sendings.has_descriptors = not are_copied

    def wait(duration_ms: int) -> None:
        clock.advance(duration_ms)
        broker.clock.advance(IDLE_CHECK_INTERVAL_MS)  # which is the broker's, not that of its sockets

    with slow_reader(broker, EVERYTHING) as reader, reader.makefile("rb") as stream:
        for _ in range(4):  # each time more than the buffers of both sockets hold, so some of it was sent just now
            assert len(stream.read(MIB)) == MIB
            wait(7 * 60_000)
        assert len(stream.read(MIB)) == MIB
        assert bool(sendings.bytes) is not are_copied
        wait(7 * 60_000)

        def is_idle_and_closed() -> bool:
            wait(10 * 60_000 + 1)
            return is_closed(reader, 0.1)

        wait_until(is_idle_and_closed)  # what is on its way at this moment is progress, too: then the time passes again


def test_readers_that_leave_take_their_descriptors_along(broker: Broker, sendings: Sendings) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    with connect(broker.bootstrap_servers) as connection:
        ask(connection, fetch(0), FETCH_VERSION, FetchResponse)
        before = opened()
        readers = [slow_reader(broker, EVERYTHING) for _ in range(10)]
        wait_until(lambda: opened() >= before + 40, "a socket at each end, one to send on, and a file")
        for reader in readers[:5]:
            reader.close()
        for reader in readers[5:]:
            reader.recv(10_000)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST, not FIN
            reader.close()
        wait_until(lambda: opened() <= before, "all closed again")
        ask(connection, fetch(0), FETCH_VERSION, FetchResponse)


def test_a_broker_stops_in_the_midst_of_a_reply(sendings: Sendings, broker: Broker) -> None:
    reader = slow_reader(broker, EVERYTHING)
    wait_until(lambda: sendings.bytes, "the reply is on its way")
    broker.stop()
    with reader:
        assert is_closed(reader)


def test_a_reply_is_complete_although_its_topic_is_deleted(broker: Broker, sendings: Sendings) -> None:
    expected = log_file(broker)
    with slow_reader(broker, EVERYTHING) as reader:
        wait_until(lambda: sendings.bytes, "the reply is on its way")
        broker.delete_topic("large")
        broker.clock.advance(timedelta(minutes=10))
        records = records_of(answer(reader, fetch(0), FETCH_VERSION, FetchResponse))
    assert count_of(records) > 10
    assert expected.startswith(records)


def test_a_disk_that_fails_ends_the_connection(broker: Broker, sendings: Sendings) -> None:
    with connect(broker.bootstrap_servers) as connection:
        sendings.error = errno.EIO
        connection.sendall(frame(fetch(0), FETCH_VERSION))
        assert is_closed(connection)
    sendings.error = None
    with connect(broker.bootstrap_servers) as connection:
        assert len(records_of(ask(connection, fetch(0), FETCH_VERSION, FetchResponse))) > MIB // 2


def test_without_descriptors_the_records_are_copied(broker: Broker, sendings: Sendings) -> None:
    sendings.has_descriptors = False
    with connect(broker.bootstrap_servers) as connection:
        records = records_of(ask(connection, fetch(0), FETCH_VERSION, FetchResponse))
    assert log_file(broker).startswith(records)
    assert not sendings.bytes


@pytest.mark.parametrize(("extra", "is_sent_past"), [({}, True), ({"ssl_object": object()}, False)])
def test_nothing_is_sent_past_a_transport_that_encrypts(extra: dict[str, object], is_sent_past: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = FileSender.past(asyncio.Transport({"socket": ours, **extra}), OsThreads())
        assert (sender is not None) == is_sent_past
        if sender is not None:
            sender.close()
    assert FileSender.past(asyncio.Transport(), OsThreads()) is None, "it has no socket of the kernel"
