"""Snappy as Kafka's clients write it: snappy-java's block stream ("xerial"), and one raw block (some older C clients).

============ ===== ==================================================
part         bytes meaning
============ ===== ==================================================
magic        8     0x82 "SNAPPY" 0x00
version      4     1
compatible   4     1: the oldest version that can read the stream
then, repeatedly
length       4     bytes of the compressed block that follows
block        n     one raw snappy block, 32 KiB before compression
============ ===== ==================================================

Integers are big-endian. A stream may be the concatenation of several, each with its header. Fewer than four bytes after
the last block, or bytes that begin like the magic and differ later, end the stream without an error.

Source: snappy-java `SnappyOutputStream`, `SnappyInputStream`, `SnappyCodec`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from barnabas.wire.record_batch import CorruptBatch, ReadBuffer

BLOCK_SIZE: Final = 32 * 1024
MAGIC: Final = b"\x82SNAPPY\x00"
HEADER: Final = MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_MINIMUM_VERSION: Final = 1
_LENGTH: Final = struct.Struct(">i")
# A snappy copy element produces at most 64 bytes from 3, so a larger claim is false and not worth an allocation.
_MAXIMUM_RATIO: Final = 22
_BLOCK_OUTPUT_MAX: Final = 8 * 1024 * 1024


def compress(data: ReadBuffer) -> bytes:
    """Compress into one stream with its header."""
    return b"".join(compress_chunks(iter((data,))))


def compress_chunks(chunks: Iterator[ReadBuffer]) -> Iterator[bytes]:
    """Compress into one stream with its header, piece by piece; no block spans two chunks."""
    import cramjam

    yield HEADER
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), BLOCK_SIZE):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + BLOCK_SIZE]))
            yield _LENGTH.pack(len(block))
            yield block


def iter_decompressed(data: memoryview, max_bytes: int) -> Iterator[bytearray]:
    """Decompress block by block. A block is one piece of memory: it may be larger than 32 KiB, but never larger than
    `max_bytes`, nor than 8 MiB unless that is less than four times the compressed size.

    Raises:
        CorruptBatch: the bytes are neither a stream nor a raw block, or a block would exceed `max_bytes`.
    """
    max_bytes = min(max_bytes, max(_BLOCK_OUTPUT_MAX, 4 * len(data)))
    if bytes(data[: len(MAGIC)]) != MAGIC:
        yield _decompress_block(data, max_bytes)
        return
    position = 0
    size = len(data)
    while size - position >= _LENGTH.size:
        if bytes(data[position : position + _LENGTH.size]) == MAGIC[: _LENGTH.size]:
            if size - position < len(HEADER):
                raise CorruptBatch("snappy stream ends inside its header")
            if bytes(data[position : position + len(MAGIC)]) != MAGIC:
                return
            position = _read_header(data, position)
            continue
        length = _LENGTH.unpack_from(data, position)[0]
        position += 4
        if not 0 < length <= size - position:
            raise CorruptBatch(f"snappy block of {length} bytes where {size - position} are left")
        yield _decompress_block(data[position : position + length], max_bytes)
        position += length


def _read_header(data: memoryview, position: int) -> int:
    """Check the stream header at `position`; returns the position behind it."""
    version = _LENGTH.unpack_from(data, position + len(MAGIC))[0]
    if version < _MINIMUM_VERSION:
        raise CorruptBatch(f"snappy stream has version {version}")
    return position + len(HEADER)


def _decompress_block(block: memoryview, max_bytes: int) -> bytearray:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > max_bytes or size > _MAXIMUM_RATIO * len(block):
            raise CorruptBatch(f"snappy block of {len(block)} bytes claims to hold {size}")
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output) if size else 0
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy block cannot be decompressed: {error}") from None
    if written != size:
        raise CorruptBatch(f"snappy block holds {written} bytes, its header says {size}")
    return output
