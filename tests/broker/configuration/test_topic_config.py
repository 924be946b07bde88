"""Topic configs: validation, inheritance, sources."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from barnabas.broker.configuration.config import load, resolve
from barnabas.broker.configuration.definitions import INTERNAL, LONG_MAX, parse, to_text
from barnabas.broker.configuration.keys import BROKER_KEYS, REFUSED_KEYS, SECURITY_KEYS
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.configuration.topics import (
    DEFAULT_CONFIG,
    DYNAMIC_BROKER_CONFIG,
    DYNAMIC_DEFAULT_BROKER_CONFIG,
    DYNAMIC_TOPIC_CONFIG,
    STATIC_BROKER_CONFIG,
    TOPIC_KEYS,
    TOPIC_SYNONYMS,
    BrokerLevels,
    ConfigEntry,
    ConfigSynonym,
    TopicConfigs,
    broker_synonyms,
    created_topic_configs,
    internal_topic_configs,
    log_config,
    topic_config_entries,
    validate_topic_configs,
)
from barnabas.controller.configs import KEPT_WHERE_BROKEN
from barnabas.storage.config import LogConfig
from barnabas.testing import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.record_batch import CompressionType
from tests.support.watched_calls import WatchedCalls

HOME = {"HOME": "/home/somebody"}
PLAIN = load(environ=HOME)

# LogConfig.CONFIG of Apache Kafka 4.3.0: name, default as text.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": str(LONG_MAX),
    "flush.ms": str(LONG_MAX),
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "internal.segment.bytes": None,
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": str(LONG_MAX),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def levels(
    static: dict[str, str] | None = None,
    cluster_wide: dict[str, str] | None = None,
    per_broker: dict[str, str] | None = None,
) -> BrokerLevels:
    return BrokerLevels(load(environ=HOME, properties=static or {}), cluster_wide or {}, per_broker or {})


def entry(name: str, where: BrokerLevels, overrides: dict[str, str] | None = None) -> ConfigEntry:
    (found,) = topic_config_entries(where, overrides or {}, keys=[name], include_synonyms=True)
    return found


# --- tables --------------------------------------------------------------------------------------


def test_keys_and_defaults_are_kafkas() -> None:
    assert {name: to_text(key.default) for name, key in TOPIC_KEYS.items()} == KAFKA_DEFAULTS


def test_inherited_defaults_are_the_same() -> None:
    for config in topic_config_entries(levels(), {}):
        assert config.value == KAFKA_DEFAULTS[config.name], config.name
        assert config.source == DEFAULT_CONFIG
    assert log_config(PLAIN, {}, {}) == LogConfig()


def test_tables_fit_together() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        assert name in TOPIC_KEYS
        assert BROKER_KEYS[synonyms[0]].type == TOPIC_KEYS[name].type
        assert BROKER_KEYS[synonyms[0]].mode == "cluster-wide"
    for name, key in TOPIC_KEYS.items():
        assert key.documentation or key.visibility == INTERNAL
        if key.default is not None:
            assert parse(key, KAFKA_DEFAULTS[name] or "") == key.default


# --- validation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"retention.ms": "-1"},
        {"segment.bytes": "14"},
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact, delete"},
        {"compression.type": "zstd", "compression.zstd.level": "-131072"},
        {"leader.replication.throttled.replicas": "*"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    ],
)
def test_good_configs(configs: dict[str, str]) -> None:
    assert validate_topic_configs(configs) is None


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"nope": "1"}, "Unknown topic config name: nope"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "abc"}, "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ({"segment.bytes": "13"}, "Invalid value 13 for configuration segment.bytes: Value must be at least 14"),
        ({"cleanup.policy": "compact,foo"}, "String must be one of: compact, delete"),
        ({"compression.gzip.level": "0"}, "Value must be between 1 and 9 or equal to -1"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "Value must be no more than 1"),
        ({"message.timestamp.type": "createtime"}, "String must be one of: CreateTime, LogAppendTime"),
        ({"leader.replication.throttled.replicas": "a:b"}, "[partitionId]:[brokerId]"),
        ({"remote.storage.enable": "true"}, "this broker has no tiered storage"),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "2"},
            "min.compaction.lag.ms (5) > max.compaction.lag.ms (2)",
        ),
    ],
)
def test_bad_configs(configs: dict[str, str | None], message: str) -> None:
    error = validate_topic_configs(configs)
    assert error is not None
    assert error.error is ErrorCode.INVALID_CONFIG
    assert message in error.message


def test_rules_that_join_keys_look_at_the_broker() -> None:
    config = load(environ=HOME, properties={"log.cleaner.max.compaction.lag.ms": "10"})
    assert validate_topic_configs({"min.compaction.lag.ms": "11"}, config) is not None
    assert (
        validate_topic_configs({"min.compaction.lag.ms": "11"}, config, {"log.cleaner.max.compaction.lag.ms": "12"})
        is None
    )


# --- what a log gets -----------------------------------------------------------------------------


def test_log_config_of_every_level() -> None:
    config = load(
        environ=HOME,
        properties={
            "log.retention.hours": "1",
            "log.segment.bytes": "1000",
            "compression.type": "lz4",
            "log.roll.ms": "7",
        },
    )
    dynamic = {"log.segment.bytes": "2000", "message.max.bytes": "nonsense"}
    result = log_config(config, dynamic, {"compression.type": "uncompressed", "retention.bytes": "5"})
    assert result.retention_ms == 3_600_000
    assert result.segment_bytes == 2_000
    assert result.segment_ms == 7
    assert result.compression_type is CompressionType.NONE
    assert result.retention_bytes == 5
    assert result.max_message_bytes == 1_048_588
    assert log_config(config, {}, {}).compression_type is CompressionType.LZ4
    assert log_config(PLAIN, {}, {}).compression_type is None


def test_log_config_details() -> None:
    assert log_config(PLAIN, {}, {"cleanup.policy": ""}).cleanup_policy == frozenset()
    assert log_config(PLAIN, {}, {"cleanup.policy": "compact,delete"}).is_compacted
    assert log_config(PLAIN, {}, {"internal.segment.bytes": "99"}).segment_bytes == 99
    assert log_config(PLAIN, {"barnabas.validate.records": "true"}, {}).validate_records
    assert log_config(load(environ=HOME, overrides={"barnabas.validate.records": "true"}), {}, {}).validate_records


@pytest.mark.parametrize(
    ("dynamic", "overrides", "is_kept"),
    [
        ({}, {"retention.ms": "x"}, True),
        ({}, {"retention.ms": "x", "retention.bytes": "5", "max.message.bytes": "7"}, True),
        ({}, {"cleanup.policy": "compcat", "retention.ms": "1"}, True),
        ({}, {"cleanup.policy": "compact", "delete.retention.ms": ""}, True),
        ({}, {"max.message.bytes": "x"}, False),
        ({"log.retention.ms": "x"}, {}, True),
        ({"log.cleanup.policy": "x"}, {}, True),
        ({"message.max.bytes": "x"}, {}, False),
        ({"log.retention.ms": "x"}, {"retention.ms": "604800000"}, False),
    ],
)
def test_unreadable_settings_delete_nothing(dynamic: dict[str, str], overrides: dict[str, str], is_kept: bool) -> None:
    result = log_config(PLAIN, dynamic, overrides)
    kept = (-1, -1, frozenset(["delete"]))
    assert (result.retention_ms, result.retention_bytes, result.cleanup_policy) == (
        kept if is_kept else (604_800_000, -1, frozenset(["delete"]))
    )
    assert result.max_message_bytes == int(overrides.get("max.message.bytes", "").replace("x", "") or 1_048_588)


def test_unreadable_settings_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    repository = Repository()
    configs = TopicConfigs(PLAIN, repository)
    for name in ("a", "b"):
        repository.stored["topics", name] = {"retention.ms": "x"}
    repository.stored["brokers", "<default>"] = {"message.max.bytes": "y"}
    for _ in range(3):
        assert [configs.log_config(name).retention_ms for name in ("a", "b", "c")] == [-1, -1, 604_800_000]
    assert caplog.messages == [
        f"settings of {whom} cannot be read: Invalid value {value} for configuration {key}: Not a number of type {of}"
        for whom, value, key, of in (
            ("a", "x", "retention.ms", "LONG (retention is off)"),
            ("all topics", "y", "message.max.bytes", "INT"),
            ("b", "x", "retention.ms", "LONG (retention is off)"),
        )
    ]
    repository.stored["topics", "a"] = {"retention.ms": "7"}
    assert configs.log_config("a").retention_ms == 7
    repository.stored["topics", "a"] = {"retention.ms": "x"}
    assert configs.log_config("a").retention_ms == -1
    assert len(caplog.messages) == 4


def test_a_topic_with_unreadable_retention_keeps_its_records() -> None:
    """A week is over, while it runs and in its next life; once the value is put right it counts."""
    with Broker() as broker:
        topic = broker.create_topic("t", 1)
        topic.produce("v")
        broker.call(broker.server.configs.change("topics", "t", lambda _: {"retention.ms": "x"}))
        broker.clock.advance(timedelta(days=8))
        assert len(topic.records()) == 1
        broker.restart()
        broker.clock.advance(timedelta(days=8))
        assert len(topic.records()) == 1
        broker.call(broker.server.configs.change("topics", "t", lambda _: {"retention.ms": "1000"}))
        broker.clock.advance(timedelta(minutes=10))
        assert topic.records() == []


def test_internal_topics() -> None:
    assert internal_topic_configs(PLAIN, "__consumer_offsets") == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    assert internal_topic_configs(PLAIN, "__transaction_state")["cleanup.policy"] == "compact"
    assert internal_topic_configs(PLAIN, "flights") == {}


# --- what is reported ----------------------------------------------------------------------------


def test_sources_from_the_weakest_to_the_strongest() -> None:
    static = {"log.retention.ms": "4"}
    assert entry("retention.ms", levels()).source == DEFAULT_CONFIG
    assert entry("retention.ms", levels(static)).source == STATIC_BROKER_CONFIG
    assert entry("retention.ms", levels(static, {"log.retention.ms": "3"})).source == DYNAMIC_DEFAULT_BROKER_CONFIG
    everything = levels(static, {"log.retention.ms": "3"}, {"log.retention.ms": "2"})
    assert entry("retention.ms", everything).source == DYNAMIC_BROKER_CONFIG
    assert entry("retention.ms", everything).value == "2"
    found = entry("retention.ms", everything, {"retention.ms": "1"})
    assert (found.value, found.source) == ("1", DYNAMIC_TOPIC_CONFIG)
    assert found.synonyms == (
        ConfigSynonym("retention.ms", "1", DYNAMIC_TOPIC_CONFIG),
        ConfigSynonym("log.retention.ms", "2", DYNAMIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "3", DYNAMIC_DEFAULT_BROKER_CONFIG),
        ConfigSynonym("log.retention.ms", "4", STATIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.hours", "168", DEFAULT_CONFIG),
    )


def test_weaker_synonyms_alone_count_as_default_as_in_kafka() -> None:
    found = entry("retention.ms", levels({"log.retention.hours": "5"}))
    assert (found.value, found.source, found.synonyms) == ("18000000", DEFAULT_CONFIG, ())


def test_creation_reports_weaker_synonyms() -> None:
    created = {config.name: config for config in created_topic_configs(levels({"log.retention.hours": "5"}), {})}
    assert (created["retention.ms"].value, created["retention.ms"].source) == ("18000000", STATIC_BROKER_CONFIG)
    assert "internal.segment.bytes" not in created
    assert list(created) == sorted(created)
    created = {config.name: config for config in created_topic_configs(levels(), {"internal.segment.bytes": "9"})}
    assert created["internal.segment.bytes"].source == DYNAMIC_TOPIC_CONFIG


def test_unknown_overrides_are_hidden() -> None:
    # Written around the checks, by a newer version perhaps.
    found = entry("future.config", levels(), {"future.config": "secret"})
    assert found.is_sensitive
    assert found.value is None
    assert found.synonyms == (ConfigSynonym("future.config", None, DYNAMIC_TOPIC_CONFIG),)


def test_selection_and_documentation() -> None:
    names = [config.name for config in topic_config_entries(levels(), {}, keys=[])]
    assert names == sorted(name for name, key in TOPIC_KEYS.items() if key.visibility != INTERNAL)
    assert topic_config_entries(levels(), {}, keys=["nope"]) == []
    (config,) = topic_config_entries(levels(), {}, keys=["retention.ms"], include_documentation=True)
    assert config.documentation == TOPIC_KEYS["retention.ms"].documentation
    assert config.synonyms == ()


class Repository:
    """Overrides in memory."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], dict[str, str]] = {}

    def overrides(self, entity_type: str, name: str) -> dict[str, str]:
        return self.stored.get((entity_type, name), {})


