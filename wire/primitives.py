"""The unsigned variable-length integers of messages: a reader `(buffer, position) -> (value, position)` and a writer
`value -> bytes`.

They are little-endian groups of seven bits, lowest first; the top bit of a byte says that another follows. The signed
ones of records are in `varint.py`. Fixed-width integers are big-endian and need only `struct`. Source:
org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

from typing import TypeAlias

from barnabas.wire.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

TAGGED_FIELDS_MAX = 127
"""The maximum number of tagged fields of one struct; no message of Kafka has ten. Skipping one takes a microsecond, for
two bytes.
"""

new_tuple = tuple.__new__
"""Creates a NamedTuple from `(class, values)`, for every request or batch: calling the class itself runs Python code.
"""

_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a 32-bit integer of up to 5 bytes. Errors: ProtocolError when it is longer or larger, or the buffer ends
    inside it.
    """
    value = shift = 0
    try:
        while True:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 128:
                break
            shift += 7
            if shift >= 32:
                raise ProtocolError("a variable-length integer has more than 32 bits")
    except IndexError:
        raise ProtocolError("the message ends inside a variable-length integer") from None
    if value >> 32:
        raise ProtocolError("a variable-length integer has more than 32 bits")
    return value, position


def unsigned_varint(value: int) -> bytes:
    """The bytes of an unsigned integer, 0 to 2**64 - 1. Errors: ValueError outside of that."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if value < 0 or value >> 64:
        raise ValueError(f"{value} is no unsigned 64-bit integer")
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Skip a section of tagged fields (KIP-482) that starts with their count; returns the position after it.

    Errors: ProtocolError when the section does not fit into the buffer.
    """
    count, position = read_unsigned_varint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolError(f"a struct with {count} tagged fields")
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise ProtocolError(f"a tagged field of {size} bytes does not fit into the message")
    return position
