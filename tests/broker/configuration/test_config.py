"""Configuration: keys, precedence, checks, listeners."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.configuration import definitions as config_defs
from barnabas.broker.configuration import listeners as config_listeners
from barnabas.broker.configuration.config import (
    BrokerConfig,
    ConfigError,
    Resolution,
    load,
    parse_address,
    resolve,
)
from barnabas.broker.configuration.definitions import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    ConfigKey,
    ConfigValueError,
    allowed_text,
    parse,
    to_text,
)
from barnabas.broker.configuration.environment_variables import environment_configs
from barnabas.broker.configuration.keys import (
    BROKER_KEYS,
    OBEYED_KEYS,
    REFUSED_KEYS,
    REMOVED_KEYS,
    SECURITY_KEYS,
    UNUSED_KEYS,
    broker_documentation,
)
from barnabas.broker.configuration.listeners import Listener
from barnabas.broker.configuration.tables import broker as tables_broker
from barnabas.broker.configuration.tables.broker import BrokerKeys

HOME = {"HOME": "/home/somebody"}

# The server.properties that Apache Kafka 4.3 ships, without its comments.
KRAFT_FILE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
    "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


def of(**keywords: str) -> BrokerConfig:
    return load(environ=HOME, properties={key.replace("_", "."): value for key, value in keywords.items()})


def problems(properties: dict[str, str]) -> tuple[str, ...]:
    resolution = resolve(environ=HOME, properties=properties)
    assert (resolution.config is None) == bool(resolution.errors)
    return resolution.errors


# --- keys and defaults ---------------------------------------------------------------------------


def test_defaults_are_kafkas_and_ours() -> None:
    config = load(environ=HOME)
    assert config.node_id == 1
    assert config.num_partitions == 1
    assert config.auto_create_topics_enable is True
    assert config.log_retention_ms == 7 * 24 * 3600 * 1000
    assert config.log_roll_ms == 7 * 24 * 3600 * 1000
    assert config.log_flush_interval_ms == config_defs.LONG_MAX
    assert config.log_segment_bytes == 1 << 30
    assert config.message_max_bytes == 1_048_588
    assert config.socket_request_max_bytes == 104_857_600
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092, True, "127.0.0.1", None),)
    assert config.log_dirs == ("/home/somebody/.local/share/barnabas/1",)
    assert config.group_initial_rebalance_delay_ms == 0
    assert config.offsets_topic_replication_factor == 1
    assert config.transaction_state_log_replication_factor == 1
    assert config.transaction_state_log_min_isr == 1
    assert config.cluster_id is None
    assert config.barnabas_http_address is None
    assert config.source("num.partitions") == "default"


def test_with_zookeeper_internal_topics_have_kafkas_defaults() -> None:
    """Unless something is said of them."""
    config = of(zookeeper_connect="zk:2181", offsets_topic_replication_factor="1")
    assert config.offsets_topic_replication_factor == 1
    assert config.transaction_state_log_replication_factor == 3
    assert config.transaction_state_log_min_isr == 2
    assert config.source("transaction.state.log.min.isr") == "default"


def test_every_default_is_a_valid_value() -> None:
    for key in BROKER_KEYS.values():
        text = to_text(key.default)
        if text is not None:
            assert parse(key, text) == key.default, key.name


def test_every_key_has_words() -> None:
    for key in BROKER_KEYS.values():
        assert broker_documentation(key.name)
        assert allowed_text(key)
    for key in OBEYED_KEYS:
        assert broker_documentation(key.name) != "Accepted as in Kafka, without effect in this version."


def test_every_key_is_obeyed_or_accepted() -> None:
    obeyed = {key.name for key in OBEYED_KEYS}
    assert not obeyed & (UNUSED_KEYS | SECURITY_KEYS)
    assert obeyed | UNUSED_KEYS | SECURITY_KEYS == BROKER_KEYS.keys()
    for key in OBEYED_KEYS:
        assert all(synonym in obeyed for synonym in key.synonyms)


@pytest.mark.parametrize("key", OBEYED_KEYS, ids=lambda key: key.name)
def test_an_attribute_has_the_type_that_its_row_names(key: ConfigKey[Any]) -> None:
    (named,) = get_args(get_type_hints(BrokerKeys, vars(config_listeners) | vars(tables_broker))[key.attribute])
    config = load(environ=HOME)
    assert_is_a(getattr(config, key.attribute), named)
    assert getattr(BrokerConfig, key.attribute) is key
    if key.attribute not in ("listeners", "inter_broker_listener_name", "log_dirs") and not key.synonyms:
        # What the key says by itself, whatever the attribute makes of it.
        of_type: dict[int, Any] = dict.fromkeys((INT, SHORT, LONG), int) | dict.fromkeys((STRING, PASSWORD), str)
        of_type |= {BOOLEAN: bool, DOUBLE: float, LIST: tuple[str, ...]}
        parsed = Mapping[str, int] if key.convert is not None else of_type[key.type]
        assert named == (parsed | None if key.default is None else parsed)


def assert_is_a(value: object, named: Any) -> None:
    """For the forms that occur: T, T | None, tuple[T, ...], Mapping[K, V]."""
    if isinstance(named, UnionType):
        if value is None:
            assert NoneType in get_args(named)
            return
        (named,) = (each for each in get_args(named) if each is not NoneType)
    origin = get_origin(named) or named
    assert isinstance(value, origin), (value, named)
    assert not (isinstance(value, bool) and origin is int)
    if origin is tuple:
        for each in value:
            assert_is_a(each, get_args(named)[0])


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(AttributeError, match="num_partitions"):
        load(environ=HOME).num_partitions = 2


def test_data_directory_follows_xdg() -> None:
    assert load(environ={"XDG_DATA_HOME": "/data"}, options={"node.id": "7"}).log_dirs == ("/data/barnabas/7",)


def test_synonyms_first_one_set_wins() -> None:
    assert of(log_retention_hours="1").log_retention_ms == 3_600_000
    assert of(log_retention_hours="1", log_retention_minutes="2").log_retention_ms == 120_000
    assert of(log_retention_hours="1", log_retention_minutes="2", log_retention_ms="3").log_retention_ms == 3
    assert of(log_retention_minutes="-5").log_retention_ms == -1
    assert of(log_roll_hours="2").log_roll_ms == 7_200_000
    assert of(log_roll_jitter_hours="1").log_roll_jitter_ms == 3_600_000
    assert of(log_flush_scheduler_interval_ms="9").log_flush_interval_ms == 9
    assert of(log_dir="/a, /b").log_dirs == ("/a", "/b")
    assert of(log_dir="/a", log_dirs="/c").log_dirs == ("/c",)


def test_node_id_and_broker_id_are_one() -> None:
    assert of(broker_id="5").node_id == 5
    assert of(node_id="6").value("broker.id") == 6
    assert of(broker_id="-1").node_id == 1
    assert "must be equal" in problems({"node.id": "1", "broker.id": "2"})[0]
    # Whoever sets either of them on a higher level means both.
    config = load(environ=HOME, properties={"broker.id": "2"}, overrides={"node.id": "3"})
    assert config.node_id == 3


# --- precedence ----------------------------------------------------------------------------------


def test_precedence() -> None:
    layers = {
        "properties": {"num.partitions": "1", "message.max.bytes": "1", "log.dirs": "/1", "fetch.max.bytes": "1025"},
        "environ": {"KAFKA_NUM_PARTITIONS": "2", "KAFKA_MESSAGE_MAX_BYTES": "2", "KAFKA_LOG_DIRS": "/2", **HOME},
        "overrides": {"num.partitions": "3", "message.max.bytes": "3"},
        "options": {"num.partitions": "4"},
    }
    config = load(**layers)
    assert (config.num_partitions, config.message_max_bytes, config.log_dirs) == (4, 3, ("/2",))
    assert config.fetch_max_bytes == 1025
    sources = [config.source(key) for key in ("num.partitions", "message.max.bytes", "log.dirs", "fetch.max.bytes")]
    assert sources == ["command line", "--override", "environment", "file"]


def test_environment_names_are_those_of_the_official_image() -> None:
    assert environment_configs(
        {
            "KAFKA_A_B__C": "1",
            "KAFKA_X___Y": "2",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_LOG4J_OPTS": "x",
            "KAFKA_LOG4J_LOGGERS": "x",
            "KAFKA_JMX_PORT": "1",
            "KAFKA_OPTS": "x",
            "KAFKA_HOME": "/opt",
            "KAFKA_VERSION": "4.3.0",
            "CLUSTER_ID": "abc",
            "PATH": "/bin",
        }
    ) == {"a.b_c": "1", "x-y": "2", "barnabas.cluster.id": "abc"}


def test_environment_names_of_bitnamis_image() -> None:
    """As its page on Docker Hub starts one broker."""
    config = load(
        environ={
            **HOME,
            "KAFKA_CFG_NODE_ID": "0",
            "KAFKA_CFG_PROCESS_ROLES": "controller,broker",
            "KAFKA_CFG_LISTENERS": "PLAINTEXT://127.0.0.1:9192,CONTROLLER://127.0.0.1:9193",
            "KAFKA_CFG_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "KAFKA_CFG_CONTROLLER_QUORUM_VOTERS": "0@127.0.0.1:9193",
            "KAFKA_CFG_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_CFG_NUM_PARTITIONS": "5",
            "KAFKA_NUM_PARTITIONS": "6",
        }
    )
    assert (config.node_id, config.num_partitions) == (0, 6), "the official form counts where both are set"
    assert [listener.port for listener in config.listeners] == [9192]
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_CFG_LISTENER_NAME_SASL_PLAINTEXT_PLAIN_SASL_JAAS_CONFIG", "sasl_plaintext.plain.sasl.jaas.config"),
        ("KAFKA_CFG_LISTENER_NAME_SASL_SSL_SSL_CLIENT_AUTH", "sasl_ssl.ssl.client.auth"),
        ("KAFKA_LISTENER_NAME_SASL_PLAINTEXT_SASL_JAAS_CONFIG", "sasl.plaintext.sasl.jaas.config"),
        ("KAFKA_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH", "sasl_ssl.ssl.client.auth"),
        ("KAFKA_CFG_LISTENER_NAME_SASL__SSL_SSL_CLIENT_AUTH", "sasl_ssl.ssl.client.auth"),
    ],
)
def test_names_of_listeners_in_variables(variable: str, key: str) -> None:
    """In Bitnami's names of two listeners the underscore is no dot; the official image writes two of them."""
    assert environment_configs({variable: "x"}) == {f"listener.name.{key}": "x"}


