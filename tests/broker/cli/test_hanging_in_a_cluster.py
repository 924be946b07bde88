"""`barnabas transactions abort` in a cluster, whose brokers take few markers from anybody else, and a real producer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from barnabas.broker.client.client import KafkaClient
from barnabas.testing import Cluster
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.records import Record, build_batch
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.live]

Run = Callable[..., Any]
UNKNOWN_PRODUCER = 777


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    with Cluster(2, transaction_partition_verification_enable=False) as running:
        yield running


async def _leave_open(bootstrap_servers: str, leader: int) -> int:
    """Open a transaction that no coordinator knows."""
    batch = build_batch(
        [Record(0, 1_700_000_000_000, None, b"hangs")],
        producer_id=UNKNOWN_PRODUCER,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(name="hanging", partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
    request = ProduceRequest(transactional_id="nobody", acks=-1, timeout_ms=20_000, topic_data=[data])
    async with KafkaClient(bootstrap_servers) as client:
        answer = await client.send(request, leader, max_version=9)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def _fence(bootstrap_servers: str, leader: int, count: int) -> list[int]:
    """Send markers with the greatest coordinator epoch for the first producer ids."""
    markers = [
        WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=2**31 - 1,
            topics=[WritableTxnMarkerTopic(name="hanging", partition_indexes=[0])],
        )
        for producer_id in range(count)
    ]
    async with KafkaClient(bootstrap_servers) as client:
        answer = await client.send(WriteTxnMarkersRequest(markers=markers), leader)
    return [marker.topics[0].partitions[0].error_code for marker in answer.markers]


def test_a_transaction_that_hangs_is_aborted_and_a_real_one_commits(broker: Cluster, run: Run) -> None:
    broker.create_topic("hanging", 1, 2)
    leader = broker.leader("hanging")
    assert broker.call(_leave_open(broker.bootstrap_servers, leader)) == ErrorCode.NONE
    (found,) = run("transactions", "find-hanging", "--max-timeout-ms", "0", "--json").json
    assert (found["producer_id"], found["start_offset"], found["coordinator_epoch"]) == (UNKNOWN_PRODUCER, 0, -1)
    done = run("transactions", "abort", "--topic", "hanging", "--partition", "0", "--start-offset", "0")
    assert done.status == 0, done.err
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "loader"})
    producer.init_transactions(PATIENCE_S)
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert broker.call(_fence(broker.bootstrap_servers, leader, 6)) == [refused] * 6
    producer.begin_transaction()
    producer.produce("hanging", b"committed")
    producer.commit_transaction(PATIENCE_S)
    log = broker.brokers[leader].server.replicas.partition_or_error("hanging", 0).log
    wait_until(lambda: log.last_stable_offset == log.log_end_offset)
    assert [record.value for record in broker.topic("hanging").records()] == [b"committed"]
