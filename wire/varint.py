"""Zigzag variable-length integers, as records use them.

Seven bits a byte, least significant first; the sign sits in the lowest bit so that small negative numbers stay short.
An int takes at most 5 bytes and a long at most 10; bits beyond 32 or 64 are dropped, as Kafka's `ByteUtils` does.
"""

from __future__ import annotations

from typing import Final

_INT_MASK: Final = 0xFFFFFFFF
_LONG_MASK: Final = 0xFFFFFFFFFFFFFFFF


class VarintTooLong(ValueError):
    """An integer of this size cannot have that many bytes."""


def read_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a 32 bit integer at `position`: (value, position behind it).

    Raises:
        IndexError: the buffer ends inside the integer.
        VarintTooLong: it has more than 5 bytes.
    """
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    high = buffer[position + 1]
    if high < 0x80:  # sizes of most records
        return (byte & 0x7F | high << 7) >> 1 ^ -(byte & 1), position + 2
    unsigned, position = _read_unsigned(buffer, position, 5)
    unsigned &= _INT_MASK
    return (unsigned >> 1) ^ -(unsigned & 1), position


def read_varlong(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a 64 bit integer at `position`: (value, position behind it).

    Raises:
        IndexError: the buffer ends inside the integer.
        VarintTooLong: it has more than 10 bytes.
    """
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    unsigned, position = _read_unsigned(buffer, position, 10)
    unsigned &= _LONG_MASK
    return (unsigned >> 1) ^ -(unsigned & 1), position


def _read_unsigned(buffer: bytes, position: int, max_bytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise VarintTooLong(f"variable-length integer has more than {max_bytes} bytes")


def _encode(value: int) -> bytes:
    unsigned = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while unsigned >= 0x80:
        encoded.append((unsigned & 0x7F) | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


# Lengths and deltas are nearly always small: one look-up instead of a loop.
_SMALL: Final = {value: _encode(value) for value in range(-64, 1024)}


def encode_varint(value: int) -> bytes:
    """Encode a 32 or 64 bit integer (the encoding of a value does not depend on its type)."""
    return _SMALL.get(value) or _encode(value)
