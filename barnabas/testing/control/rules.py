"""Faults in the form of `kcl fake`: a list of rules, which form one fault together.

For an entry of a request (a partition, say) the first matching rule, of all rules, that is not exhausted provides the
response: rules for the same requests apply one after the other. Rules for whole responses come first in their list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from barnabas.testing.control import fields
from barnabas.testing.control.fields import Field, Kind, Refused, accept
from barnabas.testing.faults.effects import Delay, Fail
from barnabas.testing.faults.error_codes import error_code
from barnabas.testing.faults.error_responses import Failure
from barnabas.testing.faults.fault import Fault, FaultGroup, Lasting
from barnabas.testing.faults.faults import api_names, split_keywords
from barnabas.testing.interception.answer import Answer, Effect, GoOn, Passage
from barnabas.testing.interception.entries import Subject
from barnabas.testing.interception.request import BETWEEN_BROKERS
from barnabas.testing.interception.selection import api_keys
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages import API_NAMES

if TYPE_CHECKING:
    from barnabas.testing.faults.faults import Faults
    from barnabas.testing.interception.request import Request

WITHOUT_END: Final = -1
"""The `count` of a rule without a limit."""

_FIELDS: Final = (
    Field("keys", fields.TEXTS, "Names of requests, or their numbers.", argument="api"),
    Field("nodes", fields.NUMBERS, "Ids of brokers.", argument="broker"),
    Field("topic", fields.TEXT, "A topic."),
    Field("partitions", fields.NUMBERS, "Partitions.", argument="partition"),
    Field("group", fields.TEXT, "A consumer group."),
    Field("txn_id", fields.TEXT, "A transactional id.", argument="transactional_id"),
    Field("top_level", fields.TRUTH, "Whether the error is that of the whole response.", argument="whole"),
    Field("error", fields.ERROR, "An error. Default: UNKNOWN_SERVER_ERROR."),
    Field("count", fields.whole(WITHOUT_END), "How many requests; -1: all. Default: 1.", argument="times"),
    Field("observe", fields.TRUTH, "Whether requests are only counted."),
)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_KEYS: Final = {
    **{name.lower(): name for name in API_NAMES.values()},
    "alterpartitionassignments": "AlterPartitionReassignments",
}
"""The names of requests in franz-go, in lower case."""

_FORMER_NAMES: Final = {"NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER"}
"""Former Kafka names of errors, which franz-go still uses."""

_APPENDS: Final = frozenset({"Produce", "WriteTxnMarkers"})
_TOLD_AFTER_WORK: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _APPENDS,
    ErrorCode.REQUEST_TIMED_OUT: _APPENDS
    | {
        "DeleteRecords", "OffsetCommit", "TxnOffsetCommit", "DeleteGroups", "CreateTopics", "DeleteTopics",
        "CreatePartitions", "ElectLeaders", "AlterPartitionReassignments", "AlterConfigs", "IncrementalAlterConfigs",
        "CreateAcls", "DeleteAcls", "AlterClientQuotas", "AlterUserScramCredentials", "UpdateFeatures",
        "CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken",
    },
}  # fmt: skip
"""Error codes of completed work, and the requests that may return them."""


class _Answered:
    """The effect of a rule: its error in place of the work, or in place of the result if brokers return it after the
    work.
    """

    def __init__(self, failure: Failure, fault: Fault, whole: bool | None) -> None:
        addressed, is_meant = fault._matcher.addressed, fault._matcher.is_meant
        self._before = Fail(failure, addressed, is_meant, whole, after_work=False)
        self._after = Fail(failure, addressed, is_meant, whole, after_work=True)
        self._told_after_work = _TOLD_AFTER_WORK.get(ErrorCode.of(failure.code), frozenset())

    async def around(self, passage: Passage, go_on: GoOn) -> Answer | None:
        effect = self._after if passage.request.api in self._told_after_work else self._before
        return await effect.around(passage, go_on)

    def end(self) -> None:
        """No-op: it holds no request."""


class _Rule(Fault):
    """A fault of the entries of requests that no other rule has handled."""

    is_observer = False
    is_whole = False

    def _is_hit(self, request: Request) -> bool:
        left = (subject for subject in request.subjects if not any(takes(subject) for takes in request.taken))
        if not self._is_for(request) or not any(map(self._matcher.names, left)) or not self._counts():
            return False
        if not self.is_observer:
            request.taken.append(self._takes)
        return True

    def _takes(self, subject: Subject) -> bool:
        return self.is_whole or self._matcher.names(subject)


class Rules(FaultGroup):
    """The fault that the rules form together; `given` is their original form."""

    def __init__(self, given: list[Mapping[str, Any]], *faults: Fault) -> None:
        super().__init__("rule", *faults)
        self.given = given

    def __repr__(self) -> str:
        return self._described("; ".join(fault._what for fault in self.faults))

    def answer(self, number: int) -> dict[str, Any]:
        """The fault in a response."""
        return {"id": number, "rules": self.given, "hits": self.hits, "left": left(self)}


def left(fault: Lasting) -> int:
    """The remaining number of hits of a fault."""
    return WITHOUT_END if fault.times is None else fault.times - fault.hits


def make(faults: Faults, rules: list[Mapping[str, Any]], check_nodes: Callable[[Any], None]) -> Rules:
    """Add a fault of these rules, or of none if one is invalid; `check_nodes` refuses unknown brokers. Raises Refused,
    ValueError, TypeError.
    """
    made: list[Fault] = []
    accepted = [accept("a rule", _FIELDS, rule) for rule in rules]
    try:
        for rule in sorted(accepted, key=lambda rule: not rule.get("whole", False)):
            check_nodes(rule.get("broker", ()))
            made.append(faults._add(_rule(faults, rule)))
    except BaseException:
        for fault in made:
            fault.remove()
        raise
    return Rules(rules, *made)


def _rule(faults: Faults, rule: dict[str, Any]) -> Fault:
    keys, error, is_observer = rule.pop("api", None), rule.pop("error", None), rule.pop("observe", False)
    is_whole = rule.pop("whole", None)
    api = None if keys is None else [_api(key) for key in ([keys] if isinstance(keys, str) else keys)]
    rule["times"] = rule.get("times") or 1
    if rule["times"] == WITHOUT_END:
        del rule["times"]
    if is_observer and (error is not None or is_whole):
        raise Refused(400, "a rule that only observes has no error")
    failure = Failure(error_code("UNKNOWN_SERVER_ERROR" if error is None else _error(error)))

    def effect(fault: Fault) -> Effect:
        return Delay(lambda: 0, after_work=False) if is_observer else _Answered(failure, fault, is_whole)

    does = "observe" if is_observer else "fail"
    what = "" if is_observer else f" {ErrorCode.of(failure.code).name}"
    if (asked := api_keys(api)) and asked <= BETWEEN_BROKERS:
        told = f"rules match requests of clients, and only brokers send {api_names(api)}"
        raise Refused(400, f'{told}: use POST fail with "from_brokers": true')
    matcher, limits = split_keywords(api, rule)
    made = _Rule(faults, f"{does} {api_names(api)}{what}", matcher, limits, effect)
    made.is_observer, made.is_whole = is_observer, bool(is_whole)
    return made


def _error(error: str | int) -> str | int:
    """Kafka's name of an error, from its name in any case, or its number as text."""
    if isinstance(error, int):
        return error
    if re.fullmatch(r"[+-]?\d{1,5}", error, re.ASCII):
        return int(error)
    name = error.upper()
    return _FORMER_NAMES.get(name, name if name in ErrorCode.__members__ else error)


def _api(key: str) -> str | int:
    return int(key) if key.isascii() and key.isdecimal() else _KEYS.get(key.lower(), key)


def _rules(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(rule, dict) for rule in value):
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    """The seconds of a duration in Go's format."""
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
