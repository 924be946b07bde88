"""The cost of a request in calls of Python functions and in instructions of the interpreter: counts that a busy machine
does not change.

A request of one record is interpreted code through and through (docs/internals/performance.md), so its time is in
proportion to them; the instructions tell of loops, too. Whoever makes a request better lowers the limits; whoever has
to raise them should know why.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice, repeat
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from barnabas.broker.configuration.tables.broker import RACK_AWARE_SELECTOR
from barnabas.broker.replication.partition import Partition
from barnabas.broker.security.broker_secrets import credentials_of_broker
from barnabas.broker.security.sasl.plain import MECHANISM, encode
from barnabas.clock import ManualClock
from barnabas.storage.file_records import REGION_BYTES_MIN
from barnabas.storage.os_files import OsFiles
from barnabas.testing import Broker, Cluster
from barnabas.testing.brokers.cluster_broker import ClusterBroker
from barnabas.wire.codec import decode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tools.attack.hostile import connect, frame, receive
from tools.waiting import wait_until

pytestmark = pytest.mark.slow

REQUESTS = 100
ROUNDS_MAX = 400
ROUNDS_ALIKE = 5
REQUESTS_PER_ROUND = 10
CORRELATION_ID_SIZE = 4
REPLICA_FETCH_VERSION = 17
INSTRUCTIONS_ALLOWANCE = 1.0 if sys.version_info[:2] == (3, 11) else 1.3
"""Each Python has instructions of its own; the limits are counts of 3.11."""
AT_LENGTH = [pytest.param(partitions, marks=pytest.mark.full) for partitions in (10, 1_000)]
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


PRODUCE = Work(52, 2_415)
PRODUCE_OF_FULL_BATCH = Work(54, 2_515)
"""Two calls for the index entries that so many bytes get, none for the records. Some instructions find whether so large
a request waits, and then counts as unfinished."""
IDEMPOTENT_PRODUCE = Work(58, 2_625)
PRODUCE_RECORDED = Work(141, 5_000)
"""While somebody looks at what clients ask (`Broker.recorded`)."""
PRODUCE_AFTER_FLUSH = Work(215, 5_350)
"""With `barnabas.flush.before.ack`: the flush, its thread, and the reply that waits for it, as with acks=all for
replicas. How the thread and the loop meet makes it a few more or less.
"""
FETCH = Work(61, 2_510)
FETCH_FROM_FILE = Work(96, 3_470)
FETCH_OF_SESSION = Work(68, 2_720)
"""However many partitions it follows: one has a record for each fetch, the others have none."""
FETCH_OF_SESSION_IN_A_RACK = Work(81, 2_990)
"""The same, where other brokers stand in racks and follow, and none of them is nearer."""
IDLE_FETCH_OF_SESSION = Work(39, 1_400)
IDLE_FETCH_OF_FOLLOWER = Work(45, 1_665)
"""However many partitions they follow."""
REPLICATED_PRODUCE = Work(622, 19_400)
"""A batch with acks=all, on its leader and both followers: with their fetches, appends, and what becomes committed."""
DELAYED_FETCH = Work(150, 5_805)
DELAYED_FETCH_OF_SESSION = Work(155, 6_075)
"""However many partitions it follows."""


class Counter:
    """Counts calls of Python functions, and the interpreter's instructions, in threads that start while it is
    installed; from the first call of `now` on, as it takes its time."""

    def __init__(self) -> None:
        self.calls = self.instructions = 0
        self._counts = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Counter | None":
        if not self._counts:
            return None
        if event == "call":
            self.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.instructions += 1
        return self

    async def begin_here(self) -> None:
        """Count in the thread of the event loop that this runs on, too, which has started before."""
        sys.settrace(self)

    def since(self, before: tuple[int, int], requests: int = REQUESTS) -> Work:
        return Work((self.calls - before[0]) / requests, (self.instructions - before[1]) / requests)

    def now(self) -> tuple[int, int]:
        self._counts = True
        return self.calls, self.instructions


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    threading.settrace(counter)
    yield counter
    threading.settrace(None)


class StoppableClock:
    """The machine's clock until it is stopped: what brokers do by themselves now and then is not due from then on.
    Like the machine's it takes one call.
    """

    def __init__(self) -> None:
        self._stopped_ns: int | None = None

    def now_ms(self) -> int:
        return (time.time_ns() if self._stopped_ns is None else self._stopped_ns) // 1_000_000

    def monotonic_ms(self) -> int:
        return (time.time_ns() if self._stopped_ns is None else self._stopped_ns) // 1_000_000

    def stop(self) -> None:
        self._stopped_ns = time.time_ns()


def take_no_time(broker: Broker | ClusterBroker) -> None:
    """Have requests of clients and of other brokers take no time. Counting makes a broker slow, a busy machine more
    so: the marker that `RequestTurns` sets once in 10 ms, some calls and a callback, would come after a few requests
    instead of hundreds.
    """
    connections = broker.server.connections
    for turns in (connections.turns, connections.turns_of_brokers):
        turns.work_s = repeat(0.0).__next__  # no call of a Python function


@contextmanager
def running(data_dir: Path | None = None) -> Iterator[Broker]:
    """A broker on a machine that takes no time."""
    with Broker(data_dir=data_dir, clock=ManualClock(now_ms=1_700_000_000_000)) as broker:
        take_no_time(broker)
        yield broker


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
    with running() as broker:
        topic = broker.create_topic("t")
        work, _ = work_per_request(counter, broker, map(request_of, count()), version=9)
        assert len(topic.records()) == 2 * REQUESTS * records
    assert work.is_within(most)


def test_a_produce_that_is_recorded(counter: Counter) -> None:
    with running() as broker:
        broker.create_topic("t")
        with broker.recorded() as seen:
            work, _ = work_per_request(counter, broker, map(plain, count()), version=9)
        assert len(seen.requests("Produce")) == 2 * REQUESTS
    assert work.is_within(PRODUCE_RECORDED)


def test_a_produce_that_waits_for_its_commit(counter: Counter) -> None:
    configs = {"barnabas.flush.before.ack": "true"}
    with Broker(clock=ManualClock(now_ms=1_700_000_000_000), configs=configs) as broker:
        topic = broker.create_topic("t")
        work, _ = work_per_request(counter, broker, map(plain, count()), version=9)
        assert len(topic.records()) == 2 * REQUESTS
    assert work.is_within(PRODUCE_AFTER_FLUSH)


@pytest.mark.parametrize(("size", "most"), [(100, FETCH), (512 * 1024, FETCH_FROM_FILE)])
def test_fetch(counter: Counter, size: int, most: Work, tmp_path: Path) -> None:
    if size >= REGION_BYTES_MIN and not OsFiles().reads_cached(str(tmp_path)):
        pytest.skip("this file system does not tell what is in the page cache: nothing is sent from files")
    value = "x" * size
    request = fetch(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size + 100), max_wait_ms=500)
    with running(tmp_path) as broker:
        topic = broker.create_topic("t")
        topic.produce(value)
        topic.produce("the next batch, which does not fit")
        work, answer = work_per_request(counter, broker, repeat(request), version=11)
    assert value.encode() in answer
    assert work.is_within(most)


@pytest.mark.parametrize("partitions", [100, *AT_LENGTH])
def test_a_fetch_of_a_session(counter: Counter, partitions: int) -> None:
    """A consumer of several partitions sends a request of KIP-227, which names only the changed partitions."""
    with running() as broker:
        broker.create_topic("t", partitions=partitions).produce("x" * 100, partition=0)
        work = work_per_fetch_of_session(counter, broker, range(partitions), rack_id="")
    assert work.is_within(FETCH_OF_SESSION)


@pytest.mark.parametrize("partitions", [100, *AT_LENGTH])
def test_a_fetch_of_a_session_from_a_rack(counter: Counter, partitions: int) -> None:
    """A consumer that would be sent to a nearer replica, KIP-392, if there were one."""
    settings = {"racks": ("a", "b"), "replica_selector_class": RACK_AWARE_SELECTOR}
    with brokers_at_rest(counter, 2, 2 * partitions, "x" * 100, **settings) as (leader, led):
        assert len(led) == partitions
        work = work_per_fetch_of_session(counter, leader, [each.index for each in led], rack_id="c")
    assert work.is_within(FETCH_OF_SESSION_IN_A_RACK)


def wait_until_followers_wait(cluster: Cluster) -> None:
    """Until they have asked for all that they follow, some of it again, and are not answered before a record comes."""

    def is_quiet() -> bool:
        with cluster.recorded(from_brokers=True) as seen:
            time.sleep(0.5)  # Real time: a follower whose partitions were not there yet asks again in a while
        return not len(seen)

    wait_until(is_quiet, "followers that ask no more")


def work_per_fetch_of_session(
    counter: Counter, broker: Broker | ClusterBroker, partitions: Sequence[int], rack_id: str
) -> Work:
    """Of partitions the first one has a record for each fetch, the others have none."""
    changed, *idle = (FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in partitions)
    with connect(broker.bootstrap_servers) as connection:
        request = fetch(changed, *idle, max_wait_ms=500, session_epoch=0)
        request.rack_id = rack_id
        opened = decode(FetchResponse, 11, ask(connection, request, 11), CORRELATION_ID_SIZE)
        epochs = count(1)

        def fetch_again() -> None:
            request = fetch(changed, max_wait_ms=500, session_id=opened.session_id, session_epoch=next(epochs))
            request.rack_id = rack_id
            assert b"x" * 100 in ask(connection, request, 11)

        return least_work(counter, fetch_again)


@pytest.mark.parametrize("partitions", [100, *AT_LENGTH])
def test_an_idle_fetch_of_a_session(counter: Counter, partitions: int) -> None:
    """Nothing is new in any partition, and the consumer does not wait for it."""
    with running() as broker:
        broker.create_topic("t", partitions=partitions)
        asked = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(partitions)]
        with connect(broker.bootstrap_servers) as connection:
            request = fetch(*asked, max_wait_ms=0, session_epoch=0)
            opened = decode(FetchResponse, 11, ask(connection, request, 11), CORRELATION_ID_SIZE)
            request.topics, request.session_id = [], opened.session_id

            def fetch_again() -> None:
                request.session_epoch += 1
                ask(connection, request, 11)

            work = least_work(counter, fetch_again)
    assert work.is_within(IDLE_FETCH_OF_SESSION)


@pytest.mark.parametrize("partitions", [100, *AT_LENGTH])
def test_a_fetch_of_a_session_that_waits_for_a_record(counter: Counter, partitions: int) -> None:
    """As below, and the record comes to one of the partitions that a session follows."""
    with running() as broker:
        topic = broker.create_topic("t", partitions=partitions)
        topic.produce("x" * 100, partition=0)
        partition = broker.server.replicas.partition_or_error("t", 0)
        asked = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(partitions)]
        asked[0].fetch_offset = 1
        with connect(broker.bootstrap_servers) as consumer, connect(broker.bootstrap_servers) as producer:
            request = fetch(*asked, max_wait_ms=0, session_epoch=0)
            opened = decode(FetchResponse, 11, ask(consumer, request, 11), CORRELATION_ID_SIZE)
            offsets = count(1)

            def fetch_again() -> None:
                offset = next(offsets)
                read = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                again = fetch(read, max_wait_ms=30_000, session_id=opened.session_id, session_epoch=offset)
                hand_over(again, consumer, producer, partition)

            work = least_work(counter, fetch_again)
    assert work.is_within(DELAYED_FETCH_OF_SESSION)


def test_a_fetch_that_waits_for_a_record(counter: Counter) -> None:
    """A record's way from producer to consumer: Fetch, Produce, and the second pass of the Fetch."""
    with running() as broker:
        broker.create_topic("t")
        partition = broker.server.replicas.partition_or_error("t", 0)
        with connect(broker.bootstrap_servers) as consumer, connect(broker.bootstrap_servers) as producer:
            for offset in range(2 * REQUESTS):
                if offset == REQUESTS:
                    before = counter.now()
                waiting = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
                hand_over(fetch(waiting, max_wait_ms=30_000), consumer, producer, partition)
        work = counter.since(before)
    assert work.is_within(DELAYED_FETCH)