def test_the_key_in_camel_case_of_bitnamis_image() -> None:
    assert environment_configs({"KAFKA_CFG_ZOOKEEPER_CLIENTCNXNSOCKET": "x"}) == {"zookeeper.clientCnxnSocket": "x"}


def test_a_listener_with_sasl_as_bitnamis_image_configures_it() -> None:
    config = load(
        environ={
            **HOME,
            "KAFKA_CFG_LISTENERS": "SASL_PLAINTEXT://127.0.0.1:9192",
            "KAFKA_CFG_SASL_ENABLED_MECHANISMS": "PLAIN",
            "KAFKA_CFG_LISTENER_NAME_SASL_PLAINTEXT_PLAIN_SASL_JAAS_CONFIG": (
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
            ),
        }
    )
    assert [listener.security_protocol for listener in config.listeners] == ["SASL_PLAINTEXT"]


def test_an_empty_variable_is_an_empty_value() -> None:
    """As in both images: some keys have a meaning without a value. An error names the variable."""
    emptied = load(environ={**HOME, "KAFKA_CFG_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": ""})
    assert emptied.value("ssl.endpoint.identification.algorithm") == ""
    resolution = resolve(environ={**HOME, "KAFKA_CFG_NUM_PARTITIONS": ""})
    (error,) = resolution.errors
    assert error.endswith("(from the environment, KAFKA_CFG_NUM_PARTITIONS)")


