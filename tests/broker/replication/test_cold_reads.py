"""A fetch waits for the disk while the log changes: no reader of committed data receives an aborted record."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.broker.replication.fetch_operation import LOADS_AHEAD_MAX
from barnabas.broker.server import Broker as BrokerServer
from barnabas.storage.files import Buffer
from barnabas.storage.log import PartitionLog
from barnabas.storage.os_files import OsFiles
from barnabas.storage.segment_reader import FetchData
from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.storage.blocking import run_retention
from tools.attack.hostile import ask, connect
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

FETCH_VERSION = 12
ALL_EXPIRED_MS = 1 << 50


class ColdFiles(OsFiles):
    """Files whose data from before the start is read from the disk."""

    def reads_cached(self, directory: str) -> bool:
        return False


class ThreadsThatHoldReads(ThreadPoolExecutor):
    """Threads of a broker in which reads from the disk that found the aborted record have their bytes (`reached`), and
    give them away when they may `go_on`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def submit(self, job: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        return super().submit(self._do, partial(job, *arguments, **keywords))

    def _do(self, job: Callable[[], Any]) -> Any:
        found = job()
        if isinstance(found, FetchData) and b"aborted" in bytes(found.records):
            self.reached.set()
            assert self.go_on.wait(PATIENCE_S)
        return found

    async def set_in(self) -> None:
        """Have the running event loop use these threads."""
        asyncio.get_running_loop().set_default_executor(self)


@pytest.fixture
def disk() -> Iterator[ThreadsThatHoldReads]:
    disk = ThreadsThatHoldReads()
    yield disk
    disk.go_on.set()


@pytest.fixture
def broker(disk: ThreadsThatHoldReads, tmp_path: Path) -> Iterator[Broker]:
    """A broker with a topic: an aborted record and its marker in one segment, a committed record and its marker in the
    next."""
    with Broker(data_dir=tmp_path, files=ColdFiles()) as broker:
        broker.create_topic("t", configs={"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"})
        produce(broker, b"aborted", is_commit=False)
        roll(broker)
        produce(broker, b"committed", is_commit=True)
        broker.restart()
        broker.call(disk.set_in())
        yield broker


def produce(broker: Broker, value: bytes, *, is_commit: bool) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", value, key=b"key", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    (producer.commit_transaction if is_commit else producer.abort_transaction)(30)


def log_of(server: BrokerServer, topic: str = "t", partition: int = 0) -> PartitionLog:
    return server.replicas.partition_or_error(topic, partition).log


def roll(broker: Broker, topic: str = "t", partition: int = 0) -> None:
    async def roll() -> None:
        log = log_of(broker.server, topic, partition)
        log.roll()
        await broker.server.replicas.flusher.flush(log)  # what is not on the disk is not compacted

    broker.call(roll())


def fetch(broker: Broker) -> PartitionData:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="t", partitions=[partition])
    request = FetchRequest(max_bytes=1 << 20, isolation_level=1, topics=[topic])
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, request, FETCH_VERSION, FetchResponse)
    return response.responses[0].partitions[0]


class Session:
    """A fetch session over `t` and `u`."""

    def __init__(self, broker: Broker) -> None:
        self._bootstrap_servers = broker.bootstrap_servers
        self._id = self._epoch = 0

    def fetch(self, max_wait_ms: int = 0, min_bytes: int = 1, **offsets: int) -> dict[str, bytes]:
        """The records of each topic in which there was something; `offsets` are those that have changed."""
        topics = [
            FetchTopic(topic=topic, partitions=[FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)])
            for topic, offset in offsets.items()
        ]
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, topics=topics,
            session_id=self._id, session_epoch=self._epoch,
        )  # fmt: skip
        with connect(self._bootstrap_servers) as connection:
            response = ask(connection, request, FETCH_VERSION, FetchResponse)
        assert response.error_code == 0
        self._id, self._epoch = response.session_id, self._epoch + 1
        return {topic.topic: bytes(topic.partitions[0].records) for topic in response.responses}


def fetch_while(broker: Broker, disk: ThreadsThatHoldReads, change: Callable[[Broker], None]) -> PartitionData:
    """The response to a fetch during whose read `change` happens."""
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(fetch, broker)
        assert disk.reached.wait(PATIENCE_S)
        change(broker)
        disk.go_on.set()
        return answer.result(PATIENCE_S)


def delete_by_retention(broker: Broker) -> None:
    async def delete() -> None:
        run_retention(broker.server.log_manager, ALL_EXPIRED_MS)

    broker.call(delete())


def delete_records(broker: Broker) -> None:
    async def delete() -> None:
        broker.server.replicas.delete_records(broker.server.replicas.partition_or_error("t", 0), 1)

    broker.call(delete())


def create_anew(broker: Broker) -> None:
    broker.delete_topic("t")
    broker.create_topic("t")
    broker.topic("t").produce(b"new")


def append(broker: Broker) -> None:
    produce(broker, b"next", is_commit=True)


def compact_twice(broker: Broker) -> None:
    """Compact twice: the first pass removes the aborted record, the second one its entry of the transaction index."""
    for _ in range(2):
        append(broker)
        roll(broker)
        broker.call(broker.server.compaction.run())


