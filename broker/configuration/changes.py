"""Changes of dynamic configs, for AlterConfigs and IncrementalAlterConfigs: checks first, then a write per resource.

Each resource of a request succeeds or fails by itself. Broker configs are checked by the broker that they belong to,
topic configs against the table of topic keys. Source: ConfigAdminManager.scala, ConfigurationControlManager.java and
DynamicBrokerConfig.java of Kafka 4.3.0, whose error codes and messages are used here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from barnabas.broker.configuration import sasl_changes
from barnabas.broker.configuration.definitions import (
    CLUSTER_WIDE,
    LIST,
    READ_ONLY,
    ConfigKey,
    ConfigValueError,
    parse,
    to_text,
)
from barnabas.broker.configuration.keys import (
    BROKER_KEYS,
    LISTENER_PREFIX,
    SECURITY_KEYS,
    TLS_DYNAMIC_KEYS,
    broker_key,
)
from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.configuration.stored_passwords import StoredPasswords, is_password
from barnabas.broker.configuration.topics import DEFAULT_ENTITY, TOPIC_KEYS, TopicConfigs
from barnabas.controller.configs import stored_bytes
from barnabas.controller.topics import check_topic_name
from barnabas.threads import Threads
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.configuration.config import BrokerConfig
    from barnabas.controller.configs import ConfigRepository

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""Resource types (ConfigResource.Type)."""

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
OPERATION_NAMES: Final = ("SET", "DELETE", "APPEND", "SUBTRACT")