def test_a_warning_names_the_variable() -> None:
    resolution = resolve(environ={**HOME, "KAFKA_CFG_NO_SUCH": "1", "KAFKA_NUM_PARTITONS": "1"})
    assert resolution.warnings == (
        "no.such is not a configuration of Kafka or Barnabas (the environment, KAFKA_CFG_NO_SUCH)",
        "num.partitons is not a configuration of Kafka or Barnabas; did you mean num.partitions? (the environment,"
        " KAFKA_NUM_PARTITONS)",
    )


def test_cluster_id_of_the_environment() -> None:
    assert load(environ={**HOME, "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"}).cluster_id == "4L6g3nShT-eMCtK--X86sw"
    assert load(environ={**HOME, "CLUSTER_ID": ""}).cluster_id is None


# --- unknown, foreign and refused keys -----------------------------------------------------------


def test_unknown_keys_warn_with_a_hint() -> None:
    resolution = resolve(environ=HOME, properties={"num.partitons": "3", "entirely.else": "1"})
    assert resolution.errors == ()
    assert any(
        "num.partitons" in warning and "did you mean num.partitions?" in warning for warning in resolution.warnings
    )
    assert any("entirely.else" in warning and "mean" not in warning for warning in resolution.warnings)


def test_the_file_that_kafka_ships_is_good() -> None:
    resolution = resolve(environ=HOME, properties=KRAFT_FILE)
    assert resolution.errors == ()
    assert resolution.warnings == ()
    assert any("process.roles" in note for note in resolution.notes)
    assert resolution.config is not None
    assert resolution.config.listeners == (Listener("PLAINTEXT", None, 9092, True, "localhost", 9092),)


