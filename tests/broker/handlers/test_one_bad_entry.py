"""One entry of a request that raises what nobody foresaw: it gets an error, the others are served."""

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.storage.log import PartitionLog
from barnabas.storage.validation import AppendOrigin
from barnabas.testing import Broker
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import (
    delete_records,
    describe_groups,
    describe_producers,
    describe_transactions,
    fetch,
    list_offsets,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    write_txn_markers,
)
from barnabas.wire.records import Record, build_batch
from barnabas.wire.schema import Message
from tests.support.bugs import Bug
from tools.attack.hostile import ask, connect

BAD, GOOD = 1, (0, 2)
UNSTABLE_MS = 1_700_000_000_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"offsets.topic.num.partitions": "1"}) as broker:
        broker.create_topic("t", partitions=3)
        for index in range(3):
            broker.topic("t").produce("x", partition=index)
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[socket.socket]:
    with connect(broker.bootstrap_servers) as connection:
        yield connection


def is_bad_log(log: PartitionLog, *_: object) -> bool:
    return log.topic == "t" and log.partition == BAD


def is_bad_index(_: object, topic: str, index: int, *__: object) -> bool:
    return topic == "t" and index == BAD


def batch() -> bytearray:
    return build_batch([Record(0, UNSTABLE_MS, b"k", b"v")])


def errors_by_partition(response: Any) -> dict[int, int]:
    topics = getattr(response, "topics", None) or response.responses
    partitions = getattr(topics[0], "partitions", None) or topics[0].partition_responses
    return {
        getattr(found, "partition_index", getattr(found, "index", getattr(found, "partition", -1))): found.error_code
        for found in partitions
    }


FETCH = fetch.FetchRequest(
    replica_id=-1,
    max_wait_ms=10_000,
    min_bytes=1,
    max_bytes=1 << 20,
    isolation_level=1,
    topics=[
        fetch.FetchTopic(
            topic="t",
            partitions=[
                fetch.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in range(3)
            ],
        )
    ],
)
PRODUCE = produce.ProduceRequest(
    acks=-1,
    timeout_ms=10_000,
    topic_data=[
        produce.TopicProduceData(
            name="t",
            partition_data=[produce.PartitionProduceData(index=index, records=batch()) for index in range(3)],
        )
    ],
)
LIST_OFFSETS = list_offsets.ListOffsetsRequest(
    replica_id=-1,
    topics=[
        list_offsets.ListOffsetsTopic(
            name="t",
            partitions=[list_offsets.ListOffsetsPartition(partition_index=index, timestamp=0) for index in range(3)],
        )
    ],
)
EPOCHS = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
    replica_id=-1,
    topics=[
        offset_for_leader_epoch.OffsetForLeaderTopic(
            topic="t",
            partitions=[
                offset_for_leader_epoch.OffsetForLeaderPartition(
                    partition=index, current_leader_epoch=-1, leader_epoch=0
                )
                for index in range(3)
            ],
        )
    ],
)
DELETE = delete_records.DeleteRecordsRequest(
    timeout_ms=1000,
    topics=[
        delete_records.DeleteRecordsTopic(
            name="t",
            partitions=[delete_records.DeleteRecordsPartition(partition_index=index, offset=1) for index in range(3)],
        )
    ],
)
PRODUCERS = describe_producers.DescribeProducersRequest(
    topics=[describe_producers.TopicRequest(name="t", partition_indexes=[0, 1, 2])]
)
MARKERS = write_txn_markers.WriteTxnMarkersRequest(
    markers=[
        write_txn_markers.WritableTxnMarker(
            producer_id=7,
            producer_epoch=0,
            transaction_result=True,
            topics=[write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 2])],
            coordinator_epoch=0,
        )
    ]
)