def hand_over(request: FetchRequest, consumer: socket.socket, producer: socket.socket, partition: Partition) -> None:
    """A record to a consumer that waits for it with this request."""
    consumer.sendall(frame(request, 11))
    wait_until(lambda: partition.is_waited_for)
    ask(producer, plain(0), 9)
    answer = receive(consumer)
    assert answer is not None
    assert b"x" * 100 in answer


@contextmanager
def brokers_at_rest(
    counter: Counter, count: int, partitions: int, record: str = "", **settings: Any
) -> Iterator[tuple[ClusterBroker, list[Partition]]]:
    """A topic on all of so many brokers: one of them, and what it leads, of which the first has the record, if any.
    They fetch from each other when there is something to fetch, and hardly ever otherwise; nothing else is done
    unasked.
    """
    threading.settrace(None)  # thousands of partitions are made in half the time
    clock = StoppableClock()
    long_waits = {"replica_fetch_wait_max_ms": 20_000, "replica_lag_time_max_ms": 60_000}
    with Cluster(count, clock=clock, **long_waits, **settings) as cluster:
        for broker in cluster.brokers:
            take_no_time(broker)
        topic = cluster.create_topic("t", partitions=partitions)
        leader = cluster.brokers[cluster.leader("t")]
        led = [each for each in leader.server.replicas.partitions() if each.topic == "t" and each.state.is_leader]
        if record:
            topic.produce(record, partition=led[0].index)
        wait_until_followers_wait(cluster)
        clock.stop()
        threading.settrace(counter)
        cluster.call(counter.begin_here())
        yield leader, led


