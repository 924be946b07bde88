"""Barnabas' znodes in ZooKeeper, read by Kafka 3.9.1's own classes."""

from typing import Any

import pytest

from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.waiting import produce
from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.java

Kafka = Any
Broker = Any


def test_the_broker(kafka: Kafka, broker: Broker) -> None:
    (found,) = kafka.python(kafka.zk.getAllBrokerAndEpochsInCluster()).items()
    kafka_broker, epoch = found
    (endpoint,) = kafka.python(kafka_broker.endPoints())
    assert kafka_broker.id() == 1
    assert f"{endpoint.host()}:{endpoint.port()}" == broker.bootstrap_servers
    assert (endpoint.listenerName().value(), endpoint.securityProtocol().toString()) == ("PLAINTEXT", "PLAINTEXT")
    assert kafka_broker.rack().get() == "r1"
    stat = kafka.zk.getDataAndStat("/brokers/ids/1")._2()
    assert epoch == stat.getCzxid()
    assert stat.getEphemeralOwner() != 0
    assert list(kafka.python(kafka.zk.getSortedBrokerList())) == [1]


def test_the_controller_and_the_cluster(kafka: Kafka, admin: Any) -> None:
    assert kafka.zk.getControllerId().get() == 1
    epoch, stat = kafka.zk.getControllerEpoch().get()._1(), kafka.zk.getControllerEpoch().get()._2()
    assert epoch >= 1
    assert stat.getVersion() == epoch, "Kafka fences writes with this version"
    assert kafka.zk.getClusterId().get() == admin.list_topics(timeout=PATIENCE_S).cluster_id


def test_every_path_that_kafka_expects(kafka: Kafka) -> None:
    for path in kafka.python(kafka.java.kafka.zk.ZkData.PersistentZkPaths()):
        assert kafka.zk.pathExists(path), path


def test_features(kafka: Kafka) -> None:
    payload = kafka.zk.getDataAndVersion("/feature")._1().get()
    node = kafka.java.kafka.zk.FeatureZNode.decode(payload)
    assert (node.version(), node.status().toString(), node.features().size()) == (2, "Enabled", 0)


def test_a_topic(kafka: Kafka, new_topic: Any, admin: Any) -> None:
    name = new_topic(3)
    assert name in kafka.python(kafka.zk.getAllTopicsInCluster(False))
    assert kafka.zk.topicExists(name)
    assert kafka.zk.getTopicPartitionCount(name).get() == 3
    topics = kafka.set(name)
    assignment = kafka.python(kafka.zk.getFullReplicaAssignmentForTopics(topics))
    replicas = {
        partition.partition(): (
            list(kafka.python(each.replicas())), each.addingReplicas().size(), each.removingReplicas().size()
        )
        for partition, each in assignment.items()
    }  # fmt: skip
    assert replicas == {0: ([1], 0, 0), 1: ([1], 0, 0), 2: ([1], 0, 0)}
    topic_id = kafka.zk.getTopicIdsForTopics(topics).apply(name).toString()
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_S)
    assert str(described.topic_id).translate(str.maketrans("+/", "-_")) == topic_id, "librdkafka's alphabet is another"


def test_partition_states(kafka: Kafka, new_topic: Any) -> None:
    name = new_topic(2)
    partitions = [kafka.partition(name, index) for index in range(2)]
    states = kafka.python(kafka.zk.getTopicPartitionStates(kafka.seq(*partitions)))
    assert len(states) == 2
    controller_epoch = kafka.zk.getControllerEpoch().get()._1()
    for state in states.values():
        assert state.controllerEpoch() == controller_epoch
        told = state.leaderAndIsr()
        assert (told.leader(), told.leaderEpoch(), told.partitionEpoch()) == (1, 0, 0)
        assert list(kafka.python(told.isr())) == [1]
        assert told.leaderRecoveryState().toString() == "RECOVERED"
    assert kafka.zk.getLeaderForPartition(partitions[0]).get() == 1


def test_topic_configs(kafka: Kafka, new_topic: Any, admin: Any) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

    name = new_topic(1, {"retention.ms": "12345", "cleanup.policy": "delete"})
    assert dict(kafka.admin.fetchEntityConfig("topics", name)) == {"retention.ms": "12345", "cleanup.policy": "delete"}
    changed = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[changed])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    assert dict(kafka.admin.fetchEntityConfig("topics", name)) == {
        "retention.ms": "12345",
        "cleanup.policy": "delete",
        "max.message.bytes": "5000",
    }
    assert name in kafka.python(kafka.admin.fetchAllEntityConfigs("topics"))


def test_a_deleted_topic_leaves_nothing(kafka: Kafka, new_topic: Any, admin: Any) -> None:
    name = new_topic(2)
    admin.delete_topics([name])[name].result(PATIENCE_S)
    assert not kafka.zk.topicExists(name)
    assert not kafka.zk.isTopicMarkedForDeletion(name)
    assert not kafka.zk.pathExists(f"/config/topics/{name}")


def test_producer_ids(kafka: Kafka, broker: Broker, new_topic: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    producer.produce(new_topic(), b"x")
    assert producer.flush(PATIENCE_S) == 0
    payload = kafka.zk.getDataAndVersion("/latest_producer_id_block")._1().get()
    block = kafka.java.kafka.zk.ProducerIdBlockZNode.parseProducerIdBlockData(payload)
    assert (block.assignedBrokerId(), block.size()) == (1, 1000)


def test_the_internal_topic(kafka: Kafka, broker: Broker, new_topic: Any) -> None:
    from compat_tests.zookeeper.waiting import consume

    name = new_topic()
    produce(broker.bootstrap_servers, name, "x")
    assert consume(broker.bootstrap_servers, name, "tree", 1) == ["x"]
    assert kafka.zk.getTopicPartitionCount("__consumer_offsets").get() == 4
    assert dict(kafka.admin.fetchEntityConfig("topics", "__consumer_offsets"))["cleanup.policy"] == "compact"


def test_kafka_configs_sees_the_broker(kafka: Kafka, zookeeper: Any) -> None:
    """The tool refuses to touch a running broker's configs behind its back: it knows that ours runs."""
    done = kafka.jvm.run(
        "kafka.admin.ConfigCommand",
        ["--zookeeper", f"{zookeeper.address}/clusters/one", "--describe", "--entity-type", "brokers",
         "--entity-name", "1"],
    )  # fmt: skip
    assert "broker 1 is running" in done.out + done.err


def test_kafka_configs_reads_a_stopped_brokers_configs(kafka: Kafka, zookeeper: Any) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    chroot = "/clusters/stopped"
    with broker_on(zookeeper, chroot) as alone:
        admin = AdminClient({"bootstrap.servers": alone.bootstrap_servers})
        changed = ConfigEntry("log.retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[changed])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        alone.stop()
        done = kafka.jvm.run(
            "kafka.admin.ConfigCommand",
            ["--zookeeper", f"{zookeeper.address}{chroot}", "--describe", "--entity-type", "brokers",
             "--entity-name", "1"],
        )  # fmt: skip
    assert done.status == 0, done.err
    assert "log.retention.ms=123456" in done.out
