"""Jute, the encoding of ZooKeeper's messages: big-endian numbers, and lengths before strings, buffers and vectors.

A reader trusts no length: it never reads beyond its frame, and allocates nothing for bytes that have not arrived.

*Source*: ZooKeeper's `BinaryInputArchive.java`, `zookeeper.jute`.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from barnabas.controller.coordination.interface import Stat

NULL_LENGTH: Final = -1

T = TypeVar("T")

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_STAT: Final = struct.Struct(">qqqqiiiqiiq")


class MalformedMessage(Exception):
    """Bytes of a peer that are no valid ZooKeeper message."""


class JuteReader:
    """Reads one frame from its start. Every method raises MalformedMessage if the frame ends too early."""

    __slots__ = ("_frame", "_position")

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything was read."""
        return self._position == len(self._frame)

    def read_int(self) -> int:
        value: int = _INT.unpack(self._take(_INT.size))[0]
        return value

    def read_long(self) -> int:
        value: int = _LONG.unpack(self._take(_LONG.size))[0]
        return value

    def read_boolean(self) -> bool:
        return self._take(1) != b"\0"

    def read_buffer(self) -> bytes:
        """Bytes; empty for null."""
        length = self.read_int()
        return b"" if length == NULL_LENGTH else self._take(length)

    def read_string(self) -> str:
        """Text; empty for null."""
        try:
            return self.read_buffer().decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"a string is not UTF-8: {error}") from error

    def read_vector(self, read: Callable[[], T]) -> list[T]:
        """Elements, each read by `read`; none for null."""
        return [read() for _ in range(self.read_count())]

    def read_count(self) -> int:
        """The number of elements of a vector; 0 for null."""
        count = self.read_int()
        if count < NULL_LENGTH:
            raise MalformedMessage(f"a vector of {count} elements")
        return max(count, 0)

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._frame):
            raise MalformedMessage(f"{length} bytes are announced, {len(self._frame) - self._position} are there")
        taken = self._frame[self._position : end]
        self._position = end
        return taken


def encode_int(value: int) -> bytes:
    """A jute int."""
    return _INT.pack(value)


def encode_long(value: int) -> bytes:
    """A jute long."""
    return _LONG.pack(value)


def encode_boolean(value: bool) -> bytes:
    """A jute boolean."""
    return b"\1" if value else b"\0"


def encode_buffer(value: bytes) -> bytes:
    """A jute buffer; an empty one is not null."""
    return _INT.pack(len(value)) + value


def encode_null() -> bytes:
    """A jute buffer that is null."""
    return _INT.pack(NULL_LENGTH)


def encode_string(value: str) -> bytes:
    """A jute string."""
    return encode_buffer(value.encode())


def encode_vector(elements: Iterable[bytes]) -> bytes:
    """A jute vector, of encoded elements."""
    encoded = list(elements)
    return _INT.pack(len(encoded)) + b"".join(encoded)


def encode_stat(stat: Stat) -> bytes:
    """A znode's metadata."""
    return _STAT.pack(
        stat.czxid,
        stat.mzxid,
        stat.ctime_ms,
        stat.mtime_ms,
        stat.version,
        stat.cversion,
        stat.acl_version,
        stat.ephemeral_owner,
        stat.data_length,
        stat.num_children,
        stat.pzxid,
    )
