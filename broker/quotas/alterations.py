"""What AlterClientQuotas changes: the entities of its request, and the values of their quotas. Pure.

Source: kafka 3.9.1 ZkAdminManager.alterClientQuotas; kafka 4.3.0 ClientQuotaControlManager (values above 0, no
duplicates).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final, NamedTuple

from barnabas.broker.quotas.entities import CLIENT_ID, IP, QUOTAS_OF, USER, ValueType, normal_address
from barnabas.controller.sanitizer import DEFAULT_NAME, sanitize
from barnabas.wire.errors import ApiError, ErrorCode

ROUNDING: Final = 1e-6
"""The difference up to which a number counts as a whole one."""


class ConfigEntity(NamedTuple):
    """An entity as /config has it: `users`, `clients` or `ips`, and the name of its znode."""

    entity_type: str
    name: str


class QuotaChange(NamedTuple):
    """A quota's new value; None removes the quota."""

    key: str
    value: float | None


def config_entity(parts: Sequence[tuple[str, str | None]]) -> ConfigEntity:
    """The entity of pairs of type and name; a name of None is the default.

    Raises: ApiError(INVALID_REQUEST) for no entity, an unknown type, a type that comes twice, an empty name, an address
    together with a user or client id, and an address that is none.
    """
    names: dict[str, str | None] = {}
    for entity_type, name in parts:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise _invalid(f"There are no quotas of the entity type '{entity_type}'.")
        if entity_type in names:
            raise _invalid(f"The entity has the type '{entity_type}' twice.")
        if name == "":
            raise _invalid(f"The name of a {entity_type} must not be empty.")
        names[entity_type] = name
    if not names:
        raise _invalid("The entity of a quota must not be empty.")
    if IP in names:
        if len(names) > 1:
            raise _invalid("A quota is that of an ip, or that of a user and client-id.")
        return ConfigEntity("ips", _address_name(names[IP]))
    if USER not in names:
        return ConfigEntity("clients", _znode_name(names[CLIENT_ID]))
    user = _znode_name(names[USER])
    return ConfigEntity("users", f"{user}/clients/{_znode_name(names[CLIENT_ID])}" if CLIENT_ID in names else user)


def new_values(entity_type: str, changes: Iterable[QuotaChange]) -> dict[str, str | None]:
    """The texts of an entity's changed quotas; None for removed ones.

    Raises: ApiError(INVALID_REQUEST) for a quota that comes twice, one that such an entity does not have, and a value
    that is not above 0, not a whole number where it has to be, or too large.
    """
    quotas = QUOTAS_OF[entity_type]
    values: dict[str, str | None] = {}
    for key, value in changes:
        if key in values:
            raise _invalid(f"The quota '{key}' is given twice.")
        if value is None:
            values[key] = None
        elif key not in quotas:
            raise _invalid(f"There is no quota '{key}' of {entity_type}.")
        else:
            values[key] = _text(key, value, quotas[key])
    return {key: text for key, text in values.items() if key in quotas}


def merged(current: Mapping[str, str], values: Mapping[str, str | None]) -> dict[str, str]:
    """The overrides of an entity after a change."""
    changed = {**current, **values}
    return {key: text for key, text in changed.items() if text is not None}


def _text(key: str, value: float, value_type: ValueType) -> str:
    if not (isfinite(value) and value > 0):
        raise _invalid(f"The quota '{key}' must be a number above 0.")
    if value > float(value_type.value):
        raise _invalid(f"The quota '{key}' must be {_article(value_type)} value: {value} is too large.")
    if value_type is ValueType.DOUBLE:
        return repr(value)
    whole = int(value + ROUNDING)
    if abs(whole - value) > ROUNDING:
        raise _invalid(f"The quota '{key}' must be {_article(value_type)} value: {value} is not a whole number.")
    return str(min(whole, value_type.value))


def _article(value_type: ValueType) -> str:
    return f"an {value_type.name}" if value_type is ValueType.INT else f"a {value_type.name}"


def _znode_name(name: str | None) -> str:
    return DEFAULT_NAME if name is None else sanitize(name)


def _address_name(name: str | None) -> str:
    if name is not None and normal_address(name) is None:
        raise _invalid(f"'{name}' is no IP address.")
    return _znode_name(name)


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
