"""The records of a batch as ranges of bytes: where each one begins and ends, uncompressed.

Everything read here was written by a peer, and a batch whose header and CRC are right may still hold anything: every
length is checked against the bytes that are there before it is used, and decompression stops at a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.wire.compression import iter_decompressed
from barnabas.wire.record_batch import HEADER_SIZE, CompressionType, CorruptBatch, ReadBuffer, RecordBatchHeader
from barnabas.wire.varint import VarintTooLong, read_varint

DEFAULT_MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024

RECORD_BYTES_MAX: Final = 2**31 - 1
"""The size of the largest record that the format allows."""

_VARINT_MAX_BYTES: Final = 5
_HEAD_BYTES: Final = 16
"""The maximum number of bytes of a record's attributes, timestamp delta and offset delta."""


def iter_bodies(
    buffer: ReadBuffer,
    header: RecordBatchHeader,
    max_decompressed_bytes: int,
    *,
    max_record_bytes: int = RECORD_BYTES_MAX,
    heads_only: bool = False,
) -> Iterator[tuple[bytes, int, int]]:
    """Find the records: (bytes, start and end of the record's body in them).

    The bytes are a window over the decompressed stream that moves when a record does not fit, so that memory is bounded
    by a chunk or the largest record, not by the batch. With `heads_only` a large record is not collected: its bytes may
    end after the first _HEAD_BYTES.
    """
    chunks = payload(buffer, header, max_decompressed_bytes)
    data = b""
    position = size = 0
    for _ in range(header.record_count):
        if size - position < _VARINT_MAX_BYTES:
            data = _extend(data, position, _VARINT_MAX_BYTES, chunks)
            position, size = 0, len(data)
        try:
            length, position = read_varint(data, position)
        except IndexError:
            raise CorruptBatch("batch ends before its last record") from None
        except VarintTooLong as error:
            raise CorruptBatch(str(error)) from None
        if length <= 0:
            raise CorruptBatch(f"record has a length of {length} bytes")
        if length > max_record_bytes:
            raise CorruptBatch(f"record of {length} bytes where at most {max_record_bytes} are allowed")
        if length > size - position:
            wanted = min(length, _HEAD_BYTES) if heads_only else length
            data = _extend(data, position, wanted, chunks)
            position, size = 0, len(data)
            if wanted > size:
                raise CorruptBatch(f"record of {length} bytes where {size} are left in the batch")
        yield data, position, position + length
        position += length
        if position > size:
            data = _skip(position - size, chunks)
            position, size = 0, len(data)
    if position < size or any(map(len, chunks)):
        raise CorruptBatch(f"bytes follow the {header.record_count} records that the batch header counts")


def payload(
    buffer: ReadBuffer, header: RecordBatchHeader, max_decompressed_bytes: int
) -> Iterator[bytes | bytearray | memoryview]:
    """Check the header's claims about the records and return their bytes, decompressed chunk by chunk."""
    if header.record_count < 0:
        raise CorruptBatch(f"batch counts {header.record_count} records")
    if header.end_position > len(buffer):
        raise CorruptBatch(f"batch of {header.size_in_bytes} bytes is truncated")
    view = memoryview(buffer)[header.position + HEADER_SIZE : header.end_position]
    # An emptied batch (compaction keeps a producer's last one) has nothing to decompress, whatever its codec bits say.
    if header.record_count == 0 and not view:
        return iter(())
    compression_type = header.compression_type
    if compression_type is CompressionType.NONE:
        return iter((view,))
    return iter_decompressed(compression_type, view, max_decompressed_bytes)


def _extend(data: bytes, position: int, wanted: int, chunks: Iterator[bytes | bytearray | memoryview]) -> bytes:
    """Return the rest of `data` extended by as many chunks as needed for `wanted` bytes, or all chunks."""
    parts: list[bytes | bytearray | memoryview] = [data[position:]]
    have = len(data) - position
    while have < wanted:
        chunk = next(chunks, None)
        if chunk is None:
            break
        parts.append(chunk)
        have += len(chunk)
    return b"".join(parts)


def _skip(count: int, chunks: Iterator[bytes | bytearray | memoryview]) -> bytes:
    """Skip `count` bytes; returns the bytes behind them in the chunk in which they end."""
    for chunk in chunks:
        if count <= len(chunk):
            return bytes(memoryview(chunk)[count:])
        count -= len(chunk)
    raise CorruptBatch("batch ends inside a record")
