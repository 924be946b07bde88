"""Topic configs: overrides of a topic, values inherited from the broker, and their combination in a `LogConfig`.

Source: LogConfig.java, ServerTopicConfigSynonyms.java, KafkaConfigSchema.java and ConfigHelper.scala of Kafka 4.3.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from barnabas.broker.configuration.config import BrokerConfig, effective_value
from barnabas.broker.configuration.definitions import (
    INTERNAL,
    PASSWORD,
    READ_ONLY,
    ConfigKey,
    ConfigValue,
    ConfigValueError,
    Validator,
    parse,
    to_text,
)
from barnabas.broker.configuration.keys import BROKER_KEYS, CONFIG_SYNONYMS, OBEYED_KEYS, broker_key
from barnabas.broker.configuration.tables.topics import DELETES, TOPIC_ROWS
from barnabas.controller.configs import KEPT_WHERE_BROKEN
from barnabas.storage.config import LogConfig
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import CompressionType

logger = logging.getLogger(__name__)

DYNAMIC_TOPIC_CONFIG: Final = 1
DYNAMIC_BROKER_CONFIG: Final = 2
DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
DYNAMIC_BROKER_LOGGER_CONFIG: Final = 6
"""The source of a value, as numbers of DescribeConfigs v1+ (DescribeConfigsResponse.ConfigSource)."""


class TopicKey(ConfigKey[Any]):
    """One topic key. `broker_key` is the broker's key that sets the default for all topics, None if there is none.
    `deletes` means that records are removed according to it; if its value cannot be parsed, the topic has the values of
    `KEPT_WHERE_BROKEN` instead, with which no records are removed."""

    __slots__ = ("broker_key", "deletes")

    def __init__(
        self,
        name: str,
        type: int,
        default: ConfigValue,
        validator: Validator,
        importance: str,
        broker_key: str | None,
        documentation: str,
        mark: str = "",
    ) -> None:
        visibility = INTERNAL if mark == INTERNAL else ""
        super().__init__(
            type, default, validator, importance, READ_ONLY, documentation, visibility=visibility, name=name
        )
        self.broker_key = broker_key
        self.deletes = mark == DELETES


TOPIC_KEYS: Final[dict[str, TopicKey]] = {row[0]: TopicKey(*row) for row in TOPIC_ROWS}
"""Every topic key by its name."""

TOPIC_SYNONYMS: Final[dict[str, tuple[str, ...]]] = {
    name: (key.broker_key, *BROKER_KEYS[key.broker_key].synonyms)
    for name, key in TOPIC_KEYS.items()
    if key.broker_key is not None
}
"""Broker keys that set a topic key's default, the most precise first; the others have the table's default."""

DEFAULTS_OF_TOPICS: Final = (
    *(key for key in OBEYED_KEYS if key.name in {names[0] for names in TOPIC_SYNONYMS.values()}),
    BrokerConfig.barnabas_validate_records,
)
"""Broker keys that affect the settings of logs."""

_DELETING_KEYS: Final = frozenset(name for name, key in TOPIC_KEYS.items() if key.deletes)

_DELETING_BROKER_KEYS: Final = frozenset(name for key in _DELETING_KEYS for name in TOPIC_SYNONYMS.get(key, ()))

DEFAULT_ENTITY: Final = "<default>"
"""The name under which overrides of all brokers are stored."""

_LOG_CONFIGS_MAX: Final = 1_000
_NO_OVERRIDES: Final[Mapping[str, str]] = {}
_UNIT_MS: Final = {"minutes": 60_000, "hours": 3_600_000}
_LOG_CONFIG_NAMES: Final = tuple(
    field.name
    for field in fields(LogConfig)
    if field.init and field.name not in ("cleanup_policy", "compression_type", "segment_bytes", "validate_records")
)
_CODECS: Final = {
    "producer": None,
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place that sets a value: the key's name there, its text (None when sensitive) and a source."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config in the responses of DescribeConfigs and CreateTopics v5+."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    config_type: int
    documentation: str | None


@dataclass(frozen=True, slots=True)
class BrokerLevels:
    """The three levels of broker configuration below a topic's own: static, cluster-wide and this broker's.

    `cluster_wide` and `per_broker` are the overrides of `brokers/<default>` and `brokers/ID`.
    """

    static: BrokerConfig
    cluster_wide: Mapping[str, str]
    per_broker: Mapping[str, str]
    known: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Both dynamic levels without unknown names: computed once, so that the number of unknown names does not affect the
    cost of a request for each topic or partition."""

    def __post_init__(self) -> None:
        known = {name: text for name, text in self.dynamic().items() if broker_key(name) is not None}
        object.__setattr__(self, "known", known)

    def dynamic(self) -> dict[str, str]:
        """Both dynamic levels; this broker's wins."""
        return {**self.cluster_wide, **self.per_broker}

    def synonyms(self, key: str, names: Collection[str], *, is_sensitive: bool) -> tuple[ConfigSynonym, ...]:
        """All places that set `key` or one of its `names`, strongest first, from the first that sets `key` itself.

        Stronger places before that are dropped, as in Kafka (ConfigHelper.configSynonyms), so that a `retention.ms` set
        by `log.retention.hours` is reported as a default.
        """
        found = [
            ConfigSynonym(name, None if is_sensitive else text, source)
            for source, level in (
                (DYNAMIC_BROKER_CONFIG, self.per_broker),
                (DYNAMIC_DEFAULT_BROKER_CONFIG, self.cluster_wide),
                (STATIC_BROKER_CONFIG, self.static.raw),
            )
            for name in names
            if (text := level.get(name)) is not None
        ]
        for name in names:
            default = to_text(self.static.default(name)) if name in BROKER_KEYS else None
            if default is not None:
                found.append(ConfigSynonym(name, None if is_sensitive else default, DEFAULT_CONFIG))
        while found and found[0].name != key:
            del found[0]
        return tuple(found)


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The synonyms of the broker key `name`, itself included."""
    for synonyms in CONFIG_SYNONYMS:
        # The scheduler interval is only a fallback: it does not take its value from log.flush.interval.ms.
        if name in synonyms and name != "log.flush.scheduler.interval.ms":
            return synonyms
    return (name,)


def validate_topic_configs(
    configs: Mapping[str, str | None], config: BrokerConfig | None = None, dynamic: Mapping[str, str] | None = None
) -> ApiError | None:
    """The error of a topic's overrides; None when they are valid.

    `config` and `dynamic` supply the values that the topic does not set (rules that join two keys). Errors:
    INVALID_CONFIG. Source: LogConfig.validate.
    """
    nulls = [name for name, text in configs.items() if text is None]
    if nulls:
        return ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    values: dict[str, ConfigValue] = {}
    for name, text in configs.items():
        if name not in TOPIC_KEYS:
            return ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        try:
            values[name] = parse(TOPIC_KEYS[name], text or "")
        except ConfigValueError as error:
            return ApiError(ErrorCode.INVALID_CONFIG, str(error))
    if values.get("remote.storage.enable"):
        return ApiError(
            ErrorCode.INVALID_CONFIG,
            "remote.storage.enable cannot be true: this broker has no tiered storage.",
        )
    return _check_compaction_lags(values, config, dynamic or {})


def _check_compaction_lags(
    values: Mapping[str, ConfigValue], config: BrokerConfig | None, dynamic: Mapping[str, str]
) -> ApiError | None:
    lags = []
    for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"):
        value = values.get(name)
        if value is None:
            value = topic_default(config, dynamic, name) if config is not None else TOPIC_KEYS[name].default
        assert isinstance(value, int)
        lags.append(value)
    if lags[0] <= lags[1]:
        return None
    return ApiError(
        ErrorCode.INVALID_CONFIG,
        f"conflict topic config setting min.compaction.lag.ms ({lags[0]}) > max.compaction.lag.ms ({lags[1]})",
    )


def topic_default(config: BrokerConfig, dynamic: Mapping[str, str], name: str) -> ConfigValue:
    """The broker's value for a topic that does not set `name`. `dynamic` holds broker keys changed at run time."""
    synonyms = TOPIC_SYNONYMS.get(name)
    if synonyms is None:
        return TOPIC_KEYS[name].default

    value: ConfigValue = effective_value(synonyms[0], lambda key: config.current_value(key, dynamic))
    return value


