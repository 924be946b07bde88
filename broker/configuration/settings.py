"""Settings: a dataclass with the keys that one part of the broker uses, and its constants. The default of a key is only
in its row."""

from dataclasses import field, fields
from typing import Any, TypeVar, cast

from barnabas.broker.configuration.definitions import ConfigKey
from barnabas.broker.configuration.tables.broker import BrokerKeys

Settings = TypeVar("Settings")


def from_key(key: ConfigKey[int]) -> int:
    """A field of settings, named like the key's attribute, with the key's default."""
    return cast(int, field(default=key.default, metadata={"key": key}))


def settings_of(kind: type[Settings], config: BrokerKeys) -> Settings:
    """The configuration's values of the fields that are keys, and the defaults of the others."""
    keys = [each.name for each in fields(cast(Any, kind)) if "key" in each.metadata]
    return kind(**{name: getattr(config, name) for name in keys})
