"""What a fetch of several partitions tells of those that it finds no records in, or has no room for."""

import socket
from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tools.hostile import ask, connect

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
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self.max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=[
                FetchTopic(
                    topic="t",
                    partitions=[
                        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
                        for index, offset in changed.items()
                    ],
                )
            ],
        )
        response = ask(self._connection, request, FETCH_VERSION, FetchResponse)
        assert response.error_code == 0
        self._session_id = response.session_id
        self._epoch += 1
        return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def test_a_full_fetch_tells_all_partitions_even_those_without_records_or_room(
    broker: Broker, connection: socket.socket
) -> None:
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
