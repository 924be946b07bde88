"""Every config of a topic and of the broker, as Kafka lists it: name, value, source, type, synonyms.

`topic_configs.json` and `broker_configs.json` hold the answers of Apache Kafka 4.3.0; to record them again set
BARNABAS_RECORD_GOLDEN=1 and run this file against it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from compat_tests.semantics.client import Connection, topic_metadata

FOLDER = Path(__file__).parent
TOPIC, BROKER = 2, 4
DEFAULT_CONFIG = 5


def describe(connection: Connection, resource_type: int, name: str) -> dict[str, dict[str, Any]]:
    """Every entry by name, without documentation."""
    resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = connection.ask(request, 4).results
    assert (result.error_code, result.resource_name) == (0, name)
    return {
        entry.name: {
            "value": entry.value,
            "source": entry.config_source,
            "type": entry.config_type,
            "read_only": entry.read_only,
            "sensitive": entry.is_sensitive,
            "documented": bool(entry.documentation),
            "synonyms": [[synonym.name, synonym.value, synonym.source] for synonym in entry.synonyms],
        }
        for entry in result.configs
    }


def golden(name: str, actual: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The recorded configs; first records `actual` if asked to."""
    path = FOLDER / name
    if os.environ.get("BARNABAS_RECORD_GOLDEN"):
        lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(actual.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def differences(expected: dict[str, dict[str, Any]], actual: dict[str, dict[str, Any]]) -> list[str]:
    """One line for each difference."""
    lines = [f"missing: {name}" for name in expected.keys() - actual.keys()]
    lines += [f"not in Kafka: {name}" for name in actual.keys() - expected.keys()]
    for name in expected.keys() & actual.keys():
        for field, value in expected[name].items():
            if actual[name][field] != value:
                lines.append(f"{name}: {field} is {actual[name][field]!r}, Kafka's {value!r}")
    return sorted(lines)


def test_every_config_of_a_topic(connection: Connection, ready_topic: Any) -> None:
    topic = ready_topic(configs={"retention.ms": "1234567", "cleanup.policy": "compact,delete"})
    actual = describe(connection, TOPIC, topic)
    expected = golden("topic_configs.json", actual)
    # Kafka's eligible leader replicas (KRaft only) turn this default into a dynamic one of the whole cluster.
    for configs in (expected, actual):
        del configs["min.insync.replicas"]["source"], configs["min.insync.replicas"]["synonyms"]
    assert differences(expected, actual) == []


def test_only_the_configs_asked_for(connection: Connection, topic: str) -> None:
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=["segment.bytes", "no.such"]
    )
    (result,) = connection.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    (entry,) = result.configs
    assert (entry.name, entry.value, entry.synonyms, entry.documentation) == ("segment.bytes", "1073741824", [], None)


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version(connection: Connection, topic: str, version: int) -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=["segment.bytes"])
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = connection.ask(request, version).results
    (entry,) = result.configs
    assert (entry.name, entry.value, entry.config_source) == ("segment.bytes", "1073741824", DEFAULT_CONFIG)
    assert [(synonym.name, synonym.source) for synonym in entry.synonyms] == [("log.segment.bytes", DEFAULT_CONFIG)]
    assert entry.config_type == (3 if version >= 3 else 0)


DIFFERENT_ON_PURPOSE = {
    "group.coordinator.rebalance.protocols",  # Kafka's newer group protocols are not served
    "log.dir",  # ours is in the user's data folder
    "metric.reporters",  # Kafka's default reporter is JMX
}
KEYS_THAT_KAFKA_LACKS = (
    "barnabas.",
    # 3.9's ZooKeeper mode:
    "zookeeper.",
    "control.plane.",
    "inter.broker.protocol",
    "log.message.format",
)


def test_defaults_of_the_broker(connection: Connection, topic: str) -> None:
    """A key that neither cluster's configuration sets has Kafka's default, type and mode."""
    name = str(topic_metadata(connection, topic).partitions[0].leader_id)
    actual = {
        key: {
            "value": entry["value"] if entry["source"] == DEFAULT_CONFIG else "from its configuration",
            "type": entry["type"],
            "read_only": entry["read_only"],
            "default": entry["source"] == DEFAULT_CONFIG,
        }
        for key, entry in describe(connection, BROKER, name).items()
    }
    expected = golden("broker_configs.json", actual)
    shared = (expected.keys() & actual.keys()) - DIFFERENT_ON_PURPOSE
    comparable = {key for key in shared if expected[key]["default"] and actual[key]["default"]}
    assert len(comparable) > 250
    assert {key: actual[key] for key in comparable} == {key: expected[key] for key in comparable}
    unknown = {key for key in actual.keys() - expected.keys() if not key.startswith(KEYS_THAT_KAFKA_LACKS)}
    assert unknown == set()
