"""Finds the topics, partitions or groups that a request names, and builds error responses for them, for any API: from
the fields of the generated messages.

An entry is a struct in an array, or a plain value in one, that names a topic, a partition, a group and so on. Its
subject identifies it: for the partition in a Produce request, {TOPIC: "t", PARTITION: 0, TRANSACTIONAL_ID: "x"}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from barnabas.wire.messages import ApiMessages
from barnabas.wire.schema import Array, Field, Message

TOPIC: Final = "topic"
TOPIC_ID: Final = "topic id"
PARTITION: Final = "partition"
GROUP: Final = "group"
TRANSACTIONAL_ID: Final = "transactional id"
COORDINATOR_KEY: Final = "coordinator key"
MEMBER: Final = "member"
RESOURCE: Final = "resource"
PRODUCER: Final = "producer id"
ALL_TOPICS: Final = "all topics"
ALL_PARTITIONS: Final = "all partitions"

Subject = Mapping[str, Any]
"""The names in an entry, by the constants above."""

ZERO_ID: Final = bytes(16)
TOPIC_RESOURCE: Final = 2
TRANSACTION_KEY: Final = 1
METADATA: Final = 3
DESCRIBE_TOPIC_PARTITIONS: Final = 75

_ROLES: Final = {
    "topic": TOPIC,
    "topic_name": TOPIC,
    "topic_names": TOPIC,
    "topic_id": TOPIC_ID,
    "partition": PARTITION,
    "partition_index": PARTITION,
    "partition_id": PARTITION,
    "index": PARTITION,
    "partition_indexes": PARTITION,
    "partitions": PARTITION,
    "group_id": GROUP,
    "groups": GROUP,
    "groups_names": GROUP,
    "transactional_id": TRANSACTIONAL_ID,
    "transactional_ids": TRANSACTIONAL_ID,
    "v3_and_below_transactional_id": TRANSACTIONAL_ID,
    "key": COORDINATOR_KEY,
    "coordinator_keys": COORDINATOR_KEY,
    "member_id": MEMBER,
    "resource_name": RESOURCE,
    "producer_id": PRODUCER,
}
"""The meaning of fields with one value, or an array of plain values, by field name."""

_NAMED_TOPICS: Final = ("responses", "results")
"""Arrays of structs whose `name` is a topic's, besides those whose own name says so."""

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
"""The fields that identify an entry: the first set that it has."""

_OF_WHOLE_TOPICS: Final = frozenset({METADATA, DESCRIBE_TOPIC_PARTITIONS})
"""Requests that name topics and whose responses are about their partitions."""

_NOT_ASKED_FOR: Final = ("forgotten_topics_data",)

_ERROR_FIELDS: Final = ("error_code", "partition_error_code")

_BESIDE_IDENTITY: Final = ("group_instance_id", "resource_type")

_UNKNOWN: Final = (
    "base_offset",
    "log_append_time_ms",
    "log_start_offset",
    "high_watermark",
    "last_stable_offset",
    "committed_offset",
    "low_watermark",
    "timestamp",
    "offset",
    "end_offset",
    "leader_epoch",
    "leader_id",
    "node_id",
    "port",
)
"""Fields that are -1 beside an error."""


class Failure(NamedTuple):
    """The error in a response: Kafka's error code, a message for the versions that have one, and for Produce the
    refused records of the batch, by index.
    """

    code: int
    message: str | None = None
    record_errors: Mapping[int, str] | None = None


# --- the subjects of a message --------------------------------------------------------------------


def subjects(message: Message, version: int, topic_name: Callable[[bytes], str | None]) -> list[Subject]:
    """The subjects of a request's entries; one subject for a request without entries.

    `topic_name` returns the names of topics that are given by id.
    """
    whole: Subject = {ALL_PARTITIONS: True} if message.API_KEY in _OF_WHOLE_TOPICS else {}
    return [settled(subject, message, topic_name) for subject in _subjects(message, version, "", whole)]


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


def _subjects(struct: Message, version: int, array: str, inherited: Subject) -> Iterator[Subject]:
    own = {**inherited, **_own_subject(struct, version, array)}
    is_leaf = True
    for field in struct.FIELDS:
        if not isinstance(field.type, Array) or not field.exists_in(version) or field.name in _NOT_ASKED_FOR:
            continue
        if getattr(struct, field.name) is None and _identity(field, version) & {TOPIC, TOPIC_ID}:
            own[ALL_TOPICS] = True
        for element in getattr(struct, field.name) or ():
            if isinstance(element, Message):
                is_leaf = False
                yield from _subjects(element, version, field.name, own)
            elif field.name in _ROLES:
                is_leaf = False
                yield {**own, _ROLES[field.name]: element}
    if is_leaf:
        yield own