@pytest.mark.parametrize(
    ("request_", "version", "response_class", "owner", "method", "is_bad"),
    [
        (FETCH, 12, fetch.FetchResponse, PartitionLog, "read", is_bad_log),
        (FETCH, 12, fetch.FetchResponse, PartitionLog, "aborted_transactions", is_bad_log),
        (PRODUCE, 9, produce.ProduceResponse, PartitionLog, "append_as_leader", is_bad_log),
        (LIST_OFFSETS, 7, list_offsets.ListOffsetsResponse, PartitionLog, "timestamp_lookup", is_bad_log),
        (
            EPOCHS,
            4,
            offset_for_leader_epoch.OffsetForLeaderEpochResponse,
            PartitionLog,
            "end_offset_for_epoch",
            is_bad_log,
        ),
        (DELETE, 2, delete_records.DeleteRecordsResponse, PartitionLog, "increment_log_start_offset", is_bad_log),
        (
            PRODUCERS,
            0,
            describe_producers.DescribeProducersResponse,
            ReplicaManager,
            "partition_or_error",
            is_bad_index,
        ),
        (MARKERS, 1, write_txn_markers.WriteTxnMarkersResponse, ReplicaManager, "append", is_bad_index),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_bad_partition(
    broker: Broker,
    connection: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request_: Message,
    version: int,
    response_class: type[Message],
    owner: type,
    method: str,
    is_bad: Callable[..., bool],
) -> None:
    Bug(monkeypatch, owner, method, is_bad)
    for _ in range(2):
        response: Any = ask(connection, request_, version, response_class)
        entry = response.markers[0] if response_class is write_txn_markers.WriteTxnMarkersResponse else response
        assert errors_by_partition(entry) == {0: 0, BAD: ErrorCode.KAFKA_STORAGE_ERROR, 2: 0}
    assert broker.server.unforeseen.count == 2
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in told] == ["a request for t-1 failed: ValueError: nobody foresaw this"]


def bad_is_named(_: object, name: str, *__: object) -> bool:
    return name == "bad"


@pytest.mark.parametrize(
    ("request_", "version", "response_class", "owner", "method", "answers"),
    [
        (
            describe_groups.DescribeGroupsRequest(groups=["a", "bad", "b"]),
            5,
            describe_groups.DescribeGroupsResponse,
            GroupService,
            "describe",
            "groups",
        ),
        (
            describe_transactions.DescribeTransactionsRequest(transactional_ids=["a", "bad", "b"]),
            0,
            describe_transactions.DescribeTransactionsResponse,
            TransactionService,
            "describe",
            "transaction_states",
        ),
        (
            offset_fetch.OffsetFetchRequest(
                groups=[offset_fetch.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("a", "bad", "b")]
            ),
            8,
            offset_fetch.OffsetFetchResponse,
            GroupService,
            "fetch_offsets",
            "groups",
        ),
    ],
    ids=["DescribeGroups", "DescribeTransactions", "OffsetFetch"],
)
def test_one_bad_name(
    broker: Broker,
    connection: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    request_: Message,
    version: int,
    response_class: type[Message],
    owner: type,
    method: str,
    answers: str,
) -> None:
    Bug(monkeypatch, owner, method, bad_is_named)
    found = [answer.error_code for answer in getattr(ask(connection, request_, version, response_class), answers)]
    assert found[1] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"\0" * 35), Path.unlink], ids=["garbled", "gone"])
@pytest.mark.parametrize("size", [100, 300_000], ids=["copied", "in the file"])
def test_an_unreadable_txnindex_fails_its_partition_only(
    damage: Callable[[Path], object],
    size: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker(data_dir=tmp_path) as broker:
        topic = broker.create_topic("t", partitions=3)
        for index in range(3):
            replicas = broker.server.replicas
            data = build_batch(
                [Record(0, UNSTABLE_MS, b"k", bytes(size))],
                producer_id=7,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            marker = build_end_txn_marker(
                EndTxnMarker(ControlRecordType.ABORT, 0), producer_id=7, producer_epoch=0, timestamp_ms=UNSTABLE_MS
            )

            async def append(
                replicas: ReplicaManager = replicas,
                index: int = index,
                data: bytearray = data,
                marker: bytearray = marker,
            ) -> None:
                replicas.append("t", index, data, -1, 9)
                replicas.append("t", index, marker, -1, 9, AppendOrigin.COORDINATOR)
                (segment,) = replicas.partition_or_error("t", index).log.segments
                segment.txn_index = None  # as after a start: it is read when it is first needed

            broker.call(append())
            topic.produce("committed", partition=index)
        damage(next((tmp_path / f"t-{BAD}").glob("*.txnindex")))
        with connect(broker.bootstrap_servers) as connection:
            for _ in range(3):
                response = ask(connection, FETCH, 12, fetch.FetchResponse)
                (found,) = response.responses
                assert {data.partition_index: data.error_code for data in found.partitions} == {
                    0: 0,
                    BAD: ErrorCode.KAFKA_STORAGE_ERROR,
                    2: 0,
                }
                for data in found.partitions:
                    if data.partition_index in GOOD:
                        assert data.records
                        (aborted,) = data.aborted_transactions or []
                        assert (aborted.producer_id, aborted.first_offset) == (7, 0)
                    else:
                        assert not data.records
        assert len([record for record in caplog.records if "txnindex" in record.getMessage()]) == 1
        assert "Traceback" not in caplog.text