def topic_values(
    config: BrokerConfig, dynamic: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, ConfigValue]:
    """The typed value of every topic key; overrides that cannot be parsed are skipped. If that could delete records,
    nothing is deleted (`KEPT_WHERE_BROKEN`), since the intended value is unknown.
    """
    if not _DELETING_BROKER_KEYS.isdisjoint(broken_overrides(BROKER_KEYS, dynamic)):
        dynamic = {**dynamic, **KEPT_WHERE_BROKEN["brokers"]}
    values = {name: topic_default(config, dynamic, name) for name in TOPIC_KEYS}
    broken = broken_overrides(TOPIC_KEYS, overrides)
    if not _DELETING_KEYS.isdisjoint(broken):
        overrides = {**overrides, **KEPT_WHERE_BROKEN["topics"]}
        broken = broken_overrides(TOPIC_KEYS, overrides)
    for name, text in overrides.items():
        if name in TOPIC_KEYS and name not in broken:
            values[name] = parse(TOPIC_KEYS[name], text)
    return values


def broken_overrides(keys: Mapping[str, ConfigKey[Any]], overrides: Mapping[str, str]) -> dict[str, str]:
    """The error of each override that cannot be parsed: it was written directly to the metadata store, without the
    checks."""
    broken = {}
    for name, text in overrides.items():
        if name in keys:
            try:
                parse(keys[name], text)
            except ConfigValueError as error:
                broken[name] = str(error)
    return broken


