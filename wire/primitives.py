"""Kafka's variable-length integers: readers `(buffer, position) -> (value, position)` and writers `value -> bytes`.

Unsigned varints are little-endian groups of seven bits, lowest first; the top bit of a byte says that another
follows. Signed ones (varint: 32 bits, varlong: 64 bits) are zig-zag coded first. Fixed-width integers are
big-endian and need only `struct`. Source: org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

from typing import TypeAlias

from barnabas.wire.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

INT32_MAX = 0x7FFF_FFFF
INT32_MIN = -0x8000_0000
INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF
INT64_MIN = -0x8000_0000_0000_0000

TAGGED_FIELDS_MAX = 127
"""The maximum number of tagged fields of one struct; no message of Kafka has ten. Skipping one takes a microsecond, for
two bytes.
"""

new_tuple = tuple.__new__
"""Creates a NamedTuple from `(class, values)`, for every request or batch: calling the class itself runs Python code.
"""

_ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_unsigned_varint(buffer: Buffer, position: int, bits: int = 32) -> tuple[int, int]:
    """Read an integer with this number of bits, for 32 up to 5 bytes. Errors: ProtocolError when it is longer, larger,
    or the buffer ends inside it.
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
            if shift >= bits:
                raise ProtocolError(f"a variable-length integer has more than {bits} bits")
    except IndexError:
        raise ProtocolError("the message ends inside a variable-length integer") from None
    if value >> bits:
        raise ProtocolError(f"a variable-length integer has more than {bits} bits")
    return value, position


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zig-zag coded 32-bit integer of up to 5 bytes. Errors: ProtocolError as in read_unsigned_varint."""
    value, position = read_unsigned_varint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read a zig-zag coded 64-bit integer of up to 10 bytes. Errors: ProtocolError as in read_unsigned_varint."""
    value, position = read_unsigned_varint(buffer, position, 64)
    return (value >> 1) ^ -(value & 1), position


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


def varint(value: int) -> bytes:
    """The zig-zag bytes of a 32-bit integer. Errors: ValueError outside of 32 bits."""
    if not INT32_MIN <= value <= INT32_MAX:
        raise ValueError(f"{value} is no 32-bit integer")
    return unsigned_varint(value << 1 ^ value >> 31)


def varlong(value: int) -> bytes:
    """The zig-zag bytes of a 64-bit integer. Errors: ValueError outside of 64 bits."""
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(f"{value} is no 64-bit integer")
    return unsigned_varint(value << 1 ^ value >> 63)


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
