"""kafka-configs: configs of topics and brokers, described, altered and deleted."""

import re
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tools.waiting import PATIENCE_S

pytestmark = pytest.mark.store


def shown(done: Any) -> dict[str, str]:
    """Config -> value in what `--describe` printed."""
    return dict(re.findall(r"^  (\S+?)=(.*) sensitive=", done.out, re.MULTILINE))


def test_every_topic_and_broker_is_described_without_being_named(tools: Any, topic: str, broker: str) -> None:
    """Newer tools ask ListConfigResources for the names."""
    topics = tools.run("kafka-configs", "--describe", "--entity-type", "topics")
    brokers = tools.run("kafka-configs", "--describe", "--entity-type", "brokers")

    assert f"Dynamic configs for topic {topic} are:" in topics.lines
    assert f"Dynamic configs for broker {broker} are:" in brokers.lines


def test_there_are_no_client_metrics(tools: Any) -> None:
    assert tools.run("kafka-client-metrics", "--list").lines == []
    assert tools.run("kafka-configs", "--describe", "--entity-type", "client-metrics").lines == []


@pytest.fixture
def broker(cluster: Any) -> str:
    """The broker's id."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [broker_id] = admin.list_topics(timeout=PATIENCE_S).brokers
    return str(broker_id)


def test_a_fresh_topic_has_no_configs_of_its_own(tools: Any, topic: str) -> None:
    done = tools.run("kafka-configs", "--describe", "--topic", topic)

    assert done.lines == [f"Dynamic configs for topic {topic} are:"]


def test_alter_describe_delete(tools: Any, topic: str) -> None:
    added = "retention.ms=60000,segment.bytes=2000000,cleanup.policy=[compact,delete]"
    done = tools.run("kafka-configs", "--alter", "--topic", topic, "--add-config", added)
    assert done.lines == [f"Completed updating config for topic {topic}."]

    after = tools.run("kafka-configs", "--describe", "--topic", topic)
    assert shown(after) == {"retention.ms": "60000", "segment.bytes": "2000000", "cleanup.policy": "compact,delete"}
    synonyms = "synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}"
    assert f"segment.bytes=2000000 sensitive=false {synonyms}" in after.out

    tools.run("kafka-configs", "--alter", "--topic", topic, "--delete-config", "retention.ms,cleanup.policy")
    again = tools.attempt("kafka-configs", "--alter", "--topic", topic, "--delete-config", "retention.ms")
    assert again.status == (1 if tools.of_3_9 else 0), "the broker does not mind; the older tool looks before it asks"
    assert shown(tools.run("kafka-configs", "--describe", "--topic", topic)) == {"segment.bytes": "2000000"}


def test_all_configs_of_a_topic_are_known_with_kafkas_defaults(tools: Any, topic: str) -> None:
    every = shown(tools.run("kafka-configs", "--describe", "--all", "--topic", topic))

    assert {
        "cleanup.policy": "delete",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.type": "producer",
        "compression.zstd.level": "3",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
    }.items() <= every.items()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("retention.ms=abc", "Invalid value abc for configuration retention.ms"),
        ("cleanup.policy=shred", "cleanup.policy"),
        ("min.insync.replicas=0", "min.insync.replicas"),
        ("no.such.config=1", "Unknown topic config name: no.such.config"),
    ],
)
def test_bad_configs_are_refused_and_change_nothing(tools: Any, topic: str, config: str, message: str) -> None:
    refused = tools.run(
        "kafka-configs", "--alter", "--topic", topic, "--add-config", f"retention.bytes=5,{config}", status=1
    )

    assert "InvalidConfigurationException" in refused.err
    assert message in refused.err
    assert shown(tools.run("kafka-configs", "--describe", "--topic", topic)) == {}


def test_configs_of_a_topic_that_is_not_there(tools: Any, topic_name: str) -> None:
    described = tools.attempt("kafka-configs", "--describe", "--topic", topic_name)
    altered = tools.run("kafka-configs", "--alter", "--topic", topic_name, "--add-config", "retention.ms=1", status=1)

    if tools.of_3_9:
        assert "UnknownTopicOrPartitionException" in described.err
    else:
        assert f"The topic '{topic_name}' doesn't exist and doesn't have dynamic config." in described.out
    assert "UnknownTopicOrPartitionException" in altered.err


def test_an_altered_config_takes_effect(tools: Any, produce: Any, topic: str) -> None:
    tools.run("kafka-configs", "--alter", "--topic", topic, "--add-config", "message.timestamp.type=LogAppendTime")

    produce(topic, [b"x"], timestamp=1000)

    [line] = tools.consume(topic, 1, "--from-beginning", "--formatter-property", "print.timestamp=true")
    assert line.startswith("LogAppendTime:")
    assert not line.startswith("LogAppendTime:1000\t")


def test_a_running_brokers_config_change_reaches_its_topics(tools: Any, broker: str, topic: str) -> None:
    tools.run("kafka-configs", "--alter", "--broker", broker, "--add-config", "log.retention.ms=123456789")
    try:
        own = tools.run("kafka-configs", "--describe", "--broker", broker)
        assert shown(own)["log.retention.ms"] == "123456789"
        assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=123456789, DEFAULT_CONFIG:log.retention.hours=168" in own.out

        of_topic = tools.run("kafka-configs", "--describe", "--all", "--topic", topic)
        assert shown(of_topic)["retention.ms"] == "123456789"
    finally:
        tools.run("kafka-configs", "--alter", "--broker", broker, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in shown(tools.run("kafka-configs", "--describe", "--broker", broker))


def test_defaults_of_all_brokers(tools: Any, topic: str) -> None:
    tools.run("kafka-configs", "--alter", "--broker-defaults", "--add-config", "log.retention.bytes=1234567890")
    try:
        assert (
            shown(tools.run("kafka-configs", "--describe", "--broker-defaults"))["log.retention.bytes"] == "1234567890"
        )
        assert (
            shown(tools.run("kafka-configs", "--describe", "--all", "--topic", topic))["retention.bytes"]
            == "1234567890"
        )
    finally:
        tools.run("kafka-configs", "--alter", "--broker-defaults", "--delete-config", "log.retention.bytes")
    assert shown(tools.run("kafka-configs", "--describe", "--all", "--topic", topic))["retention.bytes"] == "-1"


def test_all_configs_of_a_broker(tools: Any, broker: str) -> None:
    every = shown(tools.run("kafka-configs", "--describe", "--all", "--broker", broker))

    assert {
        "auto.create.topics.enable": "true",
        "compression.type": "producer",
        "group.max.session.timeout.ms": "1800000",
        "log.retention.hours": "168",
        "message.max.bytes": "1048588",
        "num.partitions": "1",
        "offsets.topic.num.partitions": "50",
        "socket.request.max.bytes": "104857600",
    }.items() <= every.items()


def test_configs_fixed_in_a_running_broker_are_refused(tools: Any, broker: str) -> None:
    refused = tools.run("kafka-configs", "--alter", "--broker", broker, "--add-config", "broker.id=77", status=1)

    assert "InvalidRequestException" in refused.err
    assert "Cannot update these configs dynamically" in refused.err
