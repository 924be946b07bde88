"""The appends of one Produce request: their order, what waits for the transaction coordinator, and what is refused."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from barnabas.broker.replication.append_operation import AppendOperation, Unverified, Verified
from barnabas.storage.checkpoints import TopicPartition
from barnabas.turns import in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.wire.records import Record, build_batch
from tests.broker.replication.conftest import NODE_ID, OTHER_ID, Hosting, Storage, batch_of, told

VERSION = 11
UNVERIFIED_PARTITION = 1


class Coordinator:
    """Verifies partitions when the test says so; refuses `UNVERIFIED_PARTITION`."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Verified] = asyncio.get_running_loop().create_future()
        self.asked: list[tuple[str, int, int, Mapping[TopicPartition, int]]] = []

    def verify(self, *asked: Any) -> "asyncio.Future[Verified]":
        self.asked.append(asked)
        return self.answer

    def check_produce(self, topic_partition: TopicPartition, _replicas: object, /) -> None:
        if topic_partition[1] == UNVERIFIED_PARTITION:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "it was not added")


def produce(*batches: tuple[int, Any], topic: str = "t", acks: int = 1) -> ProduceRequest:
    """A request with these batches, by partition; the last topic has no partitions."""
    data = [PartitionProduceData(index=index, records=records) for index, records in batches]
    return ProduceRequest(
        acks=acks, topic_data=[TopicProduceData(name=topic, partition_data=data), TopicProduceData(name="none")]
    )


def transactional(producer_id: int = 7, base_sequence: int = 0) -> bytearray:
    return build_batch(
        [Record(0, 0, None, b"x")],
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=base_sequence,
        transactional=True,
    )


def refuse(_topic: str, data: PartitionProduceData, error: Exception) -> PartitionProduceResponse:
    assert isinstance(error, ApiError)
    message = "unverified" if isinstance(error, Unverified) else None
    return PartitionProduceResponse(index=data.index, error_code=error.error, error_message=message)


def operation_of(hosting: Hosting, request: ProduceRequest) -> AppendOperation:
    return AppendOperation(hosting.replicas, request, VERSION, refuse, internal_topics_allowed=False)


def results(operation: AppendOperation) -> list[tuple[int, ErrorCode, int]]:
    """Partition, error and base offset of each batch."""
    [topic] = operation.topics
    return [(each.index, ErrorCode.of(each.error_code), each.base_offset) for each in topic.partition_responses]


async def test_batches_are_appended_in_the_order_of_the_request(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told(), told(partition_index=1))
        operation = operation_of(hosting, produce((1, batch_of(b"a", b"b")), (0, batch_of(b"c")), (1, batch_of(b"d"))))
        assert operation.begin() is None
        assert [(index, offset) for index, _, offset in results(operation)] == [(1, 0), (0, 0), (1, 2)]
        assert operation.commits == []


async def test_one_refused_batch_does_not_stop_the_append_of_others(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told())
        operation = operation_of(hosting, produce((0, None), (9, batch_of(b"a")), (0, batch_of(b"b"))))
        assert operation.begin() is None
        assert [(index, error) for index, error, _ in results(operation)] == [
            (0, ErrorCode.INVALID_RECORD),
            (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (0, ErrorCode.NONE),
        ]


@pytest.mark.parametrize(
    ("topic", "acks", "error"),
    [
        ("__consumer_offsets", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("t", 2, ErrorCode.INVALID_REQUIRED_ACKS),
    ],
)
async def test_batches_that_clients_may_not_send_are_refused(
    storage: Storage, topic: str, acks: int, error: ErrorCode
) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told())
        operation = operation_of(hosting, produce((0, batch_of(b"a")), topic=topic, acks=acks))
        assert operation.begin() is None
        assert [found for _, found, _ in results(operation)] == [error]


async def test_a_batch_waits_for_its_commit_where_others_follow(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.live(NODE_ID, OTHER_ID)
        members = [NODE_ID, OTHER_ID]
        await hosting.lead(told(replicas=members, isr=members))
        operation = operation_of(hosting, produce((0, batch_of(b"a")), acks=-1))
        assert operation.begin() is None
        [(reply, committed)] = operation.commits
        assert (reply.base_offset, committed.done()) == (0, False)
        hosting.fetch(OTHER_ID, 1)
        assert committed.done()


async def test_verified_transactional_batches_are_appended_from_copies(
    storage: Storage,
) -> None:
    """The coordinator verifies the partition before the append."""
    async with storage.hosting() as hosting:
        await hosting.lead(told(), told(partition_index=UNVERIFIED_PARTITION))
        coordinator = Coordinator()
        received = [transactional(), transactional(base_sequence=5)]
        request = produce(*((index, memoryview(batch)) for index, batch in enumerate(received)))
        operation = operation_of(hosting, request)
        assert operation.is_transactional
        rest = in_turns(operation.begin_transaction("id", coordinator.verify))
        assert coordinator.asked == [("id", 7, 3, {("t", 0): 0, ("t", UNVERIFIED_PARTITION): 5})]
        for batch in received:  # another request overwrites the receive buffer
            batch[:] = bytes(len(batch))
        coordinator.answer.set_result(coordinator)
        assert rest is not None
        await rest
        assert [(index, error) for index, error, _ in results(operation)] == [
            (0, ErrorCode.NONE),
            (UNVERIFIED_PARTITION, ErrorCode.INVALID_TXN_STATE),
        ]
        assert operation.topics[0].partition_responses[1].error_message == "unverified"


@pytest.mark.parametrize(
    ("transactional_id", "producer_ids", "error"),
    [
        (None, [7, 7], ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("id", [7, 8], ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
async def test_a_request_without_an_id_or_of_two_producers_is_refused(
    storage: Storage, transactional_id: str | None, producer_ids: list[int], error: ErrorCode
) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(told())
        coordinator = Coordinator()
        operation = operation_of(hosting, produce(*((0, transactional(producer)) for producer in producer_ids)))
        assert in_turns(operation.begin_transaction(transactional_id, coordinator.verify)) is None
        assert [found for _, found, _ in results(operation)] == [error, error]
        assert coordinator.asked == []
        assert hosting.partition().log.log_end_offset == 0
