"""Clients of three brokers while brokers die and stop: transactions and groups go on where their coordinators have
gone, and what is prepared is ended.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.configuration.changes import SET, TOPIC
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from barnabas.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.whole.cluster import ONE_REPLICA, Cluster, cluster
from tools.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PARTITIONS = 6
SIZES = {"offsets_topic_num_partitions": "3", "transaction_state_log_num_partitions": "3"}
THREE_REPLICAS = {
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "min_insync_replicas": "2",
}
BEFORE, AFTER = 3, 3
"""Transactions before and after the coordinator has died."""


def coordinator_of(brokers: Cluster, transactional_id: str) -> int:
    """The broker that has the state of a transactional id."""
    [found] = [node_id for node_id in brokers.brokers if state_in(brokers, node_id, transactional_id) is not None]
    return found


def state_in(brokers: Cluster, node_id: int, transactional_id: str) -> TransactionState | None:
    """The state by a broker; None if it is not the coordinator, or has not loaded that yet."""
    try:
        return brokers.brokers[node_id].transactions.describe(transactional_id).state
    except ApiError:
        return None


def partitions_of(brokers: Cluster, topic: str) -> list[Any]:
    """The partitions of a topic, each at the broker that leads it."""
    hosted = [partition for broker in brokers.brokers.values() for partition in broker.replicas.partitions()]
    return [partition for partition in hosted if partition.topic == topic and partition.state.is_leader]


@pytest.mark.parametrize("coordinator_dies", [False, True])
async def test_markers_wait_for_a_broker_that_is_dead(tmp_path: Path, coordinator_dies: bool) -> None:
    """The transaction is committed, and complete when the broker is back, also if its coordinator died meanwhile."""
    async with cluster(tmp_path, 3, **SIZES, **ONE_REPLICA) as brokers:
        assert await brokers.create("t", PARTITIONS, 1) is ErrorCode.NONE
        producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "transactional.id": "id"})

        def prepare() -> None:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", b"x", partition=partition)
            assert producer.flush(PATIENCE_S) == 0

        await asyncio.to_thread(prepare)
        coordinator = coordinator_of(brokers, "id")
        dead = max(node_id for node_id in brokers.brokers if node_id != coordinator)
        await brokers.crash(dead)
        await asyncio.to_thread(producer.commit_transaction, PATIENCE_S)
        assert state_in(brokers, coordinator, "id") is TransactionState.PREPARE_COMMIT
        if coordinator_dies:
            await brokers.crash(coordinator)
            await brokers.start(coordinator, **SIZES, **ONE_REPLICA)
        await brokers.start(dead, **SIZES, **ONE_REPLICA)
        await until(lambda: state_in(brokers, coordinator, "id") is TransactionState.COMPLETE_COMMIT)
        for partition in partitions_of(brokers, "t"):
            assert partition.log.last_stable_offset == partition.log.log_end_offset >= 2


def transact(producer: Producer, value: int) -> None:
    """Write a value into every partition in a transaction, which is done again where it has to be aborted."""
    while True:
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", str(value).encode(), partition=partition)
            again(lambda: producer.commit_transaction(PATIENCE_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            again(lambda: producer.abort_transaction(PATIENCE_S))
        else:
            return


def again(step: Callable[[], Any]) -> None:
    """As long as the client says that it may."""
    while True:
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def group_member(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )


def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """Partitions and values of so many records, whose offsets are committed then."""
    consumer.subscribe(["t"])
    found: list[tuple[int, int]] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 1)
        found += [(each.partition(), int(each.value())) for each in messages if each.error() is None]
    again(lambda: consumer.commit(asynchronous=False))
    return found


async def test_transactions_and_groups_outlive_their_coordinators(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **SIZES, **THREE_REPLICAS) as brokers:
        assert await brokers.create("t", PARTITIONS, 3) is ErrorCode.NONE
        bootstrap = brokers.bootstrap_servers
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "id"})
        await asyncio.to_thread(producer.init_transactions, PATIENCE_S)
        for value in range(BEFORE):
            await asyncio.to_thread(transact, producer, value)
        consumer = group_member(bootstrap)
        found = await asyncio.to_thread(read, consumer, BEFORE * PARTITIONS)
        await asyncio.to_thread(consumer.close)

        await brokers.crash(coordinator_of(brokers, "id"))
        for value in range(BEFORE, BEFORE + AFTER):
            await asyncio.to_thread(transact, producer, value)
        consumer = group_member(bootstrap)
        found += await asyncio.to_thread(read, consumer, AFTER * PARTITIONS)
        every = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
        committed = await asyncio.to_thread(consumer.committed, every, PATIENCE_S)
        await asyncio.to_thread(consumer.close)
        expected = [(partition, value) for partition in range(PARTITIONS) for value in range(BEFORE + AFTER)]
        assert sorted(found) == expected, "each value once: the group went on where it was"
        assert all(partition.offset > AFTER for partition in committed)
        await until(lambda: state_in(brokers, coordinator_of(brokers, "id"), "id") is TransactionState.COMPLETE_COMMIT)
        for partition in partitions_of(brokers, "t"):
            assert partition.log.last_stable_offset == partition.log.log_end_offset


class Writer:
    """A transactional producer in a thread, which writes one number after the other until it `is_over`."""

    def __init__(self, bootstrap_servers: str, transactional_id: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id})
        self.is_over = False
        self.count = 0

    def run(self) -> int:
        """How many transactions were committed."""
        again(lambda: self._producer.init_transactions(PATIENCE_S))
        while not self.is_over:
            transact(self._producer, self.count)
            self.count += 1
        return self.count


def is_in_sync(brokers: Cluster) -> bool:
    """Whether all replicas of the users' and the transactions' topic are."""
    led = [*partitions_of(brokers, "t"), *partitions_of(brokers, TRANSACTION_STATE_TOPIC)]
    return len(led) == PARTITIONS + 3 and all(len(partition.state.isr) == 3 for partition in led)


async def test_transactions_go_on_while_each_broker_is_restarted(tmp_path: Path) -> None:
    """One after the other, the controller among them; then the store takes two for dead, which live. Nothing is lost,
    nothing is there twice.
    """
    configs = {**SIZES, **THREE_REPLICAS}
    async with cluster(tmp_path, 3, **configs) as brokers:
        assert await brokers.create("t", PARTITIONS, 3) is ErrorCode.NONE
        writers = [Writer(brokers.bootstrap_servers, transactional_id) for transactional_id in ("one", "other")]
        running = [asyncio.create_task(asyncio.to_thread(writer.run)) for writer in writers]
        try:
            for node_id, leave in ((1, brokers.crash), (2, brokers.stop), (3, brokers.crash)):
                goal = 1 + max(writer.count for writer in writers)
                await until(lambda goal=goal: min(writer.count for writer in writers) >= goal)  # type: ignore[misc]
                listeners = f"PLAINTEXT://{brokers.brokers[node_id].socket_server.bootstrap_servers}"
                await leave(node_id)
                await brokers.start(node_id, **configs, listeners=listeners)
            for node_id in [*brokers.controller_ids, 3]:
                await brokers.expire_session(node_id)
            assert is_in_sync(brokers)
        finally:
            for writer in writers:
                writer.is_over = True
        counts = await asyncio.gather(*running)
        consumer = group_member(brokers.bootstrap_servers)
        found = await asyncio.to_thread(read, consumer, PARTITIONS * sum(counts))
        await asyncio.to_thread(consumer.close)
        assert Counter(found) == Counter(
            (partition, value) for count in counts for value in range(count) for partition in range(PARTITIONS)
        )


async def test_any_broker_has_topics_made(tmp_path: Path) -> None:
    """Those that its clients ask for, and that do not exist, by the controller."""
    async with cluster(tmp_path, 2, num_partitions=str(PARTITIONS)) as brokers:
        assert brokers.controller_ids == [1]
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        answer = await brokers.ask(2, request, 8)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await until(lambda: "new" in brokers.brokers[2].metadata)
        assert len(await brokers.leaders(2, "new")) == PARTITIONS


async def test_groups_wait_for_brokers_and_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their topic is to have three replicas: the third broker lets them go on."""
    async with cluster(tmp_path, 2, **SIZES, **THREE_REPLICAS) as brokers:

        async def coordinator() -> tuple[ErrorCode, int]:
            [found] = (await brokers.ask(2, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)).coordinators
            return ErrorCode.of(found.error_code), found.node_id

        for _ in range(2):
            assert await coordinator() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        lines = [record.getMessage() for record in caplog.records if "replication.factor" in record.getMessage()]
        assert len(lines) == 1, lines
        await brokers.start(3, **SIZES, **THREE_REPLICAS)
        assert await coordinator() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1), "now the topic is made"
        await until(lambda: GROUP_METADATA_TOPIC in brokers.brokers[2].metadata)
        error, node_id = await coordinator()
        assert (error, node_id in (1, 2, 3)) == (ErrorCode.NONE, True)
        partition = brokers.brokers[2].metadata.partition(GROUP_METADATA_TOPIC, 0)
        assert partition is not None
        assert sorted(partition.replicas) == [1, 2, 3]