@cache
def askable(api: ApiMessages) -> frozenset[str]:
    """The possible subjects of an API's requests, by the constants above, in any of its versions."""
    found = frozenset(_askable(api.request_class, ""))
    if found & {TOPIC_ID, RESOURCE}:
        found |= {TOPIC}
    if COORDINATOR_KEY in found:
        found |= {GROUP, TRANSACTIONAL_ID}
    return found | {PARTITION} if api.key in _OF_WHOLE_TOPICS else found


def _askable(struct: type[Message], array: str) -> Iterator[str]:
    for field in struct.FIELDS:
        element = _element(field)
        if isinstance(element, type) and field.name not in _NOT_ASKED_FOR:
            yield from _askable(element, field.name)
        role = _role(field, array) if element is None else _ROLES.get(field.name)
        if role is not None and not isinstance(element, type):
            yield role


def _role(field: Field, array: str) -> str | None:
    """The meaning of a field with a single value in a struct of that array."""
    if isinstance(field.type, Array) or not isinstance(field.type, str):
        return None
    if field.name == "name":
        return TOPIC if "topic" in array or array in _NAMED_TOPICS else None
    return _ROLES.get(field.name)


def _own_subject(struct: Message, version: int, array: str) -> dict[str, Any]:
    found = {}
    for field in struct.FIELDS:
        role = _role(field, array)
        if role is None or not field.exists_in(version):
            continue
        value = getattr(struct, field.name)
        if value is None or value in ("", ZERO_ID):
            continue
        found[role] = value
        if role == RESOURCE and getattr(struct, "resource_type", 0) == TOPIC_RESOURCE:
            found[TOPIC] = value
    return found


# --- errors in responses --------------------------------------------------------------------------


class _Level(NamedTuple):
    """An array of a response whose entries correspond to those of an array of the request."""

    asked: str
    answered: str
    struct: type[Message]
    identity: frozenset[str]
    error_field: str | None


def error_field(struct: type[Message] | Message, version: int) -> str | None:
    """The name of a struct's error code field, if this version has one."""
    names = (field.name for field in struct.FIELDS if field.name in _ERROR_FIELDS and field.exists_in(version))
    return next(names, None)


def _element(field: Field) -> type[Message] | str | None:
    """The element type of an array; None for a field that is no array."""
    return field.type.element if isinstance(field.type, Array) else None


def _identity(field: Field, version: int) -> frozenset[str]:
    """The roles that identify the entries of an array."""
    element = _element(field)
    if isinstance(element, str):
        roles = {_ROLES[field.name]} if field.name in _ROLES else set()
    elif element is None:
        return frozenset()
    else:
        present = [each for each in element.FIELDS if each.exists_in(version)]
        roles = {role for each in present if (role := _role(each, field.name)) is not None}
    return frozenset(next((identity & roles for identity in _IDENTITIES if identity & roles), ()))


def _has_errors(struct: type[Message], version: int) -> bool:
    if error_field(struct, version) is not None:
        return True
    below = (_element(field) for field in struct.FIELDS if field.exists_in(version))
    return any(isinstance(element, type) and _has_errors(element, version) for element in below)


def _levels(asked: type[Message], answered: type[Message], version: int) -> tuple[_Level, ...]:
    """The levels from the request's entries to the response's, the outermost first."""
    for field in answered.FIELDS:
        element = _element(field)
        if not isinstance(element, type) or not field.exists_in(version) or not _has_errors(element, version):
            continue
        identity = _identity(field, version)
        for source in asked.FIELDS:
            if not source.exists_in(version) or not identity & _identity(source, version):
                continue
            level = _Level(source.name, field.name, element, identity, error_field(element, version))
            below = _element(source)
            return (level, *(_levels(below, element, version) if isinstance(below, type) else ()))
    return ()


def _known_by(level: _Level) -> frozenset[str]:
    """The roles that an entry of a level can be addressed by."""
    known = set(level.identity)
    if known & {TOPIC_ID, RESOURCE}:
        known.add(TOPIC)
    if COORDINATOR_KEY in known:
        known |= {GROUP, TRANSACTIONAL_ID}
    return frozenset(known)


