"""The broker's configuration at its start: Kafka's keys, read from five places, checked together, one frozen object.
Changes at run time are in `LiveConfig` (`live_config.py`).

Precedence, highest first: command-line options, `--override KEY=VALUE`, `KAFKA_...` environment variables, the
properties file, defaults. `resolve` never stops at the first error: a `Resolution` lists every error and warning, and
has a `BrokerConfig` only when there is no error.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from barnabas.broker.configuration.definitions import (
    ConfigValue,
    ConfigValueError,
    allowed_text,
    expected_text,
    parse,
)
from barnabas.broker.configuration.environment_variables import environment_configs
from barnabas.broker.configuration.keys import (
    BROKER_KEYS,
    KRAFT_PREFIXES,
    OBEYED_KEYS,
    REFUSED_KEYS,
    REMOVED_KEYS,
    SECURITY_KEYS,
    UNUSED_KEYS,
    ZOOKEEPER_KEYS,
    ZOOKEEPER_REFUSED,
    broker_key,
)
from barnabas.broker.configuration.listeners import HTTP, PORT_MAX, ListenerResolver
from barnabas.broker.configuration.properties import Properties
from barnabas.broker.configuration.security_values import WITHOUT_EFFECT, refusal
from barnabas.broker.configuration.tables.broker import BrokerKeys

OPTION: Final = "command line"
OVERRIDE: Final = "--override"
ENVIRONMENT: Final = "environment"
FILE: Final = "file"
DEFAULT: Final = "default"


DEFAULTS_WITH_ZOOKEEPER: Final[Mapping[str, ConfigValue]] = MappingProxyType(
    {
        "offsets.topic.replication.factor": 3,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
    }
)
"""Kafka's defaults, for clusters that may have several brokers; a broker that is always alone has those
of the table."""

AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""The values of `authorizer.class.name`: both mean the authorizer of this broker. The first is that of Kafka in
ZooKeeper mode, the second that of KRaft."""

_NO_MIGRATION: Final = "metadata is not migrated from ZooKeeper to KRaft"

_ADDRESS: Final = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]/]*)):([0-9]{1,5})")
_LISTENER_OVERRIDE: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")


