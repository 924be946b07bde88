"""A partition that nobody leads for a while, beside one that can be read."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.consumer import Fetcher, Positions
from barnabas.testing import Cluster
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


def test_a_leaderless_partition_is_retried_beside_readable_ones() -> None:
    with Cluster(2) as cluster:
        cluster.create_topic("laps", 2, 1)
        leader = cluster.leader("laps", 1)
        other = cluster.brokers[1 - leader].bootstrap_servers

        async def work() -> bytes | None:
            async with asyncio.timeout(PATIENCE_S), KafkaClient(other) as client:
                positions = Positions(client)
                await positions.refresh(["laps"])
                fetcher = Fetcher(positions, {("laps", 0): 0, ("laps", 1): 0})
                await asyncio.to_thread(cluster.brokers[leader].kill)
                while positions.leader(("laps", 1)).node_id >= 0:
                    assert [batch async for batch in fetcher.fetch(10)] == []
                await asyncio.to_thread(cluster.brokers[leader].start)
                await asyncio.to_thread(cluster.topic("laps").produce, "late", partition=1)
                while True:
                    async for batch in fetcher.fetch(10):
                        return batch.records[0].value

        assert asyncio.run(work()) == b"late"