def _complaint(keys: Mapping[str, ConfigKey[Any]], deleting: Collection[str], overrides: Mapping[str, str]) -> str:
    broken = broken_overrides(keys, overrides)
    consequence = "" if broken.keys().isdisjoint(deleting) else " (retention is off)"
    return " ".join(broken.values()) + consequence


def log_config(config: BrokerConfig, dynamic: Mapping[str, str], overrides: Mapping[str, str]) -> LogConfig:
    """A topic's settings for storage.

    `dynamic` holds broker keys changed at run time (`BrokerLevels.dynamic()`), `overrides` the topic's own.
    """
    values = topic_values(config, dynamic, overrides)
    same: dict[str, Any] = {name: values[name.replace("_", ".")] for name in _LOG_CONFIG_NAMES}
    policies = values["cleanup.policy"]
    assert isinstance(policies, tuple)
    segment_bytes = values["internal.segment.bytes"] or values["segment.bytes"]
    return LogConfig(
        cleanup_policy=frozenset(policies),
        compression_type=_CODECS[str(values["compression.type"])],
        segment_bytes=segment_bytes,  # type: ignore[arg-type]
        validate_records=config.current_value("barnabas.validate.records", dynamic) is True,
        **same,
    )


def internal_topic_configs(config: BrokerConfig, topic: str) -> dict[str, str]:
    """The overrides with which Kafka creates its own topics; empty for users' topics.

    Source: GroupCoordinatorService.groupMetadataTopicConfigs, TransactionCoordinator.transactionStateTopicConfigs.
    """
    if topic == "__consumer_offsets":
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
    if topic == "__transaction_state":
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
    return {}


