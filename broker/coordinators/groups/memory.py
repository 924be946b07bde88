"""Estimates of memory that all kinds of groups and offsets share. (Kafka has no limits of memory: its coordinator
grows until the heap is full.)
"""

from typing import Final

GROUP_BYTES: Final = 1_800
"""The memory that a group takes besides its members, and clients' texts and bytes, with its timers."""


def text_bytes(text: str | None) -> int:
    """The maximum memory of a text."""
    return 0 if text is None else 60 + len(text) * (1 if text.isascii() else 4)
