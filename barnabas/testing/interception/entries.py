"""Finds the topics, partitions or groups that a request names, by the table of `api_entries.py`.

The subject of an entry identifies it: for the partition in a Produce request, {TOPIC: "t", PARTITION: 0,
TRANSACTIONAL_ID: "x"}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from barnabas.testing.interception.api_entries import (
    API_ENTRIES,
    COORDINATOR_KEY,
    ERROR,
    GROUP,
    MEMBER,
    NOTHING,
    PARTITION,
    PRODUCER,
    RESOURCE,
    TOPIC,
    TOPIC_ID,
    TRANSACTIONAL_ID,
    Roles,
)
from barnabas.wire.messages import ApiMessages
from barnabas.wire.messages import api as messages_of
from barnabas.wire.schema import Array, Field, Message

ALL_TOPICS: Final = "all topics"
ALL_PARTITIONS: Final = "all partitions"

Subject = Mapping[str, Any]
"""The names in an entry, by the roles of `api_entries.py` and the constants above."""

ZERO_ID: Final = bytes(16)
TOPIC_RESOURCE: Final = 2
TRANSACTION_KEY: Final = 1
METADATA: Final = 3
DESCRIBE_TOPIC_PARTITIONS: Final = 75

_OF_WHOLE_TOPICS: Final = frozenset({METADATA, DESCRIBE_TOPIC_PARTITIONS})
"""Requests that name topics and whose responses are about their partitions."""

_IDENTITIES: Final = (
    {PARTITION},
    {TOPIC, TOPIC_ID},
    {TRANSACTIONAL_ID},
    {COORDINATOR_KEY},
    {GROUP},
    {MEMBER},
    {RESOURCE},
    {PRODUCER},
)
"""The roles that identify an entry: the first set of which it has any."""


@dataclass(frozen=True)
class Struct:
    """A struct of a message: the fields with a role, and the error code, if it has one. Arrays are in the schema's
    order.
    """

    type: type[Message]
    fields: Mapping[str, Field]
    roles: Mapping[str, str]
    errors: tuple[str, ...]
    arrays: Mapping[str, Struct | str]
    """Arrays of structs, and the role of arrays of plain values."""

    def error_field(self, version: int) -> str | None:
        """The name of the error code, if this version has one."""
        return next((name for name in self.errors if self.fields[name].exists_in(version)), None)

    def own_subject(self, struct: Message, version: int) -> dict[str, Any]:
        """The names in the fields of such a struct, without those of other structs."""
        found = {}
        for name, role in self.roles.items():
            value = getattr(struct, name)
            if not self.fields[name].exists_in(version) or value is None or value in ("", ZERO_ID):
                continue
            found[role] = value
            if role == RESOURCE and getattr(struct, "resource_type", 0) == TOPIC_RESOURCE:
                found[TOPIC] = value
        return found

    def arrays_in(self, version: int) -> Iterator[tuple[str, Struct | str]]:
        """The arrays that this version has."""
        return ((name, array) for name, array in self.arrays.items() if self.fields[name].exists_in(version))


@cache
def asked_of(api: ApiMessages) -> Struct:
    """The fields of the API's request."""
    return _struct(api.request_class, API_ENTRIES.get(api.name, NOTHING).asked)


@cache
def answered_by(api: ApiMessages) -> Struct:
    """The fields of the API's response."""
    return _struct(api.response_class, API_ENTRIES.get(api.name, NOTHING).answered)


def _struct(struct: type[Message], table: Roles) -> Struct:
    fields = {field.name: field for field in struct.FIELDS if field.name in table}
    roles: dict[str, str] = {}
    arrays: dict[str, Struct | str] = {}
    for name, field in fields.items():
        found = table[name]
        if not isinstance(found, str):
            assert isinstance(field.type, Array)
            assert not isinstance(field.type.element, str)
            arrays[name] = _struct(field.type.element, found)
        elif isinstance(field.type, Array):
            arrays[name] = found
        elif found != ERROR:
            roles[name] = found
    errors = tuple(name for name in fields if table[name] == ERROR)
    return Struct(struct, fields, roles, errors, arrays)


def identity(array: Struct | str, version: int) -> frozenset[str]:
    """The roles that identify the entries of an array."""
    if isinstance(array, str):
        return frozenset({array})
    roles = {role for name, role in array.roles.items() if array.fields[name].exists_in(version)}
    return frozenset(next((known & roles for known in _IDENTITIES if known & roles), ()))


def known_by(roles: frozenset[str]) -> frozenset[str]:
    """These roles of an entry, and those that its ids and keys stand for."""
    if roles & {TOPIC_ID, RESOURCE}:
        roles |= {TOPIC}
    return roles | {GROUP, TRANSACTIONAL_ID} if COORDINATOR_KEY in roles else roles


def subjects(message: Message, version: int, topic_name: Callable[[bytes], str | None]) -> list[Subject]:
    """The subjects of a request's entries; one subject for a request without entries.

    `topic_name` returns the names of topics that are given by id.
    """
    whole: Subject = {ALL_PARTITIONS: True} if message.API_KEY in _OF_WHOLE_TOPICS else {}
    found = _subjects(message, asked_of(messages_of(message.API_KEY)), version, whole)
    return [settled(subject, message, topic_name) for subject in found]


def settled(subject: Subject, request: Message, topic_name: Callable[[bytes], str | None]) -> Subject:
    """A subject with the names for ids and keys added."""
    subject = dict(subject)
    if TOPIC not in subject and TOPIC_ID in subject:
        name = topic_name(subject[TOPIC_ID])
        if name is not None:
            subject[TOPIC] = name
    if COORDINATOR_KEY in subject:
        is_transactional = getattr(request, "key_type", 0) == TRANSACTION_KEY
        subject[TRANSACTIONAL_ID if is_transactional else GROUP] = subject[COORDINATOR_KEY]
    return subject


def _subjects(struct: Message, known: Struct, version: int, inherited: Subject) -> Iterator[Subject]:
    own = {**inherited, **known.own_subject(struct, version)}
    is_leaf = True
    for name, array in known.arrays_in(version):
        elements = getattr(struct, name)
        if elements is None and identity(array, version) & {TOPIC, TOPIC_ID}:
            own[ALL_TOPICS] = True
        for element in elements or ():
            is_leaf = False
            if isinstance(array, str):
                yield {**own, array: element}
            else:
                yield from _subjects(element, array, version, own)
    if is_leaf:
        yield own


@cache
def askable(api: ApiMessages) -> frozenset[str]:
    """The possible roles in an API's requests, in any of its versions."""
    found = known_by(frozenset(_askable(asked_of(api))))
    return found | {PARTITION} if api.key in _OF_WHOLE_TOPICS else found


def _askable(struct: Struct) -> Iterator[str]:
    yield from struct.roles.values()
    for array in struct.arrays.values():
        yield from (array,) if isinstance(array, str) else _askable(array)