def test_a_produce_that_is_replicated(counter: Counter) -> None:
    with brokers_at_rest(counter, 3, 1) as (leader, _), connect(leader.bootstrap_servers) as connection:
        work = least_work(counter, lambda: ask(connection, produce(-1, build_batch([RECORD])), 9))
    assert work.is_within(REPLICATED_PRODUCE)


@pytest.mark.parametrize("partitions", [3, 100, *AT_LENGTH])
def test_an_idle_fetch_of_a_follower(counter: Counter, partitions: int) -> None:
    """In a session of its own, so that nothing else asks meanwhile; the follower's secret is shown before."""
    with brokers_at_rest(counter, 2, 2 * partitions) as (leader, led):
        assert len(led) == partitions
        asked = [FetchPartition(partition=found.index, partition_max_bytes=1 << 20) for found in led]
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=1 - leader.number),
            max_bytes=1 << 20,
            session_epoch=0,
            topics=[FetchTopic(topic_id=led[0].topic_id, partitions=asked)],
        )
        with connect(leader.bootstrap_servers) as connection:
            follower = leader._cluster.brokers[1 - leader.number].server
            shown = encode(credentials_of_broker(follower.node_id, follower._secret))
            ask(connection, SaslHandshakeRequest(mechanism=MECHANISM), 1)
            ask(connection, SaslAuthenticateRequest(auth_bytes=shown), 2)
            answer = decode(FetchResponse, REPLICA_FETCH_VERSION, ask(connection, request, REPLICA_FETCH_VERSION), 5)
            request.topics, request.session_id = [], answer.session_id

            def fetch_again() -> None:
                request.session_epoch += 1
                ask(connection, request, REPLICA_FETCH_VERSION)

            work = least_work(counter, fetch_again)
    assert work.is_within(IDLE_FETCH_OF_FOLLOWER)


def fetch(*partitions: FetchPartition, max_wait_ms: int, session_id: int = 0, session_epoch: int = -1) -> FetchRequest:
    topics = [FetchTopic(topic="t", partitions=list(partitions))]
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_id=session_id,
        session_epoch=session_epoch, topics=topics,
    )  # fmt: skip


def least_work(counter: Counter, request: Callable[[], object]) -> Work:
    """Of rounds of requests that which took least: what several brokers do by themselves, on the same loop, comes in
    between at times, and on a busy machine for many rounds. What nothing else is in comes again, as it is.
    """
    for _ in range(REQUESTS):  # modules are imported, codecs compiled
        request()
    rounds: list[Work] = []
    while len(rounds) < ROUNDS_MAX and (not rounds or rounds.count(min(rounds)) < ROUNDS_ALIKE):
        before = counter.now()
        for _ in range(REQUESTS_PER_ROUND):
            request()
        rounds.append(counter.since(before, REQUESTS_PER_ROUND))
    return min(rounds)


def work_per_request(
    counter: Counter, broker: Broker | ClusterBroker, requests: Iterator[Message], version: int
) -> tuple[Work, bytes]:
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
