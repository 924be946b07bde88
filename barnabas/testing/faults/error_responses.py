"""Responses with errors for any API: for the whole of a request, or for those of its entries that are meant, at the
places that the table of `interception/api_entries.py` has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.testing.interception.api_entries import PARTITION, RESOURCE, TOPIC
from barnabas.testing.interception.entries import (
    METADATA,
    Struct,
    Subject,
    answered_by,
    asked_of,
    identity,
    known_by,
)
from barnabas.wire.messages import ApiMessages
from barnabas.wire.schema import Message

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

_SESSION_ERRORS: Final = (-1, 70, 71, 106)
"""UNKNOWN_SERVER_ERROR, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""

IsMeant = Callable[[Subject], bool]


class Failure(NamedTuple):
    """The error in a response: Kafka's error code, a message for the versions that have one, and for Produce the
    refused records of the batch, by index.
    """

    code: int
    message: str | None = None
    record_errors: Mapping[int, str] | None = None


# --- where errors belong --------------------------------------------------------------------------


class _Level(NamedTuple):
    """An array of a response whose entries correspond to those of an array of the request."""

    asked: str
    asked_array: Struct | str
    answered: str
    struct: Struct
    identity: frozenset[str]


def _levels(asked: Struct, answered: Struct, version: int) -> tuple[_Level, ...]:
    """The levels from the request's entries to the response's, the outermost first."""
    for name, array in answered.arrays_in(version):
        if isinstance(array, str) or not _has_errors(array, version):
            continue
        identifying = identity(array, version)
        for source, below in asked.arrays_in(version):
            if identifying & identity(below, version):
                level = _Level(source, below, name, array, identifying)
                return (level, *(() if isinstance(below, str) else _levels(below, array, version)))
    return ()


def _has_errors(struct: Struct, version: int) -> bool:
    if struct.error_field(version) is not None:
        return True
    return any(isinstance(array, Struct) and _has_errors(array, version) for _, array in struct.arrays_in(version))


def _place(levels: Sequence[_Level], addressed: frozenset[str], version: int) -> int | None:
    """The level whose entries carry the error: the first with an error code at which all addressed roles are known;
    roles that no entry has belong to the request as a whole.
    """
    telling = [depth for depth, level in enumerate(levels) if addressed & known_by(level.identity)]
    if PARTITION in addressed and not any(PARTITION in level.identity for level in levels):
        return None
    first = max(telling, default=0)
    depths = range(first, len(levels))
    return next((depth for depth in depths if levels[depth].struct.error_field(version) is not None), None)


def addressable(api: ApiMessages, version: int) -> frozenset[str]:
    """The roles in a response's entries that have errors of their own."""
    return frozenset(_addressable(answered_by(api), version, frozenset()))


def _addressable(struct: Struct, version: int, above: frozenset[str]) -> Iterator[str]:
    for _, array in struct.arrays_in(version):
        if isinstance(array, Struct):
            known = above | known_by(identity(array, version))
            if array.error_field(version) is not None:
                yield from known
            yield from _addressable(array, version, known)


def has_whole_error(api: ApiMessages, version: int) -> bool:
    """Whether a response can have an error as a whole."""
    return answered_by(api).error_field(version) is not None


def is_whole_by_default(api: ApiMessages, version: int, addressed: frozenset[str], code: int) -> bool:
    """Whether an error belongs to the whole response: if the response has a field for it, and no topic or partition is
    meant.

    Consumers expect the errors of Fetch at partitions, except those of its session, and those of Metadata at topics.
    """
    if not has_whole_error(api, version) or addressed & {TOPIC, PARTITION}:
        return False
    if api.name == "Fetch":
        return code in _SESSION_ERRORS
    return api.key != METADATA


# --- responses with errors ------------------------------------------------------------------------


def whole_error(api: ApiMessages, version: int, failure: Failure) -> Message:
    """A response that contains only an error; the version must have a field for it."""
    response = api.response_class()
    _blank(response, answered_by(api), version, failure, kept=())
    return response


class Split(NamedTuple):
    """A request without the entries that are to fail, and the response entries for those."""

    rest: Message
    is_rest_empty: bool
    levels: tuple[_Level, ...]
    answers: list[Message]


class _Splitting(NamedTuple):
    """The part of a request, in one version, that is split off."""

    version: int
    is_meant: IsMeant
    failure: Failure


