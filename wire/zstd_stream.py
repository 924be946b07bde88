"""zstd with bounded memory: frames are taken apart into their blocks, and one block at a time is decompressed.

A zstd stream is one frame after another:

=================== ====== =====================================================================
part                bytes  meaning
=================== ====== =====================================================================
magic               4      0xFD2FB528 (little-endian); 0x184D2A5? starts a skippable frame
header              2-14   descriptor; window size, dictionary id, content size as the descriptor says
blocks              3 + n  bit 0 last, bits 1-2 type (0 raw, 1 repeated byte, 2 compressed), bits 3-23 size
checksum            0 or 4 if bit 2 of the descriptor is set
=================== ====== =====================================================================

A block yields at most 128 KiB, so the cost of a step is bounded. The decoder also keeps the frame's window. It accepts
a window beyond `HISTORY_BYTES_MAX` (or four times the input), as Kafka does up to 128 MiB, but then the frame may not
yield more than that limit.

Source: RFC 8878; the window limit of zstd-jni (`ZSTD_WINDOWLOG_LIMIT_DEFAULT`, 27).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from typing import Final

from barnabas.wire.record_batch import CorruptBatch

HISTORY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The maximum output that a decoder keeps; zstd's levels up to 19 need no more."""

_WINDOW_SIZE_MAX: Final = 1 << 27
_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_UINT32: Final = struct.Struct("<I")
_REPEATED_BYTE: Final = 1
_CHECKSUM_FLAG: Final = 4
_BLOCK_OUTPUT_MAX: Final = 128 * 1024


def compress(data: bytes | bytearray | memoryview, level: int) -> bytes:
    """Compress into one frame that contains its decompressed size."""
    import zstandard

    frame: bytes = zstandard.ZstdCompressor(level=level).compress(data)
    return frame


def compress_chunks(chunks: Iterator[bytes | bytearray | memoryview], level: int) -> Iterator[bytes]:
    """Compress a stream into one frame, piece by piece."""
    import zstandard

    stream = zstandard.ZstdCompressor(level=level).compressobj()
    yield from map(stream.compress, chunks)
    yield stream.flush()


def iter_decompressed(view: memoryview) -> Iterator[bytes]:
    """Decompress all frames in chunks of at most 128 KiB.

    Raises:
        CorruptBatch: not zstd, truncated, or in need of more memory than the limit.
    """
    if not view:
        raise CorruptBatch("zstd data is truncated")
    position = 0
    history_max = max(HISTORY_BYTES_MAX, 4 * len(view))
    while position < len(view):
        magic = _uint32(view, position)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + _uint32(view, position + 4)
            if position > len(view):
                raise CorruptBatch("zstd data is truncated")
        elif magic == _MAGIC:
            position = yield from _iter_frame(view, position, history_max)
        else:
            raise CorruptBatch(f"zstd data has a frame that starts with {magic:#010x}")


def _iter_frame(view: memoryview, start: int, history_max: int) -> Generator[bytes, None, int]:
    import zstandard

    try:
        parameters = zstandard.get_frame_parameters(view[start:])
        position = start + zstandard.frame_header_size(view[start : start + 18])
        decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW_SIZE_MAX).decompressobj(
            write_size=_BLOCK_OUTPUT_MAX
        )
        output_max = None if parameters.window_size <= history_max else history_max
        total = 0
        decoder.decompress(view[start:position])
        for end in _block_ends(view, position, has_checksum=bool(view[start + 4] & _CHECKSUM_FLAG)):
            chunk: bytes = decoder.decompress(view[position:end])
            position = end
            total += len(chunk)
            if output_max is not None and total > output_max:
                raise CorruptBatch(
                    f"zstd data has a window of {parameters.window_size} bytes and makes more than {output_max}"
                )
            if chunk:
                yield chunk
        if not decoder.eof:
            raise CorruptBatch("zstd data is truncated")
    except (zstandard.ZstdError, MemoryError) as error:
        raise CorruptBatch(f"zstd data cannot be decompressed: {error}") from None
    return position


def _block_ends(view: memoryview, position: int, *, has_checksum: bool) -> Iterator[int]:
    """The end of each block of a frame; the last one includes the checksum."""
    is_last = False
    while not is_last:
        if position + 3 > len(view):
            raise CorruptBatch("zstd data is truncated")
        header = int.from_bytes(view[position : position + 3], "little")
        is_last = bool(header & 1)
        position += 3 + (1 if header >> 1 & 3 == _REPEATED_BYTE else header >> 3)
        if is_last and has_checksum:
            position += 4
        if position > len(view):
            raise CorruptBatch("zstd data is truncated")
        yield position


def _uint32(view: memoryview, position: int) -> int:
    if position + 4 > len(view):
        raise CorruptBatch("zstd data is truncated")
    value: int = _UINT32.unpack_from(view, position)[0]
    return value
