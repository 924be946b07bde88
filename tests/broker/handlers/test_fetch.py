"""Fetch over a socket: what is told of several partitions, some without records or room; fetches that wait; errors."""

import gc
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from barnabas.broker.api.context import RequestContext
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.waiting_fetches import WaitingFetches
from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tools.attack.hostile import answer, ask, connect, frame
from tools.waiting import wait_until

FETCH_VERSION = 12
DELETE_RECORDS_VERSION = 2


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", partitions=3)
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap_servers) as connection:
        yield connection


def fetch_of(offsets: Mapping[int, int], *, topic: str = "t", **fields: Any) -> FetchRequest:
    """A request for partitions from these offsets on; without a session unless one is given."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in offsets.items()
    ]
    given = {"min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1} | fields
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=partitions)], **given)


class Fetcher:
    """One fetch session; `offsets` are what it asks for, and it asks again only for what has changed."""

    def __init__(self, connection: socket.socket, max_bytes: int = 1 << 20) -> None:
        self.offsets = {0: 0, 1: 0, 2: 0}
        self._connection = connection
        self._max_bytes = max_bytes
        self.max_wait_ms = 0
        self._session_id = self._epoch = 0
        self._asked: dict[int, int] = {}

    def fetch(self) -> dict[int, PartitionData]:
        changed = {index: offset for index, offset in self.offsets.items() if self._asked.get(index) != offset}
        self._asked |= changed
        request = fetch_of(
            changed,
            max_wait_ms=self.max_wait_ms,
            max_bytes=self._max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
        )
        response = ask(self._connection, request, FETCH_VERSION, FetchResponse)
        assert response.error_code == 0
        self._session_id = response.session_id
        self._epoch += 1
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def test_a_full_fetch_answers_every_partition(broker: Broker, connection: socket.socket) -> None:
    for index in (0, 1):
        broker.topic("t").produce("x" * 100, partition=index)
    told = Fetcher(connection, max_bytes=10).fetch()
    assert [bool(told[index].records) for index in range(3)] == [True, False, False]
    assert [told[index].high_watermark for index in range(3)] == [1, 1, 0]


def test_an_error_is_told_although_there_is_no_room(broker: Broker, connection: socket.socket) -> None:
    broker.topic("t").produce("x" * 100, partition=0)
    fetcher = Fetcher(connection, max_bytes=10)
    fetcher.offsets[2] = 99
    told = fetcher.fetch()
    assert told[0].records
    assert told[2].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("max_wait_ms", [0, 20_000])
def test_an_incremental_fetch_tells_only_what_is_new(
    broker: Broker, connection: socket.socket, max_wait_ms: int
) -> None:
    fetcher = Fetcher(connection)
    assert fetcher.fetch().keys() == {0, 1, 2}
    assert fetcher.fetch() == {}
    fetcher.max_wait_ms = max_wait_ms
    broker.topic("t").produce("x", partition=1)
    told = fetcher.fetch()
    assert told.keys() == {1}
    assert told[1].records
    fetcher.offsets[1] = 1
    fetcher.max_wait_ms = 0
    assert fetcher.fetch() == {}


def test_partitions_without_room_come_first_the_next_time(broker: Broker, connection: socket.socket) -> None:
    for index in range(3):
        broker.topic("t").produce("x" * 100, partition=index)
    fetcher = Fetcher(connection, max_bytes=10)
    fetcher.fetch()  # partition 0, and what the others' high watermarks are
    fetcher.offsets[0] = 1
    for expected in (1, 2):
        told = fetcher.fetch()
        assert [index for index, data in told.items() if data.records] == [expected]
        fetcher.offsets[expected] = 1
    assert fetcher.fetch() == {}


def test_a_partition_fills_its_part_of_a_fetch_as_in_kafka(broker: Broker, connection: socket.socket) -> None:
    for index, size in ((0, 600), (0, 600), (1, 600), (1, 600), (2, 10)):
        broker.topic("t").produce("x" * size, partition=index)
    told = Fetcher(connection, max_bytes=1_500).fetch()
    sizes = {index: len(data.records) for index, data in told.items()}
    assert 1_200 < sizes[0] < 1_500  # both records
    assert sizes[1] == 0  # none fits, so the room is left to others
    assert 0 < sizes[2] < 150
    told = Fetcher(connection, max_bytes=1_000).fetch()
    sizes = {index: len(data.records) for index, data in told.items()}
    assert 600 < sizes[0] < 1_000  # one record; Kafka would add a part of the other
    assert sizes[1] == sizes[2] == 0


def test_a_log_start_offset_that_moved_is_told_without_records(broker: Broker, connection: socket.socket) -> None:
    for _ in range(3):
        broker.topic("t").produce("x", partition=2)
    fetcher = Fetcher(connection)
    fetcher.offsets[2] = 3
    fetcher.fetch()
    partition = DeleteRecordsPartition(partition_index=2, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=10_000)
    ask(connection, request, DELETE_RECORDS_VERSION, DeleteRecordsResponse)
    told = fetcher.fetch()
    assert told.keys() == {2}
    assert (told[2].log_start_offset, bool(told[2].records)) == (2, False)


# --- fetches that wait ---------------------------------------------------------------------------


def waiting_fetch(*, max_wait_ms: int = 60_000, min_bytes: int = 1) -> FetchRequest:
    return fetch_of({0: 0}, max_wait_ms=max_wait_ms, min_bytes=min_bytes)


def send(connection: socket.socket, broker: Broker, request: FetchRequest) -> Partition:
    """Send a fetch, and return the partition once it waits there."""
    partition = broker.server.replicas.partition_or_error("t", 0)
    connection.sendall(frame(request, FETCH_VERSION))
    wait_until(lambda: partition.is_waited_for)
    return partition


def take(connection: socket.socket) -> PartitionData:
    return answer(connection, waiting_fetch(), FETCH_VERSION, FetchResponse).responses[0].partitions[0]


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(broker: Broker, connection: socket.socket) -> None:
    partition = send(connection, broker, waiting_fetch(min_bytes=2_500))
    for _ in range(2):
        broker.topic("t").produce("x" * 1_000, partition=0)
        assert partition.is_waited_for
    broker.topic("t").produce("x" * 1_000, partition=0)
    assert len(take(connection).records) > 3_000
    wait_until(lambda: not partition.is_waited_for)


def test_a_fetch_counts_what_its_first_pass_found(broker: Broker, connection: socket.socket) -> None:
    broker.topic("t").produce("x" * 1_000, partition=0)
    send(connection, broker, waiting_fetch(min_bytes=1_500))
    broker.topic("t").produce("x" * 1_000, partition=0)
    assert len(take(connection).records) > 2_000


def test_a_fetch_that_waited_long_enough_tells_what_there_is(broker: Broker, connection: socket.socket) -> None:
    broker.topic("t").produce("x" * 1_000, partition=0)
    connection.sendall(frame(waiting_fetch(max_wait_ms=50, min_bytes=10_000), FETCH_VERSION))
    assert len(take(connection).records) > 1_000
    assert not broker.server.replicas.partition_or_error("t", 0).is_waited_for


def test_the_next_request_waits_behind_a_fetch_that_waits(broker: Broker, connection: socket.socket) -> None:
    partition = broker.server.replicas.partition_or_error("t", 0)
    connection.sendall(frame(waiting_fetch(), FETCH_VERSION) + frame(waiting_fetch(max_wait_ms=0), FETCH_VERSION))
    wait_until(lambda: partition.is_waited_for)
    broker.topic("t").produce("x", partition=0)
    assert take(connection).records
    assert take(connection).records, "it was answered before there was a record"


def test_a_fetch_hears_of_the_end_of_its_topic(broker: Broker, connection: socket.socket) -> None:
    send(connection, broker, waiting_fetch())
    broker.delete_topic("t")
    assert take(connection).error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_a_gone_clients_fetch_leaves_no_listener(broker: Broker) -> None:
    with connect(broker.bootstrap_servers) as connection:
        partition = send(connection, broker, waiting_fetch())
    wait_until(lambda: not partition.is_waited_for)
    broker.topic("t").produce("x", partition=0)


def wide_fetch(first: int, end: int) -> FetchRequest:
    return fetch_of(dict.fromkeys(range(first, end), 0), topic="wide", max_wait_ms=2**31 - 1)


def test_a_fetch_that_waits_keeps_no_client_id(broker: Broker, connection: socket.socket) -> None:
    partition = broker.server.replicas.partition_or_error("t", 0)
    connection.sendall(frame(waiting_fetch(), FETCH_VERSION, client_id="\U0001f600" + "x" * 32_000))
    wait_until(lambda: partition.is_waited_for)
    contexts = [each for each in gc.get_objects() if isinstance(each, RequestContext)]
    assert contexts
    assert [each for each in contexts if len(each.client_id or "") > 1_000] == []


def test_the_largest_waiting_fetch_is_answered_beyond_the_bound(broker: Broker) -> None:
    broker.create_topic("wide", partitions=30)
    waiting = broker.server.replicas.waiting_fetches = WaitingFetches(partitions_max=50)
    address = broker.bootstrap_servers
    with connect(address) as small, connect(address) as large, connect(address) as other:
        small.sendall(frame(wide_fetch(0, 11), FETCH_VERSION))
        assert wait_until(lambda: waiting.partition_count == 11)
        large.sendall(frame(wide_fetch(0, 30), FETCH_VERSION))
        assert wait_until(lambda: waiting.partition_count == 41)
        other.sendall(frame(wide_fetch(0, 12), FETCH_VERSION))
        response = answer(large, FetchRequest(), FETCH_VERSION, FetchResponse)
        told = [data.error_code for topic in response.responses for data in topic.partitions]
        assert told == [ErrorCode.NONE] * 30
        assert waiting.partition_count == 23
        broker.topic("wide").produce("x", partition=0)
        answer(small, FetchRequest(), FETCH_VERSION, FetchResponse)
        answer(other, FetchRequest(), FETCH_VERSION, FetchResponse)
        assert waiting.partition_count == 0
    with connect(address) as gone:
        gone.sendall(frame(wide_fetch(1, 12), FETCH_VERSION))
        assert wait_until(lambda: waiting.partition_count == 11)
    assert wait_until(lambda: waiting.partition_count == 0)


# --- errors, as Apache Kafka tells them ----------------------------------------------------------


def first_of(connection: socket.socket, request: FetchRequest) -> PartitionData:
    return ask(connection, request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]


def with_epoch(current_leader_epoch: int) -> FetchRequest:
    request = fetch_of({0: 0})
    request.topics[0].partitions[0].current_leader_epoch = current_leader_epoch
    return request


def test_any_negative_leader_epoch_means_none(connection: socket.socket) -> None:
    assert first_of(connection, with_epoch(-2)).error_code == ErrorCode.NONE


def test_aborted_transactions_are_null_for_existing_topics(connection: socket.socket) -> None:
    assert first_of(connection, fetch_of({0: 0}, topic="no-such")).aborted_transactions == []
    assert first_of(connection, with_epoch(9)).aborted_transactions is None


def test_the_leader_does_not_follow_itself(broker: Broker, connection: socket.socket) -> None:
    request = fetch_of({0: 0}, replica_id=broker.server.node_id)
    assert first_of(connection, request).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_without_a_replica(connection: socket.socket) -> None:
    """A fetch in the name of a broker that has no replica of the partition ends with Kafka's error."""

    def error(epoch: int) -> ErrorCode:
        request = fetch_of({0: 0}, replica_id=5)
        request.topics[0].partitions[0].current_leader_epoch = epoch
        return ErrorCode.of(first_of(connection, request).error_code)

    assert error(epoch=-1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error(epoch=0) is ErrorCode.UNKNOWN_LEADER_EPOCH