def test_keys_of_3_9_are_accepted_with_a_warning() -> None:
    resolution = resolve(
        environ=HOME,
        properties={
            "inter.broker.protocol.version": "3.9",
            "log.message.format.version": "3.0",
            "zookeeper.session.timeout.ms": "1",
        },
    )
    assert resolution.errors == ()
    assert len(resolution.warnings) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl.client.auth", "perhaps"),
        ("listener.name.plaintext.ssl.client.auth", "perhaps"),
        ("listener.name.sasl_ssl.scram-sha-256.sasl.login.retry.backoff.ms", "soon"),
        ("authorizer.class.name", "kafka.security.auth.SimpleAclAuthorizer"),
        ("super.users", "User:admin;alice"),
        ("security.inter.broker.protocol", "SSL"),
        ("principal.builder.class", "com.example.Builder"),
        ("listener.name.plaintext.principal.builder.class", "com.example.Builder"),
        ("sasl.oauthbearer.jwt.validator.class", "com.example.Validator"),
        ("ssl.engine.factory.class", "com.example.Factory"),
        ("delegation.token.max.lifetime.ms", "0"),
        ("zookeeper.set.acl", "true"),
        ("zookeeper.ssl.crl.enable", "true"),
        ("zookeeper.ssl.ocsp.enable", "true"),
        ("zookeeper.ssl.protocol", "SSLv3"),
        ("zookeeper.clientCnxnSocket", "com.example.Socket"),
        ("barnabas.zookeeper.digest", "user"),
        ("zookeeper.metadata.migration.enable", "true"),
        ("zookeeper.connect", "no port:at all"),
        ("zookeeper.connect", "zk:2181//x"),
        ("create.topic.policy.class.name", "com.example.Policy"),
        ("config.providers", "env"),
        ("remote.log.storage.system.enable", "true"),
    ],
)
def test_keys_that_ask_for_unserved_features_are_errors(key: str, value: str) -> None:
    (error,) = problems({key: value})
    assert key in error