def topic_config_entries(
    levels: BrokerLevels,
    overrides: Mapping[str, str],
    *,
    keys: Collection[str] | None = None,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> list[ConfigEntry]:
    """A topic's configs for the DescribeConfigs response; `keys` None or empty requests all."""
    values = topic_values(levels.static, levels.known, overrides)
    entries = []
    for name in _listed_names(overrides, keys):
        key = TOPIC_KEYS.get(name)
        # An unknown config may be a secret: it is not shown (KafkaConfig.maybeSensitive).
        is_sensitive = key is None or key.type == PASSWORD
        value = None if is_sensitive else to_text(values[name])
        synonyms: tuple[ConfigSynonym, ...] = ()
        if name in TOPIC_SYNONYMS:
            server_key = TOPIC_SYNONYMS[name][0]
            synonyms = levels.synonyms(server_key, broker_synonyms(server_key), is_sensitive=is_sensitive)
        if name in overrides:
            synonyms = (ConfigSynonym(name, value, DYNAMIC_TOPIC_CONFIG), *synonyms)
        entries.append(
            ConfigEntry(
                name=name,
                value=value,
                source=synonyms[0].source if synonyms else DEFAULT_CONFIG,
                is_sensitive=is_sensitive,
                read_only=False,
                synonyms=synonyms if include_synonyms else (),
                config_type=0 if key is None else key.type,
                documentation=("" if key is None else key.documentation) if include_documentation else None,
            )
        )
    return entries


def created_topic_configs(levels: BrokerLevels, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """A new topic's configs for the CreateTopics v5+ response, by name, each from its strongest source.

    Source: KafkaConfigSchema.resolveEffectiveTopicConfigs.
    """
    entries = []
    for name in _listed_names(overrides, None):
        value, source = _strongest(levels, overrides, name)
        entries.append(ConfigEntry(name, value, source, False, False, (), TOPIC_KEYS[name].type, None))
    return entries


def _strongest(levels: BrokerLevels, overrides: Mapping[str, str], name: str) -> tuple[str | None, int]:
    if name in overrides:
        return overrides[name], DYNAMIC_TOPIC_CONFIG
    for source, level in (
        (DYNAMIC_BROKER_CONFIG, levels.per_broker),
        (DYNAMIC_DEFAULT_BROKER_CONFIG, levels.cluster_wide),
        (STATIC_BROKER_CONFIG, levels.static.raw),
    ):
        for synonym in TOPIC_SYNONYMS.get(name, ()):
            text = level.get(synonym)
            if text is not None:
                unit = _UNIT_MS.get(synonym.rpartition(".")[2])
                return (text.strip() if unit is None else str(int(text) * unit)), source
    return to_text(TOPIC_KEYS[name].default), DEFAULT_CONFIG


class Overrides(Protocol):
    """The stored overrides (`ConfigRepository`); entity types are "topics" and "brokers"."""

    def overrides(self, entity_type: str, name: str) -> Mapping[str, str]: ...


class TopicConfigs:
    """The configs of all topics of one broker, from its static configuration and the stored overrides.

    `change_lock` is held while overrides are checked and written: the next ones are checked against these.
    """

    def __init__(self, static: BrokerConfig, repository: Overrides) -> None:
        self._static = static
        self._repository = repository
        self._levels = BrokerLevels(static, _NO_OVERRIDES, _NO_OVERRIDES)
        self._log_configs: dict[tuple[tuple[str, str], ...], tuple[LogConfig, str, str]] = {}
        self._told: dict[str, str] = {}
        self.change_lock = asyncio.Lock()

    def levels(self) -> BrokerLevels:
        """The present broker configuration below the topics' own overrides; one object until it changes."""
        cluster_wide = self._repository.overrides("brokers", DEFAULT_ENTITY)
        per_broker = self._repository.overrides("brokers", str(self._static.node_id))
        if cluster_wide is not self._levels.cluster_wide or per_broker is not self._levels.per_broker:
            before, self._levels = self._levels, BrokerLevels(self._static, cluster_wide, per_broker)
            if self._levels.known != before.known:
                self._log_configs.clear()
        return self._levels

    def dynamic_broker_configs(self) -> Mapping[str, str]:
        """Broker keys changed at run time, for `LiveConfig.change`."""
        return self.levels().known

    def log_config(self, topic: str) -> LogConfig:
        """A topic's settings for storage; topics with equal settings share one object."""
        dynamic = self.dynamic_broker_configs()
        overrides = self._repository.overrides("topics", topic)
        key = tuple(sorted(overrides.items()))
        found = self._log_configs.get(key)
        if found is None:
            if len(self._log_configs) >= _LOG_CONFIGS_MAX:
                self._log_configs.clear()
            found = self._log_configs[key] = (
                log_config(self._static, dynamic, overrides),
                _complaint(TOPIC_KEYS, _DELETING_KEYS, overrides),
                _complaint(BROKER_KEYS, _DELETING_BROKER_KEYS, dynamic),
            )
        config, wrong, wrong_in_all = found
        self._tell(topic, wrong)
        self._tell("all topics", wrong_in_all)
        return config

    def _tell(self, whom: str, wrong: str) -> None:
        """Log the error in the settings of `whom` (empty: none), unless it was logged last."""
        if wrong != self._told.get(whom, ""):
            self._told[whom] = wrong
            if wrong:
                logger.error("settings of %s cannot be read: %s", whom, wrong)

    def internal_topic_configs(self, topic: str) -> dict[str, str]:
        """The overrides with which an internal topic is created."""
        return internal_topic_configs(self._static, topic)

    def validate(self, configs: Mapping[str, str | None]) -> ApiError | None:
        """The error of a topic's overrides; None when they are valid."""
        return validate_topic_configs(configs, self._static, self.dynamic_broker_configs())

    def created(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """A new topic's configs for the CreateTopics v5+ response."""
        return created_topic_configs(self.levels(), overrides)

    def describe(
        self, topic: str, keys: Collection[str] | None, *, include_synonyms: bool, include_documentation: bool
    ) -> list[ConfigEntry]:
        """A topic's configs for the DescribeConfigs response; `keys` None or empty requests all."""
        return topic_config_entries(
            self.levels(),
            self._repository.overrides("topics", topic),
            keys=keys,
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
        )


def _listed_names(overrides: Mapping[str, str], keys: Collection[str] | None) -> Iterator[str]:
    names = {name for name, key in TOPIC_KEYS.items() if key.visibility != INTERNAL}
    wanted = frozenset(keys or ())
    for name in sorted(names.union(overrides)):
        if not wanted or name in wanted:
            yield name
