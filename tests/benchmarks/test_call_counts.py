"""What a small request costs in calls of Python functions: a count that a busy machine does not change.

A request of one record is interpreted code through and through (docs/performance.md), so its time is in proportion to
this count. Whoever makes a request better lowers the limit; whoever has to raise it should know why.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, islice, repeat
from pathlib import Path
from types import FrameType

import pytest

from barnabas.clock import ManualClock
from barnabas.storage.file_region import REGION_BYTES_MIN
from barnabas.storage.files import OsFiles
from barnabas.testing import Broker
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.hostile import connect, frame, receive

REQUESTS = 100
PRODUCE_CALLS_MAX = 57
FULL_BATCH_PRODUCE_CALLS_MAX = 59
"""Two for the index entries that so many bytes get, none for the records."""
IDEMPOTENT_PRODUCE_CALLS_MAX = 63
FETCH_CALLS_MAX = 61
FETCH_FROM_FILE_CALLS_MAX = 100
DELAYED_FETCH_CALLS_MAX = 150
RECORD = Record(0, 1_700_000_000_000, None, b"x" * 100, [], 0)
FULL_BATCH_RECORDS = 100
FULL_BATCH = build_batch([RECORD._replace(offset=offset) for offset in range(FULL_BATCH_RECORDS)])


class Calls:
    """Counts calls of Python functions in threads that start while it is installed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.count += 1


@pytest.fixture
def calls() -> Iterator[Calls]:
    counter = Calls()
    threading.setprofile(counter)
    yield counter
    threading.setprofile(None)


def plain(_number: int) -> ProduceRequest:
    return produce(1, build_batch([RECORD]))


def many_records(_number: int) -> ProduceRequest:
    return produce(1, FULL_BATCH)


def idempotent(number: int) -> ProduceRequest:
    return produce(-1, build_batch([RECORD], producer_id=1, producer_epoch=0, base_sequence=number))


def produce(acks: int, batch: bytearray) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


@pytest.mark.parametrize(
    ("request_of", "records", "calls_max"),
    [
        (plain, 1, PRODUCE_CALLS_MAX),
        (many_records, FULL_BATCH_RECORDS, FULL_BATCH_PRODUCE_CALLS_MAX),
        (idempotent, 1, IDEMPOTENT_PRODUCE_CALLS_MAX),
    ],
)
def test_produce(calls: Calls, request_of: Callable[[int], ProduceRequest], records: int, calls_max: int) -> None:
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        per_request, _ = calls_per_request(calls, broker, map(request_of, count()), version=9)
        assert len(topic.records()) == 2 * REQUESTS * records
    assert 0.8 * calls_max < per_request <= calls_max, "far fewer: then something is not counted"


@pytest.mark.parametrize(("size", "calls_max"), [(100, FETCH_CALLS_MAX), (512 * 1024, FETCH_FROM_FILE_CALLS_MAX)])
def test_fetch(calls: Calls, size: int, calls_max: int, tmp_path: Path) -> None:
    if size >= REGION_BYTES_MIN and not OsFiles().reads_cached(str(tmp_path)):
        pytest.skip("this file system does not tell what is in the page cache: nothing is sent from files")
    value = "x" * size
    request = fetch(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size + 100), max_wait_ms=500)
    with Broker(data_dir=tmp_path, clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        topic.produce(value)
        topic.produce("the next batch, which does not fit")
        per_request, answer = calls_per_request(calls, broker, repeat(request), version=11)
    assert value.encode() in answer
    assert 0.8 * calls_max < per_request <= calls_max, "far fewer: then something is not counted"


def test_a_fetch_that_waits_for_a_record(calls: Calls) -> None:
    """A record's way from producer to consumer: Fetch, Produce, and the second pass of the Fetch."""
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        broker.create_topic("t")
        partition = broker.server.replicas.partition_or_error("t", 0)
        with connect(broker.bootstrap_servers) as consumer, connect(broker.bootstrap_servers) as producer:
            for offset in range(2 * REQUESTS):
                if offset == REQUESTS:
                    before = calls.count
                waiting = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                consumer.sendall(frame(fetch(waiting, max_wait_ms=30_000), 11))
                while not partition.is_waited_for:
                    time.sleep(0.001)
                ask(producer, plain(offset), 9)
                answer = receive(consumer)
                assert answer is not None
                assert b"x" * 100 in answer
        per_record = (calls.count - before) / REQUESTS
    assert 0.8 * DELAYED_FETCH_CALLS_MAX < per_record <= DELAYED_FETCH_CALLS_MAX, "far fewer: then something is missing"


def fetch(partition: FetchPartition, max_wait_ms: int) -> FetchRequest:
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_id=0, session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )  # fmt: skip


def calls_per_request(calls: Calls, broker: Broker, requests: Iterator[Message], version: int) -> tuple[float, bytes]:
    """Send requests one after the other; calls for each, and the last answer."""
    with connect(broker.bootstrap_servers) as connection:
        for request in islice(requests, REQUESTS):  # modules are imported, codecs compiled
            ask(connection, request, version)
        before = calls.count
        for request in islice(requests, REQUESTS):
            answer = ask(connection, request, version)
        return (calls.count - before) / REQUESTS, answer


def ask(connection: socket.socket, request: Message, version: int) -> bytes:
    connection.sendall(frame(request, version))
    answer = receive(connection)
    assert answer is not None
    return answer