def _place(levels: Sequence[_Level], addressed: frozenset[str]) -> int | None:
    """The level whose entries carry the error: the first with an error code at which all addressed roles are known;
    roles that no entry has belong to the request as a whole.
    """
    telling = [depth for depth, level in enumerate(levels) if addressed & _known_by(level)]
    if PARTITION in addressed and not any(PARTITION in level.identity for level in levels):
        return None
    first = max(telling, default=0)
    return next((depth for depth in range(first, len(levels)) if levels[depth].error_field is not None), None)


def addressable(response: type[Message], version: int) -> frozenset[str]:
    """The roles in a response's entries that have errors of their own."""
    return frozenset(_addressable(response, version, frozenset()))


def _addressable(struct: type[Message], version: int, above: frozenset[str]) -> Iterator[str]:
    for field in struct.FIELDS:
        element = _element(field)
        if not isinstance(element, type) or not field.exists_in(version):
            continue
        known = above | _known_by(_Level("", field.name, element, _identity(field, version), None))
        if error_field(element, version) is not None:
            yield from known
        yield from _addressable(element, version, known)


def is_whole_by_default(api: ApiMessages, version: int, addressed: frozenset[str], code: int) -> bool:
    """Whether an error belongs to the whole response: if the response has a field for it, and no topic or partition is
    meant.

    Consumers expect the errors of Fetch at partitions, except those of its session, and those of Metadata at topics.
    """
    if error_field(api.response_class, version) is None or addressed & {TOPIC, PARTITION}:
        return False
    if api.name == "Fetch":
        return code in _SESSION_ERRORS
    return api.key != METADATA


_SESSION_ERRORS: Final = (-1, 70, 71, 106)
"""UNKNOWN_SERVER_ERROR, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""


# --- responses with errors ------------------------------------------------------------------------


def whole_error(api: ApiMessages, version: int, failure: Failure) -> Message:
    """A response that contains only an error; the version must have a field for it."""
    response = api.response_class()
    _blank(response, version, failure)
    return response


class Split(NamedTuple):
    """A request without the entries that are to fail, and the response entries for those."""

    rest: Message
    is_rest_empty: bool
    levels: tuple[_Level, ...]
    answers: list[Message]


def split(
    api: ApiMessages,
    request: Message,
    version: int,
    addressed: frozenset[str],
    is_meant: Callable[[Subject], bool],
    failure: Failure,
) -> Split | None:
    """Split off the entries of a request that are meant; None if its entries do not correspond to those of the
    response.

    `addressed` are the roles that `is_meant` uses; it is called with the raw subjects of entries, not the `settled`
    ones. `request` does not change.
    """
    levels = _levels(type(request), api.response_class, version)
    depth = _place(levels, addressed)
    if depth is None or getattr(request, levels[0].asked) is None:  # None: everything
        return None
    levels = levels[: depth + 1]
    kept, answers = _split(request, "", levels, {}, version, is_meant, failure)
    rest = _copy(request)
    setattr(rest, levels[0].asked, kept)
    return Split(rest, not kept, levels, answers)


def _split(
    asked: Message,
    array: str,
    levels: Sequence[_Level],
    inherited: Subject,
    version: int,
    is_meant: Callable[[Subject], bool],
    failure: Failure,
) -> tuple[list[Any], list[Message]]:
    level = levels[0]
    own = {**inherited, **_own_subject(asked, version, array)}
    kept: list[Any] = []
    answers: list[Message] = []
    for element in getattr(asked, level.asked):
        if isinstance(element, Message):
            subject = {**own, **_own_subject(element, version, level.asked)}
        else:
            subject = {**own, _ROLES[level.asked]: element}
        if len(levels) == 1:
            if is_meant(subject):
                answers.append(_answer(level, subject, element, version, failure))
            else:
                kept.append(element)
            continue
        kept_below, answers_below = _split(element, level.asked, levels[1:], own, version, is_meant, failure)
        if kept_below or not answers_below:
            element_left = _copy(element)
            setattr(element_left, levels[1].asked, kept_below)
            kept.append(element_left)
        if answers_below:
            answer = _answer(level, subject, element, version, None)
            setattr(answer, levels[1].answered, answers_below)
            answers.append(answer)
    return kept, answers


def _answer(level: _Level, subject: Subject, asked: Any, version: int, failure: Failure | None) -> Message:
    """The response's entry for an entry of the request."""
    answer = level.struct()
    for field in answer.FIELDS:
        if not field.exists_in(version) or not isinstance(field.type, str):
            continue
        role = _role(field, level.answered)
        if role is not None and role in subject:
            setattr(answer, field.name, subject[role])
        elif isinstance(asked, Message) and field.name in type(asked).__slots__:
            setattr(answer, field.name, getattr(asked, field.name))
    if failure is not None:
        _blank(answer, version, failure, keep=level.answered)
    return answer