def split(
    api: ApiMessages, request: Message, version: int, addressed: frozenset[str], is_meant: IsMeant, failure: Failure
) -> Split | None:
    """Split off the entries of a request that are meant; None if its entries do not correspond to those of the
    response.

    `addressed` are the roles that `is_meant` uses; it is called with the raw subjects of entries, not the `settled`
    ones. `request` does not change.
    """
    asked = asked_of(api)
    levels = _levels(asked, answered_by(api), version)
    depth = _place(levels, addressed, version)
    if depth is None or getattr(request, levels[0].asked) is None:  # None: everything
        return None
    levels = levels[: depth + 1]
    splitting = _Splitting(version, is_meant, failure)
    kept, answers = _split(request, asked.own_subject(request, version), levels, splitting)
    rest = _copy(request)
    setattr(rest, levels[0].asked, kept)
    return Split(rest, not kept, levels, answers)


def _split(
    asked: Message, inherited: Subject, levels: Sequence[_Level], splitting: _Splitting
) -> tuple[list[Any], list[Message]]:
    level, version = levels[0], splitting.version
    kept: list[Any] = []
    answers: list[Message] = []
    for element in getattr(asked, level.asked):
        if isinstance(level.asked_array, str):
            subject = {**inherited, level.asked_array: element}
        else:
            subject = {**inherited, **level.asked_array.own_subject(element, version)}
        if len(levels) == 1:
            if splitting.is_meant(subject):
                answers.append(_answer(level, subject, element, version, splitting.failure))
            else:
                kept.append(element)
            continue
        kept_below, answers_below = _split(element, subject, levels[1:], splitting)
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
    answer = level.struct.type()
    for field in answer.FIELDS:
        if not field.exists_in(version) or not isinstance(field.type, str):
            continue
        role = level.struct.roles.get(field.name)
        if role is not None and role in subject:
            setattr(answer, field.name, subject[role])
        elif isinstance(asked, Message) and field.name in type(asked).__slots__:
            setattr(answer, field.name, getattr(asked, field.name))
    if failure is not None:
        _blank(answer, level.struct, version, failure)
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
    identifying = [name for name, role in level.struct.roles.items() if role in level.identity]
    return all(getattr(one, name) == getattr(other, name) for name in identifying)


def overwrite(
    api: ApiMessages,
    request: Message,
    response: Message,
    version: int,
    addressed: frozenset[str],
    is_meant: IsMeant,
    failure: Failure,
) -> None:
    """Set the error in the response entries that are meant."""

    def overwrite_in(struct: Message, known: Struct, subject: Subject) -> None:
        for name, array in known.arrays_in(version):
            if isinstance(array, Struct):
                for element in getattr(struct, name) or ():
                    overwrite_entry(element, array, {**subject, **array.own_subject(element, version)})

    def overwrite_entry(entry: Message, known: Struct, subject: Subject) -> None:
        roles = known_by(frozenset(subject) - {RESOURCE})  # which need not be a topic
        if known.error_field(version) is None or not addressed <= roles:
            overwrite_in(entry, known, subject)
        elif is_meant(subject):
            _blank(entry, known, version, failure)

    overwrite_in(response, answered_by(api), asked_of(api).own_subject(request, version))


def _blank(
    struct: Message, known: Struct, version: int, failure: Failure, kept: Sequence[str] = _BESIDE_IDENTITY
) -> None:
    """Clear a struct except for its error and, for an entry, its identity and the fields that are `kept` beside it."""
    empty = type(struct)()
    for field in struct.FIELDS:
        name = field.name
        if name in known.errors:
            value: Any = failure.code if field.exists_in(version) else 0
        elif name in known.roles or name in kept:
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


# --- of Fetch -------------------------------------------------------------------------------------


def without_wait(request: Message) -> Message:
    """A copy of a Fetch request that returns without waiting."""
    copied = _copy(request)
    copied.max_wait_ms = 0
    return copied  # type: ignore[no-any-return]


def add_missing(
    api: ApiMessages, response: Message, version: int, missing: Iterable[Subject], failure: Failure
) -> None:
    """Add errors of partitions that a Fetch response omits, because they have no new records."""
    levels = _levels(asked_of(api), answered_by(api), version)
    for subject in missing:
        topic = _answer(levels[0], subject, None, version, None)
        setattr(topic, levels[1].answered, [_answer(levels[1], subject, None, version, failure)])
        merge(response, levels, [topic])
