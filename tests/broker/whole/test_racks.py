"""Where the replicas go of topics and partitions that clients ask for, when brokers stand in racks (`broker.rack`)."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.whole.cluster import Cluster, cluster
from tools.waiting import until

pytestmark = pytest.mark.anyio

RACKS: Final = {1: "a", 2: "a", 3: "b", 4: "c"}
PARTITIONS: Final = 12
"""So many that replicas of some would be in one rack if nobody cared, wherever the first ones are put: each broker has
first replicas three times, and the second one at each of the three distances."""


@asynccontextmanager
async def standing(data_dir: Path, racks: Mapping[int, str | None]) -> AsyncIterator[Cluster]:
    """Brokers in these racks, or in none."""
    async with cluster(data_dir, 0) as brokers:
        for node_id, rack in racks.items():
            where = {} if rack is None else {"broker_rack": rack}
            await brokers.start(node_id, num_partitions=str(PARTITIONS), default_replication_factor="2", **where)
        yield brokers


async def place(brokers: Cluster, topic: str, *assignments: Sequence[int]) -> ErrorCode:
    """Create a topic whose replicas are where the client says."""
    assigned = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(each))
        for index, each in enumerate(assignments)
    ]
    topics = [CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=assigned)]
    answer = await brokers.ask(1, CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    return ErrorCode.of(answer.topics[0].error_code)


async def grow(brokers: Cluster, topic: str, count: int, *assignments: Sequence[int]) -> tuple[ErrorCode, str | None]:
    """Have a topic have so many partitions, and the new ones their replicas where the client says, if it does."""
    assigned = [CreatePartitionsAssignment(broker_ids=list(each)) for each in assignments]
    topics = [CreatePartitionsTopic(name=topic, count=count, assignments=assigned or None)]
    [answer] = (await brokers.ask(1, CreatePartitionsRequest(topics=topics, timeout_ms=10_000), 3)).results
    return ErrorCode.of(answer.error_code), answer.error_message


async def replicas(brokers: Cluster, topic: str) -> list[list[int]]:
    """By partition."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer = await brokers.ask(1, request, 8)
    found = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
    return [partition.replica_nodes for partition in found]


def rack_counts(assignments: Sequence[Sequence[int]]) -> list[int]:
    """In how many racks each partition is."""
    return [len({RACKS[node_id] for node_id in each}) for each in assignments]


async def test_no_two_replicas_of_a_partition_are_in_one_rack(tmp_path: Path) -> None:
    async with standing(tmp_path, RACKS) as brokers:
        for factor in (2, 3):
            assert await brokers.create(f"in-{factor}-racks", PARTITIONS, factor) is ErrorCode.NONE
            assert rack_counts(await replicas(brokers, f"in-{factor}-racks")) == [factor] * PARTITIONS

        assert await place(brokers, "grown", [1, 2]) is ErrorCode.NONE
        assert await grow(brokers, "grown", 1 + PARTITIONS) == (ErrorCode.NONE, None)
        assert rack_counts(await replicas(brokers, "grown")) == [1, *[2] * PARTITIONS]

        request = MetadataRequest(topics=[MetadataRequestTopic(name="on-demand")], allow_auto_topic_creation=True)
        await brokers.ask(4, request, 8)
        await until(lambda: "on-demand" in brokers.brokers[1].metadata)
        assert rack_counts(await replicas(brokers, "on-demand")) == [2] * PARTITIONS


async def test_with_some_rackless_brokers_only_clients_place_replicas(tmp_path: Path) -> None:
    """Kafka with ZooKeeper refuses that, too (AdminUtils.assignReplicasToBrokers), with UNKNOWN_SERVER_ERROR."""
    refusal = "Some brokers have a rack and others have none."
    async with standing(tmp_path, {1: "a", 2: None, 3: "b"}) as brokers:
        assert await brokers.create("t", 1, 1) is ErrorCode.INVALID_REPLICATION_FACTOR
        assert await place(brokers, "t", [2, 3]) is ErrorCode.NONE
        error, message = await grow(brokers, "t", 2)
        assert error is ErrorCode.INVALID_REPLICATION_FACTOR
        assert refusal in (message or "")
        assert await grow(brokers, "t", 2, [1, 2]) == (ErrorCode.NONE, None)
        assert await replicas(brokers, "t") == [[2, 3], [1, 2]]
        await brokers.stop(2)
        assert await brokers.create("u", 4, 2) is ErrorCode.NONE, "those that are left have racks"
