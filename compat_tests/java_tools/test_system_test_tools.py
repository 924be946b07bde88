"""Tools that Kafka's own system tests are made of: verifiable clients, verifiers, and a mirror."""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.conftest import KAFKA, create_topic
from compat_tests.java_tools.kafka_tools import of_3_9_only, of_4_3_only
from tools.processes import children

LINES_WAITED_FOR = 100


def events(done: subprocess.CompletedProcess[str], name: str) -> list[dict[str, Any]]:
    """The JSON lines of a verifiable client that tell of one kind of event."""
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if line["name"] == name]


@pytest.fixture
def start(tools: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a tool that runs until it is stopped, which happens after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(tool: str, *arguments: object) -> subprocess.Popen[str]:
        started.append(tools.start(tool, *arguments))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        children.finish(process)


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """The first line of its output with `text` in it."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return line
        assert len(read) < LINES_WAITED_FOR, "".join(read)
    raise AssertionError("it ended:\n" + "".join(read))


def test_verifiable_producer_and_consumer(tools: Any, make_topic: Any, group: str) -> None:
    topic = make_topic(partitions=2)

    produced = tools.process("kafka-verifiable-producer", "--topic", topic, "--max-messages", 200, "--acks", -1)
    consumed = tools.process(
        "kafka-verifiable-consumer", "--topic", topic, "--group-id", group, "--max-messages", 200,
        "--reset-policy", "earliest", "--verbose",
    )  # fmt: skip

    assert len(events(produced, "producer_send_success")) == 200
    assert events(produced, "tool_data")[0]["acked"] == 200
    assert sorted(int(each["value"]) for each in events(consumed, "record_data")) == list(range(200))
    assert {each["success"] for each in events(consumed, "offsets_committed")} == {True}


@of_4_3_only
def test_a_verifiable_share_consumer_is_refused(cluster: Any, topic: str, group: str, start: Any) -> None:
    consumer = start("kafka-verifiable-share-consumer", "--topic", topic, "--group-id", group)

    assert wait_for(consumer, "startup_complete" if cluster.target == KAFKA else "UnsupportedVersionException")


def test_client_compatibility(tools: Any, topic: str) -> None:
    expected = {
        "--offsets-for-times-supported": True,
        "--cluster-id-supported": True,
        "--create-topics-supported": True,
        "--describe-configs-supported": True,
        "--describe-acls-supported": True,
        "--expect-record-too-large-exception": False,
        "--idempotent-producer-supported": True,
    }
    options = [part for name, value in expected.items() for part in (name, str(value).lower())]

    done = tools.attempt("client-compatibility-test", "--topic", topic, "--num-cluster-nodes", 1, *options)

    tools.run("kafka-topics", "--delete", "--topic", "newtopic")  # the tool's own
    assert (done.status, done.lines[-1]) == (0, "SUCCESS."), done.out + done.err


def test_replica_verification(make_topic: Any, produce: Any, start: Any) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [b"x"] * 10, partition=1)

    verifier = start("kafka-replica-verification", "--topics-include", topic, "--report-interval-ms", 100)

    assert wait_for(verifier, f"max lag is 0 for partition {topic}-")


@of_4_3_only
@pytest.mark.full
def test_log_compaction(start_cluster: Any, tools_for: Any) -> None:
    """Kafka's own judgement of compaction: the last record of each key is there, deletions are gone."""
    quick = {"log.cleaner.backoff.ms": "500", "log.cleaner.min.cleanable.ratio": "0.01", "log.segment.bytes": "1048576"}
    own = tools_for(start_cluster(quick))
    arguments = {"--messages": 50_000, "--duplicates": 5, "--percent-deletes": 10, "--sleep": 20, "--topics": 2}

    done = own.run("log-compaction-tester", *(part for pair in arguments.items() for part in pair))

    assert "Data verification is completed" in done.out
    produced, consumed = [int(word) for word in done.out.split() if word.isdigit()][-2:]
    assert consumed < produced, "something was compacted"


@of_3_9_only
@pytest.mark.full
def test_mirror_maker(topic: str, produce: Any, start_cluster: Any, tools_for: Any, cluster: Any, start: Any,
                      tmp_path: Path) -> None:  # fmt: skip
    other = start_cluster()
    create_topic(other.bootstrap_servers, topic, 1, None)
    produce(topic, [b"%d" % number for number in range(100)])
    consumer, producer = tmp_path / "consumer.properties", tmp_path / "producer.properties"
    group = f"mirror-{secrets.token_hex(4)}"
    source = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    consumer.write_text("".join(f"{key}={value}\n" for key, value in source.items()))
    producer.write_text(f"bootstrap.servers={other.bootstrap_servers}\n")

    start("kafka-mirror-maker", "--consumer.config", consumer, "--producer.config", producer, "--include", topic)

    mirrored = tools_for(other).consume(topic, 100, "--from-beginning")
    assert mirrored == [str(number) for number in range(100)]


def test_end_to_end_latency(tools: Any, topic: str) -> None:
    values = {"--topic": topic, "--num-records": 50, "--producer-acks": 1, "--record-size": 100}
    named = [part for pair in values.items() for part in pair]

    done = tools.run("kafka-e2e-latency", *(values.values() if tools.of_3_9 else named))

    assert "Percentiles: 50th = " in done.out
