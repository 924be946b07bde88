"""Tables of broker keys as a whole: those of Kafka, their synonyms, and the treatment of keys that are not supported.
One key's definition is a row of `tables/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.configuration.tables.broker import BrokerKeys
from barnabas.broker.configuration.tables.other import OTHER_ROWS, PARTS_OF_KAFKA, UNUSED_ROWS
from barnabas.broker.configuration.tables.security import SECURITY_ROWS
from barnabas.broker.configuration.tables.topics import TOPIC_ROWS

OBEYED_KEYS: Final[tuple[ConfigKey[Any], ...]] = tuple(
    key for key in vars(BrokerKeys).values() if isinstance(key, ConfigKey)
)
"""Keys that have an effect; each is an attribute of `BrokerConfig`."""


def _accepted(
    name: str,
    type: int,
    default: Any,
    validator: Any,
    importance: str,
    mode: str,
    visibility: str = "",
    documentation: str = "",
    is_fixed: bool = False,
) -> ConfigKey[Any]:
    return ConfigKey(
        type, default, validator, importance, mode, documentation, visibility=visibility, is_fixed=is_fixed, name=name
    )


BROKER_KEYS: Final[dict[str, ConfigKey[Any]]] = {key.name: key for key in OBEYED_KEYS} | {
    row[0]: _accepted(*row) for rows in (UNUSED_ROWS, SECURITY_ROWS, OTHER_ROWS) for row in rows
}
"""Every broker key by its name."""

SECURITY_KEYS: Final = frozenset(row[0] for row in SECURITY_ROWS)

UNUSED_KEYS: Final = frozenset(row[0] for rows in (UNUSED_ROWS, OTHER_ROWS) for row in rows)
"""Keys that are accepted and have no effect; some of their values are refused."""

CONFIG_SYNONYMS: Final = tuple((key.name, *key.synonyms) for key in OBEYED_KEYS if key.synonyms)
"""Synonymous keys: the first that is set counts."""

# Keys of 3.9 that 4.x removed. They have no effect here, so that a file written for 3.9 still starts.
REMOVED_KEYS: Final[Mapping[str, str]] = {
    "auto.include.jmx.reporter": "there is no JMX",
    "broker.id.generation.enable": "set node.id",
    "control.plane.listener.name": "there is one data plane",
    "controlled.shutdown.max.retries": "a clean stop needs no retries",
    "controlled.shutdown.retry.backoff.ms": "a clean stop needs no retries",
    "eligible.leader.replicas.enable": "removed in 4.0",
    "group.coordinator.new.enable": "there is one group coordinator",
    "group.share.enable": "there are no share groups",
    "group.share.max.groups": "there are no share groups",
    "inter.broker.protocol.version": "removed in 4.0",
    "leader.imbalance.per.broker.percentage": "removed in 4.0",
    "log.message.downconversion.enable": "old message formats are not served",
    "log.message.format.version": "old message formats are not served",
    "log.message.timestamp.difference.max.ms": "set log.message.timestamp.{before,after}.max.ms",
    "metadata.log.segment.min.bytes": "removed in 4.0",
    "offsets.commit.required.acks": "commits always wait for all in-sync replicas",
    "reserved.broker.max.id": "set node.id",
}

# Keys that cannot be supported: a start without their effect would be worse than none.
REFUSED_KEYS: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": "Java policy classes cannot be loaded",
    "client.quota.callback.class": "Java quota classes cannot be loaded",
    "config.providers": "configuration providers (${...} references) are not supported",
    "create.topic.policy.class.name": "Java policy classes cannot be loaded",
}

ZOOKEEPER_KEYS: Final = ("zookeeper.", "barnabas.zookeeper.digest", "java.security.auth.login.config")
"""The beginnings of the keys that need ZooKeeper."""

ZOOKEEPER_REFUSED: Final = ("zookeeper.metadata.migration.",)

KRAFT_PREFIXES: Final = (
    "broker.heartbeat.",
    "broker.session.",
    "controller.listener.",
    "controller.performance.",
    "controller.quorum.",
    "initial.broker.registration.",
    "metadata.log.",
    "metadata.max.",
    "process.roles",
    "sasl.mechanism.controller.",
    "server.max.startup.",
)

# Variables of the official image (KafkaDockerWrapper.ExcludeServerPropsEnv) that are no configuration.
ENVIRONMENT_SKIPPED: Final = frozenset(
    (
        "KAFKA_CLUSTER_ID",
        "KAFKA_DEBUG",
        "KAFKA_DEBUG_FLAG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_OPTS",
        "KAFKA_SCALA_VERSION",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_URL",
        "KAFKA_VERSION",
    )
)
ENVIRONMENT_SKIPPED_PREFIXES: Final = ("KAFKA_JMX_", "KAFKA_JVM_", "KAFKA_LOG4J_")


_INHERITED_DOCUMENTATION: Final = {row[5]: row[6] for row in TOPIC_ROWS if row[5] is not None}


TLS_DYNAMIC_KEYS: Final = frozenset(
    f"ssl.{name}"
    for name in (
        "key.password",
        "keystore.certificate.chain",
        "keystore.key",
        "keystore.location",
        "keystore.password",
        "keystore.type",
        "truststore.certificates",
        "truststore.location",
        "truststore.password",
        "truststore.type",
    )
)
"""The keys of security that may change in a running broker, with the prefix of a listener
(SslConfigs.RECONFIGURABLE_CONFIGS)."""

LISTENER_PREFIX: Final = "listener.name."
"""The beginning of a key that is set for one listener: `listener.name.NAME.KEY`, or `listener.name.NAME.MECHANISM.KEY`
for one SASL mechanism of it."""


def broker_key(name: str) -> ConfigKey[Any] | None:
    """The broker key of this name, with or without the prefix of a listener; None if there is none. Only keys of
    security may have the prefix."""
    if not name.startswith(LISTENER_PREFIX):
        return BROKER_KEYS.get(name)
    base = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
    for key in (base, base.partition(".")[2]):
        if key in SECURITY_KEYS:
            return BROKER_KEYS[key]
    return None


def broker_documentation(name: str) -> str:
    """The documentation of a broker key; for keys of parts of Kafka that Barnabas does not have, the name of the part.
    Errors: KeyError for unknown keys.
    """
    documentation = BROKER_KEYS[name].documentation or _INHERITED_DOCUMENTATION.get(name)
    if documentation:
        return documentation
    for beginnings, part in PARTS_OF_KAFKA:
        if name.startswith(beginnings):
            return f"{part}: accepted as in Kafka, without effect in this version."
    return "Accepted as in Kafka, without effect in this version."