@pytest.mark.parametrize("value", ["true", "1", "-5", "two words", ""])
@pytest.mark.parametrize("others", [{}, {"zookeeper.connect": "zk:2181"}], ids=["alone", "with ZooKeeper"])
def test_a_key_gets_one_verdict(value: str, others: dict[str, str]) -> None:
    """An error, a warning or a note; none if the value is good and has its effect."""
    for key in (*BROKER_KEYS, *REFUSED_KEYS, *REMOVED_KEYS, "zookeeper.ssl.client.enable", "no.such.key"):
        resolution = resolve(environ=HOME, properties={**others, key: value})
        verdicts = [*resolution.errors, *resolution.warnings, *resolution.notes]
        assert len(verdicts) <= 1, verdicts


def test_keys_of_security_that_the_code_reads_say_what_they_mean() -> None:
    """For DescribeConfigs, and docs/configuration.md."""
    room = Path(config_listeners.__file__).parents[1] / "security"
    texts = [path.read_text() for path in room.rglob("*.py")]
    read = {name for name in SECURITY_KEYS if any(f'"{name}"' in text for text in texts)}
    assert len(read) >= 15
    assert {name for name in read if not BROKER_KEYS[name].documentation} == set()


def test_zookeeper() -> None:
    config = load(
        environ={**HOME, "KAFKA_ZOOKEEPER_CONNECT": "zk1:2181,[::1]:2182,zk3/kafka/one"},
        properties={"zookeeper.connection.timeout.ms": "5000", "zookeeper.ssl.client.enable": "false"},
    )
    assert config.zookeeper_connect == "zk1:2181,[::1]:2182,zk3/kafka/one"
    assert config.zookeeper_session_timeout_ms == 18_000
    assert config.zookeeper_connection_timeout_ms == 5_000
    assert config.zookeeper_max_in_flight_requests == 10
    assert config.warnings == ()


def test_no_zookeeper() -> None:
    config = load(environ={**HOME, "KAFKA_ZOOKEEPER_CONNECT": ""})
    assert config.zookeeper_connect is None


def test_passwords_in_a_jaas_line_are_not_shown() -> None:
    (error,) = problems(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": 'PlainLoginModule required user_alice="hunter2"',
        }
    )
    assert "sasl.jaas.config for PLAIN: " in error
    assert "hunter2" not in error


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl.keystore.location", "/etc/keystore.jks"),
        ("ssl.keystore.password", "hunter2"),
        ("ssl.client.auth", "required"),
        ("listener.name.plaintext.ssl.keystore.location", "/x"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("allow.everyone.if.no.acl.found", "true"),
    ],
)
def test_security_keys_may_be_set_where_no_listener_uses_them(key: str, value: str) -> None:
    resolution = resolve(environ=HOME, properties={key: value})
    assert resolution.errors == resolution.warnings == resolution.notes == ()


@pytest.mark.parametrize("key", ["ssl.client.auth", "authorizer.class.name", "super.users"])
def test_security_keys_at_their_defaults_are_fine(key: str) -> None:
    default = "none" if key == "ssl.client.auth" else ""
    assert problems({key: default}) == ()


