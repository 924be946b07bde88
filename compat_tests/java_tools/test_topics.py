"""kafka-topics: creating, describing, altering and deleting topics."""

import re
from typing import Any

import pytest

pytestmark = pytest.mark.store


def described(done: Any) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The output of `--describe` of one topic: its own fields and those of each partition."""
    heading, *partitions = [
        {key.strip(): value.strip() for key, value in (field.split(":", 1) for field in line.strip().split("\t"))}
        for line in done.lines
    ]
    return heading, partitions


def test_create_and_describe(tools: Any, topic_name: str) -> None:
    created = tools.run("kafka-topics", "--create", "--topic", topic_name, "--partitions", 3, "--replication-factor", 1)
    assert created.lines == [f"Created topic {topic_name}."]

    heading, partitions = described(tools.run("kafka-topics", "--describe", "--topic", topic_name))

    assert heading["Topic"] == topic_name
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", heading["TopicId"])
    assert (heading["PartitionCount"], heading["ReplicationFactor"]) == ("3", "1")
    assert [partition["Partition"] for partition in partitions] == ["0", "1", "2"]
    assert {partition["Leader"] == partition["Replicas"] == partition["Isr"] for partition in partitions} == {True}
    # "N/A" where the broker has no DescribeTopicPartitions to ask.
    assert {(partition["Elr"], partition["LastKnownElr"]) for partition in partitions} == {("", "")}


def test_defaults_of_the_broker_are_used_where_none_are_given(tools: Any, topic_name: str) -> None:
    tools.run("kafka-topics", "--create", "--topic", topic_name)

    heading, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic_name))

    assert (heading["PartitionCount"], heading["ReplicationFactor"]) == ("1", "1")


def test_list_names_new_topics_and_the_id_of_a_topic_finds_it(tools: Any, topic: str) -> None:
    assert topic in tools.run("kafka-topics", "--list").lines
    assert topic in tools.run("kafka-topics", "--list", "--exclude-internal").lines

    heading, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic))
    by_id, _ = described(tools.run("kafka-topics", "--describe", "--topic-id", heading["TopicId"]))

    assert by_id["Topic"] == topic


def test_internal_topics_are_marked_as_such(tools: Any, topic: str, group: str, member: Any) -> None:
    member(group, topic)

    assert "__consumer_offsets" in tools.run("kafka-topics", "--list").lines
    assert "__consumer_offsets" not in tools.run("kafka-topics", "--list", "--exclude-internal").lines

    heading, partitions = described(tools.run("kafka-topics", "--describe", "--topic", "__consumer_offsets"))
    assert len(partitions) == 50
    assert "cleanup.policy=compact" in heading["Configs"]
    assert "segment.bytes=104857600" in heading["Configs"]
    assert "compression.type=producer" in heading["Configs"]


def test_create_again_is_an_error_unless_wanted(tools: Any, topic: str) -> None:
    again = tools.run("kafka-topics", "--create", "--topic", topic, status=1)
    assert "TopicExistsException" in again.err
    assert f"Topic '{topic}' already exists." in again.out

    assert tools.run("kafka-topics", "--create", "--topic", topic, "--if-not-exists").lines == []


def test_topic_configs_are_taken_and_shown(tools: Any, topic_name: str) -> None:
    configs = {"retention.ms": "60000", "cleanup.policy": "compact,delete", "max.message.bytes": "2000"}
    arguments = [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
    tools.run("kafka-topics", "--create", "--topic", topic_name, *arguments)

    heading, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic_name))

    for key, value in configs.items():
        assert f"{key}={value}" in heading["Configs"]
    overridden = tools.run("kafka-topics", "--describe", "--topics-with-overrides", "--topic", topic_name)
    assert topic_name in overridden.out


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--config", "retention.ms=abc"], "", "Invalid value abc for configuration retention.ms"),
        (["--config", "no.such.config=1"], "", "Unknown topic config name: no.such.config"),
        (["--config", "cleanup.policy=shred"], "", "cleanup.policy"),
        (["--replication-factor", "3"], "InvalidReplicationFactorException", "3"),
        (["--replica-assignment", "12345"], "InvalidReplicaAssignmentException", "12345"),
    ],
)
def test_invalid_topics_are_refused_with_the_reason(
    tools: Any, topic_name: str, arguments: list[str], error: str, message: str
) -> None:
    refused = tools.run("kafka-topics", "--create", "--topic", topic_name, *arguments, status=1)

    assert error in refused.err
    assert message in refused.out
    assert topic_name not in tools.run("kafka-topics", "--list").lines


@pytest.mark.parametrize("name", ["a/b", "x" * 250, "..", "ümlaut"])
def test_bad_names_are_refused(tools: Any, name: str) -> None:
    refused = tools.run("kafka-topics", "--create", "--topic", name, status=1)

    assert "InvalidTopicException" in refused.err


def test_names_that_differ_only_in_dot_and_underscore_collide(tools: Any, make_topic: Any, topic_name: str) -> None:
    make_topic(name=f"{topic_name}.a_b")

    refused = tools.run("kafka-topics", "--create", "--topic", f"{topic_name}_a.b", status=1)

    assert "InvalidTopicException" in refused.err
    assert "collides with existing topic" in refused.out


def test_replicas_can_be_assigned_by_hand(tools: Any, topic: str, topic_name: str) -> None:
    _, [partition] = described(tools.run("kafka-topics", "--describe", "--topic", topic))
    broker = partition["Leader"]

    tools.run("kafka-topics", "--create", "--topic", topic_name, "--replica-assignment", f"{broker},{broker}")

    _, partitions = described(tools.run("kafka-topics", "--describe", "--topic", topic_name))
    assert [each["Replicas"] for each in partitions] == [broker, broker]


def test_partitions_can_be_added_but_not_removed(tools: Any, make_topic: Any) -> None:
    topic = make_topic(partitions=2)

    tools.run("kafka-topics", "--alter", "--topic", topic, "--partitions", 4)
    fewer = tools.run("kafka-topics", "--alter", "--topic", topic, "--partitions", 3, status=1)
    same = tools.run("kafka-topics", "--alter", "--topic", topic, "--partitions", 4, status=1)

    heading, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic))
    assert heading["PartitionCount"] == "4"
    assert "InvalidPartitionsException" in fewer.err
    assert "InvalidPartitionsException" in same.err


def test_a_topic_that_is_not_there(tools: Any, topic_name: str) -> None:
    for arguments in (["--describe"], ["--delete"], ["--alter", "--partitions", "2"]):
        missing = tools.run("kafka-topics", *arguments, "--topic", topic_name, status=1)
        shown = f"Optional[{topic_name}]" if tools.of_3_9 else topic_name
        assert f"Topic '{shown}' does not exist as expected" in missing.out
        assert tools.run("kafka-topics", *arguments, "--topic", topic_name, "--if-exists").lines == []


def test_delete_and_create_again_makes_another_topic(tools: Any, produce: Any, topic: str) -> None:
    produce(topic, [b"old"])
    first, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic))

    tools.run("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tools.run("kafka-topics", "--list").lines
    tools.run("kafka-topics", "--create", "--topic", topic)

    second, _ = described(tools.run("kafka-topics", "--describe", "--topic", topic))
    assert second["TopicId"] != first["TopicId"]
    assert tools.offsets(topic) == {0: 0}
    produce(topic, [b"new"])
    assert tools.consume(topic, 1, "--from-beginning") == ["new"]


def test_a_healthy_cluster_has_no_troubled_partitions(tools: Any, topic: str) -> None:
    for trouble in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        lines = tools.run("kafka-topics", "--describe", f"--{trouble}-partitions", "--topic", topic).lines
        assert len(lines) == (1 if trouble == "at-min-isr" else 0)  # one replica and min.insync.replicas=1
