"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from barnabas.wire.messages import alter_configs, incremental_alter_configs
from barnabas.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from compat_tests.differential.run import Run
from compat_tests.differential.scenarios.topics import TOPIC_CONFIGS

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DESCRIBE_CONFIGS = 32
Changes = list[tuple[str, int, str | None]]

BROKER_CONFIGS: dict[str, tuple[str | None, ...]] = {
    "log.retention.ms": ("1000", "-1", "-2", "x", ""),
    "log.segment.bytes": ("1048576", "0", "x"),
    "message.max.bytes": ("1000", "-1", "x"),
    "log.cleanup.policy": ("compact", "x", ""),
    "compression.type": ("gzip", "none"),
    "min.insync.replicas": ("1", "0"),
    "log.message.timestamp.type": ("LogAppendTime", "x"),
    "unclean.leader.election.enable": ("true", "x"),
    "num.io.threads": ("8", "0", "x", "100000"),
    "num.network.threads": ("3", "0"),
    "log.cleaner.threads": ("1", "0"),
    "background.threads": ("10", "0"),
    "max.connections": ("100", "-1"),
    "max.connections.per.ip": ("100", "-1"),
    "num.partitions": ("5",),
    "broker.id": ("5",),
    "node.id": ("5",),
    "log.dirs": ("/tmp/x",),
    "auto.create.topics.enable": ("false",),
    "zookeeper.connect": ("x",),
    "no.such.config": ("1",),
    "": ("1",),
}


def describing(
    *resources: tuple[int, str, list[str] | None], synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def changing(
    kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


def replacing(
    kind: int, name: str, configs: list[tuple[str, str | None]], *, validate_only: bool = False
) -> alter_configs.AlterConfigsRequest:
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in configs],
    )
    return alter_configs.AlterConfigsRequest(resources=[resource], validate_only=validate_only)


def describe_configs(run: Run) -> None:
    topic = run.create_topic(retention_ms="12345", cleanup_policy="compact,delete")
    for synonyms in (False, True):
        run.sweep(
            describing((TOPIC, topic, None), synonyms=synonyms),
            describing((TOPIC, topic, ["retention.ms", "no.such", "segment.bytes"]), synonyms=synonyms),
            describing((TOPIC, topic, []), synonyms=synonyms),
        )
    run.sweep(describing((TOPIC, topic, None), synonyms=True, documentation=True), versions=(3, 4))
    for kind, name in (
        (TOPIC, "no-such"), (TOPIC, "a b"), (TOPIC, ""), (TOPIC, "__consumer_offsets"), (BROKER, "2"), (BROKER, "x"),
        (BROKER, "-1"), (BROKER, " 1"), (BROKER, "01"), (BROKER_LOGGER, ""), (BROKER_LOGGER, "2"), (BROKER_LOGGER, "x"),
        (0, ""), (0, topic), (1, topic), (3, ""), (5, ""), (127, topic), (-1, topic),
    ):  # fmt: skip
        keys = ["retention.ms"] if kind == TOPIC else ["num.io.threads"]
        run.sweep(describing((kind, name, keys)), versions=(1, 3, 4))
    run.sweep(
        describing((TOPIC, topic, ["retention.ms"]), (TOPIC, "no-such", None), (BROKER, "1", ["num.partitions"])),
        describing((TOPIC, topic, ["retention.ms"]), (TOPIC, topic, ["segment.ms"])),
        describing(),
    )
    run.sweep(describing((BROKER_LOGGER, "1", ["no.such.logger"])), versions=(1, 4))


def describe_broker(run: Run) -> None:
    """Every config of the broker, and of all brokers."""
    run.ask(describing((BROKER, "1", None), synonyms=True, documentation=True), 4)
    run.sweep(describing((BROKER, "1", ["num.io.threads", "log.retention.ms", "no.such"]), synonyms=True))
    run.sweep(describing((BROKER, "", None), synonyms=True))
    run.sweep(describing((BROKER, "", ["num.io.threads"])))


def alter_topic_configs(run: Run) -> None:
    """Every config of a topic with every kind of value, checked only."""
    topic = run.create_topic()
    for name, values in TOPIC_CONFIGS.items():
        for value in values:
            run.ask(changing(TOPIC, topic, (name, SET, value), validate_only=True), 1)
            run.ask(replacing(TOPIC, topic, [(name, value)], validate_only=True), 2)
        for operation in (DELETE, APPEND, SUBTRACT):
            run.ask(changing(TOPIC, topic, (name, operation, values[0]), validate_only=True), 1)
    # Kafka's controller steps down for a moment.
    run.ask(changing(TOPIC, topic, ("retention.ms", 4, "1"), validate_only=True), 1)


