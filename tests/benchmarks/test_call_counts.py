"""What a request costs in calls of Python functions and in instructions of the interpreter: counts that a busy machine
does not change.

A request of one record is interpreted code through and through (docs/performance.md), so its time is in proportion to
them; the instructions tell of loops, too. Whoever makes a request better lowers the limits; whoever has to raise them
should know why.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, islice, repeat
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

from barnabas.broker.network import turns
from barnabas.clock import ManualClock
from barnabas.storage.file_records import REGION_BYTES_MIN
from barnabas.storage.files import OsFiles
from barnabas.testing import Broker
from barnabas.wire.codec import decode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.hostile import connect, frame, receive

REQUESTS = 100
CORRELATION_ID_SIZE = 4
INSTRUCTIONS_ALLOWANCE = 1.0 if sys.version_info[:2] == (3, 11) else 1.3
"""Each Python has instructions of its own; the limits are counts of 3.11."""
RECORD = Record(0, 1_700_000_000_000, None, b"x" * 100, [], 0)
FULL_BATCH_RECORDS = 100
FULL_BATCH = build_batch([RECORD._replace(offset=offset) for offset in range(FULL_BATCH_RECORDS)])


class Work(NamedTuple):
    """Per request."""

    calls: float
    instructions: float

    def is_within(self, most: "Work") -> bool:
        """Neither more nor, which would mean that something is not counted, far less."""
        print(self)
        instructions_max = most.instructions * INSTRUCTIONS_ALLOWANCE
        return (
            0.8 * most.calls < self.calls <= most.calls
            and 0.7 * most.instructions < self.instructions <= instructions_max
        )


PRODUCE = Work(57, 2_400)
PRODUCE_OF_FULL_BATCH = Work(59, 2_490)
"""Two calls for the index entries that so many bytes get, none for the records."""
IDEMPOTENT_PRODUCE = Work(63, 2_600)
FETCH = Work(61, 2_500)
FETCH_FROM_FILE = Work(98, 3_520)
FETCH_OF_SESSION = Work(119, 4_050)
SESSION_PARTITIONS = 10
"""One has a record for each fetch, the others have none."""
DELAYED_FETCH = Work(150, 5_750)


class Counter:
    """Counts calls of Python functions, and the interpreter's instructions, in threads that start while it is
    installed."""

    def __init__(self) -> None:
        self.calls = self.instructions = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Counter":
        if event == "call":
            self.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.instructions += 1
        return self

    def since(self, before: tuple[int, int]) -> Work:
        return Work((self.calls - before[0]) / REQUESTS, (self.instructions - before[1]) / REQUESTS)

    def now(self) -> tuple[int, int]:
        return self.calls, self.instructions


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    threading.settrace(counter)
    yield counter
    threading.settrace(None)


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting makes the machine slow: the marker that `RequestTurns` sets once in 10 ms, a call and a callback, would
    come after a few requests instead of hundreds."""
    monkeypatch.setattr(turns, "SLICE_S", 3600)


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
    ("request_of", "records", "most"),
    [
        (plain, 1, PRODUCE),
        (many_records, FULL_BATCH_RECORDS, PRODUCE_OF_FULL_BATCH),
        (idempotent, 1, IDEMPOTENT_PRODUCE),
    ],
)
def test_produce(counter: Counter, request_of: Callable[[int], ProduceRequest], records: int, most: Work) -> None:
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        work, _ = work_per_request(counter, broker, map(request_of, count()), version=9)
        assert len(topic.records()) == 2 * REQUESTS * records
    assert work.is_within(most)


@pytest.mark.parametrize(("size", "most"), [(100, FETCH), (512 * 1024, FETCH_FROM_FILE)])
def test_fetch(counter: Counter, size: int, most: Work, tmp_path: Path) -> None:
    if size >= REGION_BYTES_MIN and not OsFiles().reads_cached(str(tmp_path)):
        pytest.skip("this file system does not tell what is in the page cache: nothing is sent from files")
    value = "x" * size
    request = fetch(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size + 100), max_wait_ms=500)
    with Broker(data_dir=tmp_path, clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        topic = broker.create_topic("t")
        topic.produce(value)
        topic.produce("the next batch, which does not fit")
        work, answer = work_per_request(counter, broker, repeat(request), version=11)
    assert value.encode() in answer
    assert work.is_within(most)


def test_a_fetch_of_a_session(counter: Counter) -> None:
    """What a consumer of several partitions sends, KIP-227: the request names only what changed."""
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        broker.create_topic("t", partitions=SESSION_PARTITIONS).produce("x" * 100, partition=0)
        changed = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        idle = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(1, SESSION_PARTITIONS)]
        with connect(broker.bootstrap_servers) as connection:
            request = fetch(changed, *idle, max_wait_ms=500, session_epoch=0)
            opened = decode(FetchResponse, 11, ask(connection, request, 11), CORRELATION_ID_SIZE)
            for epoch in range(1, 2 * REQUESTS + 1):
                if epoch == REQUESTS + 1:
                    before = counter.now()
                request = fetch(changed, max_wait_ms=500, session_id=opened.session_id, session_epoch=epoch)
                answer = ask(connection, request, 11)
        work = counter.since(before)
    assert b"x" * 100 in answer
    assert work.is_within(FETCH_OF_SESSION)


def test_a_fetch_that_waits_for_a_record(counter: Counter) -> None:
    """A record's way from producer to consumer: Fetch, Produce, and the second pass of the Fetch."""
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        broker.create_topic("t")
        partition = broker.server.replicas.partition_or_error("t", 0)
        with connect(broker.bootstrap_servers) as consumer, connect(broker.bootstrap_servers) as producer:
            for offset in range(2 * REQUESTS):
                if offset == REQUESTS:
                    before = counter.now()
                waiting = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                consumer.sendall(frame(fetch(waiting, max_wait_ms=30_000), 11))
                while not partition.is_waited_for:
                    time.sleep(0.001)
                ask(producer, plain(offset), 9)
                answer = receive(consumer)
                assert answer is not None
                assert b"x" * 100 in answer
        work = counter.since(before)
    assert work.is_within(DELAYED_FETCH)


def fetch(*partitions: FetchPartition, max_wait_ms: int, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    topics = [FetchTopic(topic="t", partitions=list(partitions))]
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_id=session_id,
        session_epoch=session_epoch, topics=topics,
    )  # fmt: skip


def work_per_request(counter: Counter, broker: Broker, requests: Iterator[Message], version: int) -> tuple[Work, bytes]:
    """Send requests one after the other; the work of each, and the last answer."""
    with connect(broker.bootstrap_servers) as connection:
        for request in islice(requests, REQUESTS):  # modules are imported, codecs compiled
            ask(connection, request, version)
        before = counter.now()
        for request in islice(requests, REQUESTS):
            answer = ask(connection, request, version)
        return counter.since(before), answer


def ask(connection: socket.socket, request: Message, version: int) -> bytes:
    connection.sendall(frame(request, version))
    answer = receive(connection)
    assert answer is not None
    return answer
