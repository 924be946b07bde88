"""Kafka's Java tools, by the names of their shell scripts, aimed at the cluster under test."""

import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.jvm.java import JavaMissing, find_java
from tools.jvm.shared import SharedJvm, ToolRun
from tools.kafka_runtime import kafka_runtime

MAIN_CLASSES = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
WITHOUT_BOOTSTRAP = {"kafka-dump-log"}
WITH_SUBCOMMAND = {"kafka-transactions"}
"""They want the address before the rest."""


class Tools:
    """Runs Kafka's tools by the names of their scripts.

    `run` uses one Java process for all of them and checks the status; `process` is a process of its own, as in life.
    """

    def __init__(self, jvm: SharedJvm, bootstrap_servers: str) -> None:
        self._jvm = jvm
        self.bootstrap_servers = bootstrap_servers

    def run(self, tool: str, *arguments: object, status: int = 0) -> ToolRun:
        """Run a tool; the test fails unless it ends with `status`."""
        done = self._jvm.run(MAIN_CLASSES[tool], self._arguments(tool, arguments))
        assert done.status == status, f"{tool} {arguments} ended with {done.status}\n{done.out}\n{done.err}"
        return done

    def process(
        self, tool: str, *arguments: object, stdin: str | bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a tool in a Java process of its own; the test fails unless it ends with 0."""
        done = kafka_runtime().tool(MAIN_CLASSES[tool], self._arguments(tool, arguments), stdin=stdin)
        assert done.returncode == 0, f"{tool} {arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def _arguments(self, tool: str, arguments: tuple[object, ...]) -> list[str]:
        address = [] if tool in WITHOUT_BOOTSTRAP else ["--bootstrap-server", self.bootstrap_servers]
        given = [str(argument) for argument in arguments]
        return given + address if tool not in WITH_SUBCOMMAND else address + given

    def table(self, done: ToolRun) -> list[dict[str, str]]:
        """The rows of a tool's table by the names in its heading (the first line that is no remark)."""
        heading, *rows = [line.split() for line in done.lines if not line.startswith(("Warn", "Error"))]
        return [dict(zip(heading, row, strict=False)) for row in rows]

    def offsets(self, topic: str, time: object = "latest") -> dict[int, int]:
        """kafka-get-offsets: partition -> offset, without the partitions it has no offset for."""
        done = self.run("kafka-get-offsets", "--topic", topic, "--time", time)
        return {int(line.split(":")[1]): int(line.split(":")[2]) for line in done.lines}

    def consume(self, topic: str, count: int, *arguments: object) -> list[str]:
        """kafka-console-consumer: the lines of `count` records."""
        done = self.run(
            "kafka-console-consumer", "--topic", topic, "--max-messages", count, "--timeout-ms", 20000, *arguments
        )
        assert len(done.lines) == count, f"{done.out}\n{done.err}"
        return done.lines


@pytest.fixture(scope="session")
def jvm() -> Iterator[SharedJvm]:
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    with SharedJvm() as shared:
        yield shared


@pytest.fixture(scope="session")
def tools(jvm: SharedJvm, cluster: Any) -> Tools:
    return Tools(jvm, cluster.bootstrap_servers)


@pytest.fixture(scope="session")
def tools_for(jvm: SharedJvm) -> Callable[[Any], Tools]:
    """The tools aimed at another cluster than the shared one."""
    return lambda other: Tools(jvm, other.bootstrap_servers)


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"java-{secrets.token_hex(6)}"


@pytest.fixture
def produce(cluster: Any) -> Callable[..., None]:
    """Produce values with librdkafka, where a test needs partitions and timestamps of its own choice."""
    from confluent_kafka import Producer

    def send(topic: str, values: list[Any], *, config: dict[str, Any] | None = None, **arguments: Any) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **(config or {})})
        for value in values:
            producer.produce(topic, value=value, **arguments)
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def member(cluster: Any) -> Iterator[Callable[..., Any]]:
    """A live consumer in a group, with all its partitions assigned."""
    from confluent_kafka import Consumer

    consumers = []

    def join(group: str, topic: str, partitions: int = 1) -> Any:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "client.id": "member",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumers.append(consumer)
        consumer.subscribe([topic])
        for _ in range(100):
            consumer.poll(0.2)
            if len(consumer.assignment()) == partitions:
                return consumer
        raise AssertionError(f"{consumer.assignment()} of {topic} assigned")

    yield join
    for consumer in consumers:
        consumer.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.java)
