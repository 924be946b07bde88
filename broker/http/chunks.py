"""What a body in chunks has besides itself: the lengths of its chunks, their line ends, and what follows the last one.

A chunk costs whoever takes it the same, whether it has one byte or a megabyte, so the size of a body says nothing of
what it costs.

*Source*: RFC 9112, section 7.1.
"""

from __future__ import annotations

from typing import Final

FRAMING_BYTES_MAX: Final = 32 * 1024
"""How much of that a body may have: 4 MiB in chunks of 1 KiB have less, and 5,500 chunks of one byte have more."""


class ChunkFraming:
    """Counts these bytes of one body, while it arrives in pieces. What is no chunk is counted whole: who reads the body
    refuses it."""

    def __init__(self) -> None:
        self._bytes = 0
        self._line = bytearray()
        self._chunk_bytes_left = 0
        self._is_last = False

    @property
    def is_too_much(self) -> bool:
        return self._bytes > FRAMING_BYTES_MAX

    def add(self, data: bytes) -> None:
        """Count what is no body in the next piece, up to the first byte that is too much."""
        position = 0
        while position < len(data) and not self.is_too_much:
            rest = len(data) - position
            if self._is_last:
                self._bytes += rest
                return
            if self._chunk_bytes_left:
                taken = min(self._chunk_bytes_left, rest)
                self._chunk_bytes_left -= taken
            else:
                taken = data.find(b"\n", position) + 1 - position
                is_line = taken > 0
                taken = taken if is_line else rest
                self._bytes += taken
                self._line += data[position : position + taken]
                if is_line:
                    self._end_line()
            position += taken

    def _end_line(self) -> None:
        """The length of a chunk has come, or the line end after one."""
        text, self._line = bytes(self._line).strip(), bytearray()
        if not text:
            return
        try:
            length = int(text.partition(b";")[0], 16)
        except ValueError:
            length = 0
        self._chunk_bytes_left = max(length, 0)
        self._is_last = length <= 0
