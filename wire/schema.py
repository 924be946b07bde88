"""The building blocks of messages: the base classes of the generated modules in `barnabas.wire.messages`.

A message class lists its fields in `FIELDS`, in wire order, with the versions that have them, as Kafka's message
definitions do. `barnabas.wire.codec` compiles these tables to functions; nothing interprets them per message.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

MAX_VERSION: Final = 32767

UNSET: Final[Any] = object()
"""A constructor's placeholder for a default that has to be created for each message (a list, a struct)."""

Records: TypeAlias = Any
"""Record batches: a memoryview when decoded; any bytes-like, a list of them, or None when encoded. Never copied."""

PRIMITIVE_FORMATS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "?",
        "int8": "b",
        "int16": "h",
        "uint16": "H",
        "int32": "i",
        "uint32": "I",
        "int64": "q",
        "float64": "d",
        "uuid": "16s",
    }
)
"""The fixed-width types and their `struct` format. The others: string, bytes, records, Array and Message classes."""

_EVERY: Final = (0, MAX_VERSION)
_NO_VERSION: Final = (1, 0)


class Array:
    """The type of a list whose elements are primitives (`Array("int32")`) or structs (`Array(SomeStruct)`)."""

    __slots__ = ("element",)

    def __init__(self, element: str | type[Message]) -> None:
        self.element = element


class Field:
    """One field of a message or struct.

    Args:
        name: snake_case of Kafka's name.
        type: a primitive's name, an Array, or a struct's class.
        versions: the versions that have the field, as in Kafka's definitions: "3+", "0-12", "5".
        nullable: the versions in which it may be null.
        default: Kafka's default. UNSET if it is created for each message: an empty list, or a struct of defaults.
        tag: its tag, if it is a tagged field (KIP-482).
        ignorable: a value other than the default may be dropped when the version lacks the field.
    """

    __slots__ = ("default", "ignorable", "name", "nullable", "tag", "type", "versions")

    def __init__(
        self,
        name: str,
        type: str | Array | type[Message],
        versions: str = "0+",
        *,
        nullable: str = "none",
        default: Any = UNSET,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> None:
        self.name = name
        self.type = type
        self.versions = version_range(versions)
        self.nullable = version_range(nullable)
        self.default = default
        self.tag = tag
        self.ignorable = ignorable

    def exists_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable[0] <= version <= self.nullable[1]

    def __repr__(self) -> str:
        return f"Field({self.name!r})"


class Message:
    """The base of all messages and of the structs inside them: slots, equality by value, a readable repr.

    Structs have only FIELDS; messages also have the class variables below.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # mutable

    API_KEY: ClassVar[int]
    """The API's key; of a coordinator's record key or value, the record type that is written before the key."""
    VALID_VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int | None]
    """The first version with compact lengths and tagged fields (KIP-482); None if there is none."""
    FIELDS: ClassVar[tuple[Field, ...]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or self.FIELDS is not other.FIELDS:
            return NotImplemented
        for field in self.FIELDS:  # noqa: SIM110 - a loop: replies with tagged fields compare them with their defaults
            if getattr(self, field.name) != getattr(other, field.name):
                return False
        return True

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={_short(getattr(self, field.name))}" for field in self.FIELDS)
        return f"{type(self).__name__}({values})"


M = TypeVar("M", bound=Message)


def frozen_default(struct: type[M]) -> M:
    """The shared, immutable instance of a struct with all defaults, for fields that rarely have another value.

    Assign another struct to the field instead of changing this one: that raises AttributeError.
    """

    def refuse(self: Message, name: str, value: object) -> None:
        raise AttributeError(f"this {struct.__name__} is a shared default: assign a new one instead of changing {name}")

    frozen = type(struct.__name__, (struct,), {"__slots__": (), "__module__": struct.__module__})
    instance: M = frozen()
    frozen.__setattr__ = refuse  # type: ignore[method-assign, assignment]
    return instance


def version_range(text: str) -> tuple[int, int]:
    """Lowest and highest version of "0+", "1-4", "3" or "none" (a range without members)."""
    if text == "0+":
        return _EVERY
    if text == "none":
        return _NO_VERSION
    lowest, dash, highest = text.partition("-")
    if dash:
        return int(lowest), int(highest)
    if text.endswith("+"):
        return int(text[:-1]), MAX_VERSION
    return int(text), int(text)


def _short(value: object) -> str:
    if isinstance(value, memoryview):
        return f"<{value.nbytes} bytes>"
    text = repr(value)
    return text if not isinstance(value, bytes | bytearray) or len(text) <= 80 else f"<{len(value)} bytes>"
