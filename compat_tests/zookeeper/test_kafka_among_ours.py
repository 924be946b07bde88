"""A broker of Apache Kafka 3.9.1 in a cluster that one of ours governs: it shows no secret, and is not shut out."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from compat_tests.zookeeper.kafka_broker import KafkaOnZooKeeper
from tools.attack import hostile
from tools.processes.barnabas import BarnabasProcess, BarnabasZooKeeper
from tools.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.java, pytest.mark.full]

KAFKA, OURS = 1, 2
PARTITIONS = 4


def test_both_follow_each_other(tmp_path: Path) -> None:
    with BarnabasZooKeeper() as zookeeper:
        connect = f"{zookeeper.address}/kafka"
        keys = {"zookeeper.connect": connect, "node.id": str(OURS), "offsets.topic.replication.factor": "1"}
        with (
            BarnabasProcess(keys) as ours,
            KafkaOnZooKeeper(connect, tmp_path / "kafka", controller_id=OURS) as kafka,
        ):
            admin: Any = AdminClient({"bootstrap.servers": ours.bootstrap_servers, "log_level": 0})
            wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2)
            topic = NewTopic("t", PARTITIONS, 2, config={"min.insync.replicas": "2"})
            admin.create_topics([topic])["t"].result(PATIENCE_S)
            told: list[Any] = []
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all", "log_level": 0})
            for partition in range(PARTITIONS):
                producer.produce("t", b"x", partition=partition, on_delivery=lambda error, _: told.append(error))
            producer.flush(PATIENCE_S)
            assert told == [None] * PARTITIONS
            found = admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions.values()
            assert {each.leader for each in found} == {KAFKA, OURS}
            assert all(sorted(each.isrs) == [KAFKA, OURS] for each in found)
            assert fetch_as(ours.bootstrap_servers, OURS) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            kafka.stop()
            wait_until(lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 1)
            assert fetch_as(ours.bootstrap_servers, KAFKA) is ErrorCode.TOPIC_AUTHORIZATION_FAILED, "it is gone"


def fetch_as(address: str, replica_id: int) -> ErrorCode:
    """The error that a client gets which claims to be a broker."""
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=-1),
        max_wait_ms=0,
        topics=[FetchTopic(topic_id=hostile.topic_id(address, "t"), partitions=[FetchPartition(partition=0)])],
    )
    with hostile.connect(address) as client:
        (topic,) = hostile.ask(client, request, 15, FetchResponse).responses
    return ErrorCode.of(topic.partitions[0].error_code)
