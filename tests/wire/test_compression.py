"""The codecs: what they write, what they read, and that they never give more than was asked for."""

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.wire import xerial
from barnabas.wire.compression import (
    CHUNK_SIZE,
    CompressionType,
    compress,
    compress_chunks,
    decompress,
    default_level,
    iter_decompressed,
)
from barnabas.wire.record_batch import CorruptBatch

CODECS = [codec for codec in CompressionType if codec]
MIB = 1024 * 1024
SAMPLES = [b"", b"x", b"barnabas" * 50_000, bytes(range(256)) * 900]


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_round_trip(codec: CompressionType, data: bytes) -> None:
    compressed = compress(codec, memoryview(data))
    assert decompress(codec, compressed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(compressed)), 10 * MIB) == data
    assert b"".join(iter_decompressed(codec, compressed, len(data))) == data


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=5000), st.sampled_from(CompressionType))
def test_round_trip_of_anything(data: bytes, codec: CompressionType) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(
    ("codec", "levels"),
    [
        (CompressionType.GZIP, range(-1, 10)),
        (CompressionType.LZ4, range(1, 18)),
        (CompressionType.ZSTD, [-131072, -1, 1, 3, 22]),
    ],
)
def test_all_of_kafkas_levels_work(codec: CompressionType, levels: list[int]) -> None:
    for level in levels:
        assert decompress(codec, compress(codec, SAMPLES[2], level), MIB) == SAMPLES[2]


@pytest.mark.parametrize("codec", CompressionType)
@pytest.mark.parametrize("pieces", [1, 7, 100_000])
def test_a_stream_is_compressed_piece_by_piece(codec: CompressionType, pieces: int) -> None:
    data = SAMPLES[3]
    chunks = (data[start : start + len(data) // pieces + 1] for start in range(0, len(data), len(data) // pieces + 1))
    compressed = b"".join(compress_chunks(codec, chunks))
    assert decompress(codec, compressed, len(data)) == data


def test_default_levels_are_kafkas() -> None:
    levels = {codec: default_level(codec) for codec in CODECS}
    assert levels == {
        CompressionType.GZIP: -1,
        CompressionType.SNAPPY: None,
        CompressionType.LZ4: 9,
        CompressionType.ZSTD: 3,
    }


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_a_limit(codec: CompressionType) -> None:
    data = SAMPLES[2]
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, data), len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_data(codec: CompressionType) -> None:
    compressed = compress(codec, SAMPLES[2])
    for cut in (1, 4, 5, len(compressed) // 2, len(compressed) - 1, len(compressed)):
        if codec is CompressionType.SNAPPY and cut == len(compressed):
            continue
        with pytest.raises(CorruptBatch):
            decompress(codec, compressed[:-cut], MIB)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CODECS), st.data())
def test_damaged_data_never_escapes(codec: CompressionType, data: st.DataObject) -> None:
    compressed = bytearray(compress(codec, b"barnabas" * 100))
    for _ in range(data.draw(st.integers(1, 4))):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptBatch):
        assert len(decompress(codec, compressed, 2000)) <= 2000


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=100))
def test_random_data_never_escapes(codec: CompressionType, data: bytes) -> None:
    with suppress(CorruptBatch):
        assert len(decompress(codec, data, 1000)) <= 1000


def gzip_bomb() -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(300)) + stream.flush()


def lz4_bomb() -> bytes:
    frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB)
    return frame.begin() + b"".join(frame.compress(bytes(MIB)) for _ in range(200)) + frame.flush()


