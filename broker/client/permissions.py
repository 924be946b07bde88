"""What a client lacks when a broker refuses it: the operation, the resource, and the command that grants it.

Responses have an error code for a type of resource, not the operation: that follows from the API (the authorizer's
calls in KafkaApis).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from barnabas.broker.security.operations import CLUSTER_NAME, Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.schema import Message

REFUSALS_MAX: Final = 3
"""So many are told; the others are alike."""

_TYPES: Final[Mapping[int, ResourceType]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
}
AUTHORIZATION_ERRORS: Final = frozenset(_TYPES)
"""The error codes of what a client may not do."""

_METADATA: Final = 3
_DEPTH: Final = 3
"""Entries in entries: a broker's transactions have topics with partitions."""
_TOPIC, _GROUP, _CLUSTER, _TRANSACTIONAL_ID = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
_OPERATIONS: Final[Mapping[int, Mapping[ResourceType, Operation]]] = {
    0: {_TOPIC: Operation.WRITE, _TRANSACTIONAL_ID: Operation.WRITE, _CLUSTER: Operation.IDEMPOTENT_WRITE},
    1: {_TOPIC: Operation.READ},
    2: {_TOPIC: Operation.DESCRIBE},
    _METADATA: {_TOPIC: Operation.DESCRIBE},
    8: {_TOPIC: Operation.READ, _GROUP: Operation.READ},
    9: {_TOPIC: Operation.DESCRIBE, _GROUP: Operation.DESCRIBE},
    10: {_GROUP: Operation.DESCRIBE, _TRANSACTIONAL_ID: Operation.DESCRIBE},
    11: {_GROUP: Operation.READ},
    12: {_GROUP: Operation.READ},
    13: {_GROUP: Operation.READ},
    14: {_GROUP: Operation.READ},
    15: {_GROUP: Operation.DESCRIBE},
    16: {_CLUSTER: Operation.DESCRIBE},
    19: {_TOPIC: Operation.CREATE, _CLUSTER: Operation.CREATE},
    20: {_TOPIC: Operation.DELETE},
    21: {_TOPIC: Operation.DELETE},
    22: {_TRANSACTIONAL_ID: Operation.WRITE, _CLUSTER: Operation.IDEMPOTENT_WRITE},
    27: {_CLUSTER: Operation.CLUSTER_ACTION},
    29: {_CLUSTER: Operation.DESCRIBE},
    30: {_CLUSTER: Operation.ALTER},
    31: {_CLUSTER: Operation.ALTER},
    32: {_TOPIC: Operation.DESCRIBE_CONFIGS, _CLUSTER: Operation.DESCRIBE_CONFIGS},
    33: {_TOPIC: Operation.ALTER_CONFIGS, _CLUSTER: Operation.ALTER_CONFIGS},
    35: {_CLUSTER: Operation.DESCRIBE},
    37: {_TOPIC: Operation.ALTER},
    42: {_GROUP: Operation.DELETE},
    43: {_CLUSTER: Operation.ALTER},
    44: {_TOPIC: Operation.ALTER_CONFIGS, _CLUSTER: Operation.ALTER_CONFIGS},
    45: {_CLUSTER: Operation.ALTER},
    46: {_CLUSTER: Operation.DESCRIBE},
    47: {_TOPIC: Operation.READ, _GROUP: Operation.DELETE},
    48: {_CLUSTER: Operation.DESCRIBE_CONFIGS},
    49: {_CLUSTER: Operation.ALTER_CONFIGS},
    50: {_CLUSTER: Operation.DESCRIBE},
    51: {_CLUSTER: Operation.ALTER},
    60: {_CLUSTER: Operation.DESCRIBE},
    61: {_TOPIC: Operation.READ},
    65: {_TRANSACTIONAL_ID: Operation.DESCRIBE},
    66: {_TRANSACTIONAL_ID: Operation.DESCRIBE},
    75: {_TOPIC: Operation.DESCRIBE},
}
"""By API and type of resource: the operation that a refused client lacks."""

_NAMES: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    _TOPIC: ("name", "topic", "topic_name", "resource_name"),
    _GROUP: ("group_id", "group", "key", "resource_name"),
    _TRANSACTIONAL_ID: ("transactional_id", "key"),
    _CLUSTER: (),
}
"""The fields with the name of a resource: of the entry of the error, of one around it, or of the request."""

WORDS: Final[Mapping[ResourceType, str]] = {
    _TOPIC: "topic",
    _GROUP: "group",
    _CLUSTER: "cluster",
    _TRANSACTIONAL_ID: "transactional-id",
}
"""The options of `barnabas acls` for types of resources."""


class Refusal(NamedTuple):
    """One operation that the client may not do with one resource; `name` is "" if the response does not tell it."""

    error_code: int
    operation: Operation
    resource_type: ResourceType
    name: str

    def advice(self, username: str | None) -> str:
        """The command that grants it, in words; `username` as in `Security`."""
        user = username or "NAME"
        where = f"{_words(self.resource_type)} {self.name or 'NAME'}"
        option = f"--{WORDS[self.resource_type]}"
        if self.resource_type is ResourceType.CLUSTER:
            where = "the cluster"
        else:
            option += f" {self.name or 'NAME'}"
        operation = self.operation.name.lower().replace("_", "-")
        return (
            f"{username or 'this user'} lacks {self.operation.name} on {where}; an administrator grants it with"
            f" `barnabas acls add --user {user} --{operation} {option}`"
        )


class Refusals:
    """What brokers have refused to one client. Owned by its task."""

    def __init__(self) -> None:
        self._found: dict[Refusal, None] = {}

    def note(self, request: Message, response: Message) -> None:
        """Look for refusals in a response."""
        operations = _OPERATIONS.get(request.API_KEY)
        if operations is None or len(self._found) >= REFUSALS_MAX:
            return
        # Partitions of Metadata, of which there may be many, have no such errors.
        for code, around in _entries(response, [request], 1 if request.API_KEY == _METADATA else _DEPTH):
            resource_type = _TYPES[code]
            if resource_type in operations:
                name = _name(resource_type, around)
                self._found[Refusal(code, operations[resource_type], resource_type, name)] = None

    def __iter__(self) -> Iterator[Refusal]:
        return iter(list(self._found)[:REFUSALS_MAX])

    def of(self, error_code: int) -> Refusal | None:
        """The refusal with this error code, if any."""
        return next((each for each in self._found if each.error_code == error_code), None)


def _entries(entry: Message, around: list[Message], depth: int) -> Iterator[tuple[int, list[Message]]]:
    """Each error code of an authorization, with its entry and those around it, innermost first."""
    around = [entry, *around]
    if (code := getattr(entry, "error_code", 0)) in _TYPES:
        yield code, around
    if depth:
        for field in entry.__slots__:
            value = getattr(entry, field)
            for inner in value if isinstance(value, list) else ():
                if isinstance(inner, Message):
                    yield from _entries(inner, around, depth - 1)


def _name(resource_type: ResourceType, around: list[Any]) -> str:
    if resource_type is ResourceType.CLUSTER:
        return CLUSTER_NAME
    for each in around:
        for field in _NAMES[resource_type]:
            value = getattr(each, field, None)
            if isinstance(value, str) and value:
                return value
    return ""


def _words(resource_type: ResourceType) -> str:
    return resource_type.name.lower().replace("_", " ")