def test_topic_configs_of_a_broker() -> None:
    repository = Repository()
    configs = TopicConfigs(PLAIN, repository)
    assert configs.log_config("a") is configs.log_config("b")
    repository.stored["topics", "a"] = {"retention.ms": "1"}
    repository.stored["brokers", "<default>"] = {"log.retention.ms": "2", "message.max.bytes": "3"}
    repository.stored["brokers", "1"] = {"message.max.bytes": "4"}
    repository.stored["brokers", "2"] = {"message.max.bytes": "5"}
    assert (configs.log_config("a").retention_ms, configs.log_config("a").max_message_bytes) == (1, 4)
    assert (configs.log_config("b").retention_ms, configs.log_config("b").max_message_bytes) == (2, 4)
    assert configs.dynamic_broker_configs() == {"log.retention.ms": "2", "message.max.bytes": "4"}
    for number in range(2_000):
        repository.stored["topics", "many"] = {"retention.ms": str(number)}
        assert configs.log_config("many").retention_ms == number


class Counted(Mapping[str, str]):
    """Overrides that count how often somebody goes through them."""

    def __init__(self, stored: dict[str, str]) -> None:
        self.stored = stored
        self.rounds = 0

    def __getitem__(self, name: str) -> str:
        return self.stored[name]

    def __iter__(self) -> Iterator[str]:
        self.rounds += 1
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def test_topics_do_not_pay_for_what_is_set_on_brokers() -> None:
    """Partitions x overrides of brokers, of any name, were minutes for one change."""
    stored = Counted({**{f"zz.{number}": "1" for number in range(1_000)}, "log.retention.ms": "7"})
    nothing: dict[str, str] = {}

    class Repository:
        def overrides(self, entity_type: str, name: str) -> Mapping[str, str]:
            return {("brokers", "<default>"): stored}.get((entity_type, name), nothing)  # type: ignore[return-value]

    configs = TopicConfigs(PLAIN, Repository())
    for number in range(50):
        assert configs.log_config(f"t{number}").retention_ms == 7
        assert configs.validate({"retention.ms": "8"}) is None
        assert configs.describe(f"t{number}", ["retention.ms"], include_synonyms=False, include_documentation=False)
    assert stored.rounds == 1
    assert configs.dynamic_broker_configs() == {"log.retention.ms": "7"}
    stored = Counted({"log.retention.ms": "9"})
    assert configs.log_config("t0").retention_ms == 9


