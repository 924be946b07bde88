"""The elements of Kafka's configuration: the definition of a key, types, validators, and the text form of values.

The keys themselves are the rows of `tables/`: `broker.py` has those with an effect, `topics.py` those of topics,
`other.py` and `security.py` those that are only accepted. Source: ConfigDef.java and the CONFIG_DEF tables of Apache
Kafka 4.3.0, with 3.9.1's limits where 4.x only narrowed them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, Generic, Self, TypeVar, overload

BOOLEAN: Final = 1
STRING: Final = 2
INT: Final = 3
SHORT: Final = 4
LONG: Final = 5
DOUBLE: Final = 6
LIST: Final = 7
CLASS: Final = 8
PASSWORD: Final = 9
"""The types of keys, as numbers in the DescribeConfigs v3+ response (DescribeConfigsResponse.ConfigType)."""

TYPE_NAMES: Final = ("UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD")

HIGH: Final = "HIGH"
MEDIUM: Final = "MEDIUM"
LOW: Final = "LOW"

READ_ONLY: Final = "read-only"
PER_BROKER: Final = "per-broker"
CLUSTER_WIDE: Final = "cluster-wide"
NOT_AT_RUN_TIME: Final = True
"""The last element in the row of a key that Kafka can change in a running broker, and this broker cannot
(`ConfigKey.is_fixed`)."""

INTERNAL: Final = "internal"
"""Marks a key that has an effect but is listed only where it is set (Kafka's defineInternal, and its dynamic-only
quotas)."""

INT_MAX: Final = 2_147_483_647
LONG_MAX: Final = 9_223_372_036_854_775_807
DOUBLE_MAX: Final = 1.7976931348623157e308

ConfigValue = bool | int | float | str | tuple[str, ...] | None
Validator = tuple[Any, ...] | None

_INTEGER_LIMITS: Final = {SHORT: 1 << 15, INT: 1 << 31, LONG: 1 << 63}
_TRIMMED: Final = "".join(map(chr, range(33)))
"""The characters that Java's String.trim removes at both ends."""
_INTEGER: Final = re.compile(r"[+-]?\d+")
"""Integer.parseInt and Long.parseLong accept the decimal digits of every script."""
_DOUBLE: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL_DOUBLE: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_INFINITY: Final = re.compile(r"([+-]?)Infinity")
"""The grammar of Double.valueOf, except NaN (docs/deviations/configuration.md)."""
_LIST_SEPARATOR: Final = re.compile(r"\s*,\s*")
_THROTTLED_REPLICA: Final = re.compile(r"(?:[0-9]+:[0-9]+)?")


Value = TypeVar("Value")


class ConfigKey(Generic[Value]):
    """One key: a row of the tables.

    As an attribute of a class (`BrokerKeys`) it has its name from there, with dots for underscores, and gives objects
    of that class a typed attribute: `BrokerConfig.num_partitions` is this row, `config.num_partitions` an int, the
    value. Values are in the object's `__dict__`, so reading one costs no call.

    Args:
        type: BOOLEAN, STRING, INT, ...
        default: already typed (lists are tuples).
        validator: None, or a tuple whose first element names the rule (`_validate`).
        importance: HIGH, MEDIUM or LOW.
        mode: READ_ONLY, PER_BROKER or CLUSTER_WIDE: whether the value of a running broker may change.
        documentation: a sentence for users; empty if a topic's key, which inherits this one, has it.
        visibility: INTERNAL, or empty.
        is_fixed: whether Kafka can change it in a running broker, according to `mode`, and Barnabas cannot.
        synonyms: keys that are used in turn if this one is not set (DynamicBrokerConfig.brokerConfigSynonyms).
        convert: converts the key's value to the attribute's.
        name: for rows that are no attribute of a class.
    """

    __slots__ = (
        "convert",
        "default",
        "documentation",
        "importance",
        "is_fixed",
        "mode",
        "name",
        "synonyms",
        "type",
        "validator",
        "visibility",
    )

    def __init__(
        self,
        type: int,
        default: ConfigValue,
        validator: Validator,
        importance: str,
        mode: str = READ_ONLY,
        documentation: str = "",
        *,
        visibility: str = "",
        is_fixed: bool = False,
        synonyms: tuple[str, ...] = (),
        convert: Callable[[Any], Value] | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.validator = validator
        self.importance = importance
        self.mode = mode
        self.documentation = documentation
        self.visibility = visibility
        self.is_fixed = is_fixed
        self.synonyms = synonyms
        self.convert = convert

    def __set_name__(self, owner: object, name: str) -> None:
        self.name = name.replace("_", ".")

    @overload
    def __get__(self, instance: None, owner: object) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: object) -> Value: ...

    def __get__(self, instance: object, owner: object) -> Any:
        if instance is None:
            return self
        raise AttributeError(f"{self.name} has no value here")

    def __repr__(self) -> str:
        return f"ConfigKey({self.name})"

    @property
    def attribute(self) -> str:
        """The name of the attribute with its value: the key's name, with underscores."""
        return self.name.replace(".", "_")


