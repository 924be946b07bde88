"""Whom a reply names as the leader of partitions that another broker leads (KIP-951)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.server import Broker
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from barnabas.wire.records import Record, build_batch
from tests.broker.running import running

TOPIC_ID, LEADER, EPOCH = bytes([7] * 16), 2, 5
ENDPOINT = UpdateMetadataEndpoint(host="elsewhere", port=9093, listener="PLAINTEXT")
TOLD = UpdateMetadataRequest(
    controller_id=1,
    live_brokers=[UpdateMetadataBroker(id=LEADER, endpoints=[ENDPOINT])],
    topic_states=[
        UpdateMetadataTopicState(
            topic_name="t",
            topic_id=TOPIC_ID,
            partition_states=[
                UpdateMetadataPartitionState(partition_index=index, leader=LEADER, leader_epoch=EPOCH)
                for index in range(2)
            ],
        )
    ],
)


async def produced(broker: Broker, version: int) -> tuple[Any, list[Any]]:
    batch = build_batch([Record(0, 1, None, b"x")])
    data = [PartitionProduceData(index=index, records=bytearray(batch)) for index in range(2)]
    topic = TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=data)
    answer = await ask(broker, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), version)
    return answer, answer.responses[0].partition_responses


async def fetched(broker: Broker, version: int) -> tuple[Any, list[Any]]:
    asked = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(2)]
    topic = FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=asked)
    answer = await ask(broker, FetchRequest(max_bytes=1000, session_epoch=-1, topics=[topic]), version)
    return answer, answer.responses[0].partitions


@pytest.mark.parametrize(
    ("request_of", "version", "is_told"),
    [(produced, 9, False), (produced, 10, True), (fetched, 15, False), (fetched, 16, True)],
)
def test_current_leaders_name_each_address_once(
    tmp_path: Path, request_of: Callable[[Broker, int], Awaitable[tuple[Any, list[Any]]]], version: int, is_told: bool
) -> None:
    async def run() -> tuple[Any, list[Any]]:
        async with running(tmp_path) as broker:
            await broker.metadata.update(TOLD)
            return await request_of(broker, version)

    answer, partitions = asyncio.run(run())
    assert {partition.error_code for partition in partitions} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    leaders = [(partition.current_leader.leader_id, partition.current_leader.leader_epoch) for partition in partitions]
    assert leaders == [(LEADER, EPOCH) if is_told else (-1, -1)] * 2
    endpoints = [(node.node_id, node.host, node.port) for node in answer.node_endpoints]
    assert endpoints == ([(LEADER, "elsewhere", 9093)] if is_told else [])