_VALUE_LENGTH_MAX: Final = 32_767
OVERRIDES_MAX: Final = 1_000
"""The limit of overrides of a topic, a broker, or the default of all brokers: unknown names are stored, too, as in
Kafka."""
OVERRIDES_BYTES_MAX: Final = 512 * 1024
"""The limit of bytes of the overrides of a topic, a broker or the default of all brokers; ZooKeeper
accepts a megabyte."""
ALL_OVERRIDES_BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit of bytes of all overrides of all topics and brokers together, as `stored_bytes` estimates them: those of
50,000 topics with half a dozen each."""
RESOURCES_PER_TURN: Final = 16
"""The number of resources after which other requests have their turn."""
_LISTENER_OVERRIDE: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")

_LISTENER_PREFIX_NEEDED: Final = (
    "These security configs can be dynamically updated only per-listener using the listener prefix"
)

Overrides = Mapping[str, str]


class Resource(Protocol):
    """A resource of either request."""

    resource_type: int
    resource_name: str
    configs: Any


ResourceType = TypeVar("ResourceType", bound=Resource)


class ConfigChanges:
    """Changes the configs in the metadata store, of topics (those in `topics`) and of brokers, on behalf of broker
    `node_id`.

    `passwords` encodes those in configs of brokers, in `threads`; without it none are stored. `check_listeners` checks
    whether the broker's listeners may change to a configuration, and raises ApiError.
    """

    def __init__(
        self,
        node_id: int,
        topic_configs: TopicConfigs,
        repository: ConfigRepository,
        topics: Container[str],
        passwords: StoredPasswords | None = None,
        check_listeners: Callable[[BrokerConfig], Awaitable[None]] | None = None,
        threads: Threads | None = None,
    ) -> None:
        self._passwords = passwords
        self._check_listeners = check_listeners
        self._threads = threads
        self._node_id = node_id
        self._topic_configs = topic_configs
        self._repository = repository
        self._topics = topics

    async def alter(
        self,
        resources: Sequence[ResourceType],
        new_overrides: Callable[[ResourceType, Overrides], Overrides],
        check: Callable[[ResourceType], None],
        *,
        validate_only: bool,
        alter_loggers: Callable[[ResourceType], None] | None = None,
    ) -> list[ApiError | None]:
        """Change the configs of every resource that can be changed; one outcome per resource, None for success.

        `new_overrides(resource, current)` computes a resource's new overrides; it raises ApiError. `check(resource)`
        raises ApiError if the client may not alter a resource, before it is looked up. `alter_loggers`
        handles resources of type BROKER_LOGGER; without it they are refused.
        """
        seen: dict[tuple[int, str], int] = {}
        for resource in resources:
            identity = (resource.resource_type, resource.resource_name)
            seen[identity] = seen.get(identity, 0) + 1
        outcomes: list[ApiError | None] = []
        turns = Turns(RESOURCES_PER_TURN)
        for resource in resources:
            await turns.after_one()
            if seen[resource.resource_type, resource.resource_name] > 1:
                outcomes.append(ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."))
                continue
            try:
                _check_names(resource)
                check(resource)
                if resource.resource_type == BROKER_LOGGER and alter_loggers is not None:
                    alter_loggers(resource)
                else:
                    await self._alter_one(resource, new_overrides, validate_only=validate_only)
            except ApiError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    async def _alter_one(
        self,
        resource: ResourceType,
        new_overrides: Callable[[ResourceType, Overrides], Overrides],
        *,
        validate_only: bool,
    ) -> None:
        if resource.resource_type == BROKER:
            entity_type, name = "brokers", _broker_entity(resource.resource_name, self._node_id)
        elif resource.resource_type == TOPIC:
            entity_type, name = "topics", resource.resource_name
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")

        encoded: dict[str, str] = {}

        def decide(current: Overrides) -> Overrides:
            overrides = new_overrides(resource, current)
            for key, text in overrides.items():
                if len(text) > _VALUE_LENGTH_MAX:
                    raise ApiError(
                        ErrorCode.INVALID_CONFIG, f"The value of {key} is longer than {_VALUE_LENGTH_MAX} characters."
                    )
            check_room(current, overrides, self._repository.held_bytes)
            if entity_type == "brokers":
                decoded = self._decoded(current)
                after = new_overrides(resource, decoded)
                self._check_broker_configs(after, per_broker=name != DEFAULT_ENTITY)
                sasl_changes.check(decoded, after)
            else:
                self._check_topic_configs(name, overrides)
            return {key: encoded.get(key, text) for key, text in overrides.items()}

        async with self._topic_configs.change_lock:
            current = self._repository.overrides(entity_type, name)
            if entity_type == "brokers":
                decide(current)
                if self._check_listeners is not None:
                    await self._check_listeners(self._config_with(new_overrides(resource, self._decoded(current))))
                encoded.update(await self._encoded(resource))
            if validate_only:
                decide(current)
            else:
                await self._repository.change(entity_type, name, decide, if_topic_exists=entity_type == "topics")

    async def _encoded(self, resource: Resource) -> dict[str, str]:
        """The passwords among a resource's new values, encoded, by their keys. Raises ApiError."""
        values = {each.name: each.value for each in resource.configs if each.value is not None}
        plain = {name: text for name, text in values.items() if is_password(name)}
        if not plain:
            return {}
        if self._passwords is None or self._threads is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Passwords cannot be stored")
        return await self._threads.call(self._passwords.encode, plain)

    def _decoded(self, overrides: Overrides) -> Overrides:
        return overrides if self._passwords is None else self._passwords.decoded(overrides)

    def _config_with(self, per_broker: Overrides) -> BrokerConfig:
        """The configuration that this broker would have with these overrides of its own."""
        levels = self._topic_configs.levels()
        config = LiveConfig(levels.static)
        config.change({**self._decoded(levels.cluster_wide), **per_broker})
        return config

    def _check_topic_configs(self, topic: str, overrides: Overrides) -> None:
        if not topic:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(topic)
        error = self._topic_configs.validate(overrides)
        if error is not None:
            raise error
        if topic not in self._topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")

    def _check_broker_configs(self, overrides: Overrides, *, per_broker: bool) -> None:
        """Errors: INVALID_REQUEST for all of them, as in Kafka (KAFKA-13609 keeps it so)."""

        def refuse(names: list[str], reason: str) -> None:
            if names:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{reason}: [{', '.join(sorted(names))}]")

        known = {name: key for name in overrides if (key := broker_key(name)) is not None}
        refuse([name for name in overrides if name in TLS_DYNAMIC_KEYS], _LISTENER_PREFIX_NEEDED)
        refuse(
            [name for name, key in known.items() if key.mode == READ_ONLY], "Cannot update these configs dynamically"
        )
        refuse([name for name in overrides if _asks_for_security(name)], "Cannot update these configs dynamically")
        refuse(
            [name for name, key in known.items() if key.is_fixed], "These configs cannot be changed in a running broker"
        )
        try:
            for name, key in known.items():
                parse(key, overrides[name])
        except ConfigValueError as error:
            raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
        if not per_broker:
            refuse(
                [name for name, key in known.items() if key.mode != CLUSTER_WIDE or name.startswith(LISTENER_PREFIX)],
                "These configs belong to single brokers: name one by its id",
            )
        levels = self._topic_configs.levels()
        own = self._decoded(levels.per_broker)
        merged = {**levels.cluster_wide, **overrides} if per_broker else {**overrides, **own}
        problems = levels.static.check_dynamic(merged)
        if problems:
            raise ApiError(ErrorCode.INVALID_REQUEST, "; ".join(problems))


