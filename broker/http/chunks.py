"""The framing of a chunked body: the lengths of its chunks, their line ends, and the trailer after the last chunk.

A chunk costs its reader the same, whether it has one byte or a megabyte. So the size of a body does not bound its cost.

*Source*: RFC 9112, section 7.1.
"""

from __future__ import annotations

from typing import Final

FRAMING_BYTES_MAX: Final = 32 * 1024
"""The maximum framing of a body. 4 MiB in chunks of 1 KiB have less, 5,500 chunks of one byte have more."""


class ChunkFraming:
    """Counts the framing bytes of one body, which arrives in pieces. Invalid chunks count in full; the parser of the
    body refuses them.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._line = bytearray()
        self._chunk_bytes_left = 0
        self._is_last = False

    @property
    def is_too_much(self) -> bool:
        return self._bytes > FRAMING_BYTES_MAX

    def add(self, data: bytes) -> None:
        """Count the framing of the next piece, up to the first byte beyond the limit."""
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
        """Process a complete line: the length of a chunk, or the empty rest of the line after one."""
        text, self._line = bytes(self._line).strip(), bytearray()
        if not text:
            return
        try:
            length = int(text.partition(b";")[0], 16)
        except ValueError:
            length = 0
        self._chunk_bytes_left = max(length, 0)
        self._is_last = length <= 0
