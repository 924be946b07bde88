"""Faults in the form of `kcl fake`: a list of rules, which are one fault together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.control import fields
from barnabas.testing.control.fields import Field, Kind, Refused, accept
from barnabas.testing.lasting import Fault, FaultGroup
from barnabas.wire.messages import API_NAMES

if TYPE_CHECKING:
    from barnabas.testing.faults import Faults

WITHOUT_END: Final = -1
"""The `count` of a rule that holds until it is removed."""

_FIELDS: Final = (
    Field("keys", fields.TEXTS, "Names of requests, or their numbers.", argument="api"),
    Field("nodes", fields.NUMBERS, "Ids of brokers.", argument="broker"),
    Field("topic", fields.TEXT, "A topic."),
    Field("partitions", fields.NUMBERS, "Partitions.", argument="partition"),
    Field("group", fields.TEXT, "A consumer group."),
    Field("txn_id", fields.TEXT, "A transactional id.", argument="transactional_id"),
    Field("top_level", fields.TRUTH, "Whether the error is the whole answer's.", argument="whole"),
    Field("error", fields.ERROR, "An error; UNKNOWN_SERVER_ERROR without it."),
    Field("count", fields.whole(WITHOUT_END), "How many requests; 1 without it, -1 for all.", argument="times"),
    Field("observe", fields.TRUTH, "Whether requests are only counted."),
)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_KEYS: Final = {name.lower(): name for name in API_NAMES.values()}


class Rules(FaultGroup):
    """The fault that rules are together; `given` is how they were said."""

    def __init__(self, given: list[Mapping[str, Any]], *faults: Fault) -> None:
        super().__init__("rules", *faults)
        self.given = given

    def answer(self, number: int) -> dict[str, Any]:
        """What is answered of it."""
        left = WITHOUT_END if self.times is None else self.times - self.hits
        return {"id": number, "rules": self.given, "hits": self.hits, "left": left}


def make(faults: Faults, rules: list[Mapping[str, Any]], check_nodes: Callable[[Any], None]) -> Rules:
    """Have a fault of these rules, or of none of them; `check_nodes` refuses brokers that there are not. Raises
    Refused, ValueError, TypeError."""
    made: list[Fault] = []
    try:
        for rule in rules:
            accepted = accept("a rule", _FIELDS, rule)
            check_nodes(accepted.get("broker", ()))
            made.append(_fault(faults, accepted))
    except BaseException:
        for fault in made:
            fault.remove()
        raise
    return Rules(rules, *made)


def _fault(faults: Faults, rule: dict[str, Any]) -> Fault:
    keys, error, observe = rule.pop("api", None), rule.pop("error", None), rule.pop("observe", False)
    api = None if keys is None else [_api(key) for key in ([keys] if isinstance(keys, str) else keys)]
    rule["times"] = rule.get("times") or 1
    if rule["times"] == WITHOUT_END:
        del rule["times"]
    if not observe:
        return faults.fail(api, "UNKNOWN_SERVER_ERROR" if error is None else error, **rule)
    if error is not None or rule.pop("whole", False):
        raise Refused(400, "a rule that only observes has no error")
    return faults.delay(api, 0, **rule)  # which nobody notices


def _api(key: str) -> str | int:
    return int(key) if key.isascii() and key.isdecimal() else _KEYS.get(key.lower(), key)


def _rules(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(rule, dict) for rule in value):
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    """Of a duration as Go writes it."""
    if not isinstance(value, str) or not re.fullmatch(r"(\d{1,9}(\.\d{1,9})?(ms|s|m|h))+", value, re.ASCII):
        raise ValueError
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", value)
    seconds: float = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds * 1000 > fields.TIMEOUT_MS_MAX:
        raise ValueError
    return seconds


RULES: Final = Kind(
    "a list of rules",
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "additionalProperties": False,
            "properties": {field.name: field.schema for field in _FIELDS},
        },
    },
    _rules,
)
TIMEOUT: Final = Kind('a duration such as "30s" or "500ms", 10 minutes at most', {"type": "string"}, _seconds)
