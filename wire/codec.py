"""Messages to bytes and back.

    request = decode(ProduceRequest, 9, frame, body_position)
    frame = encode(ProduceResponse(...), 9)

Each (message class, version) is compiled on its first use (reader_source, writer_source) and kept.
"""

from __future__ import annotations

from typing import TypeVar, cast

from barnabas.wire.primitives import Buffer
from barnabas.wire.reader_source import Reader, compile_reader
from barnabas.wire.schema import Message
from barnabas.wire.writer_source import Writer, compile_writer

M = TypeVar("M", bound=Message)

_readers: dict[tuple[type[Message], int], Reader] = {}
_writers: dict[tuple[type[Message], int], Writer] = {}


def decode(cls: type[M], version: int, buffer: Buffer, position: int = 0) -> M:
    """Decode the message that starts at `position`; bytes behind it are ignored, as in Kafka.

    Fields of type records are memoryviews into `buffer`; everything else is copied. Errors: ProtocolError when the
    bytes are no such message, ValueError when there is no such version.
    """
    return cast(M, decoder(cls, version)(buffer, position)[0])


def decoder(cls: type[Message], version: int) -> Reader:
    """The function `(buffer, position, left) -> (message, next position)`, which raises TooManyElements if a request
    has more than `left` elements (by default ELEMENTS_MAX). Errors: ValueError when there is no such version.

    `buffer` is bytes, bytearray, or a memoryview of bytes.
    """
    read = _readers.get((cls, version))
    if read is None:
        _check_version(cls, version)
        read = _readers[cls, version] = compile_reader(cls, version)
    return read


def encode(message: Message, version: int) -> bytes:
    """The bytes of a message.

    Errors: ValueError when there is no such version, a value does not fit its field, or a field that the
    version lacks, and that must not be ignored, has another value than its default.
    """
    parts: list[Buffer] = []
    encoder(type(message), version)(message, parts)
    return b"".join(parts)


def encoder(cls: type[Message], version: int) -> Writer:
    """The function `(message, parts) -> None` that appends a message's bytes to a list; record batches by reference.

    Errors: as `encode`; the content of the parts is unusable then.
    """
    write = _writers.get((cls, version))
    if write is None:
        _check_version(cls, version)
        write = _writers[cls, version] = compile_writer(cls, version)
    return write


def _check_version(cls: type[Message], version: int) -> None:
    lowest, highest = cls.VALID_VERSIONS
    if not lowest <= version <= highest:
        raise ValueError(f"{cls.__name__} has versions {lowest} to {highest}, not {version}")
