"""Paths and payloads of znodes as Kafka 3.9.1's own encoders make them from the same values; ours read what they make.

Byte for byte where Kafka's maps have an order; as JSON where theirs (of more than four fields, mutable, or Properties)
have none.
"""

import json
from typing import Any

import pytest

from barnabas.controller import znodes
from barnabas.controller.state import (
    BrokerRegistration,
    EndPoint,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
    SecurityProtocol,
    SupportedFeature,
)
from barnabas.wire.names import topic_id_to_text
from compat_tests.zookeeper.conftest import KafkaClasses

pytestmark = pytest.mark.java

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes.fromhex("0123456789ab4def8123456789abcdef")
CLUSTER_ID = "4BBVMnpWRYSSAAhuMDMC8g"


def as_json(payload: bytes) -> Any:
    """Python's booleans are equal to 0 and 1: numbers and texts are compared as they are written."""
    return json.dumps(json.loads(payload), sort_keys=True)


def test_controller(kafka: KafkaClasses) -> None:
    for broker_id in (0, 1, 2**31 - 1):
        theirs = bytes(kafka.java.kafka.zk.ControllerZNode.encode(broker_id, NOW_MS, -1))
        assert znodes.encode_controller(broker_id, NOW_MS) == theirs
        assert znodes.decode_controller(theirs) == broker_id


def test_controller_epoch(kafka: KafkaClasses) -> None:
    for epoch in (0, 1, 2**31 - 1):
        theirs = bytes(kafka.java.kafka.zk.ControllerEpochZNode.encode(epoch))
        assert znodes.encode_controller_epoch(epoch) == theirs
        assert znodes.decode_controller_epoch(theirs) == epoch


def test_cluster_id(kafka: KafkaClasses) -> None:
    theirs = bytes(kafka.java.kafka.zk.ClusterIdZNode.toJson(CLUSTER_ID))
    assert znodes.encode_cluster_id(CLUSTER_ID) == theirs
    assert znodes.decode_cluster_id(theirs) == CLUSTER_ID


def test_producer_id_block(kafka: KafkaClasses) -> None:
    for first in (0, 1000, 2**53 * 1000):
        block = kafka.java.org.apache.kafka.server.common.ProducerIdsBlock(1, first, 1000)
        theirs = bytes(kafka.java.kafka.zk.ProducerIdBlockZNode.generateProducerIdBlockJson(block))
        ours = znodes.ProducerIdBlock(1, first, first + 999)
        assert znodes.encode_producer_id_block(ours) == theirs
        assert znodes.decode_producer_id_block(theirs) == ours


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"retention.ms": "1000"},
        {"retention.ms": "1000", "cleanup.policy": "delete"},
        {"a.b": 'quotes " and \\, grüße, \t, \x01, \x7f, 🎈, /'},
    ],
    ids=lambda configs: f"{len(configs)}",
)
def test_configs(kafka: KafkaClasses, configs: dict[str, str]) -> None:
    theirs = bytes(kafka.java.kafka.zk.ConfigEntityZNode.encode(kafka.properties(configs)))
    assert as_json(znodes.encode_config(configs)) == as_json(theirs)
    assert znodes.decode_config("topics", "t", theirs) == configs


@pytest.mark.parametrize("entity", [("topics", "flights"), ("brokers", "1"), ("brokers", "<default>")])
def test_config_changes(kafka: KafkaClasses, entity: tuple[str, str]) -> None:
    theirs = bytes(kafka.java.kafka.zk.ConfigEntityChangeNotificationSequenceZNode.encode("/".join(entity)))
    assert znodes.encode_config_change(*entity) == theirs
    assert znodes.decode_config_change("/config/changes/x", theirs) == entity


def test_features(kafka: KafkaClasses) -> None:
    """No feature is finalised in a cluster with ZooKeeper: features that are came with KRaft."""
    java = kafka.java
    enabled = getattr(getattr(java.kafka.zk, "FeatureZNodeStatus$Enabled$"), "MODULE$")
    none = getattr(getattr(java.scala.collection.immutable, "Map$"), "MODULE$").empty()
    latest = java.org.apache.kafka.server.common.MetadataVersion.latestProduction()
    theirs = java.kafka.zk.FeatureZNode.encode(java.kafka.zk.FeatureZNode.apply(latest, enabled, none))
    assert as_json(znodes.encode_feature()) == as_json(bytes(theirs))


@pytest.mark.parametrize(
    "state",
    [
        PartitionState(leader=1, leader_epoch=7, isr=(1, 2), controller_epoch=4, partition_epoch=9),
        PartitionState(leader=-1, leader_epoch=0, isr=(2,), controller_epoch=1, partition_epoch=0),
        PartitionState(1, 7, (1,), 4, 9, RecoveryState.RECOVERING),
    ],
    ids=["of two", "without a leader", "recovering"],
)
def test_partition_state(kafka: KafkaClasses, state: PartitionState) -> None:
    java = kafka.java
    recovery = getattr(java.org.apache.kafka.metadata.LeaderRecoveryState, state.recovery_state.name)
    isr = kafka.seq(*state.isr).toList()
    told = java.kafka.api.LeaderAndIsr.apply(state.leader, state.leader_epoch, isr, recovery, state.partition_epoch)
    with_epoch = java.kafka.controller.LeaderIsrAndControllerEpoch(told, state.controller_epoch)
    theirs = bytes(java.kafka.zk.TopicPartitionStateZNode.encode(with_epoch))
    assert as_json(znodes.encode_partition_state(state)) == as_json(theirs)
    assert znodes.decode_partition_state("t", 0, theirs, state.partition_epoch) == state


