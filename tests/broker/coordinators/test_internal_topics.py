"""The topics that coordinators keep their records in."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, MetadataCache
from barnabas.broker.configuration.config import BrokerConfig, load
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.broker.coordinators.internal_topics import InternalTopics
from barnabas.clock import ManualClock
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.topics import NewTopic
from barnabas.testing import Broker, Cluster
from barnabas.testing.contents.requests import ask
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataBroker, UpdateMetadataRequest
from tests.broker.running import ENVIRONMENT, running
from tools.waiting import PATIENCE_S


def test_coordinators_work_when_clients_use_up_all_partitions() -> None:
    with Broker(configs={"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}) as broker:
        controller = broker.server.controller
        controller.settings = controller.settings._replace(partitions_max=10)
        broker.create_topic("t", partitions=10)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        consumer.close()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("t", b"x")
        producer.commit_transaction(PATIENCE_S)
        assert len(broker.topic("t").records()) == 1


def test_brokers_that_are_not_the_controller_get_them_as_well() -> None:
    with Cluster(brokers=2) as cluster:
        controller = cluster.brokers[cluster.controller()].server
        other = cluster.brokers[1 - controller.node_id].server
        controller.controller.settings = controller.controller.settings._replace(partitions_max=1)
        cluster.create_topic("t")
        wanted = [other.internal_topics.new_topic(name) for name in TOPICS]
        outcomes = cluster.call(other.others.create_topics([*filter(None, wanted), NewTopic("u")], 30_000))
        refused = ErrorCode.POLICY_VIOLATION
        assert {outcome.name: outcome.error for outcome in outcomes} == {
            **dict.fromkeys(TOPICS, ErrorCode.NONE), "u": refused,
        }  # fmt: skip


ZOOKEEPER = {"zookeeper.connect": "127.0.0.1:1"}
TOPICS = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)


class NoOverrides:
    """Nobody has configured anything at run time."""

    def overrides(self, entity_type: str, name: str) -> dict[str, str]:
        return {}


def topics_of(config: BrokerConfig, metadata: MetadataCache, *, is_alone: bool) -> InternalTopics:
    return InternalTopics(config, TopicConfigs(config, NoOverrides()), metadata, is_alone=is_alone)


def tell_alive(metadata: MetadataCache, *brokers: int) -> None:
    live = [UpdateMetadataBroker(id=broker) for broker in brokers]
    asyncio.run(metadata.update(UpdateMetadataRequest(live_brokers=live)))  # type: ignore[arg-type]


def test_internal_topics_wait_for_as_many_brokers_as_replicas(caplog: pytest.LogCaptureFixture) -> None:
    metadata = MetadataCache()
    topics = topics_of(load(environ={"HOME": "/"}, properties=ZOOKEEPER), metadata, is_alone=False)
    with caplog.at_level(logging.WARNING):
        for brokers in ((1,), (1,), (1, 2)):
            tell_alive(metadata, *brokers)
            assert all(map(topics.waits_for_brokers, TOPICS))
    assert [record.getMessage() for record in caplog.records] == [
        "Consumer groups wait: __consumer_offsets is to have 3 replicas, alive brokers: 1 (a smaller cluster sets"
        " offsets.topic.replication.factor=1)",
        "Transactions wait: __transaction_state is to have 3 replicas, alive brokers: 1 (a smaller cluster sets"
        " transaction.state.log.replication.factor=1)",
    ]
    tell_alive(metadata, 1, 2, 3)
    assert not any(map(topics.waits_for_brokers, (*TOPICS, "t")))
    made = {name: topics.new_topic(name) for name in TOPICS}
    assert [topic.replication_factor for topic in made.values() if topic is not None] == [3, 3]
    transactions = made[TRANSACTION_STATE_TOPIC]
    assert transactions is not None
    assert transactions.configs["min.insync.replicas"] == "2"
    tell_alive(metadata, 1, 2)
    assert topics.waits_for_brokers(GROUP_METADATA_TOPIC)
    assert len(caplog.records) == 3, "it is told again when it comes again"


def test_internal_topics_follow_the_configuration() -> None:
    metadata = MetadataCache()
    keys = {"offsets.topic.replication.factor": "1", "transaction.state.log.replication.factor": "2"}
    topics = topics_of(load(environ={"HOME": "/"}, properties={**ZOOKEEPER, **keys}), metadata, is_alone=False)
    tell_alive(metadata, 4)
    assert [topics.waits_for_brokers(name) is None for name in TOPICS] == [True, False]


def test_alone_they_have_one_replica_whatever_was_asked_for() -> None:
    metadata = MetadataCache()
    config = load(environ={"HOME": "/"}, properties={"offsets.topic.replication.factor": "3"})
    topics = topics_of(config, metadata, is_alone=True)
    tell_alive(metadata, 1)
    assert not any(map(topics.waits_for_brokers, TOPICS))
    made = [topics.new_topic(name) for name in TOPICS]
    assert [topic.replication_factor for topic in made if topic is not None] == [1, 1]


def test_groups_wait_and_one_line_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def find() -> None:
        store = EmbeddedStore(":memory:", ManualClock())
        await store.open()
        environment = replace(ENVIRONMENT, metadata_store=store)
        async with running(tmp_path, environment, offsets_topic_replication_factor="3") as broker:
            for _ in range(3):
                found = await ask(broker, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
                assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                await broker.settle()
            assert GROUP_METADATA_TOPIC not in broker.metadata
        await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(find())
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("alive brokers: 1 (a smaller cluster sets offsets.topic.replication.factor=1)")
