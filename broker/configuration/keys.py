"""Tables of broker keys as a whole: those of Kafka, what stands in for what, and what becomes of keys that cannot be
obeyed. One key's definition is a row of `tables/broker.py`, `tables/security.py` or `tables/other.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.configuration.tables.broker import BROKER_ROWS
from barnabas.broker.configuration.tables.other import OTHER_ROWS, ZOOKEEPER_ROWS
from barnabas.broker.configuration.tables.security import SECURITY_ROWS

BROKER_KEYS: Final[dict[str, ConfigKey]] = {
    row[0]: ConfigKey(*row) for rows in (BROKER_ROWS, SECURITY_ROWS, OTHER_ROWS, ZOOKEEPER_ROWS) for row in rows
}
"""Every broker key by its name."""

SECURITY_KEYS: Final = frozenset(row[0] for row in SECURITY_ROWS)

CONFIG_SYNONYMS: Final[tuple[tuple[str, ...], ...]] = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)
"""Keys that stand in for each other, the first that is set wins (DynamicBrokerConfig.brokerConfigSynonyms)."""

# Keys of 3.9 that 4.x removed. They change nothing here, so that a file written for 3.9 still starts.
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
    "password.encoder.cipher.algorithm": "no passwords are stored",
    "password.encoder.iterations": "no passwords are stored",
    "password.encoder.key.length": "no passwords are stored",
    "password.encoder.keyfactory.algorithm": "no passwords are stored",
    "password.encoder.old.secret": "no passwords are stored",
    "password.encoder.secret": "no passwords are stored",
    "reserved.broker.max.id": "set node.id",
}

# Keys whose promise cannot be kept: better not to start than to run without it.
REFUSED_KEYS: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": "Java policy classes cannot be loaded",
    "client.quota.callback.class": "Java quota classes cannot be loaded",
    "config.providers": "configuration providers (${...} references) are not supported",
    "create.topic.policy.class.name": "Java policy classes cannot be loaded",
    "delegation.token.master.key": "delegation tokens are not supported yet",
    "super.users": "authorization (ACLs) is not supported yet",
}

ZOOKEEPER_REFUSED: Final = ("zookeeper.ssl.", "zookeeper.client", "zookeeper.metadata.migration.")

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
    "server.max.startup.",
)

TOPIC_DEFAULT_KEYS: Final = frozenset(
    (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
    )
)
"""Broker keys that are used as the defaults of topics."""

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