def test_unknown_dynamic_names_are_not_searched() -> None:
    looked_for: list[Any] = []
    with WatchedCalls(looked_for.append, difflib.get_close_matches):
        load(options={"zz.1": "1"})
        assert looked_for.pop()
        dynamic = {"zz.1": "1", "log.retention.ms": "7"}
        assert PLAIN.check_dynamic(dynamic) == ()
        live = LiveConfig(PLAIN)
        live.change(dynamic)
        assert live.log_retention_ms == 7
    assert looked_for == []


def test_keys_that_remove_records_have_a_value_that_keeps_them() -> None:
    """Where a topic's overrides cannot be read, nothing of it is removed. Two keys are about compaction alone, which
    the cleanup policy that is taken then leaves out."""
    deleting = {name for name, key in TOPIC_KEYS.items() if key.deletes}
    assert deleting - set(KEPT_WHERE_BROKEN["topics"]) == {"delete.retention.ms", "min.compaction.lag.ms"}
    assert KEPT_WHERE_BROKEN["topics"]["cleanup.policy"] == "delete"
    assert set(KEPT_WHERE_BROKEN["topics"]) <= deleting


# --- where keys of a broker come from -----------------------------------------------------------

SAMPLES = {
    "advertised.listeners": "PLAINTEXT://somewhere:1",
    "broker.id": "7",
    "inter.broker.listener.name": "PLAINTEXT",
    "barnabas.http.address": "127.0.0.1:1",
    "barnabas.zookeeper.digest": "barnabas:secret",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
    "zookeeper.ssl.protocol": "TLSv1.3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
"""Of keys whose default is none, or not what is set."""


def arguments(layer: str, name: str, text: str) -> dict[str, Mapping[str, str]]:
    """Of `resolve`, with one key set in one place."""
    if layer != "environ":
        return {"environ": HOME, layer: {name: text}}
    variable = name.replace("_", "__").replace("-", "___").replace(".", "_").upper()
    return {"environ": {**HOME, f"KAFKA_{variable}": text}}


@pytest.mark.parametrize("layer", ["properties", "overrides", "environ"])
def test_each_key_that_is_set_is_told_as_set(layer: str) -> None:
    """Also to its default (ConfigHelper.createBrokerConfigEntry). Those that cannot be set are refused."""
    told = 0
    for name, key in BROKER_KEYS.items():
        if layer == "environ" and not name.islower():
            continue  # variables have no lower case
        default = to_text(key.default)
        text = SAMPLES.get(name, "1" if default is None else default)
        resolution = resolve(**arguments(layer, name, text))
        if resolution.config is None:
            assert name in REFUSED_KEYS or name in SECURITY_KEYS, resolution.errors
            continue
        [first, *_] = BrokerLevels(resolution.config, {}, {}).synonyms(name, broker_synonyms(name), is_sensitive=False)
        assert first == ConfigSynonym(name, text, STATIC_BROKER_CONFIG)
        told += 1
    assert told > 300