class BrokerConfig(BrokerKeys):
    """A checked configuration. Each row of `BrokerKeys` is an attribute; keys without an effect: `value(key)`.

    Args:
        values: by the names of the attributes.
        raw: all values that were set, by key, as text.
        sources: the places where they were set, by key.
        defaults: those that depend on the environment (log.dir) and replace the table's.
        warnings: problems of the configuration that do not keep the broker from starting.
    """

    raw: Mapping[str, str]
    sources: Mapping[str, str]
    defaults: Mapping[str, ConfigValue]
    warnings: tuple[str, ...]

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        raw: Mapping[str, str],
        sources: Mapping[str, str],
        defaults: Mapping[str, ConfigValue],
        warnings: tuple[str, ...],
    ) -> None:
        vars(self).update(values, raw=raw, sources=sources, defaults=defaults, warnings=warnings)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a configuration is never changed: {name}")

    @property
    def cluster_id(self) -> str | None:
        """`barnabas.cluster.id`."""
        return self.barnabas_cluster_id

    def value(self, key: str) -> ConfigValue:
        """The typed value of any key of `BROKER_KEYS`, set or default. Errors: KeyError for unknown keys."""
        definition = BROKER_KEYS[key]
        if key in self.raw:
            return parse(definition, self.raw[key])
        return self.default(key)

    def number(self, key: str) -> int:
        """The value of a key that has an integer."""
        value = self.value(key)
        assert isinstance(value, int)
        return value

    def default(self, key: str) -> ConfigValue:
        """The default of a key on this machine."""
        return self.defaults[key] if key in self.defaults else BROKER_KEYS[key].default

    def value_for_listener(self, listener: str, key: str, mechanism: str = "") -> ConfigValue:
        """The value of `key` for one listener, and one SASL mechanism of it: the first that is set of
        `listener.name.LISTENER.MECHANISM.KEY`, `listener.name.LISTENER.KEY` and `KEY` (KIP-103, KIP-226), else the
        default.

        `resolve` has checked the values.
        """
        for name in listener_keys(listener, key, mechanism):
            text = self.text_of(name)
            if text is not None:
                return parse(BROKER_KEYS[key], text)
        return self.default(key)

    def text_of(self, name: str) -> str | None:
        """The text of a key, with or without a prefix, as it was set; None if it was not."""
        return self.raw.get(name)

    @property
    def has_http_tls(self) -> bool:
        """Whether the HTTP port has TLS: it has a key of its own."""
        keys = (f"listener.name.{HTTP.lower()}.ssl.keystore.{name}" for name in ("location", "key"))
        return self.barnabas_http_address is not None and any(self.text_of(key) is not None for key in keys)

    @property
    def has_protected_zookeeper(self) -> bool:
        """Whether sessions with ZooKeeper have more than a plain connection: TLS, a login, ACLs of znodes."""
        return self.zookeeper_connect is not None and (
            self.zookeeper_ssl_client_enable
            or self.zookeeper_set_acl
            or self.java_security_auth_login_config is not None
            or self.barnabas_zookeeper_digest is not None
        )

    def source(self, key: str) -> str:
        """The source of the value of `key`: one of OPTION, OVERRIDE, ENVIRONMENT, FILE, DEFAULT."""
        return self.sources.get(key, DEFAULT)

    def current_value(self, key: str, dynamic: Mapping[str, str]) -> ConfigValue:
        """The value of `key`, where `dynamic` holds the changes at run time."""
        if key in dynamic:
            try:
                return parse(BROKER_KEYS[key], dynamic[key])
            except ConfigValueError:
                pass  # Written directly to the store, without the checks: the former value stays in force.
        return self.value(key)

    def check_dynamic(self, dynamic: Mapping[str, str]) -> tuple[str, ...]:
        """The errors of this configuration with `dynamic` applied, including rules that join several keys."""
        return resolve(options={**self.raw, **_of_consequence(dynamic)}).errors


def _of_consequence(dynamic: Mapping[str, str]) -> dict[str, str]:
    """Without unknown names: suggestions for these are only for the user who starts a broker."""
    return {
        name: text
        for name, text in dynamic.items()
        if broker_key(name) is not None or name in REFUSED_KEYS or name.startswith(ZOOKEEPER_REFUSED)
    }


def listener_keys(listener: str, key: str, mechanism: str = "") -> list[str]:
    """The names under which `key` may be set for a listener, and a SASL mechanism of it; the first that is set
    counts."""
    prefix = f"listener.name.{listener.lower()}."
    return [*([f"{prefix}{mechanism.lower()}.{key}"] if mechanism else []), f"{prefix}{key}", key]


