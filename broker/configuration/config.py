"""The broker's configuration: Kafka's keys, read from five places, checked together, handed down as one frozen object.

Precedence, highest first: command-line options, `--override KEY=VALUE`, `KAFKA_...` environment variables, the
properties file, defaults. `resolve` never stops at the first mistake: a `Resolution` lists every error and warning, and
carries a `BrokerConfig` only when there is no error.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from barnabas.broker.configuration.definitions import (
    PASSWORD,
    READ_ONLY,
    ConfigValue,
    ConfigValueError,
    allowed_text,
    parse,
)
from barnabas.broker.configuration.keys import (
    BROKER_KEYS,
    CONFIG_SYNONYMS,
    ENVIRONMENT_SKIPPED,
    ENVIRONMENT_SKIPPED_PREFIXES,
    KRAFT_PREFIXES,
    REFUSED_KEYS,
    REMOVED_KEYS,
    SECURITY_KEYS,
    TOPIC_DEFAULT_KEYS,
    ZOOKEEPER_REFUSED,
)
from barnabas.broker.configuration.listeners import NO_SECURITY, PORT_MAX, Listener, ListenerResolver

OPTION: Final = "command line"
OVERRIDE: Final = "--override"
ENVIRONMENT: Final = "environment"
FILE: Final = "file"
DEFAULT: Final = "default"


_NO_ZOOKEEPER_SECURITY: Final = "connections to ZooKeeper are plain, without TLS, ACLs or migration to KRaft"

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]/]*)):([0-9]{1,5})")
_ZOOKEEPER_SERVER: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s:\[\]/,]+)(?::[0-9]{1,5})?")
_LISTENER_OVERRIDE: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BrokerConfig:
    """A checked configuration. Attributes carry a key's name in snake_case; keys without an attribute: `value(key)`.

    `log_retention_ms`, `log_roll_ms`, `log_roll_jitter_ms` and `log_flush_interval_ms` are the effective values after
    their synonyms (hours, minutes, scheduler interval); -1 or LONG_MAX mean without limit, as in Kafka.
    """

    node_id: int
    cluster_id: str | None
    broker_rack: str | None
    listeners: tuple[Listener, ...]
    inter_broker_listener_name: str
    log_dirs: tuple[str, ...]

    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    min_insync_replicas: int
    num_partitions: int
    unclean_leader_election_enable: bool

    connections_max_idle_ms: int
    fetch_max_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_incremental_fetch_session_cache_slots: int
    message_max_bytes: int
    queued_max_request_bytes: int
    request_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int

    compression_type: str
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    log_cleanup_policy: tuple[str, ...]
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_index_interval_bytes: int
    log_index_size_max_bytes: int
    log_message_timestamp_after_max_ms: int
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_type: str
    log_preallocate: bool
    log_retention_bytes: int
    log_retention_check_interval_ms: int
    log_retention_ms: int
    log_roll_jitter_ms: int
    log_roll_ms: int
    log_segment_bytes: int
    log_segment_delete_delay_ms: int
    num_recovery_threads_per_data_dir: int

    replica_high_watermark_checkpoint_interval_ms: int

    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int

    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int

    zookeeper_connect: str | None
    zookeeper_connection_timeout_ms: int | None
    zookeeper_max_in_flight_requests: int
    zookeeper_session_timeout_ms: int

    barnabas_disk_reserve_bytes: int
    barnabas_flush_before_ack: bool
    barnabas_group_newcomer_delay_ms: int
    barnabas_http_address: str | None
    barnabas_log_format: str
    barnabas_log_level: str
    barnabas_validate_records: bool

    raw: Mapping[str, str]
    """What was set anywhere, by key, as text."""
    sources: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Defaults that depend on the surroundings (log.dir) and replace those of the table."""
    warnings: tuple[str, ...] = ()

    def value(self, key: str) -> ConfigValue:
        """The typed value of any key of `BROKER_KEYS`, set or default. Errors: KeyError for unknown keys."""
        definition = BROKER_KEYS[key]
        if key in self.raw:
            return parse(definition, self.raw[key])
        return self.default(key)

    def default(self, key: str) -> ConfigValue:
        """The default of a key on this machine."""
        return self.defaults[key] if key in self.defaults else BROKER_KEYS[key].default

    def source(self, key: str) -> str:
        """Where the value of `key` comes from: one of OPTION, OVERRIDE, ENVIRONMENT, FILE, DEFAULT."""
        return self.sources.get(key, DEFAULT)

    def with_dynamic(self, dynamic: Mapping[str, str]) -> BrokerConfig:
        """This configuration with values that were changed at run time; values that do not parse are left out.

        `raw` stays what the process was started with: DescribeConfigs tells the two apart.
        """
        fields = {
            name: effective_value(name.replace("_", "."), lambda key: self.current_value(key, dynamic))
            for name in _PLAIN_ATTRIBUTES
            if name.replace("_", ".") in _DYNAMIC_KEYS
        }
        resolved = resolve(options={**self.raw, **_of_consequence(dynamic)}).config
        overrides = (
            self.max_connections_per_ip_overrides if resolved is None else resolved.max_connections_per_ip_overrides
        )
        return replace(self, max_connections_per_ip_overrides=overrides, **fields)  # type: ignore[arg-type]

    def current_value(self, key: str, dynamic: Mapping[str, str]) -> ConfigValue:
        """The value of `key` where `dynamic` holds what was changed at run time."""
        if key in dynamic:
            try:
                return parse(BROKER_KEYS[key], dynamic[key])
            except ConfigValueError:
                pass  # Written around the checks, straight into the store: the value from before stays in force.
        return self.value(key)

    def check_dynamic(self, dynamic: Mapping[str, str]) -> tuple[str, ...]:
        """What is wrong with this configuration once `dynamic` is laid over it: rules that join several keys, too."""
        return resolve(options={**self.raw, **_of_consequence(dynamic)}).errors


