"""Messages with extreme numbers: every numeric field, at any depth, set to the limits of its type."""

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import crc32c

from barnabas.broker.configuration.definitions import BOOLEAN, DOUBLE, INT, LONG, SHORT, ConfigKey
from barnabas.wire.record_batch import HEADER_SIZE, LOG_OVERHEAD
from barnabas.wire.schema import Array, Message
from barnabas.wire.varint import encode_varint

DOUBLE_MAX: Final = 1.7976931348623157e308


def _integers(bits: int, *, signed: bool = True) -> tuple[int, ...]:
    return (-(1 << bits - 1), -1, 0, 1, (1 << bits - 1) - 1) if signed else (0, 1, (1 << bits) - 1)


EXTREMES: Final[Mapping[str, Sequence[float]]] = {
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": _integers(16, signed=False),
    "int32": _integers(32),
    "uint32": _integers(32, signed=False),
    "int64": _integers(64),
    "float64": (-DOUBLE_MAX, -1.0, 0.0, 1.0, DOUBLE_MAX, float("inf"), float("nan")),
}
"""The values to try for each numeric type: the minimum, -1, 0, 1, the maximum."""


TEXTS: Final[Mapping[str, Sequence[Any]]] = {
    "string": ("", "x" * 32_767, "\U0001f600" * 8_191),
    "bytes": (b"", bytes(40_000)),
    "uuid": (bytes(16), b"\xff" * 16),
}
"""The empty string, and the longest possible one."""


class Place(NamedTuple):
    """A field in a message: its readable path, its type, and a function that sets it in a copy of the message."""

    path: str
    type: str
    set: Callable[[Message, Any], None]


def places(message: Message, version: int, extremes: Mapping[str, Any], path: str = "") -> Iterator[Place]:
    """Every field of the message at this version with a type in `extremes`; for a list, the fields of its first
    element.
    """
    for field in message.FIELDS:
        if not field.exists_in(version):
            continue
        value, name = getattr(message, field.name), path + field.name
        if isinstance(field.type, str):
            if field.type in extremes:
                yield Place(name, field.type, _setter(field.name))
        elif not isinstance(field.type, Array):
            yield from _within(field.name, places(value, version, extremes, name + "."))
        elif not value:
            continue
        elif isinstance(field.type.element, str):
            if field.type.element in extremes:
                yield Place(name, field.type.element, _element_setter(field.name))
        else:
            yield from _within(field.name, places(value[0], version, extremes, name + "."))


def _setter(name: str) -> Callable[[Message, Any], None]:
    return lambda message, value: setattr(message, name, value)


def _element_setter(name: str) -> Callable[[Message, Any], None]:
    return lambda message, value: setattr(message, name, [value, *getattr(message, name)[1:]])


def _within(name: str, inner: Iterator[Place]) -> Iterator[Place]:
    for place in inner:

        def reach(message: Message, value: Any, place: Place = place) -> None:
            child = getattr(message, name)
            place.set(child[0] if isinstance(child, list) else child, value)

        yield place._replace(set=reach)


def copied(message: Message, cls: type[Message] | None = None) -> Message:
    """A copy that shares no struct or list with the message; shared defaults are created again (`cls`)."""
    copy = (cls or type(message))()
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if isinstance(value, Message):
            assert isinstance(field.type, type)
            value = copied(value, field.type)
        elif isinstance(value, list):
            value = [copied(each) if isinstance(each, Message) else each for each in value]
        setattr(copy, field.name, value)
    return copy


class Change(NamedTuple):
    """The values to set in one request: places and values, at most one for each place."""

    places: tuple[Place, ...]
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(f"{place.path}={value!r:.60}" for place, value in zip(self.places, self.values, strict=True))

    def apply(self, message: Message) -> Message:
        """A copy of the message with these values."""
        changed = copied(message)
        for place, value in zip(self.places, self.values, strict=True):
            place.set(changed, value)
        return changed


def changes(
    message: Message, version: int, together: int = 1, extremes: Mapping[str, Sequence[Any]] = EXTREMES
) -> Iterator[Change]:
    """The changes of `together` fields at once, each with its extremes."""
    for chosen in itertools.combinations(tuple(places(message, version, extremes)), together):
        for values in itertools.product(*(extremes[place.type] for place in chosen)):
            yield Change(chosen, values)


