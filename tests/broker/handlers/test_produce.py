"""Produce over a socket: what is told of batches that are refused, as Apache Kafka tells it."""

import socket
import struct
from collections.abc import Iterator

import pytest

from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from tools.attack.hostile import ask, connect

PRODUCE_VERSION = 9
BASE_OFFSET_POSITION, BATCH_LENGTH_POSITION, MAGIC_POSITION = 0, 8, 16


@pytest.fixture(scope="module")
def connection() -> Iterator[socket.socket]:
    with Broker() as broker:
        broker.create_topic("t")
        with connect(broker.bootstrap_servers) as connection:
            yield connection


def batch() -> bytearray:
    return build_batch([Record(0, 1, None, b"x")])


def batch_with(position: int, layout: str, value: int) -> bytearray:
    """A batch with another value in a header field that the checksum does not cover."""
    changed = batch()
    struct.pack_into(layout, changed, position, value)
    return changed


def produce(connection: socket.socket, records: bytearray, topic: str = "t") -> PartitionProduceResponse:
    data = PartitionProduceData(index=0, records=records)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=topics)
    return ask(connection, request, PRODUCE_VERSION, ProduceResponse).responses[0].partition_responses[0]


def test_a_batch_that_the_log_refuses_is_answered_with_its_start(connection: socket.socket) -> None:
    answer = produce(connection, batch_with(BASE_OFFSET_POSITION, ">q", 5))
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.INVALID_RECORD, 0)
    assert answer.error_message is None


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [(BATCH_LENGTH_POSITION, ">i", -1), (BATCH_LENGTH_POSITION, ">i", 13), (MAGIC_POSITION, ">b", 3)],
)
def test_bytes_that_are_no_batch_are_explained(
    connection: socket.socket, position: int, layout: str, value: int
) -> None:
    answer = produce(connection, batch_with(position, layout, value))
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert answer.error_message


def test_other_errors_are_not_explained(connection: socket.socket) -> None:
    damaged = batch()
    damaged[-1] ^= 1
    for records, topic in ((damaged, "t"), (batch(), "no-such"), (batch()[:40], "t")):
        answer = produce(connection, records, topic)
        assert answer.error_code
        assert (answer.error_message, answer.log_start_offset) == (None, -1)


def test_a_topic_without_partitions_is_not_answered(connection: socket.socket) -> None:
    request = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t")])
    assert ask(connection, request, PRODUCE_VERSION, ProduceResponse).responses == []
