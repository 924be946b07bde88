"""The map of a compaction pass, from keys to the last offset of each key.

Source: org.apache.kafka.storage.internals.log.SkimpyOffsetMap.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 24
"""The size of a slot: 16 bytes of hash and 8 of offset, as in Kafka."""

_HASH_BYTES: Final = 16


class KeyMap:
    """A hash table of fixed size, by the hashes of keys instead of the keys.

    Two keys with the same hash count as one key. With 128 bits that does not happen by accident, and BLAKE2b, unlike
    Kafka's MD5, does not allow anyone to cause it.

    Args:
        slots: the number of slots.
        load_factor: the share of used slots at which the map counts as full: beyond it, look-ups take too long.
    """

    __slots__ = ("_hashes", "_limit", "_offsets", "_slots", "latest_offset", "size")

    def __init__(self, slots: int, load_factor: float = 0.9) -> None:
        # With a prime number of slots the probe sequence visits every slot.
        self._slots = _prime_up_to(max(slots, 3))
        self._limit = max(1, int(self._slots * load_factor))
        self._hashes = bytearray(self._slots * _HASH_BYTES)
        # Offsets are stored plus one: 0 marks an empty slot.
        self._offsets = array("q", bytes(8)) * self._slots
        self.size = 0
        self.latest_offset = -1
        """The last offset that the map covers: later records are unknown to it."""

    @property
    def capacity(self) -> int:
        """The number of keys that fit."""
        return self._limit

    def put(self, key: bytes, offset: int) -> bool:
        """Store a key's offset; returns False, and stores nothing, if the map is full."""
        if self.size >= self._limit:
            return False
        digest, slot = self._find(key)
        if not self._offsets[slot]:
            start = slot * _HASH_BYTES
            self._hashes[start : start + _HASH_BYTES] = digest
            self.size += 1
        self._offsets[slot] = offset + 1
        self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 if the key is unknown."""
        return self._offsets[self._find(key)[1]] - 1

    def _find(self, key: bytes) -> tuple[bytes, int]:
        """The key's hash, and its slot or, for an unknown key, the empty slot for it."""
        digest = blake2b(key, digest_size=_HASH_BYTES).digest()
        slots, hashes, offsets = self._slots, self._hashes, self._offsets
        number = int.from_bytes(digest)
        slot = number % slots
        start = slot * _HASH_BYTES
        if not offsets[slot] or hashes[start : start + _HASH_BYTES] == digest:
            return digest, slot
        step = 1 + (number >> 64) % (slots - 1)
        while True:
            slot = (slot + step) % slots
            start = slot * _HASH_BYTES
            if not offsets[slot] or hashes[start : start + _HASH_BYTES] == digest:
                return digest, slot


def _prime_up_to(limit: int) -> int:
    """The largest prime that is at most `limit`; `limit` is at least 3."""
    candidate = limit - 1 + limit % 2
    while any(candidate % divisor == 0 for divisor in range(3, int(candidate**0.5) + 1, 2)):
        candidate -= 2
    return candidate
