"""Tools that need APIs which Barnabas does not serve: they end at once, with an error that says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import KAFKA
from compat_tests.java_tools.kafka_tools import of_4_3_only

UNSUPPORTED = "UnsupportedVersionException"
UNSERVED: dict[str, list[str]] = {
    "kafka-client-metrics alter": ["--alter", "--name", "some", "--interval", "1000"],
    "kafka-cluster unregister": ["unregister", "--id", "777"],
    "kafka-features upgrade": ["upgrade", "--feature", "group.version=1", "--dry-run"],
    "kafka-metadata-quorum status": ["describe", "--status"],
    "kafka-metadata-quorum replication": ["describe", "--replication"],
}
OTHER_WORDS = {
    "kafka-client-metrics alter": "InvalidRequestException: Unknown resource type 16",
    "kafka-cluster unregister": "The target cluster does not support the broker unregistration API.",
    "kafka-features upgrade": "The node does not support UPDATE_FEATURES",
}
"""Where it is not UnsupportedVersionException that ends them: the resource type, or the tool puts it so."""
KAFKA_REFUSES = {"kafka-cluster unregister": "BrokerIdNotRegisteredException"}
"""The rest Kafka does."""
ENDS_WITH_0 = {"kafka-cluster unregister"}

OF_4_3: dict[str, list[str]] = {
    "kafka-console-consumer new protocol": [
        *("--topic", "TOPIC", "--timeout-ms", "3000", "--command-property", "group.protocol=consumer"),
    ],
    "kafka-console-share-consumer": ["--topic", "TOPIC", "--timeout-ms", "3000"],
    "kafka-share-consumer-perf-test": ["--topic", "TOPIC", "--num-records", "1", "--timeout", "3000"],
    "kafka-share-groups describe": ["--describe", "--group", "GROUP"],
    "kafka-streams-groups describe": ["--describe", "--group", "GROUP"],
}
KAFKA_SAYS = {
    "kafka-share-groups describe": "GroupIdNotFoundException",
    "kafka-streams-groups describe": "GroupIdNotFoundException",
}

Fill = Callable[[list[str]], list[str]]


@pytest.fixture
def fill(topic: str, group: str, tmp_path: Path) -> Fill:
    """Put real names in the place of those in capitals."""
    plan = tmp_path / "plan.json"
    partitions = [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    names = {"TOPIC": topic, "GROUP": group, "PLAN": str(plan)}
    return lambda arguments: [names.get(argument, argument) for argument in arguments]


@pytest.mark.parametrize("task", UNSERVED)
def test_unserved_features_are_refused_with_a_message(tools: Any, cluster: Any, fill: Fill, task: str) -> None:
    done = tools.attempt(task.split()[0], *fill(UNSERVED[task]))

    said = done.out + done.err
    if cluster.target == KAFKA:
        assert UNSUPPORTED not in said
        assert KAFKA_REFUSES.get(task, "") in said
        assert (done.status != 0) == (task in KAFKA_REFUSES), said
    else:
        assert OTHER_WORDS.get(task, UNSUPPORTED) in said
        assert (done.status == 0) == (task in ENDS_WITH_0), said


@of_4_3_only
@pytest.mark.parametrize("task", OF_4_3)
def test_groups_of_new_kinds_are_not_served(tools: Any, cluster: Any, fill: Fill, task: str) -> None:
    done = tools.attempt(task.split()[0], *fill(OF_4_3[task]))  # most of these end with 0 whatever happens

    said = done.out + done.err
    if cluster.target == KAFKA:
        assert UNSUPPORTED not in said
        assert KAFKA_SAYS.get(task, "") in said
    else:
        assert UNSUPPORTED in said


@of_4_3_only
def test_groups_have_no_configs(tools: Any, cluster: Any, topic: str, group: str, member: Any) -> None:
    one_group = ["--describe", "--entity-type", "groups", "--entity-name", group]
    missing = tools.run("kafka-configs", *one_group)
    assert missing.lines == [f"The group '{group}' doesn't exist and doesn't have dynamic config."]

    member(group, topic)
    described = tools.attempt("kafka-configs", *one_group)

    said = described.out + described.err
    assert (f"Dynamic configs for group {group}" if cluster.target == KAFKA else "InvalidRequestException") in said


@of_4_3_only
@pytest.mark.parametrize("tool", ["kafka-share-groups", "kafka-streams-groups"])
def test_there_are_no_groups_of_new_kinds(tools: Any, topic: str, group: str, member: Any, tool: str) -> None:
    member(group, topic)

    assert group not in tools.run(tool, "--list").out


def test_a_reassignment_can_be_proposed(tools: Any, make_topic: Any, tmp_path: Path) -> None:
    topic = make_topic(partitions=2)
    to_move = tmp_path / "topics.json"
    to_move.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))

    done = tools.run(
        "kafka-reassign-partitions", "--generate", "--topics-to-move-json-file", to_move, "--broker-list", 1
    )

    current, proposed = [json.loads(line)["partitions"] for line in done.lines if line.startswith("{")]
    assert [(each["topic"], each["partition"], each["replicas"]) for each in proposed] == [
        (topic, 0, [1]),
        (topic, 1, [1]),
    ]
    assert [each["replicas"] for each in current] == [[1], [1]]


def test_features(tools: Any, cluster: Any) -> None:
    described = tools.run("kafka-features", "describe").out

    assert "transaction.version" in described
    assert ("metadata.version" in described) == (cluster.target == KAFKA), "that one belongs to KRaft"
