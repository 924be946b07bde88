"""A request to a controller that has just died, or is not the controller any more, is sent to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from barnabas.broker.client.client import BrokerUnavailable, KafkaClient
from barnabas.broker.client.configs import BROKER, describe_configs
from barnabas.broker.client.reassignments import Reassignment, elect, reassign, reassignments, throttle, unthrottle
from barnabas.testing import Cluster
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

pytestmark = pytest.mark.slow

T = TypeVar("T")
Ask = Callable[[KafkaClient], Awaitable[object]]

RATE = "leader.replication.throttled.rate"
SET_AT_RUN_TIME = 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        running.create_topic("laps", 1, 2)
        yield running


async def create(client: KafkaClient) -> int:
    topics = [CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    response: CreateTopicsResponse = await client.send_to_controller(
        CreateTopicsRequest(topics=topics, timeout_ms=30_000), may_repeat=False
    )
    return response.topics[0].error_code


def asked(cluster: Cluster, ask: Callable[[KafkaClient], Awaitable[T]], *, is_dead: bool = False) -> T:
    """The answer to somebody who heard last of the controller before it died."""

    async def work() -> T:
        async with KafkaClient(cluster.bootstrap_servers) as client:
            if is_dead:
                await asyncio.to_thread(cluster.brokers[client.controller_id].kill)
            return await ask(client)

    return asyncio.run(work())


ASKED: list[tuple[Ask, str, object]] = [
    (reassignments, "ListPartitionReassignments", {}),
    (lambda client: reassign(client, {("laps", 0): [0, 1]}), "AlterPartitionReassignments", {("laps", 0): None}),
    (lambda client: elect(client, [("laps", 0)]), "ElectLeaders", {}),
    (create, "CreateTopics", 0),
]


@pytest.mark.parametrize(("ask", "api", "expected"), ASKED[:1] + ASKED[3:])
def test_a_controller_that_has_died(cluster: Cluster, ask: Ask, api: str, expected: object) -> None:
    assert asked(cluster, ask, is_dead=True) == expected


@pytest.mark.parametrize(("ask", "api", "expected"), ASKED)
def test_a_controller_that_is_it_no_more(cluster: Cluster, ask: Ask, api: str, expected: object) -> None:
    fault = cluster.faults.fail(api, "NOT_CONTROLLER", times=1)
    assert asked(cluster, ask) == expected
    assert fault.hits == 1


def test_requests_to_a_lost_controller_are_repeated_if_harmless(cluster: Cluster) -> None:
    cluster.faults.disconnect("ListPartitionReassignments", times=1)
    assert asked(cluster, reassignments) == {}
    cluster.faults.disconnect("CreateTopics", times=1)
    with pytest.raises(BrokerUnavailable, match="closed the connection"):
        asked(cluster, create)


def test_throttles_are_set_and_removed_after_a_broken_connection(cluster: Cluster) -> None:
    async def set_and_taken_away(client: KafkaClient) -> None:
        cluster.faults.disconnect("IncrementalAlterConfigs", times=1)
        await throttle(client, 5_000_000, {("laps", 0): Reassignment((0, 1), (1,), ())})
        assert await rates(client) == ["5000000", "5000000"]
        cluster.faults.disconnect("DescribeConfigs", times=1)
        assert await unthrottle(client)
        assert await rates(client) == []

    asked(cluster, set_and_taken_away)


async def rates(client: KafkaClient) -> list[str | None]:
    told = await describe_configs(client, [(BROKER, "0"), (BROKER, "1")], [RATE])
    return [config.value for configs in told.values() for config in configs if config.config_source == SET_AT_RUN_TIME]
