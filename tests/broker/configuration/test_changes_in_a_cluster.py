"""Configs that are changed at one broker of a cluster act on all whom they are for, soon."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from barnabas.broker.configuration.changes import BROKER, DELETE, SET, TOPIC
from barnabas.broker.configuration.topics import DEFAULT_ENTITY
from barnabas.testing import Cluster
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.wire.records import Record, build_batch
from tests.support.reference_loop import assert_within, timed, wake_ups_s
from tools.waiting import PATIENCE_S

BROKERS: Final = range(3)
SMALL: Final = "200"
"""Bytes that a batch may have where it is too large."""
TAKEN, TOO_LARGE = ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE
EVERYBODY: Final = ""
"""As Kafka's admin clients name what is set for all brokers."""


class Changes:
    """A cluster whose brokers tell when they have carried out a change of configs; each leads one partition of `t`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        """The broker that was told of a change, and the broker whose change it was."""
        cluster.create_topic("t", partitions=len(BROKERS))
        self.partition_of = {cluster.leader("t", partition): partition for partition in BROKERS}
        cluster.call(self._listen())

    async def _listen(self) -> None:
        for server in self.cluster.live_servers():
            # Whoever was there before, and acts on it, is called before.
            server.configs.subscribe(
                lambda _, name, node_id=server.node_id: self.told.put_nowait((node_id, name))  # type: ignore[misc]
            )

    def alter(self, at: int, kind: int, name: str, texts: Mapping[str, str | None]) -> None:
        """Change configs by a request to broker `at`, take them back where the text is None; returns when every broker
        that runs has been told: nobody asks."""
        configs = [
            AlterableConfig(name=key, config_operation=DELETE if text is None else SET, value=text)
            for key, text in texts.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)

        async def change() -> None:
            brokers = [server.node_id for server in self.cluster.live_servers()]
            request = IncrementalAlterConfigsRequest(resources=[resource])
            answer = await ask(self.cluster.brokers[at].server, request, 1)
            assert [result.error_code for result in answer.responses] == [ErrorCode.NONE], answer
            async with asyncio.timeout(PATIENCE_S):
                told = [await self.told.get() for _ in brokers]
            assert sorted(told) == [(node_id, name or DEFAULT_ENTITY) for node_id in brokers]

        self.cluster.call(change())

    def answers(self) -> list[ErrorCode]:
        """How each broker answers a producer, in their order."""

        async def produce() -> list[ErrorCode]:
            found = []
            for broker, partition in sorted(self.partition_of.items()):
                batch = build_batch([Record(0, 1_700_000_000_000, None, b"x" * 300, [], 0)])
                data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=batch)])
                request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
                answer = await ask(self.cluster.brokers[broker].server, request, 9)
                found.append(ErrorCode.of(answer.responses[0].partition_responses[0].error_code))
            return found

        return self.cluster.call(produce())

    def limits_of_replicas(self) -> set[int]:
        """How large a batch may be in any replica, also those that only follow."""

        async def look() -> set[int]:
            return {
                server.replicas.partition_or_error("t", partition).log.config.max_message_bytes
                for server in self.cluster.live_servers()
                for partition in BROKERS
            }

        return self.cluster.call(look())


@pytest.fixture(scope="module")
def changes() -> Iterator[Changes]:
    with Cluster(auto_leader_rebalance_enable=False) as cluster:
        yield Changes(cluster)


@pytest.mark.parametrize("at", BROKERS)
def test_a_topic_s_configs_act_on_every_broker(changes: Changes, at: int) -> None:
    assert changes.answers() == [TAKEN] * 3
    changes.alter(at, TOPIC, "t", {"max.message.bytes": SMALL})
    assert changes.answers() == [TOO_LARGE] * 3
    assert changes.limits_of_replicas() == {int(SMALL)}
    changes.alter(at, TOPIC, "t", {"max.message.bytes": None})
    assert changes.answers() == [TAKEN] * 3


@pytest.mark.full
@pytest.mark.alone
def test_every_broker_has_a_change_within_milliseconds(changes: Changes) -> None:
    """Some 5 ms."""

    def alter() -> None:
        changes.alter(0, TOPIC, "t", {"max.message.bytes": SMALL})
        changes.alter(0, TOPIC, "t", {"max.message.bytes": None})

    assert_within(4, wake_ups_s, timed(alter), "two changes")


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_s_own_configs_act_on_it_alone(changes: Changes, broker: int) -> None:
    changes.alter(broker, BROKER, str(broker), {"message.max.bytes": SMALL})
    assert changes.answers() == [TOO_LARGE if each == broker else TAKEN for each in BROKERS]
    changes.alter(broker, BROKER, str(broker), {"message.max.bytes": None})
    assert changes.answers() == [TAKEN] * 3


@pytest.mark.parametrize("at", BROKERS)
def test_configs_for_the_cluster_act_on_every_broker(changes: Changes, at: int) -> None:
    changes.alter(at, BROKER, EVERYBODY, {"message.max.bytes": SMALL})
    assert changes.answers() == [TOO_LARGE] * 3
    changes.alter(1, BROKER, "1", {"message.max.bytes": "10000"})
    assert changes.answers() == [TOO_LARGE, TAKEN, TOO_LARGE]  # its own wins
    changes.alter(at, BROKER, EVERYBODY, {"message.max.bytes": None})
    changes.alter(1, BROKER, "1", {"message.max.bytes": None})
    assert changes.answers() == [TAKEN] * 3


def test_a_broker_acts_on_changes_made_while_it_was_down(changes: Changes) -> None:
    """Brokers follow a list of changes whose entries are deleted after a while: a start reads the resulting configs."""
    cluster = changes.cluster
    cluster.brokers[2].stop()
    changes.alter(0, BROKER, EVERYBODY, {"message.max.bytes": "300"})
    changes.alter(1, TOPIC, "t", {"max.message.bytes": SMALL})
    cluster.brokers[2].start()
    assert cluster.brokers[2].server.config.message_max_bytes == 300
    assert changes.limits_of_replicas() == {int(SMALL)}
