"""A client that says it is a broker, in a cluster whose brokers share their only listener with clients."""

from pathlib import Path

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.records import Record, build_batch
from tests.broker.whole.cluster import Cluster, cluster

pytestmark = [pytest.mark.anyio, pytest.mark.store]

EPOCH_MAX = 2**31 - 1


async def fetch_as(found: Cluster, leader: int, replica_id: int, offset: int, replica_epoch: int) -> ErrorCode:
    """The error for a stranger that fetches as a follower of partition 0 of "t"."""
    topic = found.brokers[leader].metadata.topic("t")
    assert topic is not None
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
        max_wait_ms=0,
        topics=[FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(partition=0, fetch_offset=offset)])],
    )
    (answered,) = (await found.ask(leader, request, 15)).responses
    return ErrorCode.of(answered.partitions[0].error_code)


async def test_a_client_is_no_controller(tmp_path: Path) -> None:
    """Whichever id it claims. The true one stays, and goes on creating topics."""
    async with cluster(tmp_path, 3) as found:
        (controller_id,) = found.controller_ids
        epoch = found.brokers[controller_id].controller.epoch
        for node_id in found.brokers:
            for claimed in (1, 2, 3, 99):
                command = UpdateMetadataRequest(
                    controller_id=claimed, controller_epoch=EPOCH_MAX, broker_epoch=-1, type=2
                )
                answer = await found.ask(node_id, command, 8)
                assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert await found.create("t", 3, 3) is ErrorCode.NONE
        for node_id in found.brokers:
            assert -1 not in await found.leaders(node_id, "t")
        assert found.controller_ids == [controller_id]
        assert found.brokers[controller_id].controller.epoch == epoch, "nobody was elected anew"


async def test_a_client_is_no_follower(tmp_path: Path) -> None:
    """The fetch offset that a client claims does not count: acks=all waits for the replicas that are in sync. A
    broker's epoch that it names keeps that one out of the ISR no longer than a moment."""
    async with cluster(tmp_path, 3, min_insync_replicas="2") as found:
        assert await found.create("t", 1, 3) is ErrorCode.NONE
        leader = await found.leader("t")
        followers = [node_id for node_id in found.brokers if node_id != leader]
        for follower in followers:
            for epoch in (-1, 2**62):
                refused = await fetch_as(found, leader, follower, 1, epoch)
                assert refused is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await found.produce(leader, "t", 0, acks=-1) is ErrorCode.NONE
        assert sorted(found.in_sync("t")) == [1, 2, 3]
        for follower in followers:
            found.brokers[follower].others.close()  # it stands still: it asks nobody any more
        assert await found.produce(leader, "t", 0) is ErrorCode.NONE
        for follower in followers:
            assert await fetch_as(found, leader, follower, 2, -1) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (found.log(leader, "t").high_watermark, found.log(leader, "t").log_end_offset) == (1, 2)


async def test_a_client_asks_no_coordinator_as_a_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as found:
        for node_id in found.brokers:
            answer = await found.ask(node_id, AddPartitionsToTxnRequest(), 5)
            assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def begin(found: Cluster, leader: int, producer_id: int) -> ErrorCode:
    """Open a transaction in partition 0 of "t"."""
    batch = build_batch(
        [Record(0, 1_700_000_000_000, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id="id", acks=-1, timeout_ms=20_000, topic_data=[data])
    answer = await found.ask(leader, request, 9)
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


async def end(
    found: Cluster, leader: int, *producer_ids: int, epoch: int = 0, coordinator_epoch: int = 0, sent_by: int | None
) -> list[ErrorCode]:
    """Have a stranger, or a broker, send an abort marker of each producer to partition 0 of "t"."""
    markers = [
        WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        )
        for producer_id in producer_ids
    ]
    answer = await found.ask(leader, WriteTxnMarkersRequest(markers=markers), 1, sent_by=sent_by)
    return [ErrorCode.of(marker.topics[0].partitions[0].error_code) for marker in answer.markers]


async def test_a_client_fences_neither_coordinators_nor_producers(tmp_path: Path) -> None:
    """Its markers have no epoch that was not reached: with one, the true coordinator's marker would be refused for
    good, and consumers that read committed would not get past the transaction."""
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with cluster(tmp_path, 2, transaction_partition_verification_enable="false") as found:
        assert await found.create("t", 1, 2) is ErrorCode.NONE
        leader = await found.leader("t")
        log, another = found.log(leader, "t"), next(node_id for node_id in found.brokers if node_id != leader)
        for epochs in ({"coordinator_epoch": EPOCH_MAX}, {"epoch": 2**15 - 1}, {}):
            assert await end(found, leader, *range(6), **epochs, sent_by=None) == [refused] * 6
        assert log.log_end_offset == 0
        assert await begin(found, leader, 5) is ErrorCode.NONE
        for epochs in ({"coordinator_epoch": EPOCH_MAX}, {"coordinator_epoch": 1}, {"epoch": 1}):
            assert await end(found, leader, 5, **epochs, sent_by=None) == [refused]
        assert (log.last_stable_offset, log.log_end_offset) == (0, 1)
        assert await end(found, leader, 5, coordinator_epoch=3, sent_by=another) == [ErrorCode.NONE]
        assert (log.last_stable_offset, log.log_end_offset) == (2, 2)
        assert await end(found, leader, 5, coordinator_epoch=4, sent_by=None) == [refused]
        assert await end(found, leader, 5, coordinator_epoch=2, sent_by=None) == [
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
        ]


async def test_a_client_ends_a_transaction_that_hangs(tmp_path: Path) -> None:
    """With the epochs that DescribeProducers returns, as `kafka-transactions abort` does: coordinator epoch 0 in a
    producer's first transaction, then the one that the last marker had."""
    async with cluster(tmp_path, 2, transaction_partition_verification_enable="false") as found:
        assert await found.create("t", 1, 2) is ErrorCode.NONE
        leader = await found.leader("t")
        log = found.log(leader, "t")
        assert await begin(found, leader, 5) is ErrorCode.NONE
        assert await end(found, leader, 5, coordinator_epoch=0, sent_by=None) == [ErrorCode.NONE]
        assert (log.last_stable_offset, log.log_end_offset) == (2, 2)
        other_id = next(node_id for node_id in found.brokers if node_id != leader)
        assert await end(found, leader, 5, coordinator_epoch=3, sent_by=other_id) == [ErrorCode.NONE]
        assert await end(found, leader, 5, coordinator_epoch=3, sent_by=None) == [ErrorCode.NONE]
