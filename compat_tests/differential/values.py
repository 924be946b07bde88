"""Messages as plain values that two brokers can be compared by: times, ids, ports and paths are masked.

Structs become dicts by field name. An array of structs becomes a dict by what names its elements (a topic's name, a
partition's index, ...), since Kafka gives most of them no order; elements of the same name are told apart by a number.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from barnabas.wire.messages.init_producer_id import InitProducerIdResponse
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.record_batch import CorruptBatch, TimestampType, iter_headers
from barnabas.wire.records import iter_records
from barnabas.wire.schema import Array, Message

ABSENT = "(absent)"
UNKNOWN_TOPIC_ID = bytes(range(1, 17))
"""The topic id of scenarios that need an unknown topic."""
UNKNOWN_SESSION_ID = 123_456
RECENT_MS = 3_600_000
LONG_VALUE_CHARACTERS = 80
NAMES = (
    ("resource_type", "resource_name"),
    ("name",),
    ("topic",),
    ("group_id",),
    ("key",),
    ("topic_id",),
    ("partition_index",),
    ("partition",),
    ("index",),
    ("api_key",),
    ("node_id",),
    ("broker_id",),
    ("group_instance_id", "member_id"),
    ("member_id",),
    ("log_dir",),
    ("transactional_id",),
    ("producer_id",),
    ("batch_index",),
)
TEXTS = {"error_message", "batch_index_error_message", "documentation"}
MEMBER_IDS = {"member_id", "leader"}
SPACES = {"total_bytes", "usable_bytes"}


class Difference(NamedTuple):
    """One place where the brokers differ."""

    path: str
    kafka: Any
    barnabas: Any


class Names:
    """The names that one broker's ids, port and paths get: the n-th id of a kind is called alike on both sides."""

    def __init__(self, port: str, log_dir: str) -> None:
        self._texts = {log_dir: "(dir)", port: "(port)"}
        self._known: dict[tuple[str, object], str] = {}
        self._counts: dict[str, int] = {}

    def forget(self) -> None:
        """Start counting again, for the next scenario."""
        self._known.clear()
        self._counts.clear()

    def learn(self, kind: str, value: object, name: str | None = None) -> None:
        """Give an id its name, unless it has one."""
        if (kind, value) not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[kind, value] = name or f"({kind} {self._counts[kind]})"

    def of(self, kind: str, value: object) -> str:
        """The name of an id, a new one if need be."""
        self.learn(kind, value)
        return self._known[kind, value]

    def known(self, kind: str, value: object) -> Any:
        """The name of an id that was learnt, else the id itself."""
        return self._known.get((kind, value), value)

    def masked(self, text: str) -> str:
        """A text without this broker's port and directory."""
        for original, mask in self._texts.items():
            text = text.replace(original, mask)
        return text


def plain(message: Message, version: int, names: Names) -> dict[str, Any]:
    """The fields that a message has at a version, masked."""
    if (topic_id := getattr(message, "topic_id", ZERO_TOPIC_ID)) != ZERO_TOPIC_ID and (name := _topic_name(message)):
        names.learn("id", topic_id, f"(id of {name})")
    if isinstance(message, InitProducerIdResponse) and message.producer_id >= 0:
        names.learn("producer", message.producer_id)
    return {
        field.name: _field(field.name, field.type, getattr(message, field.name), version, names)
        for field in message.FIELDS
        if field.exists_in(version)
    }


def _topic_name(message: Message) -> str | None:
    return getattr(message, "name", None) or getattr(message, "topic", None)


def _field(name: str, kind: Any, value: Any, version: int, names: Names) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        if isinstance(kind.element, str):
            return [_field(name, kind.element, element, version, names) for element in value]
        return _by_name([plain(element, version, names) for element in value])
    if not isinstance(kind, str):
        return plain(value, version, names)
    if kind == "records":
        return _records(bytes(value))
    if kind == "uuid":
        return _topic_id(value, names)
    if kind == "bytes":
        return _bytes(bytes(value))
    return _text(name, value, names) if kind == "string" else _number(name, value, names)


def _topic_id(value: bytes, names: Names) -> str:
    if value == ZERO_TOPIC_ID:
        return "(none)"
    return "(invented id)" if value == UNKNOWN_TOPIC_ID else names.of("id", value)