def _of_consequence(dynamic: Mapping[str, str]) -> dict[str, str]:
    """Without names that nobody knows: whoever starts a broker is told what they may have meant, nobody else is."""
    return {
        name: text
        for name, text in dynamic.items()
        if name in BROKER_KEYS or name in REFUSED_KEYS or name.startswith(ZOOKEEPER_REFUSED)
    }


_SPECIAL_ATTRIBUTES: Final = frozenset(
    (
        "node_id",
        "cluster_id",
        "listeners",
        "inter_broker_listener_name",
        "log_dirs",
        "max_connections_per_ip_overrides",
        "raw",
        "sources",
        "defaults",
        "warnings",
    )
)
_PLAIN_ATTRIBUTES: Final = tuple(f.name for f in fields(BrokerConfig) if f.name not in _SPECIAL_ATTRIBUTES)
_DYNAMIC_KEYS: Final = frozenset(key.name for key in BROKER_KEYS.values() if key.mode != READ_ONLY)
_USED_KEYS: Final = frozenset(name.replace("_", ".") for name in (*_PLAIN_ATTRIBUTES, *_SPECIAL_ATTRIBUTES))
_NODE_ID_NAMES: Final = frozenset(("node.id", "broker.id"))
"""Two names of one key."""
_WITHOUT_EFFECT: Final = frozenset(
    name
    for name in BROKER_KEYS
    if name not in _USED_KEYS
    and name not in TOPIC_DEFAULT_KEYS
    and name not in SECURITY_KEYS
    and name not in {synonym for synonyms in CONFIG_SYNONYMS for synonym in synonyms}
    and name not in REFUSED_KEYS
    and name
    not in (
        "advertised.listeners",
        "barnabas.cluster.id",
        "broker.id",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "log.dir",
    )
)
_UNIT_MS: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def effective_value(key: str, value: Any) -> ConfigValue:
    """The value of `key` after its synonyms, in the unit of the first; `value(key)` gives the value of one key."""
    for synonyms in CONFIG_SYNONYMS:
        if key == synonyms[0]:
            for synonym in synonyms:
                number: ConfigValue = value(synonym)
                if isinstance(number, int):
                    number *= _UNIT_MS[synonym.rpartition(".")[2]]
                    # Any negative retention means without limit (KafkaConfig.logRetentionTimeMillis).
                    return -1 if number < 0 and key == "log.retention.ms" else number
    found: ConfigValue = value(key)
    return found


