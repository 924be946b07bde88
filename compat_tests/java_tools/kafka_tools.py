"""Kafka's Java tools of two releases, by the names of their shell scripts."""

import subprocess

import pytest

from tools.foreign.kafka import ORACLE_VERSION, ZOOKEEPER_ERA_VERSION, kafka_runtime
from tools.jvm.shared import SharedJvm, ToolRun
from tools.waiting import PATIENCE_S

PATIENCE_MS = int(1000 * PATIENCE_S)

VERSIONS = (ORACLE_VERSION, ZOOKEEPER_ERA_VERSION)
_PACKAGE = "org.apache.kafka.tools"
MAIN_CLASSES = {
    "kafka-acls": f"{_PACKAGE}.AclCommand",
    "kafka-broker-api-versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_PACKAGE}.ClientMetricsCommand",
    "kafka-cluster": f"{_PACKAGE}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_PACKAGE}.ConsoleProducer",
    "kafka-console-share-consumer": f"{_PACKAGE}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_PACKAGE}.ConsumerPerformance",
    "kafka-delegation-tokens": f"{_PACKAGE}.DelegationTokenCommand",
    "kafka-delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "kafka-dump-log": f"{_PACKAGE}.DumpLogSegments",
    "kafka-e2e-latency": f"{_PACKAGE}.EndToEndLatency",
    "kafka-features": f"{_PACKAGE}.FeatureCommand",
    "kafka-get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "kafka-groups": f"{_PACKAGE}.GroupsCommand",
    "kafka-leader-election": f"{_PACKAGE}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_PACKAGE}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_PACKAGE}.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": f"{_PACKAGE}.ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": f"{_PACKAGE}.ShareConsumerPerformance",
    "kafka-share-groups": f"{_PACKAGE}.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": f"{_PACKAGE}.StreamsResetter",
    "kafka-streams-groups": f"{_PACKAGE}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_PACKAGE}.TopicCommand",
    "kafka-transactions": f"{_PACKAGE}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{_PACKAGE}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{_PACKAGE}.VerifiableProducer",
    "kafka-verifiable-share-consumer": f"{_PACKAGE}.VerifiableShareConsumer",
    "client-compatibility-test": f"{_PACKAGE}.ClientCompatibilityTest",
    "log-compaction-tester": f"{_PACKAGE}.LogCompactionTester",
}
"""The main classes of the scripts in bin/ of 4.3.0; below them those of Kafka's system tests."""
MAIN_CLASSES_OF_3_9 = {
    **MAIN_CLASSES,
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-mirror-maker": "kafka.tools.MirrorMaker",
}
NAMES_IN_3_9 = {
    ("kafka-console-consumer", "--command-config"): "--consumer.config",
    ("kafka-console-consumer", "--formatter-property"): "--property",
    ("kafka-console-producer", "--command-config"): "--producer.config",
    ("kafka-console-producer", "--reader-property"): "--property",
    ("kafka-consumer-perf-test", "--num-records"): "--messages",
    ("kafka-producer-perf-test", "--command-property"): "--producer-props",
}
"""Options that 4.x renamed."""
ADDRESS_OPTIONS = {"kafka-dump-log": None, "kafka-mirror-maker": None, "kafka-replica-verification": "--broker-list"}
"""Where it is not --bootstrap-server."""
WITH_SUBCOMMAND = {"kafka-features", "kafka-metadata-quorum", "kafka-transactions"}
"""They want the address before the rest."""


of_4_3_only = pytest.mark.parametrize("version", [ORACLE_VERSION], indirect=True)
"""For tests of what 3.9.1 does not have."""
of_3_9_only = pytest.mark.parametrize("version", [ZOOKEEPER_ERA_VERSION], indirect=True)
"""For tests of what 4.3.0 does not have."""


class Tools:
    """Runs Kafka's tools by the names of their scripts; options are those of 4.3.0.

    `run` uses one Java process for all of them and checks the status; `process` is a process of its own, as in life.
    """

    def __init__(self, version: str, jvm: SharedJvm, bootstrap_servers: str) -> None:
        self.version = version
        self.bootstrap_servers = bootstrap_servers
        self._jvm = jvm

    @property
    def of_3_9(self) -> bool:
        """Whether these are the tools of 3.9.1."""
        return self.version == ZOOKEEPER_ERA_VERSION

    def run(self, tool: str, *arguments: object, status: int = 0, stdin: str = "") -> ToolRun:
        """Run a tool; the test fails unless it ends with `status`."""
        done = self.attempt(tool, *arguments, stdin=stdin)
        assert done.status == status, f"{tool} {arguments} ended with {done.status}\n{done.out}\n{done.err}"
        return done

    def attempt(self, tool: str, *arguments: object, stdin: str = "") -> ToolRun:
        """Run a tool, however it ends."""
        return self._jvm.run(self._main_class(tool), self._arguments(tool, arguments), stdin=stdin)

    def process(self, tool: str, *arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a tool in a Java process of its own; the test fails unless it ends with 0."""
        runtime = kafka_runtime(self.version)
        done = runtime.tool(self._main_class(tool), self._arguments(tool, arguments), stdin=stdin)
        assert done.returncode == 0, f"{tool} {arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, tool: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a tool that does not end by itself; errors come with its output."""
        command = kafka_runtime(self.version).java_command(self._main_class(tool))
        return subprocess.Popen(
            [*command, *self._arguments(tool, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _main_class(self, tool: str) -> str:
        return (MAIN_CLASSES_OF_3_9 if self.of_3_9 else MAIN_CLASSES)[tool]

    def _arguments(self, tool: str, arguments: tuple[object, ...]) -> list[str]:
        given = [str(argument) for argument in arguments]
        if self.of_3_9:
            given = [NAMES_IN_3_9.get((tool, each), each) for each in given]
        if self.of_3_9 and tool == "kafka-producer-perf-test":
            if "--producer-props" not in given:
                given.append("--producer-props")
            after = given.index("--producer-props") + 1
            return [*given[:after], f"bootstrap.servers={self.bootstrap_servers}", *given[after:]]
        if self.of_3_9 and tool == "kafka-e2e-latency":  # no options: the address comes first
            return [self.bootstrap_servers, *given]
        option = ADDRESS_OPTIONS.get(tool, "--bootstrap-server")
        address = [option, self.bootstrap_servers] if option else []
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
            "kafka-console-consumer", "--topic", topic, "--max-messages", count, "--timeout-ms", PATIENCE_MS, *arguments
        )
        assert len(done.lines) == count, f"{done.out}\n{done.err}"
        return done.lines