def alter_and_describe(run: Run) -> None:
    """Changes that stay, and what DescribeConfigs tells of them."""
    topic = run.create_topic(cleanup_policy="compact")
    keys = [
        "retention.ms",
        "cleanup.policy",
        "segment.ms",
        "leader.replication.throttled.replicas",
        "max.message.bytes",
    ]

    def look() -> None:
        run.ask(describing((TOPIC, topic, keys), synonyms=True), 4)

    steps: list[Changes] = [
        [("retention.ms", SET, "5000")],
        [("cleanup.policy", APPEND, "delete")],
        [("cleanup.policy", APPEND, "delete")],
        [("cleanup.policy", SUBTRACT, "compact")],
        [("cleanup.policy", SUBTRACT, "x")],
        [("cleanup.policy", SUBTRACT, "delete")],
        [("cleanup.policy", DELETE, None)],
        [("cleanup.policy", APPEND, "compact,delete")],
        [("retention.ms", APPEND, "1")],
        [("retention.ms", SET, "1"), ("segment.ms", SET, "x")],
        [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
        [("retention.ms", DELETE, "ignored"), ("max.message.bytes", SET, " 77 ")],
        [("segment.ms", DELETE, None)],
        [("leader.replication.throttled.replicas", APPEND, "0:1")],
        [("leader.replication.throttled.replicas", APPEND, "0:1,1:1")],
        [("leader.replication.throttled.replicas", SUBTRACT, "0:1")],
        [("retention.ms", SET, None)],
        [],
    ]
    for version in (0, 1):
        for changes in steps:
            run.ask(changing(TOPIC, topic, *changes, validate_only=True), version)
            look()
            run.ask(changing(TOPIC, topic, *changes), version)
            look()
    replacements: list[list[tuple[str, str | None]]] = [
        [("retention.ms", "7000")],
        [("segment.ms", "8000"), ("cleanup.policy", "compact")],
        [("segment.ms", "8000"), ("segment.ms", "9000")],
        [("segment.ms", None)],
        [("no.such", "1")],
        [("max.message.bytes", "")],
        [],
    ]
    for version in (0, 1, 2):
        for configs in replacements:
            run.ask(replacing(TOPIC, topic, configs, validate_only=True), version)
            look()
            run.ask(replacing(TOPIC, topic, configs), version)
            look()


def alter_resources(run: Run) -> None:
    """Resources that do not exist, cannot be altered, or are named twice."""
    topic = run.create_topic()
    for kind, name in (
        (TOPIC, "no-such"), (TOPIC, "a b"), (TOPIC, ""), (BROKER, "2"), (BROKER, "x"), (BROKER, "-1"), (0, "x"),
        (1, "x"), (3, "x"), (127, "x"), (-1, "x"), (BROKER_LOGGER, "2"), (BROKER_LOGGER, "x"), (BROKER_LOGGER, ""),
    ):  # fmt: skip
        for validate_only in (True, False):
            run.sweep(
                changing(kind, name, ("retention.ms", SET, "1"), validate_only=validate_only),
                changing(kind, name, validate_only=validate_only),
                replacing(kind, name, [("retention.ms", "1")], validate_only=validate_only),
                replacing(kind, name, [], validate_only=validate_only),
            )
    replacement = replacing(TOPIC, topic, [("segment.ms", "5")])
    replacement.resources += replacement.resources
    run.ask(replacement, 2)
    change = changing(TOPIC, topic, ("retention.ms", SET, "1"))
    change.resources += change.resources
    run.sweep(change)
    change.resources += changing(TOPIC, "no-such", ("retention.ms", SET, "1")).resources
    run.sweep(change)
    mixed = changing(TOPIC, topic, ("retention.ms", SET, "1"))
    mixed.resources += changing(TOPIC, "no-such", ("retention.ms", SET, "1")).resources
    mixed.resources += changing(BROKER, "7", ("num.io.threads", SET, "1")).resources
    run.sweep(mixed)
    run.sweep(
        incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[]),
        alter_configs.AlterConfigsRequest(resources=[]),
    )
    run.ask(describing((TOPIC, topic, ["retention.ms", "segment.ms"]), synonyms=True), 4)


def alter_broker_configs(run: Run) -> None:
    """Configs of one broker and of all, checked only."""
    for name, values in BROKER_CONFIGS.items():
        for value in values:
            for broker in ("1", ""):
                run.ask(changing(BROKER, broker, (name, SET, value), validate_only=True), 1)
        run.ask(replacing(BROKER, "1", [(name, values[0])], validate_only=True), 2)
        for operation in (DELETE, APPEND, SUBTRACT):
            run.ask(changing(BROKER, "1", (name, operation, values[0]), validate_only=True), 1)


def change_broker_configs(run: Run) -> None:
    """Changes that stay, until they are taken back, and what DescribeConfigs tells of them."""
    topic = run.create_topic()
    keys = ["log.retention.ms", "log.segment.bytes", "message.max.bytes", "num.io.threads", "compression.type"]

    def look() -> None:
        for kind, name, asked in (
            (BROKER, "1", keys), (BROKER, "", None), (TOPIC, topic, ["retention.ms", "max.message.bytes"]),
        ):  # fmt: skip
            run.ask(describing((kind, name, asked), synonyms=True), 4)

    steps: list[tuple[str, Changes]] = [
        ("", [("message.max.bytes", SET, "2000000")]),
        ("1", [("message.max.bytes", SET, "3000000")]),
        ("", [("compression.type", SET, "lz4"), ("num.io.threads", SET, "9")]),
        ("1", [("num.io.threads", SET, "7")]),
        ("", [("message.max.bytes", DELETE, None)]),
        ("1", [("message.max.bytes", DELETE, None), ("num.io.threads", DELETE, None)]),
        ("", [("compression.type", DELETE, None), ("num.io.threads", DELETE, None)]),
    ]
    for broker, changes in steps:
        run.ask(changing(BROKER, broker, *changes), 1)
        look()


SCENARIOS = (
    describe_configs,
    describe_broker,
    alter_topic_configs,
    alter_and_describe,
    alter_resources,
    alter_broker_configs,
    change_broker_configs,
)