@pytest.mark.parametrize(
    ("topic_id", "partitions"),
    [
        (TOPIC_ID, {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 1))}),
        (TOPIC_ID, {0: ReplicaAssignment((3, 2, 1), (3,), (1,)), 1: ReplicaAssignment((1,))}),
        (TOPIC_ID, {index: ReplicaAssignment((1,)) for index in range(12)}),
        (None, {0: ReplicaAssignment((1,))}),
    ],
    ids=["assigned", "being reassigned", "of twelve partitions", "without an id"],
)
def test_topic(kafka: KafkaClasses, topic_id: bytes | None, partitions: dict[int, ReplicaAssignment]) -> None:
    java = kafka.java
    assignments = java.java.util.HashMap()
    for index, each in partitions.items():
        replicas = [kafka.seq(*ids) for ids in (each.replicas, each.adding_replicas, each.removing_replicas)]
        assignments.put(kafka.partition("t", index), java.kafka.controller.ReplicaAssignment.apply(*replicas))
    uuid = topic_id and java.org.apache.kafka.common.Uuid.fromString(topic_id_to_text(topic_id))
    scala_map = java.scala.jdk.javaapi.CollectionConverters.asScala(assignments)
    theirs = bytes(java.kafka.zk.TopicZNode.encode(java.scala.Option.apply(uuid), scala_map))
    assert as_json(znodes.encode_topic(topic_id, partitions)) == as_json(theirs)
    assert znodes.decode_topic("t", theirs) == znodes.TopicAssignment(topic_id, partitions)


PLAIN = EndPoint("PLAINTEXT", "host1", 9092)
SECURE = EndPoint("INTERNAL", "::1", 9093, SecurityProtocol.SASL_SSL)


@pytest.mark.parametrize(
    "registration",
    [
        BrokerRegistration(1, (PLAIN,), features=(SupportedFeature("transaction.version", 0, 2),)),
        BrokerRegistration(1, (SECURE, PLAIN), rack="dc1", epoch=42),
        BrokerRegistration(7, (SECURE,), rack="grüße"),
    ],
    ids=["plain", "two end points", "no plain one"],
)
def test_broker(kafka: KafkaClasses, registration: BrokerRegistration) -> None:
    """Kafka takes the time itself."""
    java = kafka.java
    common = java.org.apache.kafka.common
    endpoints = [
        java.kafka.cluster.EndPoint(
            each.host,
            each.port,
            common.network.ListenerName(each.listener),
            getattr(common.security.auth.SecurityProtocol, each.security_protocol.name),
        )
        for each in registration.endpoints
    ]
    supported = java.java.util.HashMap()
    short = java.java.lang.Short.valueOf
    for feature in registration.features:
        levels = (short(str(level)) for level in (feature.min_version, feature.max_version))
        supported.put(feature.name, common.feature.SupportedVersionRange(*levels))
    features = common.feature.Features.supportedFeatures(supported)
    rack = java.scala.Option.apply(registration.rack)
    told = java.kafka.cluster.Broker(registration.broker_id, kafka.seq(*endpoints), rack, features)
    latest = java.org.apache.kafka.server.common.MetadataVersion.latestProduction()
    theirs = bytes(java.kafka.zk.BrokerInfo.apply(told, latest, -1).toJsonBytes())
    now_ms = int(json.loads(theirs)["timestamp"])
    assert as_json(znodes.encode_broker(registration, now_ms)) == as_json(theirs)
    assert znodes.decode_broker(registration.broker_id, theirs, registration.epoch) == registration


def test_paths(kafka: KafkaClasses) -> None:
    zk = kafka.java.kafka.zk
    partition = kafka.partition("t", 4)
    assert znodes.broker_path(3) == zk.BrokerIdZNode.path(3)
    assert znodes.topic_path("t") == zk.TopicZNode.path("t")
    assert znodes.partitions_path("t") == zk.TopicPartitionsZNode.path("t")
    assert znodes.partition_path("t", 4) == zk.TopicPartitionZNode.path(partition)
    assert znodes.partition_state_path("t", 4) == zk.TopicPartitionStateZNode.path(partition)
    assert znodes.config_path("topics", "t") == zk.ConfigEntityZNode.path("topics", "t")
    assert znodes.delete_topic_path("t") == zk.DeleteTopicsTopicZNode.path("t")
    changes = zk.ConfigEntityChangeNotificationSequenceZNode.createPath()
    assert f"{znodes.CONFIG_CHANGES}/{znodes.CONFIG_CHANGE_PREFIX}" == changes
    for ours, theirs in (
        (znodes.CONTROLLER, zk.ControllerZNode),
        (znodes.CONTROLLER_EPOCH, zk.ControllerEpochZNode),
        (znodes.CLUSTER_ID, zk.ClusterIdZNode),
        (znodes.FEATURE, zk.FeatureZNode),
        (znodes.PRODUCER_ID_BLOCK, zk.ProducerIdBlockZNode),
    ):
        assert ours == theirs.path()
    assert sorted(znodes.PERSISTENT_PATHS) == sorted(kafka.python(zk.ZkData.PersistentZkPaths()))