@dataclass(frozen=True, slots=True)
class Resolution:
    """What came of reading a configuration: everything wrong with it, and the result when nothing is."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    config: BrokerConfig | None


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds one sentence per mistake."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def load(
    *,
    options: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """`resolve`, for callers that only go on with a good configuration. Errors: ConfigError."""
    resolution = resolve(options=options, overrides=overrides, environ=environ, properties=properties)
    if resolution.config is None:
        raise ConfigError(resolution.errors)
    return resolution.config


def resolve(
    *,
    options: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Resolution:
    """Merge and check a configuration. The arguments map Kafka's keys to text; `environ` is the process environment.

    Besides `KAFKA_...`, `environ` is asked for CLUSTER_ID, XDG_DATA_HOME and HOME.
    """
    environ = environ or {}
    return _Resolver(
        (
            (FILE, properties or {}),
            (ENVIRONMENT, environment_configs(environ)),
            (OVERRIDE, overrides or {}),
            (OPTION, options or {}),
        ),
        environ,
    ).run()


def environment_configs(environ: Mapping[str, str]) -> dict[str, str]:
    """The keys set by `KAFKA_...` variables, as in the official image: `_` is a dot, `__` an underscore, `___` a dash.

    CLUSTER_ID, by which the image formats its storage, becomes the cluster id. Source: KafkaDockerWrapper.scala.
    """
    configs = {}
    for variable, text in environ.items():
        if not variable.startswith("KAFKA_") or variable in ENVIRONMENT_SKIPPED:
            continue
        if variable.startswith(ENVIRONMENT_SKIPPED_PREFIXES):
            continue
        key = variable[6:].lower().replace("_", ".").replace("...", "-").replace("..", "_")
        configs[key] = text
    if environ.get("CLUSTER_ID"):
        configs.setdefault("barnabas.cluster.id", environ["CLUSTER_ID"])
    return configs


def parse_address(text: str) -> tuple[str | None, int]:
    """HOST:PORT, [IPV6]:PORT or :PORT (all addresses, host None). Errors: ValueError that says what is expected."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT with a port of 0 to {PORT_MAX}")
    host: str | None = match[1] or match[2]
    return host or None, int(match[3])


def default_data_directory(environ: Mapping[str, str], node_id: int) -> str:
    """Where a broker keeps its logs when nobody says: `$XDG_DATA_HOME/barnabas/NODE_ID`."""
    base = environ.get("XDG_DATA_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".local", "share"
    )
    return os.path.join(base, "barnabas", str(node_id))