def zstd_bomb() -> bytes:
    """A frame without content size whose blocks repeat one byte 128 Ki times: 4 bytes each."""
    block = struct.pack("<I", (128 * 1024 << 3) | 2)[:3] + b"\0"
    return bytes.fromhex("28b52ffd0058") + block * 10_000 + struct.pack("<I", (1 << 3) | 2 | 1)[:3] + b"\0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "bomb"),
    [(CompressionType.GZIP, gzip_bomb), (CompressionType.LZ4, lz4_bomb), (CompressionType.ZSTD, zstd_bomb)],
    ids=["gzip", "lz4", "zstd"],
)
def test_bombs_are_read_in_chunks(codec: CompressionType, bomb: Callable[[], bytes]) -> None:
    data = bomb()
    tracemalloc.start()
    sizes: list[int] = []
    with pytest.raises(CorruptBatch, match="larger than"):
        sizes.extend(map(len, iter_decompressed(codec, data, 64 * MIB)))
    assert max(sizes) <= CHUNK_SIZE
    assert 64 * MIB - CHUNK_SIZE <= sum(sizes) <= 64 * MIB
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB


@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4], ids=["gzip", "lz4"])
def test_compressed_bytes_are_not_copied_as_a_whole(codec: CompressionType) -> None:
    """Incompressible data: a decompressor that was given all of it at once would keep what it has not read yet."""
    data = compress(codec, random.Random(1).randbytes(8 * MIB))
    tracemalloc.start()
    total = sum(map(len, iter_decompressed(codec, data, 64 * MIB)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 8 * MIB
    assert peak < 2 * MIB


def test_a_zstd_bomb_stops_at_the_limit() -> None:
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.ZSTD, zstd_bomb(), 4 * MIB)


def test_a_zstd_window_of_two_gibibytes_is_refused() -> None:
    frame = bytes.fromhex("28b52ffd00") + bytes([21 << 3]) + struct.pack("<I", (1 << 3) | 2 | 1)[:3] + b"a"
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.ZSTD, frame, MIB)


def zstd_repetition(window_log: int, mebibytes: int) -> bytes:
    """A frame with a window of 2 ** window_log bytes that holds so many MiB of one byte."""
    block = 128 * 1024 << 3 | 2
    blocks = [block] * (8 * mebibytes - 1) + [block | 1]
    header = bytes.fromhex("28b52ffd00") + bytes([window_log - 10 << 3])
    return header + b"".join(struct.pack("<I", each)[:3] + b"a" for each in blocks)


def test_a_large_zstd_window_is_accepted_up_to_its_bound() -> None:
    assert decompress(CompressionType.ZSTD, zstd_repetition(27, 8), 64 * MIB) == b"a" * (8 * MIB)
    assert len(decompress(CompressionType.ZSTD, zstd_repetition(23, 60), 64 * MIB)) == 60 * MIB
    with pytest.raises(CorruptBatch, match="window of 134217728"):
        decompress(CompressionType.ZSTD, zstd_repetition(27, 9), 64 * MIB)


def test_skippable_zstd_frames_are_skipped() -> None:
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    data = skippable + compress(CompressionType.ZSTD, b"data") + skippable
    assert decompress(CompressionType.ZSTD, data, MIB) == b"data"
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.ZSTD, data[:-1], MIB)


def test_a_raw_snappy_blocks_claimed_size_is_bounded() -> None:
    bomb = bytes(cramjam.snappy.compress_raw(bytes(10 * MIB)))
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.SNAPPY, bomb, 64 * MIB)


def test_zstd_frames_with_and_without_a_content_size() -> None:
    stream = cramjam.zstd.Compressor(3)
    stream.compress(SAMPLES[2])
    without_size = bytes(stream.finish())
    assert decompress(CompressionType.ZSTD, without_size, MIB) == SAMPLES[2]
    assert decompress(CompressionType.ZSTD, without_size * 2, MIB) == SAMPLES[2] * 2


def test_gzip_is_what_the_standard_library_reads_and_writes() -> None:
    assert gzip.decompress(compress(CompressionType.GZIP, SAMPLES[2])) == SAMPLES[2]
    members = gzip.compress(b"one") + gzip.compress(b"") + gzip.compress(b"two")
    assert decompress(CompressionType.GZIP, members, 6) == b"onetwo"