def settings(brokers: Cluster) -> set[tuple[int, int, int]]:
    """Of all logs of the topic, in all brokers: when records go, how large batches may be, when a segment ends."""
    partitions = [partition for broker in brokers.brokers.values() for partition in broker.replicas.partitions()]
    logs = [partition.log.config for partition in partitions if partition.topic == "t"]
    return {(log.retention_ms, log.max_message_bytes, log.segment_bytes) for log in logs}


async def test_configs_reach_the_logs_of_all_brokers(tmp_path: Path) -> None:
    """Those that a topic is created with, and those that are changed, through two brokers at the same time."""
    async with cluster(tmp_path, 3) as brokers:
        config = CreatableTopicConfig(name="segment.bytes", value="5000000")
        topic = CreatableTopic(name="t", num_partitions=3, replication_factor=3, configs=[config])
        await brokers.ask(1, CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)

        def hosted() -> int:
            return sum(
                each.topic == "t" for broker in brokers.brokers.values() for each in broker.replicas.partitions()
            )

        await brokers.settle()
        assert hosted() == 9
        assert {segment_bytes for _, _, segment_bytes in settings(brokers)} == {5_000_000}

        async def change(node_id: int, key: str, value: str) -> int:
            config = AlterableConfig(name=key, config_operation=SET, value=value)
            resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
            answer = await brokers.ask(node_id, IncrementalAlterConfigsRequest(resources=[resource]), 1)
            code: int = answer.responses[0].error_code
            return code

        changes = (change(2, "retention.ms", "7000000"), change(3, "max.message.bytes", "70000"))
        assert await asyncio.gather(*changes) == [ErrorCode.NONE, ErrorCode.NONE]
        await until(lambda: settings(brokers) == {(7_000_000, 70_000, 5_000_000)})
