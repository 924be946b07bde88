"""The four codecs of record batches: gzip, snappy, lz4 and zstd.

Decompression is bounded: it yields chunks and never has more than one chunk plus the codec's own window in memory: 8
MiB, or four times the compressed size if that is more. The codec libraries are imported on first use, so that a broker
that never opens a batch does not load them.

Source: Kafka `CompressionType` and the classes of `org.apache.kafka.common.compress` (KIP-110, KIP-390).
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Final

from barnabas.wire.record_batch import CompressionType, CorruptBatch, ReadBuffer

__all__ = ["CompressionType", "compress", "decompress", "default_level", "iter_decompressed"]

CHUNK_SIZE: Final = 256 * 1024
"""The maximum size of a chunk that a streaming codec yields, in bytes."""

_INPUT_SIZE: Final = 64 * 1024
"""The size of the pieces of input for gzip and lz4, in bytes. Both keep a copy of unread input, and copy it again with
every chunk that they yield.
"""

_GZIP_MEMBER_START: Final = b"\x1f\x8b\x08"
_GZIP_MEMBER_SIZE_MIN: Final = 18
_GZIP_WINDOW_BITS: Final = 31
"""zlib's code for: gzip container, 32 KiB window."""

# Kafka's level 9 means the fast compressor of lz4-java, every other level its high compressor.
_DEFAULT_LEVELS: Final = {CompressionType.GZIP: -1, CompressionType.LZ4: 9, CompressionType.ZSTD: 3}
_LZ4_FAST: Final = 0
_LZ4_HIGH_MINIMUM: Final = 3
_LZ4_HIGH_MAXIMUM: Final = 12


def default_level(compression_type: CompressionType) -> int | None:
    """Kafka's default level of the codec; None for those without levels."""
    return _DEFAULT_LEVELS.get(compression_type)


def compress(compression_type: CompressionType, data: ReadBuffer, level: int | None = None) -> bytes:
    """Compress `data`; `level` is Kafka's (`compression.<codec>.level`), None its default."""
    if level is None:
        level = _DEFAULT_LEVELS.get(compression_type, 0)
    if compression_type is CompressionType.GZIP:
        import zlib

        stream = zlib.compressobj(level, wbits=_GZIP_WINDOW_BITS)
        return stream.compress(data) + stream.flush()
    if compression_type is CompressionType.SNAPPY:
        from barnabas.wire import xerial

        return xerial.compress(data)
    if compression_type is CompressionType.LZ4:
        return _compress_lz4(data, level)
    if compression_type is CompressionType.ZSTD:
        from barnabas.wire import zstd_stream

        return zstd_stream.compress(data, level)
    return bytes(data)


