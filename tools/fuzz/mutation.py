"""Mutates well-formed bytes in the typical ways that break readers of binary formats; reproducible by its seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

_NUMBERS: Final = (0, 1, -1, 2, 7, 61, 127, 128, 255, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_VARINTS: Final = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80", b"\x80\x00", b"\xff\x01")
_FORMATS: Final = ((">b", 8), (">h", 16), (">i", 32), (">q", 64))


class Mutator:
    """Generates endless inputs from seeds.

    Every input starts as one of `seeds`. It is unchanged in one of 32 cases, otherwise it is changed in up to eight
    places.
    """

    def __init__(self, seeds: Sequence[bytes], rng: random.Random, *, size_max: int = 1 << 16) -> None:
        self._seeds = list(seeds) or [b""]
        self._rng = rng
        self._size_max = size_max
        self._changes: tuple[Callable[[bytearray], None], ...] = (
            self._flip_bit,
            self._set_byte,
            self._set_number,
            self._set_number,
            self._insert,
            self._insert_varint,
            self._remove,
            self._truncate,
            self._repeat,
            self._splice,
        )

    def next(self) -> bytes:
        """The next input."""
        rng = self._rng
        data = bytearray(rng.choice(self._seeds))
        if rng.randrange(32):
            for _ in range(1 << rng.randrange(4)):
                rng.choice(self._changes)(data)
        return bytes(data[: self._size_max])

    def _at(self, data: bytearray, size: int = 1) -> int:
        """A position followed by `size` bytes, more often near the start, where headers are."""
        last = max(0, len(data) - size)
        return self._rng.randint(0, min(last, 100) if self._rng.randrange(2) else last)

    def _flip_bit(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] ^= 1 << self._rng.randrange(8)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] = self._rng.randrange(256)

    def _set_number(self, data: bytearray) -> None:
        template, bits = self._rng.choice(_FORMATS)
        if len(data) * 8 >= bits:
            number = self._rng.choice((*_NUMBERS, len(data), self._rng.randrange(1 << 31)))
            number = (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
            struct.pack_into(template, data, self._at(data, bits // 8), number)

    def _insert(self, data: bytearray) -> None:
        position = self._at(data)
        data[position:position] = self._rng.randbytes(1 << self._rng.randrange(6))

    def _insert_varint(self, data: bytearray) -> None:
        position = self._at(data)
        replaced = self._rng.randrange(3)
        data[position : position + replaced] = self._rng.choice(_VARINTS)

    def _remove(self, data: bytearray) -> None:
        position = self._at(data)
        del data[position : position + (1 << self._rng.randrange(7))]

    def _truncate(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _repeat(self, data: bytearray) -> None:
        position = self._at(data)
        part = data[position : position + (1 << self._rng.randrange(9))]
        data[position:position] = part * (1 << self._rng.randrange(4))

    def _splice(self, data: bytearray) -> None:
        other = self._rng.choice(self._seeds)
        start = self._rng.randint(0, len(other))
        position = self._at(data)
        data[position:] = other[start:]