_NODE_ID_NAMES: Final = frozenset(("node.id", "broker.id"))
"""Two names of one key."""
_UNIT_MS: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def effective_value(name: str, value: Callable[[str], ConfigValue]) -> Any:
    """The effective value of a key: its own, or that of the first of its synonyms that is set, in the key's own unit
    and as its attribute has it. `value(name)` returns the value of one key by itself.
    """
    key = BROKER_KEYS[name]
    for synonym in key.synonyms and (name, *key.synonyms):
        number = value(synonym)
        if isinstance(number, int):
            number *= _UNIT_MS[synonym.rpartition(".")[2]]
            # Any negative retention means without limit (KafkaConfig.logRetentionTimeMillis).
            return -1 if number < 0 and name == "log.retention.ms" else number
    return value(name) if key.convert is None else key.convert(value(name))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of reading a configuration: all errors, and the configuration when there are none."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    config: BrokerConfig | None


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds one sentence per error."""

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
    """`resolve`, for callers that need a valid configuration. Errors: ConfigError."""
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
    options_as_given: Mapping[str, str] | None = None,
    unless_set: Mapping[str, str] | None = None,
) -> Resolution:
    """Merge and check a configuration. The arguments map Kafka's keys to text; `environ` is the process environment.

    Besides `KAFKA_...`, CLUSTER_ID, XDG_DATA_HOME and HOME of `environ` are used. `options_as_given` has the text that
    the user typed for each of `options`, for example `--http foo`: errors of its value name that. `unless_set` are
    defaults of this program's own.
    """
    environ = environ or {}
    from_environment = environment_configs(environ)
    return _Resolver(
        (
            (DEFAULT, unless_set or {}),
            (FILE, properties or {}),
            (ENVIRONMENT, from_environment),
            (OVERRIDE, overrides or {}),
            (OPTION, options or {}),
        ),
        environ,
        options_as_given or {},
        properties.lines if isinstance(properties, Properties) else {},
        from_environment.variables,
    ).run()


def parse_address(text: str) -> tuple[str | None, int]:
    """Parse HOST:PORT, [IPV6]:PORT or :PORT (all addresses, host None). Errors: ValueError with the expected form."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match[3]) > PORT_MAX:
        raise ValueError(f"{text!r} is not HOST:PORT with a port of 0 to {PORT_MAX}")
    host: str | None = match[1] or match[2]
    return host or None, int(match[3])


def default_data_directory(environ: Mapping[str, str], node_id: int) -> str:
    """The default directory of a broker's logs: `$XDG_DATA_HOME/barnabas/NODE_ID`."""
    base = environ.get("XDG_DATA_HOME") or os.path.join(
        environ.get("HOME") or os.path.expanduser("~"), ".local", "share"
    )
    return os.path.join(base, "barnabas", str(node_id))


