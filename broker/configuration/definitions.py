"""The vocabulary of Kafka's configuration: types, validators, and the text form of values.

The keys themselves are data: `tables/broker.py`, `tables/security.py`, `tables/other.py` and `tables/topics.py` hold
one plain tuple per key, `tables/descriptions.py` what they mean (imported only when somebody asks). Source:
ConfigDef.java and the CONFIG_DEF tables of Apache Kafka 4.3.0, with 3.9.1's limits where 4.x only narrowed them.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
SHORT: Final = 4
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
CLASS: Final = 8
PASSWORD: Final = 9
"""The numbers are those that DescribeConfigs v3+ puts on the wire (DescribeConfigsResponse.ConfigType)."""

TYPE_NAMES: Final = ("UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD")

HIGH: Final = "HIGH"
MEDIUM: Final = "MEDIUM"
LOW: Final = "LOW"

READ_ONLY: Final = "read-only"
PER_BROKER: Final = "per-broker"
CLUSTER_WIDE: Final = "cluster-wide"

INTERNAL: Final = "internal"
"""Marks a key that works but is listed only where it is set (Kafka's defineInternal, and its dynamic-only quotas)."""

INT_MAX: Final = 2_147_483_647
LONG_MAX: Final = 9_223_372_036_854_775_807
DOUBLE_MAX: Final = 1.7976931348623157e308

ConfigValue = bool | int | float | str | tuple[str, ...] | None
Validator = tuple[Any, ...] | None

_INTEGER_LIMITS: Final = {SHORT: 1 << 15, INT: 1 << 31, LONG: 1 << 63}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LIST_SEPARATOR: Final = re.compile(r"\s*,\s*")
_THROTTLED_REPLICA: Final = re.compile(r"(?:[0-9]+:[0-9]+)?")


class ConfigKey(NamedTuple):
    """One key of the tables; the order of the fields is the order in their rows.

    `default` is already typed (lists are tuples); `validator` is None or a tuple whose first element names the rule;
    `mode` tells whether the value of a running broker may change (topic configs ignore it).
    """

    name: str
    type: int
    default: ConfigValue
    validator: Validator
    importance: str
    mode: str = READ_ONLY
    visibility: str = ""


class ConfigValueError(ValueError):
    """A value that a key does not accept; the text names key, value and what is allowed (ConfigException.java)."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


def parse(key: ConfigKey, text: str) -> ConfigValue:
    """The typed and validated value of `text`, read as Kafka reads a property (ConfigDef.parseType, then validator).

    Errors: ConfigValueError.
    """
    value = _parse_type(key.name, key.type, text)
    if key.validator is not None:
        _validate(key.name, value, key.validator)
    return value


def _parse_type(name: str, kind: int, text: str) -> ConfigValue:
    text = text.strip()
    if kind in _INTEGER_LIMITS:
        return _parse_integer(name, kind, text)
    if kind == BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ConfigValueError(name, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind == DOUBLE:
        if _DOUBLE.fullmatch(text) is None:
            raise ConfigValueError(name, text, "Not a number of type DOUBLE")
        return float(text)
    if kind == LIST:
        # Kafka drops what is listed twice and keeps the first place of each.
        return tuple(dict.fromkeys(_LIST_SEPARATOR.split(text))) if text else ()
    return text


def _parse_integer(name: str, kind: int, text: str) -> int:
    # int() would take "1_000" and other scripts' digits, and time quadratic in the length.
    if len(text) > 32 or _INTEGER.fullmatch(text) is None:
        raise ConfigValueError(name, text, f"Not a number of type {TYPE_NAMES[kind]}")
    number = int(text)
    limit = _INTEGER_LIMITS[kind]
    if not -limit <= number < limit:
        raise ConfigValueError(name, text, f"Not a number of type {TYPE_NAMES[kind]}")
    return number


def _validate(name: str, value: Any, validator: tuple[Any, ...]) -> None:
    rule, arguments = validator[0], validator[1:]
    if rule in ("min", "range", "range_or"):
        _validate_number(name, value, arguments)
    elif rule in ("in", "in_ignoring_case"):
        allowed = arguments if rule == "in" else tuple(choice.lower() for choice in arguments)
        if (value if rule == "in" else value.lower()) not in allowed:
            raise ConfigValueError(name, value, f"String must be one of: {', '.join(arguments)}")
    elif rule in ("list", "list_or_empty"):
        _validate_list(name, value, arguments, empty_allowed=rule == "list_or_empty")
    elif rule == "throttled_replicas":
        replicas = [replica.strip() for replica in value]
        if "".join(replicas) != "*" and not all(_THROTTLED_REPLICA.fullmatch(replica) for replica in replicas):
            raise ConfigValueError(name, ",".join(value), "must be '*' or a list of [partitionId]:[brokerId]")
    elif rule == "non_empty" and not value:
        raise ConfigValueError(name, value, "String must be non-empty")


def _validate_number(name: str, value: float, arguments: tuple[Any, ...]) -> None:
    low, high, also = (*arguments, None, None)[:3]
    if also is not None:
        if value != also and not low <= value <= high:
            reason = f"Value must be between {low} and {high} or equal to {also}"
            raise ConfigValueError(name, to_text(value), reason)
    elif value < low:
        raise ConfigValueError(name, to_text(value), f"Value must be at least {low}")
    elif high is not None and value > high:
        raise ConfigValueError(name, to_text(value), f"Value must be no more than {high}")


def _validate_list(name: str, value: tuple[str, ...], allowed: tuple[str, ...], *, empty_allowed: bool) -> None:
    if not value and not empty_allowed:
        raise ConfigValueError(
            name, "", f"must not be empty; {'one of: ' + ', '.join(allowed) if allowed else 'any value'}"
        )
    for item in value:
        if not item:
            raise ConfigValueError(name, ",".join(value), "values must not be empty")
        if allowed and item not in allowed:
            raise ConfigValueError(name, item, f"String must be one of: {', '.join(allowed)}")


def to_text(value: ConfigValue) -> str | None:
    """A typed value as Kafka writes it in a DescribeConfigs reply (ConfigDef.convertToString)."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_to_text(value) if isinstance(value, float) else str(value)


def _double_to_text(value: float) -> str:
    """As Java's Double.toString: decimal between 10^-3 and 10^7, else scientific notation (0.5, 1.0E10); what is too
    large for a double is Infinity.
    """
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{value!r}".partition("e") if "e" in repr(value) else f"{value:.16e}".partition("e")
    if "e" not in repr(value):
        mantissa = mantissa.rstrip("0")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction or '0'}E{int(exponent)}"


def allowed_text(key: ConfigKey) -> str:
    """What a key accepts, in words for people: type and rule."""
    kind = TYPE_NAMES[key.type].lower()
    if key.validator is None:
        return kind
    rule, arguments = key.validator[0], key.validator[1:]
    if rule == "min":
        return f"{kind}, at least {arguments[0]}"
    if rule in ("range", "range_or"):
        return f"{kind}, {arguments[0]} to {arguments[1]}" + (f" or {arguments[2]}" if len(arguments) == 3 else "")
    if rule == "throttled_replicas":
        return f"{kind} of PARTITION:BROKER, or *"
    if rule == "non_empty":
        return f"{kind}, not empty"
    return f"{kind} of {', '.join(arguments)}" if arguments else kind
