"""Requests for the configs of all topics of a cluster: brokers refuse responses of more than 32 MiB, and serve no other
request while they make one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest

from barnabas.broker.cli.ill_partitions import UNDER_MIN_ISR, ill_partitions
from barnabas.broker.client.client import KafkaClient
from barnabas.broker.client.configs import BROKER, RESOURCES_MAX, TOPIC, alter_configs, describe_configs
from barnabas.broker.client.reassignments import Reassignment, throttle, throttled_replicas, unthrottle
from barnabas.testing import Broker
from barnabas.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest
from barnabas.wire.schema import Message

pytestmark = pytest.mark.slow

T = TypeVar("T")

NAMES = [f"t{number:03}" for number in range(RESOURCES_MAX + 50)]
RATE, REPLICAS = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


class Watched(KafkaClient):
    """Remembers how many topics were asked for their configs at once, and how many configs of each were answered."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self.topics: list[int] = []
        self.configs_max = 0

    async def send(self, request: Message, node_id: int | None = None, **options: Any) -> Any:
        response = await super().send(request, node_id, **options)
        if isinstance(request, DescribeConfigsRequest) and request.resources[0].resource_type == TOPIC:
            self.topics.append(len(request.resources))
            self.configs_max = max(self.configs_max, *(len(result.configs) for result in response.results))
        return response


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Has more topics than are asked for at once."""

    async def create(client: KafkaClient) -> None:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES]
        await client.send_to_controller(CreateTopicsRequest(topics=topics, timeout_ms=30_000))

    with Broker() as running:
        asked(running, create)
        yield running


def asked(broker: Broker, work: Callable[[KafkaClient], Awaitable[T]]) -> tuple[T, Watched]:
    """The result of some work, and its client with the recorded requests."""

    async def connected() -> tuple[T, Watched]:
        async with Watched(broker.bootstrap_servers) as client:
            return await work(client), client

    return asyncio.run(connected())


def test_ill_partitions(broker: Broker) -> None:
    async def work(client: KafkaClient) -> list[dict[str, Any]]:
        await alter_configs(client, TOPIC, NAMES[-1], set_to={"min.insync.replicas": "2"})
        return await ill_partitions(client, [UNDER_MIN_ISR])

    rows, client = asked(broker, work)
    assert [(row["topic"], row["min_isr"]) for row in rows] == [(NAMES[-1], 2)]
    assert (client.topics, client.configs_max) == ([RESOURCES_MAX, 50], 1)


def test_throttles_of_many_partitions(broker: Broker) -> None:
    """A list that is longer than a config may be."""
    moves = {(NAMES[0], index): Reassignment((1, 2, 3, 4), (4,), ()) for index in range(1_800)}
    moves |= {(NAMES[1], index): one for (_, index), one in moves.items() if index < 100}
    lists = throttled_replicas(moves)
    assert lists[NAMES[0]] == ("*", ",".join(f"{index}:4" for index in range(1_800)))
    assert lists[NAMES[1]][0].startswith("0:1,0:2,0:3,1:1,")

    async def work(client: KafkaClient) -> dict[str, str | None]:
        await throttle(client, 1_000, moves)
        [told] = (await describe_configs(client, [(TOPIC, NAMES[0])], [REPLICAS, FOLLOWERS])).values()
        assert await unthrottle(client)
        return {config.name: config.value for config in told}

    found, _ = asked(broker, work)
    assert found == {REPLICAS: "*", FOLLOWERS: lists[NAMES[0]][1]}


def test_throttles_that_are_taken_away(broker: Broker) -> None:
    throttled = [(TOPIC, name) for name in (NAMES[0], NAMES[-1])]

    async def work(client: KafkaClient) -> bool:
        await alter_configs(client, BROKER, str(client.node_ids()[0]), set_to={RATE: "1000"})
        for kind, name in throttled:
            await alter_configs(client, kind, name, set_to={REPLICAS: "0:0"})
        return await unthrottle(client)

    found, client = asked(broker, work)
    assert found
    assert (client.topics, client.configs_max) == ([RESOURCES_MAX, 50], 2)
    left, _ = asked(broker, lambda client: describe_configs(client, throttled, [REPLICAS]))
    assert [[config.value for config in configs] for configs in left.values()] == [[""], [""]]