BATCH_FIELDS: Final[Mapping[str, tuple[int, str, str]]] = {
    "base_offset": (0, ">q", "int64"),
    "batch_length": (8, ">i", "int32"),
    "partition_leader_epoch": (12, ">i", "int32"),
    "magic": (16, ">b", "int8"),
    "attributes": (21, ">h", "int16"),
    "last_offset_delta": (23, ">i", "int32"),
    "base_timestamp": (27, ">q", "int64"),
    "max_timestamp": (35, ">q", "int64"),
    "producer_id": (43, ">q", "int64"),
    "producer_epoch": (51, ">h", "int16"),
    "base_sequence": (53, ">i", "int32"),
    "record_count": (57, ">i", "int32"),
}
"""The numbers in a batch's header, except its checksum: positions and names."""

_CRC: Final = struct.Struct(">I")
_CRC_POSITION, _CRC_START = 17, 21


def batch_changes() -> Iterator[tuple[str, Callable[[bytearray], None]]]:
    """Functions that set one number of a batch's header to one of its extremes and correct the checksum."""
    for name, (position, layout, kind) in BATCH_FIELDS.items():
        for value in EXTREMES[kind]:

            def change(batch: bytearray, position: int = position, layout: str = layout, value: float = value) -> None:
                struct.pack_into(layout, batch, position, value)
                _CRC.pack_into(batch, _CRC_POSITION, crc32c.crc32c(bytes(batch[_CRC_START:])))

            yield f"{name}={value}", change


_INTEGER_BITS: Final = {SHORT: 16, INT: 32, LONG: 64}
HUGE_TEXT: Final = "9" * 32_767


def config_texts(key: ConfigKey[Any]) -> list[str]:
    """The values to try for a configuration key, valid or not: the limits of its type and of its rule, -1, 0, 1, the
    limits of a long, every accepted word, the empty string, and far too long a text.
    """
    rule, arguments = (key.validator[0], key.validator[1:]) if key.validator else ("", ())
    texts = ["", HUGE_TEXT]
    if key.type == BOOLEAN:
        texts += ["true", "false"]
    elif key.type in _INTEGER_BITS or key.type == DOUBLE:
        numbers = {-1, 0, 1, (1 << 63) - 1, *(argument for argument in arguments if argument is not None)}
        if key.type == DOUBLE:
            numbers |= {-DOUBLE_MAX, DOUBLE_MAX}
        else:
            numbers |= set(_integers(_INTEGER_BITS[key.type]))
        texts += [str(number) for number in sorted(numbers)]
    elif rule in ("in", "list", "list_or_empty"):
        texts += [*arguments, ",".join(arguments)]
    return texts


def crafted_records() -> Iterator[tuple[str, int, int, bytes]]:
    """Records with one extreme number, as encoded in a batch: a description, the base and the largest timestamp of the
    batch's header, and the record.
    """
    for base, largest, delta in itertools.product(EXTREMES["int64"], repeat=3):
        yield f"timestamp {base} + {delta} of {largest}", int(base), int(largest), _record(timestamp_delta=int(delta))
    for field in ("offset_delta", "key_length", "value_length", "header_count"):
        for value in EXTREMES["int32"]:
            yield f"{field}={value}", 1, 1, _record(**{field: int(value)})


def _record(
    timestamp_delta: int = 0, offset_delta: int = 0, key_length: int = 1, value_length: int = 1, header_count: int = 0
) -> bytes:
    key, value = encode_varint(key_length) + b"k", encode_varint(value_length) + b"v"
    deltas = encode_varint(timestamp_delta) + encode_varint(offset_delta)
    body = b"\x00" + deltas + key + value + encode_varint(header_count)
    return encode_varint(len(body)) + body


def with_record(batch: bytearray, base_timestamp: int, max_timestamp: int, record: bytes) -> bytearray:
    """A batch of one record with other timestamps and another record, with a correct length and checksum."""
    changed = batch[:HEADER_SIZE] + record
    for name, value in (
        ("batch_length", len(changed) - LOG_OVERHEAD),
        ("base_timestamp", base_timestamp),
        ("max_timestamp", max_timestamp),
    ):
        position, layout, _ = BATCH_FIELDS[name]
        struct.pack_into(layout, changed, position, value)
    _CRC.pack_into(changed, _CRC_POSITION, crc32c.crc32c(bytes(changed[_CRC_START:])))
    return changed
