"""The fields of verbs: their allowed values, in JSON and in a query, and their OpenAPI schemas."""

from __future__ import annotations

import base64
import binascii
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

NUMBER_MAX: Final = 2**53 - 1
"""The largest number that JSON represents exactly in every language."""

DURATION_MS_MAX: Final = 10**12
"""About 31 years."""

TIMEOUT_MS_MAX: Final = 600_000
TIMEOUT_MS_DEFAULT: Final = 30_000


CLUSTER_BROKERS_MAX: Final = 9


class Refused(Exception):
    """A request that is refused; the message is one line that says what would be right, `status` is HTTP's. `is_usage`
    says that the request was malformed; kcl has an exit status for that.
    """

    def __init__(self, status: int, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_usage = is_usage or status == 400


@dataclass(frozen=True)
class Kind:
    """The type of a value. `expected` describes it in words, `accept` converts JSON's value to Python's and raises
    ValueError, `of_text` converts a query's text to JSON's value; a query may repeat a field that `may_repeat`.
    """

    expected: str
    schema: Mapping[str, Any]
    accept: Callable[[Any], Any]
    of_text: Callable[[str], Any] = str
    may_repeat: bool = False


@dataclass(frozen=True)
class Field:
    """A field of a verb. `argument` is the parameter of the Python method, if its name differs."""

    name: str
    kind: Kind
    does: str
    is_required: bool = False
    argument: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The field's OpenAPI schema."""
        return {**self.kind.schema, "description": self.does}


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError


def _text(value: Any) -> str:
    _require(isinstance(value, str))
    return str(value)


def _truth(value: Any) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


def _truth_of_text(text: str) -> bool:
    _require(text in ("true", "false"))
    return text == "true"


def _number_between(low: int, high: int) -> Callable[[Any], int]:
    def accept(value: Any) -> int:
        _require(isinstance(value, int) and not isinstance(value, bool) and low <= value <= high)
        return int(value)

    return accept


def _chance(value: Any) -> float:
    _require(isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1)
    return float(value)


def _rate(value: Any) -> float:
    _require(isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= NUMBER_MAX)
    return float(value)


def _one_or_many(accept: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def accept_both(value: Any) -> Any:
        if not isinstance(value, list):
            return accept(value)
        _require(bool(value))
        return [accept(each) for each in value]

    return accept_both


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error:
        raise ValueError from None


def _text_or_number(value: Any) -> str | int:
    _require(isinstance(value, str | int) and not isinstance(value, bool))
    return value if isinstance(value, str) else _any_number(value)


def _duration(value: Any) -> int | tuple[int, int]:
    if isinstance(value, list):
        low, high = map(_duration_ms, value)  # ValueError unless there are two
        return low, high
    return _duration_ms(value)


def _named(accept: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def accept_all(value: Any) -> dict[str, Any]:
        _require(isinstance(value, dict))
        return {name: accept(each) for name, each in value.items()}

    return accept_all


def _scalar(value: Any) -> object:
    _require(isinstance(value, str | bool | int | float))
    return value


def _numbered(value: Any) -> dict[int, str]:
    return {_any_number(int(index)): text for index, text in _named(_text)(value).items()}


_any_number = _number_between(-NUMBER_MAX, NUMBER_MAX)
_duration_ms = _number_between(0, DURATION_MS_MAX)
_timeout_ms = _number_between(0, TIMEOUT_MS_MAX)

_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer", "minimum": -NUMBER_MAX, "maximum": NUMBER_MAX}


def _or_several(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"oneOf": [dict(schema), {"type": "array", "items": dict(schema), "minItems": 1}]}


def _choice(*values: str) -> Kind:
    def accept(value: Any) -> str:
        _require(value in values)
        return str(value)

    return Kind(f"one of {', '.join(values)}", {"type": "string", "enum": list(values)}, accept)


TEXT: Final = Kind("a text", _STRING, _text)
NUMBER: Final = Kind("a whole number", _INTEGER, _any_number, int)


def whole(low: int, high: int = NUMBER_MAX) -> Kind:
    """An integer between two bounds."""
    limits = f"{low} or more" if high == NUMBER_MAX else f"{low} to {high}"
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Kind(f"a whole number of {limits}", schema, _number_between(low, high), int)


COUNT: Final = whole(0)
POSITIVE: Final = whole(1)
PORT: Final = whole(0, 65535)
BROKERS: Final = whole(1, CLUSTER_BROKERS_MAX)
TRUTH: Final = Kind("true or false", {"type": "boolean"}, _truth, _truth_of_text)
CHANCE: Final = Kind(
    "a number above 0, 1 at most", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, _chance, float
)
TEXTS: Final = Kind("a text or a list of texts", _or_several(_STRING), _one_or_many(_text), may_repeat=True)
NUMBERS: Final = Kind(
    "a whole number or a list of them", _or_several(_INTEGER), _one_or_many(_any_number), int, may_repeat=True
)
BASE64: Final = Kind("bytes in base64", {"type": "string", "format": "byte"}, _base64)
ERROR: Final = Kind("the name or the number of an error of Kafka", {"oneOf": [_STRING, _INTEGER]}, _text_or_number)
WAY: Final = _choice("records", "cut", "short", "correlation_id")
SECURITY: Final = _choice("sasl_ssl")
CLIENT: Final = _choice("confluent_kafka", "kafka_python", "java")
MECHANISM: Final = _choice("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
RATE: Final = Kind("a number above 0", {"type": "number", "exclusiveMinimum": 0}, _rate, float)
DURATION: Final = Kind(
    "a whole number of ms",
    {"type": "integer", "minimum": 0, "maximum": DURATION_MS_MAX},
    _duration_ms,
    int,
)
DURATION_OR_RANGE: Final = Kind(
    "a whole number of ms, or a list of the shortest and the longest",
    {
        "oneOf": [
            DURATION.schema,
            {"type": "array", "items": DURATION.schema, "minItems": 2, "maxItems": 2},
        ]
    },
    _duration,
)
TIMEOUT: Final = Kind(
    f"a whole number of ms up to {TIMEOUT_MS_MAX}",
    {"type": "integer", "minimum": 0, "maximum": TIMEOUT_MS_MAX, "default": TIMEOUT_MS_DEFAULT},
    lambda value: _timeout_ms(value) / 1000,
    int,
)
DEADLINE: Final = replace(TIMEOUT)
"""As TIMEOUT, for verbs that are no waits themselves, but may have to wait for brokers."""

CONFIGS: Final = Kind(
    "an object of configuration keys and their values",
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    _named(_scalar),
)
SEED_TOPICS: Final = Kind(
    "an object of topics' names and their numbers of partitions",
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    _named(_number_between(1, NUMBER_MAX)),
)
HEADERS: Final = Kind("an object of texts", {"type": "object", "additionalProperties": _STRING}, _named(_text))
RECORD_ERRORS: Final = Kind(
    "an object of texts, by the index of a record",
    {"type": "object", "additionalProperties": _STRING},
    _numbered,
)


def accept(verb: str, fields: Sequence[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a verb's Python method, from JSON fields; null counts as absent. Raises Refused."""
    known = {field.name: field for field in fields}
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise Refused(400, _unknown(verb, name, known))
        if value is not None:
            field = known[name]
            try:
                arguments[field.argument or name] = field.kind.accept(value)
            except (ValueError, TypeError):
                raise Refused(400, f"{name} of {verb} is to be {field.kind.expected}") from None
    for field in fields:
        if field.is_required and given.get(field.name) is None:
            raise Refused(400, f"{verb} needs {field.name}: {field.kind.expected}")
    return arguments


def of_query(verb: str, fields: Sequence[Field], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields of a query, as JSON values. Raises Refused."""
    known = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for name, texts in given.items():
        if name not in known:
            raise Refused(400, _unknown(verb, name, known))
        kind = known[name].kind
        try:
            values = [kind.of_text(text) for text in texts]
            found[name] = values if len(values) > 1 and kind.may_repeat else _only(values)
        except (ValueError, TypeError):
            raise Refused(400, f"{name} of {verb} is to be {kind.expected}") from None
    return found


def _only(values: Sequence[Any]) -> Any:
    [value] = values
    return value


def _unknown(verb: str, name: str, known: Mapping[str, Field]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
    return f"{verb} has no field {name[:100]!r}: {meant}"