@pytest.mark.parametrize(
    "authorizer",
    ["kafka.security.authorizer.AclAuthorizer", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"],
)
def test_authorizers_of_kafka_are_accepted(authorizer: str) -> None:
    assert problems({"authorizer.class.name": authorizer, "super.users": "User:CN=a,O=b; User:admin;"}) == ()
    (error,) = problems({"authorizer.class.name": f"{authorizer}2"})
    assert "AclAuthorizer, org.apache.kafka.metadata.authorizer.StandardAuthorizer" in error


# --- bad values ----------------------------------------------------------------------------------


def test_all_mistakes_are_reported_at_once() -> None:
    errors = problems({"num.partitions": "0", "log.segment.bytes": "13", "auto.create.topics.enable": "yes"})
    assert len(errors) == 3
    for error, key, value in zip(
        errors, ("num.partitions", "log.segment.bytes", "auto.create.topics.enable"), ("0", "13", "yes"), strict=True
    ):
        assert f"Invalid value {value} for configuration {key}" in error
        assert "Allowed: " in error
        assert "from the file" in error
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        load(properties={"num.partitions": "0"})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("num.partitions", " +7 ", 7),
        ("log.segment.bytes", "14", 14),
        ("log.cleanup.policy", "", ()),
        ("log.cleanup.policy", "delete , compact,delete", ("delete", "compact")),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleaner.min.cleanable.ratio", "1e-1", 0.1),
        ("compression.gzip.level", "-1", -1),
        ("group.consumer.migration.policy", "Disabled", "Disabled"),
        ("max.connections.per.ip.overrides", " 10.0.0.7:3, [::1]:4,", "10.0.0.7:3, [::1]:4,"),
    ],
)
def test_values(key: str, text: str, value: object) -> None:
    assert parse(BROKER_KEYS[key], text) == value


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("num.partitions", "1_0", "Not a number of type INT"),
        ("num.partitions", "", "Not a number of type INT"),
        ("num.partitions", "9" * 5_000, "Not a number of type INT"),
        ("num.partitions", "2147483648", "Not a number of type INT"),
        ("num.partitions", "𝟏", "Not a number of type INT"),
        ("offsets.topic.replication.factor", "40000", "Not a number of type SHORT"),
        ("log.cleaner.min.cleanable.ratio", "nan", "Not a number of type DOUBLE"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "Value must be no more than 1"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleanup.policy", "delete,,compact", "values must not be empty"),
        ("log.cleanup.policy", "keep", "String must be one of: compact, delete"),
        ("listeners", "", "must not be empty"),
        ("max.connections.per.ip.overrides", "10.0.0.7:3,:4", "Invalid value :4 .*: Expected HOST:LIMIT"),
    ],
)
def test_values_that_are_refused(key: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigValueError, match=reason.replace("(", r"\(")):
        parse(BROKER_KEYS[key], text)


@pytest.mark.parametrize(
    "properties",
    [
        {"log.retention.ms": "0"},
        {"log.roll.ms": "0"},
        {"replica.fetch.wait.max.ms": "30001", "replica.lag.time.max.ms": "60000"},
        {"queued.max.request.bytes": "1000"},
        {"max.connections.per.ip": "0"},
        {"group.min.session.timeout.ms": "2000000"},
        {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"},
        {"max.connections.per.ip.overrides": "nonsense"},
        {"barnabas.http.address": "nonsense"},
    ],
)
def test_rules_that_join_keys(properties: dict[str, str]) -> None:
    (error,) = problems(properties)
    assert any(key in error for key in properties)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (1e10, "1.0E10"), (12345678.5, "1.23456785E7"), (1.5e-7, "1.5E-7"), (0.0, "0.0"), (100.0, "100.0")],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert to_text(value) == text


# --- listeners -----------------------------------------------------------------------------------


def listeners(value: str, **keywords: str) -> tuple[Listener, ...]:
    return of(listeners=value, **keywords).listeners


def test_several_listeners_with_their_own_addresses() -> None:
    found = listeners(
        "inside://127.0.0.1:0,OUTSIDE://[::]:9094,third://:9095",
        listener_security_protocol_map="INSIDE:PLAINTEXT,outside:plaintext,THIRD:PLAINTEXT",
        advertised_listeners="INSIDE://localhost:0,OUTSIDE://[2001:db8::1]:443",
    )
    assert found == (
        Listener("INSIDE", "127.0.0.1", 0, True, "localhost", None),
        Listener("OUTSIDE", "::", 9094, True, "2001:db8::1", 443),
        Listener("THIRD", None, 9095, False),
    )
    assert [listener.is_loopback for listener in found] == [True, False, False]


def test_host_left_out_advertises_the_machine() -> None:
    assert listeners("PLAINTEXT://:9092") == (Listener("PLAINTEXT", None, 9092, True, None, None),)


