"""Tools of 4.3.0 and of 3.9.1 (the last with ZooKeeper), each in a process of its own: the rest of Kafka's bin folder.

What Barnabas does not serve must end in a clear error, not in a wait.
"""

import json
import re
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import KAFKA
from tools.kafka_runtime import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime

Run = Callable[..., subprocess.CompletedProcess[str]]
API_VERSIONS = {
    ORACLE_VERSION: "org.apache.kafka.tools.BrokerApiVersionsCommand",
    ZOOKEEPER_ERA_VERSION: "kafka.admin.BrokerApiVersionsCommand",
}
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(params=[ORACLE_VERSION, ZOOKEEPER_ERA_VERSION])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(jvm: Any, cluster: Any, version: str) -> Run:
    """Run a main class with `--bootstrap-server` and arguments."""

    def start(main_class: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        given = ["--bootstrap-server", cluster.bootstrap_servers, *map(str, arguments)]
        return kafka_runtime(version).tool(main_class, given, timeout_s=120)

    return start


def events(done: subprocess.CompletedProcess[str], name: str) -> list[dict[str, Any]]:
    """The JSON lines of a verifiable client that tell of one kind of event."""
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line["name"] == name]


def test_verifiable_producer_and_consumer(run: Run, make_topic: Any, group: str) -> None:
    topic = make_topic(partitions=2)

    produced = run(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", 200, "--acks", -1)
    consumed = run(
        f"{TOOLS}.VerifiableConsumer", "--topic", topic, "--group-id", group, "--max-messages", 200,
        "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip

    assert produced.returncode == 0, produced.stderr
    assert len(events(produced, "producer_send_success")) == 200
    assert events(produced, "tool_data")[0]["acked"] == 200
    assert consumed.returncode == 0, consumed.stderr
    assert sorted(int(each["value"]) for each in events(consumed, "record_data")) == list(range(200))
    assert {each["success"] for each in events(consumed, "offsets_committed")} == {True}


def test_api_versions_log_dirs_topics_and_cluster(
    run: Run, version: str, topic: str, produce: Any, cluster: Any
) -> None:
    produce(topic, [b"x" * 100])

    versions = run(API_VERSIONS[version])
    log_dirs = run(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    described = run(f"{TOOLS}.TopicCommand", "--describe", "--topic", topic)

    assert versions.returncode == log_dirs.returncode == described.returncode == 0
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: \d+\]", versions.stdout)
    [log_dir] = json.loads(log_dirs.stdout.splitlines()[-1])["brokers"][0]["logDirs"]
    assert [each["partition"] for each in log_dir["partitions"]] == [f"{topic}-0"]
    assert re.search(
        rf"Topic: {topic}\s+TopicId: \S{{22}}\s+PartitionCount: 1\s+ReplicationFactor: 1", described.stdout
    )


@pytest.fixture
def empty_file(tmp_path: Path) -> Path:
    path = tmp_path / "empty.properties"
    path.touch()
    return path


UNSERVED = {
    "leader-election": ("LeaderElectionCommand", ["--election-type", "preferred", "--all-topic-partitions"]),
    "reassign-partitions": ("reassign.ReassignPartitionsCommand", ["--list"]),
    "delegation-tokens": ("DelegationTokenCommand", ["--describe", "--command-config", "EMPTY"]),
    "client-metrics": ("ClientMetricsCommand", ["--list"]),
}
WHAT_KAFKA_SAYS = {"delegation-tokens": "UnsupportedByAuthenticationException"}
"""Of these Kafka itself serves all but the tokens, which it refuses on a listener without authentication."""


@pytest.mark.parametrize("tool", UNSERVED)
def test_what_is_not_served_says_so(run: Run, cluster: Any, empty_file: Path, topic: str, tool: str) -> None:
    main_class, arguments = UNSERVED[tool]

    done = run(f"{TOOLS}.{main_class}", *[empty_file if each == "EMPTY" else each for each in arguments])

    said = done.stdout + done.stderr
    expected = WHAT_KAFKA_SAYS.get(tool, "") if cluster.target == KAFKA else "UnsupportedVersionException"
    assert expected in said, said
    assert (done.returncode != 0) == bool(expected), said


def test_features(run: Run, cluster: Any) -> None:
    done = run(f"{TOOLS}.FeatureCommand", "describe")

    assert done.returncode == 0, done.stderr
    if cluster.target == KAFKA:  # metadata.version belongs to KRaft
        assert "metadata.version" in done.stdout


@pytest.mark.full
def test_end_to_end_latency(version: str, jvm: Any, cluster: Any) -> None:
    topic = f"latency-{secrets.token_hex(4)}"
    values = [cluster.bootstrap_servers, topic, "50", "1", "100"]
    options = ("--bootstrap-server", "--topic", "--num-records", "--producer-acks", "--record-size")
    named = [part for pair in zip(options, values, strict=True) for part in pair]

    done = kafka_runtime(version).tool(f"{TOOLS}.EndToEndLatency", named if version == ORACLE_VERSION else values)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Percentiles: 50th = " in done.stdout