def _compress_lz4(data: ReadBuffer, level: int) -> bytes:
    """One frame of independent 64 KiB blocks without checksums: the only kind that Kafka's Java reader accepts."""
    import lz4.frame

    frame: bytes = lz4.frame.compress(
        data,
        compression_level=_lz4_level(level),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def compress_chunks(
    compression_type: CompressionType, chunks: Iterator[bytes | bytearray | memoryview], level: int | None = None
) -> Iterator[ReadBuffer]:
    """Compress a stream: yields what `compress` would return for the chunks together, in pieces, without collecting
    them.

    The bytes may differ from those of `compress`; the decompressed content is the same.
    """
    if level is None:
        level = _DEFAULT_LEVELS.get(compression_type, 0)
    if compression_type is CompressionType.GZIP:
        import zlib

        gzip = zlib.compressobj(level, wbits=_GZIP_WINDOW_BITS)
        yield from map(gzip.compress, chunks)
        yield gzip.flush()
    elif compression_type is CompressionType.SNAPPY:
        from barnabas.wire import xerial

        yield from xerial.compress_chunks(chunks)
    elif compression_type is CompressionType.LZ4:
        import lz4.frame

        frame = lz4.frame.LZ4FrameCompressor(
            compression_level=_lz4_level(level), block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False
        )
        yield frame.begin()
        yield from map(frame.compress, chunks)
        yield frame.flush()
    elif compression_type is CompressionType.ZSTD:
        from barnabas.wire import zstd_stream

        yield from zstd_stream.compress_chunks(chunks, level)
    else:
        yield from chunks


def _lz4_level(level: int) -> int:
    if level == _DEFAULT_LEVELS[CompressionType.LZ4]:
        return _LZ4_FAST
    return min(max(level, _LZ4_HIGH_MINIMUM), _LZ4_HIGH_MAXIMUM)


def decompress(compression_type: CompressionType, buffer: ReadBuffer, max_bytes: int) -> bytes:
    """Decompress all of `buffer`.

    Raises:
        CorruptBatch: invalid for the codec, or more than `max_bytes` when decompressed.
    """
    # Not joined: hundreds of live chunks would come from the arena of the thread, which keeps their memory.
    whole = BytesIO()
    for chunk in iter_decompressed(compression_type, buffer, max_bytes):
        whole.write(chunk)
    return whole.getvalue()


def iter_decompressed(
    compression_type: CompressionType, buffer: ReadBuffer, max_bytes: int
) -> Iterator[bytes | bytearray | memoryview]:
    """Decompress chunk by chunk, so that a reader that stops early, or gets a malicious batch, decompresses only what
    it consumes. Raw snappy comes as one chunk, xerial snappy in blocks, the others in chunks of at most `CHUNK_SIZE`.

    Raises:
        CorruptBatch: invalid for the codec, or more than `max_bytes` in total when decompressed.
    """
    view = memoryview(buffer)
    chunks: Iterator[bytes | bytearray | memoryview]
    if compression_type is CompressionType.GZIP:
        chunks = _iter_gzip(view)
    elif compression_type is CompressionType.SNAPPY:
        from barnabas.wire import xerial

        chunks = xerial.iter_decompressed(view, max_bytes)
    elif compression_type is CompressionType.LZ4:
        chunks = _iter_lz4(view)
    elif compression_type is CompressionType.ZSTD:
        from barnabas.wire import zstd_stream

        chunks = zstd_stream.iter_decompressed(view)
    else:
        chunks = iter((view,))
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > max_bytes:
            raise CorruptBatch(f"records are larger than {max_bytes} bytes when decompressed")
        yield chunk


def _iter_gzip(view: memoryview) -> Iterator[bytes]:
    """Decompress one or more gzip members; bytes behind the first one that cannot be another are ignored, as by Java's
    `GZIPInputStream`.
    """
    import zlib

    position = 0
    while True:
        stream = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        pending: bytes | memoryview = b""
        while not stream.eof:
            if not pending:
                pending = view[position : position + _INPUT_SIZE]
                position += len(pending)
            try:
                chunk = stream.decompress(pending, CHUNK_SIZE)
            except zlib.error as error:
                raise CorruptBatch(f"gzip data cannot be decompressed: {error}") from None
            if chunk:
                yield chunk
            elif not pending and not stream.eof:
                raise CorruptBatch("gzip data is truncated")
            pending = stream.unconsumed_tail
        position -= len(stream.unused_data)
        if len(view) - position <= _GZIP_MEMBER_SIZE_MIN or bytes(view[position : position + 3]) != _GZIP_MEMBER_START:
            return


def _iter_lz4(view: memoryview) -> Iterator[bytes]:
    """Decompress the first lz4 frame; bytes behind it are ignored, as by Kafka's `Lz4BlockInputStream`."""
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    position = 0
    while not stream.eof:
        pending: bytes | memoryview = b""
        if stream.needs_input:
            if position == len(view):
                raise CorruptBatch("lz4 data is truncated")
            pending = view[position : position + _INPUT_SIZE]
            position += len(pending)
        try:
            chunk: bytes = stream.decompress(pending, max_length=CHUNK_SIZE)
        except (RuntimeError, ValueError, EOFError) as error:
            raise CorruptBatch(f"lz4 data cannot be decompressed: {error}") from None
        if chunk:
            yield chunk
        elif not stream.needs_input and not stream.eof:
            raise CorruptBatch("lz4 data cannot be decompressed: it makes no progress")