class _Resolver:
    """One run of `resolve`; collects errors and warnings."""

    def __init__(
        self,
        layers: Iterable[tuple[str, Mapping[str, str]]],
        environ: Mapping[str, str],
        options_as_given: Mapping[str, str],
        lines: Mapping[str, Sequence[int]],
        variables: Mapping[str, str],
    ) -> None:
        self.environ = environ
        self.options_as_given = options_as_given
        self.lines = lines
        """The lines of the file, by key."""
        self.variables = variables
        """The variables of the environment, by key."""
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.judged: set[str] = set()
        """Keys with an error or a warning: only the most severe one of each key is reported."""
        self.raw: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        for source, configs in layers:
            self._merge(source, configs)

    def _merge(self, source: str, configs: Mapping[str, str]) -> None:
        # The layer that sets either name of the node id replaces both.
        if ("node.id" in configs) != ("broker.id" in configs):
            for name in _NODE_ID_NAMES:
                self.raw.pop(name, None)
        for key, text in configs.items():
            self.raw[key] = text
            self.sources[key] = source

    def run(self) -> Resolution:
        self._check_keys()
        self._check_repetitions()
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
        if self.raw.get("zookeeper.connect", "").strip():
            self.defaults |= DEFAULTS_WITH_ZOOKEEPER
        self._check_relations()
        self._check_replication()
        self._check_http_address()
        if not self._has_zookeeper():
            self.values.pop("zookeeper.connect", None)
        resolver = ListenerResolver(self)
        listeners = resolver.listeners()
        inter_broker = resolver.inter_broker_listener_name(listeners)
        self._note_keys_without_effect()
        if self.errors:
            return Resolution(tuple(self.errors), tuple(self.warnings), tuple(self.notes), None)
        values = {key.attribute: effective_value(key.name, self.value) for key in OBEYED_KEYS}
        values["listeners"] = listeners
        values["inter_broker_listener_name"] = inter_broker
        values["log_dirs"] = self._log_dirs()
        config = BrokerConfig(
            values, raw=self.raw, sources=self.sources, defaults=self.defaults, warnings=tuple(self.warnings)
        )
        self._check_sasl(config)
        if self.errors:
            return Resolution(tuple(self.errors), config.warnings, tuple(self.notes), None)
        return Resolution((), config.warnings, tuple(self.notes), config)

    def _check_sasl(self, config: BrokerConfig) -> None:
        """Check that the mechanisms of listeners with SASL can be made."""
        if with_sasl := [each.name for each in config.listeners if each.has_sasl]:
            from barnabas.broker.security.sasl.making_clients import problems

            has_others = config.zookeeper_connect is not None
            of_brokers = config.inter_broker_listener_name if has_others else None
            self.errors += problems(with_sasl, of_brokers, config.value_for_listener)

    def value(self, key: str) -> ConfigValue:
        """The value of one key so far: parsed, or its default (also after an error, so that checking can continue)."""
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
        if where == OPTION and key in self.options_as_given:
            # A user who typed an option may not know the key.
            reason = f"{self.options_as_given[key]}: {reason.rpartition(f' for configuration {key}: ')[2]}"
        elif where in (FILE, ENVIRONMENT, OVERRIDE):
            reason = f"{reason} (from {'' if where == OVERRIDE else 'the '}{where}{self._place(key)})"
        self.errors.append(reason)
        self.judged.add(key)

    def warn(self, key: str, what: str) -> None:
        """Add a warning about a key without an error or another warning."""
        if key not in self.judged:
            place = self._place(key)
            self.warnings.append(f"{key} {what} (the {self.sources[key]}{place})" if place else f"{key} {what}")
            self.judged.add(key)

    def _place(self, key: str) -> str:
        """The line or the variable of a key, if its value comes from the file or the environment."""
        source = self.sources.get(key)
        if source == FILE and key in self.lines:
            return f", line {self.lines[key][-1]}"
        return f", {self.variables[key]}" if source == ENVIRONMENT else ""

    def _check_repetitions(self) -> None:
        for key, lines in self.lines.items():
            if len(lines) > 1:
                told = f"{', '.join(map(str, lines[:-1]))} and {lines[-1]}"
                self.warnings.append(f"{key} is set at the lines {told} of the file: the last one counts")

    def _parse(self, key: str) -> None:
        definition = BROKER_KEYS[key]
        try:
            self.values[key] = parse(definition, self.raw[key])
        except ConfigValueError as error:
            if not (key in _NODE_ID_NAMES and self.judged & _NODE_ID_NAMES):
                self.fail(key, self._refusal(key, error))

    def _refusal(self, key: str, error: ConfigValueError) -> str:
        definition = BROKER_KEYS[key]
        if self.sources[key] == OPTION and key in self.options_as_given:
            return f"expected {expected_text(definition)}"
        return f"{error}. Allowed: {allowed_text(definition)}"

    def _has_zookeeper(self) -> bool:
        """Check the keys of ZooKeeper, if any is set; returns whether there is a ZooKeeper."""
        if not any(each.startswith(ZOOKEEPER_KEYS) for each in self.raw):
            return False
        from barnabas.broker.configuration.zookeeper import check_zookeeper

        return check_zookeeper(self)

    def _note_keys_without_effect(self) -> None:
        accepted = sorted(key for key in self.raw if key in BROKER_KEYS and key not in self.judged)
        from_kraft = [key for key in accepted if key.startswith(KRAFT_PREFIXES)]
        without_effect = [key for key in accepted if key in UNUSED_KEYS | WITHOUT_EFFECT and key not in from_kraft]
        if from_kraft:
            self.notes.append(f"KRaft's keys have no effect: {', '.join(from_kraft)}")
        if without_effect:
            self.notes.append(f"accepted, without effect in Barnabas: {', '.join(without_effect)}")

    def _check_keys(self) -> None:
        for key in self.raw:
            if key in BROKER_KEYS or key in REFUSED_KEYS:
                continue
            if key in REMOVED_KEYS:
                self.warn(key, f"has no effect: {REMOVED_KEYS[key]}")
            elif key.startswith(ZOOKEEPER_REFUSED):
                if self.raw[key].strip().lower() not in ("", "false"):
                    self.fail(key, f"{key} cannot be used: {_NO_MIGRATION}")
            elif (prefixed := _LISTENER_OVERRIDE.fullmatch(key)) is not None:
                self._check_listener_override(key, prefixed[1])
            elif not key.startswith(("rsm.config.", "rlmm.config.")):
                self.warn(key, f"is not a configuration of Kafka or Barnabas{_close_match(key)}")

    def _check_listener_override(self, key: str, base: str) -> None:
        """Check a key with the prefix of a listener, and perhaps that of a SASL mechanism ("scram-sha-256.")."""
        name = base if base in BROKER_KEYS else base.partition(".")[2]
        if name not in SECURITY_KEYS:
            self.warn(key, "has no effect: this setting applies to all listeners")
            return
        try:
            parse(BROKER_KEYS[name], self.raw[key], key)
        except ConfigValueError as error:
            self.fail(key, f"{error}. Allowed: {allowed_text(BROKER_KEYS[name])}")

    def _check_refused(self) -> None:
        for key, text in self.raw.items():
            if key in REFUSED_KEYS and text.strip():
                self.fail(key, f"Invalid value {text} for configuration {key}: {REFUSED_KEYS[key]}")
        if self.value("remote.log.storage.system.enable") is True:
            key = "remote.log.storage.system.enable"
            self.fail(key, f"Invalid value true for configuration {key}: tiered storage is not supported")
        self._check_security_values()
        self._check_authorizer()

    def _check_security_values(self) -> None:
        for key, text in self.raw.items():
            definition = broker_key(key)
            if definition is not None and (reason := refusal(definition, key, text)) is not None:
                self.fail(key, reason)

    def _check_authorizer(self) -> None:
        key, text = "authorizer.class.name", self.text("authorizer.class.name")
        if text and text not in AUTHORIZERS:
            reason = f"other Java classes cannot be loaded. Allowed: {', '.join(AUTHORIZERS)}"
            self.fail(key, f"Invalid value {text} for configuration {key}: {reason}")
        key = "super.users"
        for part in (self.text(key) or "").split(";"):
            if part.strip() and ":" not in part:
                reason = "expected TYPE:NAME;TYPE:NAME, such as User:admin"
                self.fail(key, f"Invalid value {part.strip()} for configuration {key}: {reason}")

    def _unify_node_id(self) -> None:
        node_id, broker_id = self.raw.get("node.id"), self.raw.get("broker.id")
        if broker_id is not None and broker_id.strip() == "-1":
            # "Generate one" in 3.9: the default is as good.
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
                self.judged.update(sentence.split())  # this includes all keys that the rule joins

    def _check_replication(self) -> None:
        """Warn of settings that are valid in Kafka, but impossible for a broker that is alone. InternalTopics handles
        internal topics."""
        if self.text("zookeeper.connect") is not None:
            return
        for key, consequence in (
            ("default.replication.factor", "only topics with a replication factor of their own can be created"),
            ("min.insync.replicas", "its topics have one replica, which is enough for acks=all"),
        ):
            if self._number(key) > 1:
                self.warn(key, f"of {self.value(key)}: without zookeeper.connect a broker is alone, so {consequence}")

    def _check_http_address(self) -> None:
        key = "barnabas.http.address"
        address = self.text(key)
        try:
            if address is not None:
                parse_address(address)
        except ValueError as error:
            self.fail(key, f"Invalid value {address} for configuration {key}: {error}")


def _close_match(key: str) -> str:
    import difflib

    found = difflib.get_close_matches(key, BROKER_KEYS, n=1, cutoff=0.8)
    return f"; did you mean {found[0]}?" if found else ""