class ConfigValueError(ValueError):
    """A value that a key does not accept; the text has the key, the value and the accepted ones
    (ConfigException.java)."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


def parse(key: ConfigKey[Any], text: str, full_name: str = "") -> ConfigValue:
    """The typed and validated value of `text`, read as Kafka reads a property (ConfigDef.parseType, then validator).

    `full_name` is the name in errors, if it is not the key's own: with the prefix of a listener.
    Errors: ConfigValueError.
    """
    name = full_name or key.name
    value = _parse_type(name, key.type, text)
    if key.validator is not None:
        _validate(name, value, key.validator)
    return value


def _parse_type(name: str, kind: int, text: str) -> ConfigValue:
    text = text.strip(_TRIMMED)
    if kind in _INTEGER_LIMITS:
        return _parse_integer(name, kind, text)
    if kind == BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ConfigValueError(name, text, "Expected value to be either true or false")
        return lowered == "true"
    if kind == DOUBLE:
        return _parse_double(name, text)
    if kind == LIST:
        # Kafka removes duplicates and keeps the first place of each.
        return tuple(dict.fromkeys(_LIST_SEPARATOR.split(text))) if text else ()
    return text


def _parse_double(name: str, text: str) -> float:
    if (decimal := _DOUBLE.fullmatch(text)) is not None:
        return float(decimal[1])
    if (infinity := _INFINITY.fullmatch(text)) is not None:
        return -math.inf if infinity[1] == "-" else math.inf
    if (hexadecimal := _HEXADECIMAL_DOUBLE.fullmatch(text)) is not None:
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise ConfigValueError(name, text, "Not a number of type DOUBLE")


def _parse_integer(name: str, kind: int, text: str) -> int:
    # int() by itself would accept "1_000" and take time quadratic in the length; Java checks UTF-16 units one by one,
    # so that it accepts no digits beyond U+FFFF.
    if _INTEGER.fullmatch(text) is None or max(text) > "\uffff":
        raise ConfigValueError(name, text, f"Not a number of type {TYPE_NAMES[kind]}")
    digits = "".join(str(int(digit)) for digit in text.lstrip("+-")).lstrip("0")
    if len(digits) > 32:
        raise ConfigValueError(name, text, f"Not a number of type {TYPE_NAMES[kind]}")
    number = -int(digits or "0") if text[0] == "-" else int(digits or "0")
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
    elif rule == "host_limits":
        for entry in host_limit_entries(value):
            host, _, limit = entry.rpartition(":")
            if not host or not limit.isdecimal():
                raise ConfigValueError(name, entry, "Expected HOST:LIMIT, comma separated")
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
        raise ConfigValueError(name, "", "must not be empty")
    for item in value:
        if not item:
            raise ConfigValueError(name, ",".join(value), "values must not be empty")
        if allowed and item not in allowed:
            raise ConfigValueError(name, item, f"String must be one of: {', '.join(allowed)}")


def host_limit_entries(text: str) -> list[str]:
    """The entries of a list of HOST:LIMIT."""
    return [entry for part in text.split(",") if (entry := part.strip())]


def limits_by_host(text: str) -> dict[str, int]:
    """The value of the key with the validator `host_limits`: HOST:LIMIT, comma separated; IPv6 addresses
    in brackets."""
    pairs = (entry.rpartition(":") for entry in host_limit_entries(text))
    return {host.strip("[]"): int(limit) for host, _, limit in pairs}


def to_text(value: ConfigValue) -> str | None:
    """A typed value in the form of Kafka's DescribeConfigs response (ConfigDef.convertToString)."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_to_text(value) if isinstance(value, float) else str(value)


def _double_to_text(value: float) -> str:
    """The same text as Java's Double.toString: decimal between 10^-3 and 10^7, else scientific notation (0.5, 1.0E10);
    a value too large for a double is Infinity.
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


def choices(key: ConfigKey[Any]) -> tuple[str, ...]:
    """The only values that a key, or the items of a list, may have; empty if they are too many to be listed."""
    if key.type == BOOLEAN:
        return ("true", "false")
    rule, *arguments = key.validator or ("",)
    return tuple(arguments) if rule in ("in", "in_ignoring_case", "list", "list_or_empty") else ()


def expected_text(key: ConfigKey[Any]) -> str:
    """The accepted values of a command-line option for a key, for users who do not know the key."""
    if values := choices(key):
        return f"one of {', '.join(values)}"
    if key.type in _INTEGER_LIMITS and key.validator is not None and key.validator[0] == "min":
        return f"a whole number from {key.validator[1]} to {_INTEGER_LIMITS[key.type] - 1}"
    return "a directory, or several separated by commas" if key.type == LIST else allowed_text(key)


def allowed_text(key: ConfigKey[Any]) -> str:
    """The accepted values of a key, as text for users: type and rule."""
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
    if rule == "host_limits":
        return f"{kind} of HOST:LIMIT, comma separated"
    return f"{kind} of {', '.join(arguments)}" if arguments else kind
