"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, with everything but the handlers in memory.

Codes and messages were compared with a running Apache Kafka 4.3.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.configuration.changes import (
    APPEND,
    BROKER,
    BROKER_LOGGER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    ConfigChanges,
)
from barnabas.broker.configuration.config import load
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.broker.handlers import alter_configs, describe_configs, incremental_alter_configs
from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.services import REPLY_BYTES_MAX
from barnabas.clock import ManualClock
from barnabas.controller.configs import Decide
from barnabas.wire import codec
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import alter_configs as legacy
from barnabas.wire.messages import incremental_alter_configs as incremental
from barnabas.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)

Outcome = tuple[ErrorCode, str | None]
OK: Outcome = (ErrorCode.NONE, None)


class Repository:
    """Overrides in memory, with a pause in each write, as the real one has."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], dict[str, str]] = {}
        self.held_bytes = 0

    def overrides(self, entity_type: str, name: str) -> Mapping[str, str]:
        return self.stored.get((entity_type, name), {})

    async def change(self, entity_type: str, name: str, decide: Decide, *, if_topic_exists: bool) -> None:
        configs = decide(self.overrides(entity_type, name))
        await asyncio.sleep(0)
        self.stored[entity_type, name] = dict(configs)


class Cluster:
    """A broker as far as these handlers see one."""

    def __init__(self, **static: str) -> None:
        properties = {key.replace("_", "."): value for key, value in static.items()}
        config = load(environ={"HOME": "/home/somebody"}, properties=properties)
        self.repository = Repository()
        self.stored = self.repository.stored
        topic_configs = TopicConfigs(config, self.repository)
        repository: Any = self.repository
        services = SimpleNamespace(
            node_id=config.node_id,
            configs=self.repository,
            topic_configs=topic_configs,
            config_changes=ConfigChanges(config.node_id, topic_configs, repository, {"flights"}),
            metadata={"flights"},
            unforeseen=UnforeseenErrors(ManualClock()),
            reply_bytes_max=REPLY_BYTES_MAX,
        )
        self.context: Any = SimpleNamespace(services=services, authorize=lambda *_: True)

    def describe(
        self, kind: int, name: str, keys: list[str] | None = None, **options: bool
    ) -> tuple[DescribeConfigsResult, dict[str, DescribeConfigsResourceResult]]:
        request = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
            **options,
        )
        response = describe_configs.handle(request, self.context)
        for version in range(1, 5):
            assert codec.encode(response, version)
        (result,) = response.results
        assert (result.resource_type, result.resource_name) == (kind, name)
        return result, {config.name: config for config in result.configs}

    async def incremental(self, *resources: tuple[int, str, list[Any]], validate_only: bool = False) -> list[Outcome]:
        request = incremental.IncrementalAlterConfigsRequest(
            resources=[
                incremental.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        incremental.AlterableConfig(name=key, config_operation=operation, value=value)
                        for key, operation, value in configs
                    ],
                )
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )
        response = await incremental_alter_configs.handle(request, self.context)
        assert codec.encode(response, 0)
        assert [(r.resource_type, r.resource_name) for r in response.responses] == [r[:2] for r in resources]
        return [(ErrorCode.of(answer.error_code), answer.error_message) for answer in response.responses]

    def change(self, kind: int, name: str, *configs: tuple[str, int, str | None], **options: bool) -> Outcome:
        (outcome,) = asyncio.run(self.incremental((kind, name, list(configs)), **options))
        return outcome

    def replace(
        self, *resources: tuple[int, str, list[tuple[str, str | None]]], validate_only: bool = False
    ) -> list[Outcome]:
        request = legacy.AlterConfigsRequest(
            resources=[
                legacy.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[legacy.AlterableConfig(name=key, value=value) for key, value in configs],
                )
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )
        response = asyncio.run(alter_configs.handle(request, self.context))
        assert codec.encode(response, 0)
        return [(ErrorCode.of(answer.error_code), answer.error_message) for answer in response.responses]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(log_retention_hours="100", num_partitions="2")


# --- DescribeConfigs -----------------------------------------------------------------------------


def test_describe_topic(cluster: Cluster) -> None:
    cluster.stored["topics", "flights"] = {"segment.bytes": "2000"}
    result, configs = cluster.describe(TOPIC, "flights", include_synonyms=True)
    assert (result.error_code, len(configs)) == (0, 33)
    segment = configs["segment.bytes"]
    assert (segment.value, segment.config_source, segment.read_only, segment.is_sensitive) == ("2000", 1, False, False)
    assert segment.config_type == 3
    assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
        ("segment.bytes", "2000", 1),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("360000000", 5)
    assert segment.documentation is None


def test_describe_some_keys_with_documentation(cluster: Cluster) -> None:
    _, configs = cluster.describe(TOPIC, "flights", ["retention.ms", "nope"], include_documentation=True)
    assert list(configs) == ["retention.ms"]
    assert configs["retention.ms"].documentation
    assert not configs["retention.ms"].synonyms
    assert len(cluster.describe(TOPIC, "flights", [])[1]) == 33


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "7", ErrorCode.INVALID_REQUEST),
        (16, "subscription", ErrorCode.INVALID_REQUEST),
        (32, "group", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_description_of_a_missing_resource_is_an_error(
    cluster: Cluster, kind: int, name: str, error: ErrorCode
) -> None:
    result, configs = cluster.describe(kind, name)
    assert result.error_code == error
    assert configs == {}


def test_describe_broker(cluster: Cluster) -> None:
    cluster.stored["brokers", "<default>"] = {"log.retention.ms": "5"}
    cluster.stored["brokers", "1"] = {"log.retention.ms": "6", "unknown.key": "secret"}
    _, configs = cluster.describe(BROKER, "1", include_synonyms=True)
    assert len(configs) > 300
    retention = configs["log.retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("6", 2, False)
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [
        ("log.retention.ms", "6", 2),
        ("log.retention.ms", "5", 3),
        ("log.retention.hours", "100", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == ("2", 4)
    assert configs["num.partitions"].read_only
    assert (configs["log.retention.minutes"].value, configs["log.retention.minutes"].config_source) == (None, 5)
    secret = configs["unknown.key"]
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 0)
    assert [s.value for s in secret.synonyms] == [None]
    assert configs["ssl.keystore.password"].is_sensitive
    assert "leader.replication.throttled.rate" not in configs  # dynamic only, and not set
    assert "log.initial.task.delay.ms" not in configs  # internal


def test_describe_all_brokers_lists_what_is_set(cluster: Cluster) -> None:
    assert cluster.describe(BROKER, "")[1] == {}
    cluster.stored["brokers", "<default>"] = {"log.retention.ms": "5"}
    cluster.stored["brokers", "1"] = {"log.retention.ms": "6"}
    _, configs = cluster.describe(BROKER, "", include_synonyms=True)
    assert list(configs) == ["log.retention.ms"]
    assert (configs["log.retention.ms"].value, configs["log.retention.ms"].config_source) == ("5", 3)
    assert [s.source for s in configs["log.retention.ms"].synonyms] == [3]


def test_describe_loggers(cluster: Cluster) -> None:
    logging.getLogger("barnabas.test.describe")
    _, configs = cluster.describe(BROKER_LOGGER, "1")
    assert configs["barnabas.test.describe"].config_source == 6
    assert "root" in configs


# --- IncrementalAlterConfigs ---------------------------------------------------------------------


def test_set_and_delete(cluster: Cluster) -> None:
    assert cluster.change(TOPIC, "flights", ("retention.ms", SET, " 77 "), ("flush.ms", SET, "1")) == OK
    assert cluster.stored["topics", "flights"] == {"retention.ms": " 77 ", "flush.ms": "1"}
    assert cluster.describe(TOPIC, "flights")[1]["retention.ms"].value == "77"
    assert cluster.change(TOPIC, "flights", ("retention.ms", DELETE, None), ("nope", DELETE, None)) == OK
    assert cluster.stored["topics", "flights"] == {"flush.ms": "1"}
    assert cluster.change(TOPIC, "flights") == OK


def test_append_and_subtract(cluster: Cluster) -> None:
    assert cluster.change(TOPIC, "flights", ("cleanup.policy", APPEND, "compact")) == OK
    assert cluster.stored["topics", "flights"]["cleanup.policy"] == "delete,compact"
    assert cluster.change(TOPIC, "flights", ("cleanup.policy", APPEND, "compact,delete")) == OK
    assert cluster.stored["topics", "flights"]["cleanup.policy"] == "delete,compact"
    assert cluster.change(TOPIC, "flights", ("cleanup.policy", SUBTRACT, "delete,other")) == OK
    assert cluster.stored["topics", "flights"]["cleanup.policy"] == "compact"
    assert cluster.change(BROKER, "", ("log.cleanup.policy", APPEND, "compact")) == OK
    assert cluster.stored["brokers", "<default>"] == {"log.cleanup.policy": "delete,compact"}


def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    assert cluster.change(TOPIC, "flights", ("retention.ms", SET, "1"), validate_only=True) == OK
    assert (
        cluster.change(TOPIC, "flights", ("retention.ms", SET, "x"), validate_only=True)[0] is ErrorCode.INVALID_CONFIG
    )
    assert cluster.stored == {}


@pytest.mark.parametrize(
    ("configs", "error", "message"),
    [
        ([("segment.bytes", SET, "x")], ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        ([("nope", SET, "x")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
        ([("retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG, "Can't APPEND to key retention.ms"),
        ([("nope", SUBTRACT, "5")], ErrorCode.INVALID_CONFIG, "Can't SUBTRACT to key nope"),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
        (
            [("cleanup.policy", APPEND, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : cleanup.policy",
        ),
        ([("a", SET, "1"), ("a", DELETE, None)], ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys"),
        ([("retention.ms", 9, "5")], ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        ([("retention.ms", SET, "1"), ("preallocate", SET, "x")], ErrorCode.INVALID_CONFIG, "preallocate"),
        (
            [("leader.replication.throttled.replicas", SET, "0:1," * 10_000)],
            ErrorCode.INVALID_CONFIG,
            "longer than 32767",
        ),
    ],
)
def test_bad_topic_changes_change_nothing(
    cluster: Cluster, configs: list[tuple[str, int, str | None]], error: ErrorCode, message: str
) -> None:
    code, text = cluster.change(TOPIC, "flights", *configs)
    assert code is error
    assert message in (text or "")
    assert cluster.stored == {}


def test_each_resource_answers_for_itself(cluster: Cluster) -> None:
    good = [("retention.ms", SET, "1")]
    outcomes = asyncio.run(
        cluster.incremental(
            (TOPIC, "flights", good),
            (TOPIC, "missing", good),
            (TOPIC, "", good),
            (TOPIC, "bad name", good),
            (3, "x", good),
            (16, "x", good),
            (32, "x", good),
            (BROKER, "2", good),
            (BROKER, "x", good),
        )
    )
    assert [code for code, _ in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert outcomes[4][1] == "Unknown resource type 3"
    assert outcomes[7][1] == "Unexpected broker id, expected 1, but received 2"
    assert outcomes[8][1] == "Node id must be an integer, but it is: x"
    assert list(cluster.stored) == [("topics", "flights")]


def test_a_resource_given_twice_is_refused_both_times(cluster: Cluster) -> None:
    resource = (TOPIC, "flights", [("retention.ms", SET, "1")])
    outcomes = asyncio.run(cluster.incremental(resource, resource))
    assert outcomes == [(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    assert cluster.stored == {}


def test_changes_at_the_same_time_lose_nothing(cluster: Cluster) -> None:
    async def both() -> None:
        await asyncio.gather(
            *(
                cluster.incremental((TOPIC, "flights", [(key, SET, "1")]))
                for key in ("retention.ms", "flush.ms", "segment.ms", "min.insync.replicas")
            )
        )

    asyncio.run(both())
    assert len(cluster.stored["topics", "flights"]) == 4


def test_broker_configs_at_both_levels(cluster: Cluster) -> None:
    assert cluster.change(BROKER, "", ("log.retention.ms", SET, "5")) == OK
    assert cluster.change(BROKER, "1", ("log.retention.ms", SET, "6"), ("unknown.key", SET, "x")) == OK
    assert cluster.stored == {
        ("brokers", "<default>"): {"log.retention.ms": "5"},
        ("brokers", "1"): {"log.retention.ms": "6", "unknown.key": "x"},
    }
    assert cluster.describe(TOPIC, "flights")[1]["retention.ms"].value == "6"


@pytest.mark.parametrize(
    ("name", "config", "error", "message"),
    [
        (
            "1",
            ("log.dirs", SET, "/x"),
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: [log.dirs]",
        ),
        ("1", ("num.io.threads", SET, "x"), ErrorCode.INVALID_REQUEST, "Not a number of type INT"),
        ("1", ("log.retention.ms", SET, "0"), ErrorCode.INVALID_REQUEST, "log.retention.ms must be"),
        ("1", ("listeners", SET, "PLAINTEXT://:1"), ErrorCode.INVALID_REQUEST, "cannot be changed in a running broker"),
        ("1", ("metric.reporters", SET, "com.example.Evil"), ErrorCode.INVALID_REQUEST, "cannot be changed"),
        ("1", ("ssl.keystore.location", SET, "/x"), ErrorCode.INVALID_REQUEST, "using the listener prefix"),
        ("", ("listener.name.a.ssl.keystore.location", SET, "/x"), ErrorCode.INVALID_REQUEST, "belong to single"),
        ("1", ("listener.name.a.plain.sasl.jaas.config", SET, "x"), ErrorCode.INVALID_REQUEST, "a control flag"),
        ("1", ("listener.name.a.plain.sasl.login.class", SET, "x"), ErrorCode.INVALID_REQUEST, "dynamically"),
        ("1", ("log.retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "log.retention.ms"),
    ],
)
def test_bad_broker_changes(
    cluster: Cluster, name: str, config: tuple[str, int, str], error: ErrorCode, message: str
) -> None:
    code, text = cluster.change(BROKER, name, config)
    assert code is error
    assert message in (text or "")
    assert cluster.stored == {}


def test_log_levels(cluster: Cluster) -> None:
    logger = logging.getLogger("barnabas.test.alter")
    assert cluster.change(BROKER_LOGGER, "1", (logger.name, SET, "DEBUG"), validate_only=True) == OK
    assert logger.level == logging.NOTSET
    assert cluster.change(BROKER_LOGGER, "1", (logger.name, SET, "DEBUG")) == OK
    assert logger.level == logging.DEBUG
    assert cluster.change(BROKER_LOGGER, "1", (logger.name, DELETE, None)) == OK
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "config", "error", "message"),
    [
        ("2", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST, "Unexpected node id. Expected 1, but received 2"),
        ("x", ("root", SET, "INFO"), ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        ("1", ("nolog", SET, "INFO"), ErrorCode.INVALID_CONFIG, "Logger nolog does not exist!"),
        (
            "1",
            ("root", SET, "LOUD"),
            ErrorCode.INVALID_CONFIG,
            "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        (
            "1",
            ("root", DELETE, None),
            ErrorCode.INVALID_REQUEST,
            "Removing the log level of the root logger is not allowed",
        ),
        ("1", ("root", APPEND, "INFO"), ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed"),
        ("1", ("root", 7, "INFO"), ErrorCode.INVALID_REQUEST, "Unknown operation type 7"),
    ],
)
def test_bad_log_levels(
    cluster: Cluster, name: str, config: tuple[str, int, str | None], error: ErrorCode, message: str
) -> None:
    code, text = cluster.change(BROKER_LOGGER, name, config)
    assert code is error
    assert message in (text or "")


# --- AlterConfigs --------------------------------------------------------------------------------


def test_replace_all(cluster: Cluster) -> None:
    cluster.stored["topics", "flights"] = {"retention.ms": "1", "flush.ms": "2"}
    assert cluster.replace((TOPIC, "flights", [("preallocate", "true")]), validate_only=True) == [OK]
    assert cluster.stored["topics", "flights"] == {"retention.ms": "1", "flush.ms": "2"}
    assert cluster.replace((TOPIC, "flights", [("preallocate", "true")])) == [OK]
    assert cluster.stored["topics", "flights"] == {"preallocate": "true"}
    assert cluster.replace((TOPIC, "flights", [])) == [OK]
    assert cluster.stored["topics", "flights"] == {}


def test_bad_replacements(cluster: Cluster) -> None:
    outcomes = cluster.replace(
        (TOPIC, "flights", [("preallocate", "maybe")]),
        (TOPIC, "missing", []),
        (BROKER, "1", [("log.dirs", "/x")]),
        (BROKER_LOGGER, "1", [("root", "INFO")]),
    )
    assert outcomes == [
        (
            ErrorCode.INVALID_CONFIG,
            "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
        ),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'missing' does not exist."),
        (ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically: [log.dirs]"),
        (ErrorCode.INVALID_REQUEST, "Unknown resource type 8"),
    ]
    assert cluster.replace((TOPIC, "flights", [("preallocate", None)])) == [
        (ErrorCode.INVALID_REQUEST, "Null value not supported for : preallocate")
    ]
    assert cluster.replace((TOPIC, "flights", [("preallocate", "true")] * 2)) == [
        (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    ]
    assert cluster.stored == {}


def test_a_resource_keeps_so_many_configs(cluster: Cluster) -> None:
    names = [f"zz.{number}" for number in range(1_001)]

    def alter(wanted: list[str], operation: int = SET, text: str = "1") -> ErrorCode:
        return cluster.change(BROKER, "", *((name, operation, text) for name in wanted))[0]

    assert alter(names) is ErrorCode.POLICY_VIOLATION
    assert alter(names[:1_000]) is ErrorCode.NONE
    assert alter(names[1_000:]) is ErrorCode.POLICY_VIOLATION
    assert alter(names[:1], text="2") is ErrorCode.NONE
    assert alter(names[:20], text="x" * 32_000) is ErrorCode.POLICY_VIOLATION
    assert alter(names[:16], text="x" * 32_000) is ErrorCode.NONE
    # who has more, of before there was a limit, can have less
    cluster.stored["brokers", "<default>"] = dict.fromkeys(names * 2, "x" * 32_000)
    assert alter(names[:1], text="y") is ErrorCode.NONE
    assert alter(names[:900], DELETE) is ErrorCode.NONE
    cluster.repository.held_bytes = 64 * 1024 * 1024
    assert alter(["a.b"]) is ErrorCode.POLICY_VIOLATION
    assert alter(names[900:1_000], DELETE) is ErrorCode.NONE


def test_lists_are_changed_as_they_are_in_kafka(cluster: Cluster) -> None:
    key = "leader.replication.throttled.replicas"
    cluster.stored["topics", "flights"] = {key: "0:1,0:1,0:2,0:3"}
    cluster.change(TOPIC, "flights", (key, SUBTRACT, "0:1,0:3,0:9"))
    assert cluster.stored["topics", "flights"] == {key: "0:1,0:2"}
    cluster.change(TOPIC, "flights", (key, APPEND, "0:2,0:5,0:5"))
    assert cluster.stored["topics", "flights"] == {key: "0:1,0:2,0:5"}


def test_others_have_their_turn_between_resources(cluster: Cluster) -> None:
    resources = [
        incremental.AlterConfigsResource(resource_type=TOPIC, resource_name=f"nowhere-{number}", configs=[])
        for number in range(100)
    ]

    async def main() -> int:
        turns = 0
        request = incremental.IncrementalAlterConfigsRequest(resources=resources)
        task = asyncio.ensure_future(incremental_alter_configs.handle(request, cluster.context))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(main()) >= 6