class _Resolver:
    """One run of `resolve`; collects errors and warnings as it goes."""

    def __init__(self, layers: Iterable[tuple[str, Mapping[str, str]]], environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.judged: set[str] = set()
        """Keys with an error or a warning: each key gets one verdict, the gravest."""
        self.raw: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        for source, configs in layers:
            self._merge(source, configs)

    def _merge(self, source: str, configs: Mapping[str, str]) -> None:
        # The layer that sets either name of the node id wins as a whole.
        if ("node.id" in configs) != ("broker.id" in configs):
            for name in _NODE_ID_NAMES:
                self.raw.pop(name, None)
        for key, text in configs.items():
            self.raw[key] = text
            self.sources[key] = source

    def run(self) -> Resolution:
        self._check_keys()
        self._unify_node_id()
        self.values: dict[str, ConfigValue] = {}
        for key in [key for key in self.raw if key in BROKER_KEYS]:
            self._parse(key)
        self._check_refused()
        node_id = self.value("node.id")
        assert isinstance(node_id, int)
        self.defaults: dict[str, ConfigValue] = {
            "log.dir": (default_data_directory(self.environ, node_id),),
            "broker.id": node_id,
        }
        self._check_relations()
        self._check_http_address()
        self._check_zookeeper()
        resolver = ListenerResolver(self)
        listeners = resolver.listeners()
        inter_broker = resolver.inter_broker_listener_name(listeners)
        overrides_per_ip = self._max_connections_per_ip_overrides()
        self._note_keys_without_effect()
        if self.errors:
            return Resolution(tuple(self.errors), tuple(self.warnings), tuple(self.notes), None)
        attributes: dict[str, Any] = {
            name: effective_value(name.replace("_", "."), self.value) for name in _PLAIN_ATTRIBUTES
        }
        config = BrokerConfig(
            node_id=node_id,
            cluster_id=self.text("barnabas.cluster.id"),
            listeners=listeners,
            inter_broker_listener_name=inter_broker,
            log_dirs=self._log_dirs(),
            max_connections_per_ip_overrides=overrides_per_ip,
            raw=self.raw,
            sources=self.sources,
            defaults=self.defaults,
            warnings=tuple(self.warnings),
            **attributes,
        )
        return Resolution((), config.warnings, tuple(self.notes), config)

    def value(self, key: str) -> ConfigValue:
        """The value of one key so far: parsed, or its default (also after an error, so that checking can go on)."""
        if key in self.values:
            return self.values[key]
        return self.defaults[key] if key in getattr(self, "defaults", ()) else BROKER_KEYS[key].default

    def text(self, key: str) -> str | None:
        value = self.value(key)
        return value if isinstance(value, str) else None

    def names(self, key: str) -> tuple[str, ...]:
        value = self.value(key)
        return value if isinstance(value, tuple) else ()

    def _number(self, key: str) -> float:
        value = effective_value(key, self.value)
        return value if isinstance(value, int | float) else 0

    def fail(self, key: str, reason: str) -> None:
        where = self.sources.get(key)
        self.errors.append(f"{reason} (from the {where})" if where in (FILE, ENVIRONMENT) else reason)
        self.judged.add(key)

    def _warn(self, key: str, what: str) -> None:
        """What is wrong with a key that nothing worse was said of."""
        if key not in self.judged:
            self.warnings.append(f"{key} {what}")
            self.judged.add(key)

    def _parse(self, key: str) -> None:
        definition = BROKER_KEYS[key]
        try:
            self.values[key] = parse(definition, self.raw[key])
        except ConfigValueError as error:
            if not (key in _NODE_ID_NAMES and self.judged & _NODE_ID_NAMES):
                self.fail(key, f"{error}. Allowed: {allowed_text(definition)}")

    def _note_keys_without_effect(self) -> None:
        accepted = sorted(key for key in self.raw if key in BROKER_KEYS and key not in self.judged)
        from_kraft = [key for key in accepted if key.startswith(KRAFT_PREFIXES)]
        without_effect = [key for key in accepted if key in _WITHOUT_EFFECT and key not in from_kraft]
        if from_kraft:
            self.notes.append(f"KRaft's keys have no effect: {', '.join(from_kraft)}")
        if without_effect:
            self.notes.append(f"accepted, without effect in Barnabas: {', '.join(without_effect)}")

    def _check_keys(self) -> None:
        for key in self.raw:
            if key in BROKER_KEYS or key in REFUSED_KEYS:
                continue
            if key in REMOVED_KEYS:
                self._warn(key, f"has no effect: {REMOVED_KEYS[key]}")
            elif key.startswith(ZOOKEEPER_REFUSED):
                if self.raw[key].strip().lower() not in ("", "false"):
                    self.fail(key, f"{key} cannot be used: {_NO_ZOOKEEPER_SECURITY}")
            elif key == "allow.everyone.if.no.acl.found":
                self._warn(key, "has no effect: there are no ACLs, everyone is allowed")
            elif (prefixed := _LISTENER_OVERRIDE.fullmatch(key)) is not None:
                self._check_listener_override(key, prefixed[1])
            elif not key.startswith(("rsm.config.", "rlmm.config.")):
                self._warn(key, f"is not a configuration of Kafka or Barnabas{_close_match(key)}")

    def _check_listener_override(self, key: str, base: str) -> None:
        if base in SECURITY_KEYS or base.endswith(("sasl.jaas.config", "callback.handler.class", "login.class")):
            self.fail(key, f"{key} asks for a secured listener: {NO_SECURITY}")
        else:
            self._warn(key, "has no effect: settings apply to all listeners")

    def _check_refused(self) -> None:
        for key, text in self.raw.items():
            if key in REFUSED_KEYS and text.strip():
                self.fail(key, f"Invalid value {text} for configuration {key}: {REFUSED_KEYS[key]}")
            elif key in SECURITY_KEYS and key in self.values and self.values[key] != BROKER_KEYS[key].default:
                shown = "[hidden]" if BROKER_KEYS[key].type == PASSWORD else text
                self.fail(key, f"Invalid value {shown} for configuration {key}: {NO_SECURITY}")
        if self.value("remote.log.storage.system.enable") is True:
            key = "remote.log.storage.system.enable"
            self.fail(key, f"Invalid value true for configuration {key}: tiered storage is not supported")

    def _unify_node_id(self) -> None:
        node_id, broker_id = self.raw.get("node.id"), self.raw.get("broker.id")
        if broker_id is not None and broker_id.strip() == "-1":
            # 3.9's "generate one": the default is as good.
            del self.raw["broker.id"]
            broker_id = None
        if node_id is None and broker_id is not None:
            self.raw["node.id"] = broker_id
            self.sources["node.id"] = self.sources["broker.id"]
        elif node_id is not None and broker_id is None:
            self.raw["broker.id"] = node_id
            self.sources["broker.id"] = self.sources["node.id"]
        elif node_id is not None and broker_id is not None and node_id.strip() != broker_id.strip():
            self.fail("node.id", f"node.id ({node_id}) and broker.id ({broker_id}) must be equal")

    def _log_dirs(self) -> tuple[str, ...]:
        return tuple(os.path.abspath(path) for path in self.names("log.dirs") or self.names("log.dir"))

    def _check_relations(self) -> None:
        """The rules that join several keys (KafkaConfig.validateValues)."""
        number = self._number
        rules = (
            ("log.roll.ms", number("log.roll.ms") >= 1, "log.roll.ms must be at least 1"),
            ("log.roll.jitter.ms", number("log.roll.jitter.ms") >= 0, "log.roll.jitter.ms must be at least 0"),
            (
                "log.retention.ms",
                number("log.retention.ms") != 0,
                "log.retention.ms must be -1 (unlimited) or at least 1",
            ),
            (
                "replica.fetch.wait.max.ms",
                number("replica.fetch.wait.max.ms") <= number("replica.socket.timeout.ms"),
                "replica.fetch.wait.max.ms must not exceed replica.socket.timeout.ms",
            ),
            (
                "replica.fetch.wait.max.ms",
                number("replica.fetch.wait.max.ms") <= number("replica.lag.time.max.ms"),
                "replica.fetch.wait.max.ms must not exceed replica.lag.time.max.ms",
            ),
            (
                "queued.max.request.bytes",
                number("queued.max.request.bytes") <= 0
                or number("queued.max.request.bytes") >= number("socket.request.max.bytes"),
                "queued.max.request.bytes must be at least socket.request.max.bytes, or -1",
            ),
            (
                "group.min.session.timeout.ms",
                number("group.min.session.timeout.ms") <= number("group.max.session.timeout.ms"),
                "group.min.session.timeout.ms must not exceed group.max.session.timeout.ms",
            ),
            (
                "log.cleaner.min.compaction.lag.ms",
                number("log.cleaner.min.compaction.lag.ms") <= number("log.cleaner.max.compaction.lag.ms"),
                "log.cleaner.min.compaction.lag.ms must not exceed log.cleaner.max.compaction.lag.ms",
            ),
            (
                "max.connections.per.ip",
                number("max.connections.per.ip") != 0 or bool(self.value("max.connections.per.ip.overrides")),
                "max.connections.per.ip can be 0 only if max.connections.per.ip.overrides is set",
            ),
        )
        for key, holds, sentence in rules:
            if not holds:
                self.fail(key, sentence)
                self.judged.update(sentence.split())  # which names all keys that the rule joins

    def _check_http_address(self) -> None:
        key = "barnabas.http.address"
        address = self.text(key)
        try:
            if address is not None:
                parse_address(address)
        except ValueError as error:
            self.fail(key, f"Invalid value {address} for configuration {key}: {error}")

    def _check_zookeeper(self) -> None:
        """Kafka's `zookeeper.connect`: HOST:PORT,HOST:PORT/chroot, the port 2181 where it is left out."""
        key = "zookeeper.connect"
        text = self.raw.get(key, "").strip()
        if self.value("zookeeper.set.acl") is True:
            self.fail(
                "zookeeper.set.acl",
                f"Invalid value true for configuration zookeeper.set.acl: {_NO_ZOOKEEPER_SECURITY}",
            )
        if not text:
            self.values.pop(key, None)
            for key in sorted(self.raw):
                if key.startswith("zookeeper.") and key in BROKER_KEYS and self.raw[key].strip():
                    self._warn(key, "has no effect without zookeeper.connect")
            return
        servers, slash, chroot = text.partition("/")
        if not all(_ZOOKEEPER_SERVER.fullmatch(server.strip()) for server in servers.split(",")):
            self.fail(key, f"Invalid value {text} for configuration {key}: expected HOST:PORT,HOST:PORT/chroot")
        elif slash and chroot and not all(part not in ("", ".", "..") for part in chroot.rstrip("/").split("/")):
            self.fail(key, f"Invalid value {text} for configuration {key}: the chroot must be a path")

    def _max_connections_per_ip_overrides(self) -> dict[str, int]:
        limits = {}
        key = "max.connections.per.ip.overrides"
        for entry in filter(None, (part.strip() for part in (self.text(key) or "").split(","))):
            host, _, limit = entry.rpartition(":")
            if not host or not limit.isdecimal():
                self.fail(key, f"Invalid value {entry} for configuration {key}: Expected HOST:LIMIT, comma separated")
            else:
                limits[host.strip("[]")] = int(limit)
        return limits


def _close_match(key: str) -> str:
    import difflib

    found = difflib.get_close_matches(key, BROKER_KEYS, n=1, cutoff=0.8)
    return f"; did you mean {found[0]}?" if found else ""
