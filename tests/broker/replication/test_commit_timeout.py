"""Waits for a commit end by the broker's clock: Produce has its own timeout, WriteTxnMarkers has
`request.timeout.ms`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from barnabas.wire.records import Record, build_batch
from tests.broker.replication.test_flushes import SlowDisk, create, in_loop, running, slow
from tools.waiting import PATIENCE_S

__all__ = ["slow"]
TIMEOUT_MS = 600_000
TOPIC = "slow-t"


async def produce(broker: Broker) -> ErrorCode:
    data = PartitionProduceData(index=0, records=build_batch([Record(0, broker.clock.now_ms(), None, b"x")]))
    topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
    answer = await ask(broker, ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=topics), 11)
    return ErrorCode.of(answer.responses[0].partition_responses[0].error_code)


async def write_marker(broker: Broker) -> ErrorCode:
    topics = [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, topics=topics)
    answer = await ask(broker, WriteTxnMarkersRequest(markers=[marker]), 1)
    return ErrorCode.of(answer.markers[0].topics[0].partitions[0].error_code)


@pytest.mark.parametrize("request_", [produce, write_marker])
@in_loop
async def test_a_commit_times_out_by_the_brokers_clock(
    slow: SlowDisk, tmp_path: Path, request_: Callable[[Broker], Awaitable[ErrorCode]]
) -> None:
    async with running(slow, tmp_path, barnabas_flush_before_ack="true", request_timeout_ms=TIMEOUT_MS) as broker:
        await create(broker, TOPIC)
        waiting = asyncio.ensure_future(request_(broker))
        await slow.reached(1)
        clock = broker.clock
        assert isinstance(clock, ManualClock)
        clock.advance(TIMEOUT_MS - 1)
        broker.timers.fire_due()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(1)
        broker.timers.fire_due()
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting is ErrorCode.REQUEST_TIMED_OUT