def test_inter_broker_listener() -> None:
    mapping = "A:PLAINTEXT,B:PLAINTEXT"
    both = {"listeners": "A://127.0.0.1:1,B://127.0.0.1:2", "listener.security.protocol.map": mapping}
    assert load(environ=HOME, properties=both).inter_broker_listener_name == "A"
    assert load(environ=HOME, properties={**both, "inter.broker.listener.name": "b"}).inter_broker_listener_name == "B"
    assert "one of A, B" in problems({**both, "inter.broker.listener.name": "C"})[0]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"listeners": "127.0.0.1:9092"}, "Expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://a_b/c:1"}, "Expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "between 0 and 65535"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "its own name"),
        (
            {
                "listeners": "PLAINTEXT://h:1,X://h:1",
                "listener.security.protocol.map": "X:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            },
            "different port",
        ),
        ({"listeners": "SASL_PLAINTEXT://:9093"}, "GSSAPI"),
        ({"listeners": "X://:9093"}, "no entry in listener.security.protocol.map"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "NAME:PROTOCOL"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "set advertised.listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable"),
        ({"advertised.listeners": "OTHER://h:9092"}, "not in listeners"),
        ({"listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}, "no listener for clients"),
    ],
)
def test_listeners_that_are_refused(properties: dict[str, str], expected: str) -> None:
    assert any(expected in error for error in problems(properties))


def test_ipv4_and_ipv6_may_share_a_port() -> None:
    mapping = "A:PLAINTEXT,B:PLAINTEXT"
    assert len(listeners("A://127.0.0.1:9,B://[::1]:9", listener_security_protocol_map=mapping)) == 2
    assert len(listeners("A://127.0.0.1:0,B://127.0.0.1:0", listener_security_protocol_map=mapping)) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["PLAINTEXT", "plaintext", "SSL", "A", "", "CONTROLLER"]),
            st.sampled_from(["", "127.0.0.1", "0.0.0.0", "[::1]", "::1", "h", "[", "a b"]),
            st.sampled_from(["0", "9092", "-1", "65536", "x", ""]),
        ),
        max_size=4,
    ),
    st.sampled_from(["", "A:PLAINTEXT,PLAINTEXT:PLAINTEXT", "A:B", ":"]),
)
def test_any_listeners_are_understood_or_refused(entries: list[tuple[str, str, str]], mapping: str) -> None:
    text = ",".join(f"{name}://{host}:{port}" for name, host, port in entries)
    resolution: Resolution = resolve(
        environ=HOME, properties={"listeners": text, "listener.security.protocol.map": mapping}
    )
    if resolution.config is not None:
        # What is listed twice counts once, as in all of Kafka's lists.
        names = [name.upper() for name, _, _ in dict.fromkeys(entries)]
        assert [listener.name for listener in resolution.config.listeners] == names


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), (":0", (None, 0)), ("[::1]:65535", ("::1", 65535)), (" 127.0.0.1:80 ", ("127.0.0.1", 80))],
)
def test_addresses(text: str, address: tuple[str | None, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "h", "h:", "h:65536", "::1:80", "http://h:80", "a b:1", "[h]:1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


# --- cost ----------------------------------------------------------------------------------------


def test_reading_configuration_imports_little() -> None:
    code = (
        "import sys; import barnabas.broker.configuration.config, barnabas.broker.configuration.properties; "
        "print(*sorted({'typer','rich','barnabas.broker.http.server','asyncio','difflib','prometheus_client'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_numbers_too_large_for_a_double_are_infinite() -> None:
    """As in Java; refused or accepted, they can be told of."""
    unlimited = BROKER_KEYS["log.cleaner.io.max.bytes.per.second"]
    assert to_text(parse(unlimited, "9" * 400)) == "Infinity"
    assert to_text(parse(unlimited, "-1e999")) == "-Infinity"
    with pytest.raises(ConfigValueError, match="Infinity"):
        parse(BROKER_KEYS["log.cleaner.min.cleanable.ratio"], "9" * 400)
