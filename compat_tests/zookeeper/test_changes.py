"""Changes that Kafka 3.9.1's administration writes into ZooKeeper take effect in Barnabas."""

from typing import Any

import pytest

from compat_tests.zookeeper.conftest import broker_on
from compat_tests.zookeeper.waiting import consume, produce, topic_of
from tools.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

Kafka = Any
Broker = Any


def value_of(admin: Any, kind: str, name: str, key: str) -> str:
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    resource = ConfigResource(ConfigResource.Type[kind], name)
    value: str = admin.describe_configs([resource])[resource].result(PATIENCE_S)[key].value
    return value


def test_a_topic_config(kafka: Kafka, broker: Broker, new_topic: Any, admin: Any) -> None:
    from confluent_kafka import Producer

    name = new_topic()
    kafka.admin.changeTopicConfig(name, kafka.properties({"max.message.bytes": "100", "retention.ms": "777"}))
    wait_until(lambda: value_of(admin, "TOPIC", name, "retention.ms") == "777")
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(name, b"x" * 1000, on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_S)
    assert [error.name() for error in errors] == ["MSG_SIZE_TOO_LARGE"]
    kafka.admin.changeTopicConfig(name, kafka.properties({}))
    wait_until(lambda: value_of(admin, "TOPIC", name, "retention.ms") == "604800000")


def test_a_brokers_config(kafka: Kafka, new_topic: Any, admin: Any) -> None:
    name = new_topic()
    kafka.admin.changeBrokerConfig(kafka.seq(1), kafka.properties({"log.retention.ms": "654321"}))
    wait_until(lambda: value_of(admin, "BROKER", "1", "log.retention.ms") == "654321")
    assert value_of(admin, "TOPIC", name, "retention.ms") == "654321"
    kafka.admin.changeBrokerConfig(kafka.seq(1), kafka.properties({}))
    wait_until(lambda: value_of(admin, "TOPIC", name, "retention.ms") == "604800000")


@pytest.mark.parametrize("uses_topic_id", [True, False])
def test_a_topic(kafka: Kafka, broker: Broker, topic_name: str, admin: Any, uses_topic_id: bool) -> None:
    kafka.admin.createTopic(
        topic_name,
        2,
        1,
        kafka.properties({"retention.ms": "4242"}),
        rack_unaware(kafka),
        uses_topic_id,
    )
    wait_until(lambda: topic_of(admin, topic_name, 2))
    assert value_of(admin, "TOPIC", topic_name, "retention.ms") == "4242"
    assert produce(broker.bootstrap_servers, topic_name, "x", partition=1) == 0
    assert consume(broker.bootstrap_servers, topic_name, f"of-{topic_name}", 1) == ["x"]
    assert kafka.zk.getTopicIdsForTopics(kafka.set(topic_name)).size() == 1
    assert kafka.zk.getLeaderForPartition(kafka.partition(topic_name, 0)).get() == 1


def rack_unaware(kafka: Kafka) -> Any:
    disabled = getattr(kafka.java.kafka.admin, "RackAwareMode$Disabled$")
    return getattr(disabled, "MODULE$")


def test_more_partitions(kafka: Kafka, broker: Broker, new_topic: Any, admin: Any) -> None:
    name = new_topic()
    produce(broker.bootstrap_servers, name, "before")
    existing = kafka.zk.getPartitionAssignmentForTopics(kafka.set(name)).apply(name)
    brokers = kafka.admin.getBrokerMetadatas(rack_unaware(kafka), kafka.java.scala.Option.empty())
    kafka.admin.addPartitions(name, existing, brokers, 3, kafka.java.scala.Option.empty(), False)
    wait_until(lambda: topic_of(admin, name, 3))
    assert produce(broker.bootstrap_servers, name, "after", partition=2) == 0
    assert produce(broker.bootstrap_servers, name, "before", partition=0) == 1


def test_a_deletion(kafka: Kafka, broker: Broker, new_topic: Any, admin: Any) -> None:
    name = new_topic()
    produce(broker.bootstrap_servers, name, "x")
    kafka.admin.deleteTopic(name)
    wait_until(lambda: name not in admin.list_topics(timeout=PATIENCE_S).topics)
    wait_until(lambda: not kafka.zk.isTopicMarkedForDeletion(name))
    assert not kafka.zk.topicExists(name)
    wait_until(lambda: not list(broker.log_dir.glob(f"{name}-0")))


def test_a_forced_election(kafka: Kafka, broker: Broker, new_topic: Any, admin: Any) -> None:
    """`KafkaZkClient.deleteController` is what Kafka's own tools use."""
    found = kafka.zk.getControllerEpoch().get()
    epoch, version = found._1(), found._2().getVersion()
    kafka.zk.deleteController(version)
    wait_until(lambda: kafka.zk.getControllerEpoch().get()._1() == epoch + 1 and kafka.zk.getControllerId().isDefined())
    name = new_topic()
    assert produce(broker.bootstrap_servers, name, "x") == 0
    assert kafka.zk.getTopicPartitionState(kafka.partition(name, 0)).get().controllerEpoch() == epoch + 1


def test_kafka_configs_while_the_broker_is_down(kafka: Kafka, zookeeper: Any) -> None:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    with broker_on(zookeeper, "/down") as process:
        process.stop()
        for entity in (["--entity-default"], ["--entity-name", "1"]):
            key = "log.retention.ms=111" if entity == ["--entity-default"] else "log.segment.bytes=222222"
            done = kafka.jvm.run(
                "kafka.admin.ConfigCommand",
                ["--zookeeper", f"{zookeeper.address}/down", "--alter", "--entity-type", "brokers", *entity,
                 "--add-config", key],
            )  # fmt: skip
            assert done.status == 0, done.err
        process.start()
        admin = AdminClient({"bootstrap.servers": process.bootstrap_servers})
        assert value_of(admin, "BROKER", "1", "log.retention.ms") == "111"
        assert value_of(admin, "BROKER", "1", "log.segment.bytes") == "222222"
