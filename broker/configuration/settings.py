"""Settings: a dataclass with those keys that one part of the broker obeys, and whatever else it goes by. What a key is
when it is not set stands in its row alone."""

from dataclasses import field, fields
from typing import Any, TypeVar, cast

from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.configuration.tables.broker import BrokerKeys

Settings = TypeVar("Settings")


def from_key(key: ConfigKey[int]) -> int:
    """A field of settings, named like the key's attribute, with the key's default."""
    return cast(int, field(default=key.default, metadata={"key": key}))


def settings_of(kind: type[Settings], config: BrokerKeys) -> Settings:
    """What the configuration says in the fields that are keys, and the defaults of the others."""
    keys = [each.name for each in fields(cast(Any, kind)) if "key" in each.metadata]
    return kind(**{name: getattr(config, name) for name in keys})