def test_lz4_frames_have_independent_blocks_of_64_kib() -> None:
    info = lz4.frame.get_frame_info(compress(CompressionType.LZ4, SAMPLES[2]))
    assert info["block_size"] == 64 * 1024
    assert not info["block_linked"]
    assert info["content_size"] == 0


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_any_standard_lz4_frame_is_read(linked: bool, checksum: bool) -> None:
    frame = lz4.frame.compress(
        SAMPLES[2], block_linked=linked, content_checksum=checksum, block_checksum=checksum, store_size=checksum
    )
    assert decompress(CompressionType.LZ4, frame, MIB) == SAMPLES[2]
    assert decompress(CompressionType.LZ4, frame + b"ignored", MIB) == SAMPLES[2]


def test_snappy_is_written_as_a_stream_of_32_kib_blocks() -> None:
    stream = compress(CompressionType.SNAPPY, SAMPLES[2])
    assert stream.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    sizes = []
    position = 16
    while position < len(stream):
        length = struct.unpack_from(">i", stream, position)[0]
        sizes.append(cramjam.snappy.decompress_raw_len(stream[position + 4 : position + 4 + length]))
        position += 4 + length
    assert sizes == [32768] * 12 + [len(SAMPLES[2]) - 12 * 32768]


def test_snappy_is_read_raw_and_concatenated() -> None:
    raw = bytes(cramjam.snappy.compress_raw(SAMPLES[2]))
    assert decompress(CompressionType.SNAPPY, raw, MIB) == SAMPLES[2]
    stream = compress(CompressionType.SNAPPY, b"once")
    assert decompress(CompressionType.SNAPPY, stream + stream, 8) == b"onceonce"


@pytest.mark.parametrize(
    ("codec", "more"),
    [
        (CompressionType.SNAPPY, b"\0"),
        (CompressionType.SNAPPY, b"\xff\xff\xff"),
        (CompressionType.SNAPPY, xerial.HEADER.replace(b"PP", b"QQ") + b"ignored"),
        (CompressionType.GZIP, b"\0"),
        (CompressionType.GZIP, b"ignored, however many bytes there are"),
        (CompressionType.GZIP, b"\x1f\x8b\x08 not enough"),
        (CompressionType.LZ4, b"\0"),
    ],
)
def test_trailing_bytes_are_ignored_where_java_ignores_them(codec: CompressionType, more: bytes) -> None:
    assert decompress(codec, compress(codec, SAMPLES[2]) + more, MIB) == SAMPLES[2]


@pytest.mark.parametrize(
    ("codec", "more"),
    [
        (CompressionType.SNAPPY, xerial.MAGIC),
        (CompressionType.SNAPPY, b"\0\0\0\1"),
        (CompressionType.GZIP, gzip.compress(b"cut off", mtime=0)[:-1]),
        (CompressionType.ZSTD, b"\0"),
    ],
)
def test_trailing_bytes_are_refused_where_java_refuses_them(codec: CompressionType, more: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, SAMPLES[2]) + more, MIB)


@pytest.mark.parametrize("length", [2**31 - 1, -1, -(2**31), 100])
def test_snappy_block_lengths_are_not_believed(length: int) -> None:
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.SNAPPY, xerial.HEADER + struct.pack(">i", length) + b"abc", MIB)


@pytest.mark.parametrize("claim", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x40"])
def test_snappy_contents_are_not_believed(claim: bytes) -> None:
    for data in (claim + b"abc", xerial.HEADER + struct.pack(">i", 8) + claim.ljust(8, b"a")):
        with pytest.raises(CorruptBatch):
            decompress(CompressionType.SNAPPY, data, 2**40)


def test_a_snappy_stream_of_version_0_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        decompress(CompressionType.SNAPPY, xerial.MAGIC + bytes(8), MIB)