def check_room(current: Overrides, overrides: Mapping[str, str | None], held_bytes: int) -> None:
    """Check that an entity's new overrides fit in place of its `current` ones; smaller ones always fit. `held_bytes` is
    the size of all entities' overrides. Errors: POLICY_VIOLATION.
    """
    if len(overrides) > max(OVERRIDES_MAX, len(current)):
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"More than {OVERRIDES_MAX} configs of one resource are not kept.")
    added = stored_bytes(overrides) - stored_bytes(current)
    if added <= 0:
        return
    size = sum(len(name) + len(text or "") for name, text in overrides.items())
    if size > OVERRIDES_BYTES_MAX:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{size} bytes of configs of one resource are not kept.")
    if held_bytes + added > ALL_OVERRIDES_BYTES_MAX:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "The configs of all topics and brokers take too much memory.")


def _check_names(resource: Resource) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        config.name
        for config in resource.configs
        if config.value is None and getattr(config, "config_operation", SET) != DELETE
    ]
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _broker_entity(resource_name: str, node_id: int) -> str:
    if not resource_name:
        return DEFAULT_ENTITY
    if broker_id(resource_name, "Node id") != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {resource_name}"
        )
    return str(node_id)


def broker_id(resource_name: str, what: str) -> int:
    """The number in a broker resource's name. Errors: INVALID_REQUEST."""
    if re.fullmatch(r"[+-]?[0-9]{1,10}", resource_name) is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {resource_name}")
    return int(resource_name)


def _asks_for_security(name: str) -> bool:
    """Whether a key is one of security that may not change."""
    prefixed = _LISTENER_OVERRIDE.fullmatch(name)
    if (prefixed is not None and prefixed[1] in TLS_DYNAMIC_KEYS) or sasl_changes.is_dynamic(name):
        return False
    key = broker_key(name)
    return (key is not None and key.name in SECURITY_KEYS) or (
        prefixed is not None and prefixed[1].endswith(("jaas.config", "handler.class", "login.class"))
    )


def apply_operations(resource: Any, current: Overrides) -> Overrides:
    """The overrides after the SET, DELETE, APPEND and SUBTRACT operations of an incremental change.

    Appending to a list that is not set starts from its default; existing items are not added twice. Errors:
    INVALID_CONFIG for APPEND and SUBTRACT on keys that are no lists, INVALID_REQUEST for unknown operations.
    """
    keys = BROKER_KEYS if resource.resource_type == BROKER else TOPIC_KEYS
    overrides = dict(current)
    for config in resource.configs:
        operation = config.config_operation
        if operation == SET:
            overrides[config.name] = config.value
        elif operation == DELETE:
            overrides.pop(config.name, None)
        elif operation in (APPEND, SUBTRACT):
            items = _list_items(keys.get(config.name), config.name, operation, overrides)
            change = _appended if operation == APPEND else _subtracted
            overrides[config.name] = ",".join(change(items, config.value.split(",")))
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    return overrides


def _appended(items: list[str], added: list[str]) -> list[str]:
    there = set(items)
    return items + [item for item in dict.fromkeys(added) if item not in there]


def _subtracted(items: list[str], removed: list[str]) -> list[str]:
    """The list without as many of each item, from the front, as are removed."""
    left = Counter(removed)
    kept = []
    for item in items:
        left[item] -= 1
        if left[item] < 0:
            kept.append(item)
    return kept


def _list_items(key: ConfigKey[Any] | None, name: str, operation: int, overrides: Overrides) -> list[str]:
    if key is None or key.type != LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, f"Can't {OPERATION_NAMES[operation]} to key {name} because its type is not LIST."
        )
    text = overrides.get(name)
    if text is None:
        text = to_text(key.default) or ""
    return [item for item in text.split(",") if item]