def _text(name: str, value: str, names: Names) -> str:
    if name in TEXTS:
        return "(text)"
    if name == "cluster_id":
        return "(cluster id)"
    if name in MEMBER_IDS and value:
        return names.of("member", value) if len(value) > 36 else value
    return names.masked(value)


def _number(name: str, value: Any, names: Names) -> Any:
    if name == "producer_id":
        return names.known("producer", value)
    if name == "session_id" and value > 0:
        return value if value == UNKNOWN_SESSION_ID else names.of("session", value)
    if name == "port" and value > 0:
        return "(port)"
    if name in SPACES and value > 0:
        return "(bytes)"
    return _time(value)


def _time(value: Any) -> Any:
    """A number, unless it is a time about now."""
    now_ms = time.time() * 1000  # noqa: TID251 - what brokers answered is compared with the real time
    return "(now)" if type(value) is int and abs(value - now_ms) < RECENT_MS else value


def _bytes(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data.decode("latin-1") if data.isascii() and data.decode("latin-1").isprintable() else f"0x{data.hex()}"
    if len(text) <= LONG_VALUE_CHARACTERS:
        return text
    return f"{len(data)} bytes, sha1 {hashlib.sha1(data, usedforsecurity=False).hexdigest()}"


def _records(data: bytes) -> Any:
    """Batches by their headers (the checksum follows from the rest) and records."""
    batches = []
    try:
        for header in iter_headers(data):
            appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME
            batches.append(
                {
                    "base_offset": header.base_offset,
                    "length": header.batch_length,
                    "leader_epoch": header.partition_leader_epoch,
                    "attributes": header.attributes,
                    "last_offset_delta": header.last_offset_delta,
                    "base_timestamp": _time(header.base_timestamp),
                    "max_timestamp": _time(header.max_timestamp),
                    "producer": [header.producer_id > 0, header.producer_epoch, header.base_sequence],
                    "records": [
                        [
                            record.offset,
                            "(appended)" if appended else _time(record.timestamp),
                            _bytes(record.key),
                            _bytes(record.value),
                            [[name, _bytes(value)] for name, value in record.headers],
                        ]
                        for record in iter_records(data, header)
                    ],
                }
            )
    except CorruptBatch:
        return _bytes(data)
    return batches


def _by_name(elements: list[dict[str, Any]]) -> Any:
    by_name: dict[str, Any] = {}
    for element in sorted(elements, key=as_text):
        name = _name(element)
        if _merged(by_name.get(name), element):
            continue
        number = 2
        while (unique := name if name not in by_name else f"{name} #{number}") in by_name:
            number += 1
        by_name[unique] = element
    return by_name


def _merged(known: dict[str, Any] | None, element: dict[str, Any]) -> bool:
    """Add a topic's partitions to those of an earlier element of the topic: how answers are grouped means nothing."""
    arrays = [field for field, value in element.items() if type(value) is dict]
    if known is None or arrays not in (["partitions"], ["partition_responses"]):
        return False
    for name, partition in element[arrays[0]].items():
        unique, number = name, 2
        while unique in known[arrays[0]]:
            unique, number = f"{name} #{number}", number + 1
        known[arrays[0]][unique] = partition
    return True


def _name(element: dict[str, Any]) -> str:
    for fields in NAMES:
        if all(field in element for field in fields):
            parts = [element[field] for field in fields if element[field] is not None]
            if parts:
                return ":".join(map(str, parts))
    return "*"


def as_text(value: Any) -> str:
    """A value in one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)


def differences(kafka: Any, barnabas: Any, path: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Every place where two plain values differ."""
    if isinstance(kafka, dict) and isinstance(barnabas, dict):
        for key in _keys(kafka, barnabas):
            yield from differences(kafka.get(key, ABSENT), barnabas.get(key, ABSENT), (*path, key))
    elif isinstance(kafka, list) and isinstance(barnabas, list) and len(kafka) == len(barnabas):
        for index, (theirs, ours) in enumerate(zip(kafka, barnabas, strict=True)):
            yield from differences(theirs, ours, (*path, str(index)))
    elif kafka != barnabas:
        yield Difference("/".join(path), kafka, barnabas)


def _keys(*dicts: dict[str, Any]) -> Iterable[str]:
    return dict.fromkeys(key for each in dicts for key in each)