@pytest.mark.parametrize("delete", [delete_by_retention, delete_records])
def test_records_deleted_during_a_cold_read_are_out_of_range(
    broker: Broker, disk: ThreadsThatHoldReads, delete: Callable[[Broker], None]
) -> None:
    answer = fetch_while(broker, disk, delete)
    assert (ErrorCode(answer.error_code), bytes(answer.records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


def test_a_topic_that_is_created_anew_meanwhile_is_read_instead(broker: Broker, disk: ThreadsThatHoldReads) -> None:
    answer = fetch_while(broker, disk, create_anew)
    assert answer.error_code == 0
    assert b"new" in bytes(answer.records)
    assert b"aborted" not in bytes(answer.records)


def test_records_compacted_during_a_cold_read_are_read_again(broker: Broker, disk: ThreadsThatHoldReads) -> None:
    answer = fetch_while(broker, disk, compact_twice)
    assert answer.error_code == 0
    assert b"next" in bytes(answer.records)
    assert b"aborted" not in bytes(answer.records)
    assert not answer.aborted_transactions


def test_a_wake_during_a_cold_read_ends_the_wait_for_more(broker: Broker, disk: ThreadsThatHoldReads) -> None:
    """The partition had no new records when the pass over the session began."""
    broker.create_topic("u")
    session = Session(broker)
    for offsets in ({"t": log_of(broker.server).log_end_offset, "u": 0}, {}, {}):
        session.fetch(**offsets)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(session.fetch, max_wait_ms=2**31 - 1, min_bytes=100_000, t=0)
        assert disk.reached.wait(PATIENCE_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("u", b"x" * 100_000)
        assert producer.flush(PATIENCE_S) == 0
        disk.go_on.set()
        found = answer.result(PATIENCE_S)
    assert b"aborted" in found["t"]
    assert b"x" * 100_000 in found["u"]


def test_an_append_during_a_cold_read_does_no_harm(broker: Broker, disk: ThreadsThatHoldReads) -> None:
    answer = fetch_while(broker, disk, append)
    assert b"aborted" in bytes(answer.records)
    assert [found.first_offset for found in answer.aborted_transactions or ()] == [0]


class FilesThatMeet(ColdFiles):
    """Files of which reads begin when `count` of them are there; `side_by_side` is the largest number that was."""

    def __init__(self) -> None:
        self.count = self.side_by_side = 0
        self._reading = 0
        self._changed = threading.Condition()

    def pread(self, descriptor: int, size: int, position: int) -> Buffer:
        with self._changed:
            self._reading += 1
            self.side_by_side = max(self.side_by_side, self._reading)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.side_by_side >= self.count, PATIENCE_S)
        try:
            return super().pread(descriptor, size, position)
        finally:
            with self._changed:
                self._reading -= 1

    def meet(self, count: int) -> None:
        """Begin to measure."""
        self.side_by_side = 0
        self.count = count


PARTITIONS = 12


@pytest.fixture
def files() -> FilesThatMeet:
    return FilesThatMeet()


@pytest.fixture
def cold_topic(tmp_path: Path, files: FilesThatMeet) -> Iterator[Broker]:
    """A broker with a topic `c` of twelve partitions, of which each has one record of 100 bytes on the disk."""
    with Broker(data_dir=tmp_path, files=files) as broker:
        broker.create_topic("c", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            broker.topic("c").produce(b"%d:" % partition + bytes(100), partition=partition)
            roll(broker, "c", partition)
        broker.restart()
        yield broker


def fetch_all(broker: Broker, max_bytes: int, partition_max_bytes: int) -> dict[int, bytes]:
    """The number at the start of the record of each partition that returned one."""
    partitions = [
        FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=partition_max_bytes)
        for partition in range(PARTITIONS)
    ]
    request = FetchRequest(max_bytes=max_bytes, topics=[FetchTopic(topic="c", partitions=partitions)])
    with connect(broker.bootstrap_servers) as connection:
        response = ask(connection, request, FETCH_VERSION, FetchResponse)
    (topic,) = response.responses
    assert [found.partition_index for found in topic.partitions] == list(range(PARTITIONS))
    return {
        found.partition_index: bytes(found.records)[:-100].rpartition(b":")[0][-1:]
        for found in topic.partitions
        if found.records
    }


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes", "side_by_side", "found"),
    [
        pytest.param(8_000, 500, 1 + LOADS_AHEAD_MAX, PARTITIONS, id="there is room for all"),
        pytest.param(2_500, 800, 3, PARTITIONS, id="there is room for three"),
        pytest.param(15_000, 15_000, 1, PARTITIONS, id="one may take all"),
        pytest.param(400, 300, 1, 2, id="the bytes of the first ones leave no room"),
        pytest.param(1 << 20, 100, 1 + LOADS_AHEAD_MAX, 1, id="only the first one may exceed its limit"),
    ],
)
def test_cold_reads_are_side_by_side_as_far_as_there_is_room(
    cold_topic: Broker,
    files: FilesThatMeet,
    max_bytes: int,
    partition_max_bytes: int,
    side_by_side: int,
    found: int,
) -> None:
    files.meet(side_by_side)
    answer = fetch_all(cold_topic, max_bytes, partition_max_bytes)
    assert answer == {partition: b"%d" % (partition % 10) for partition in range(found)}
    assert files.side_by_side == side_by_side