def merge(response: Message, levels: Sequence[_Level], answers: Iterable[Message]) -> None:
    """Merge entries into those of a response, beside those for other partitions of the same topic."""
    level = levels[0]
    present: list[Message] = list(getattr(response, level.answered) or ())
    for answer in answers:
        same = next((each for each in present if _same(each, answer, level)), None)
        if same is None:
            present.append(answer)
        elif len(levels) > 1:
            merge(same, levels[1:], getattr(answer, levels[1].answered))
        else:
            present[present.index(same)] = answer
    setattr(response, level.answered, present)


def _same(one: Message, other: Message, level: _Level) -> bool:
    return all(
        getattr(one, field.name) == getattr(other, field.name)
        for field in level.struct.FIELDS
        if _role(field, level.answered) in level.identity
    )


def overwrite(
    api: ApiMessages,
    request: Message,
    response: Message,
    version: int,
    addressed: frozenset[str],
    is_meant: Callable[[Subject], bool],
    failure: Failure,
) -> None:
    """Set the error in the response entries that are meant."""
    _overwrite(response, version, "", _own_subject(request, version, ""), addressed, is_meant, failure, is_root=True)


def _overwrite(
    struct: Message,
    version: int,
    array: str,
    inherited: Subject,
    addressed: frozenset[str],
    is_meant: Callable[[Subject], bool],
    failure: Failure,
    *,
    is_root: bool = False,
) -> None:
    subject = {**inherited, **_own_subject(struct, version, array)}
    known = set(subject) | ({TOPIC} if TOPIC_ID in subject else set())
    if COORDINATOR_KEY in subject:
        known |= {GROUP, TRANSACTIONAL_ID}
    if not is_root and error_field(struct, version) is not None and addressed <= known:
        if is_meant(subject):
            _blank(struct, version, failure, keep=array)
        return
    for field in struct.FIELDS:
        if isinstance(_element(field), type) and field.exists_in(version):
            for element in getattr(struct, field.name) or ():
                _overwrite(element, version, field.name, subject, addressed, is_meant, failure)


def _blank(struct: Message, version: int, failure: Failure, keep: str = "") -> None:
    """Clear a struct except for its identity and its error."""
    empty = type(struct)()
    for field in struct.FIELDS:
        name = field.name
        if name in _ERROR_FIELDS:
            value: Any = failure.code if field.exists_in(version) else 0
        elif keep and (_role(field, keep) is not None or name in _BESIDE_IDENTITY):
            value = getattr(struct, name)
        elif name == "error_message" and field.exists_in(version):
            value = failure.message if failure.message is not None or field.is_nullable_in(version) else ""
        elif name in _UNKNOWN and field.exists_in(version) and isinstance(field.type, str):
            value = -1
        elif field.type == "records":
            value = b""
        else:
            value = getattr(empty, name)
        setattr(struct, name, value)
    if failure.record_errors and any(
        field.name == "record_errors" and field.exists_in(version) for field in struct.FIELDS
    ):
        _name_records(struct, failure.record_errors)


def _name_records(struct: Any, record_errors: Mapping[int, str]) -> None:
    from barnabas.wire.messages.produce import BatchIndexAndErrorMessage

    struct.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
        for index, message in record_errors.items()
    ]


def _copy(struct: Message) -> Any:
    """Another message with the same values."""
    return type(struct)(**{field.name: getattr(struct, field.name) for field in struct.FIELDS})


def without_wait(request: Message) -> Message:
    """A copy of a Fetch request that returns without waiting."""
    copied = _copy(request)
    copied.max_wait_ms = 0
    return copied  # type: ignore[no-any-return]


def add_missing(
    api: ApiMessages,
    response: Message,
    version: int,
    missing: Iterable[Subject],
    failure: Failure,
) -> None:
    """Add errors of partitions that a Fetch response omits, because they have no new records."""
    levels = _levels(api.request_class, api.response_class, version)
    for subject in missing:
        topic = _answer(levels[0], subject, None, version, None)
        setattr(topic, levels[1].answered, [_answer(levels[1], subject, None, version, failure)])
        merge(response, levels, [topic])
