import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.wire.errors import ProtocolError
from barnabas.wire.framing import (
    FIRST_BUFFER_BYTES,
    LENGTH_SIZE,
    RECEIVE_BUFFER_BYTES,
    FrameReader,
    ReceiveBuffer,
    kept,
    kept_part,
)


def feed(reader: FrameReader, data: bytes, read_size: int) -> list[bytes]:
    """Hand `data` to the reader as a socket would: at most `read_size` bytes a read, never more than fits."""
    frames = []
    while data:
        buffer = reader.get_buffer()
        count = min(len(buffer), read_size, len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        frames += [bytes(frame) for frame in reader.received(count)]
    return frames


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(bodies=st.lists(st.binary(max_size=300), max_size=12), read_size=st.integers(1, 400), shared=st.integers(8, 256))
def test_frames_come_out_as_they_went_in(bodies: list[bytes], read_size: int, shared: int) -> None:
    reader = FrameReader(ReceiveBuffer(shared), 1000)
    assert feed(reader, framed(*bodies), read_size) == bodies
    assert reader.partial_frame is None


def test_two_connections_share_one_buffer_without_mixing() -> None:
    shared = ReceiveBuffer(64)
    first, second = FrameReader(shared, 1000), FrameReader(shared, 1000)
    assert feed(first, framed(b"a" * 100)[:50], 50) == []
    assert feed(second, framed(b"b" * 20), 64) == [b"b" * 20]
    assert feed(first, framed(b"a" * 100)[50:], 64) == [b"a" * 100]


def test_a_declared_length_allocates_nothing() -> None:
    reader = FrameReader(ReceiveBuffer(1024), 100 * 1024 * 1024)
    feed(reader, struct.pack(">i", 100 * 1024 * 1024) + b"x", 5)
    assert reader.buffered_bytes <= FIRST_BUFFER_BYTES


def test_a_growing_frame_holds_at_most_twice_what_arrived() -> None:
    size = 4 * 1024 * 1024
    reader = FrameReader(ReceiveBuffer(64 * 1024), size)
    sent = 0
    data = framed(bytes(size))
    while sent < len(data) - 10_000:
        feed(reader, data[sent : sent + 10_000], 10_000)
        sent += 10_000
        assert reader.buffered_bytes <= max(FIRST_BUFFER_BYTES, 2 * (sent + 10_000))
    assert feed(reader, data[sent:], 10_000) == [bytes(size)]
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("room", [100_003, 100_004])
def test_a_second_large_frame_takes_room_at_once(room: int) -> None:
    reader = FrameReader(ReceiveBuffer(1024), 200_000, lambda size: size <= room)
    data = framed(bytes(100_000))
    assert feed(reader, data, 1024) == [bytes(100_000)]
    feed(reader, data[:10], 10)
    assert reader.buffered_bytes == (len(data) if room >= len(data) else FIRST_BUFFER_BYTES)
    assert feed(reader, data[10:], 1024) == [bytes(100_000)]


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("read_size", [1, 3, 100])
def test_a_length_out_of_bounds_is_refused(length: int, read_size: int) -> None:
    reader = FrameReader(ReceiveBuffer(256), 1000)
    with pytest.raises(ProtocolError, match=r"socket\.request\.max\.bytes"):
        feed(reader, struct.pack(">i", length), read_size)


def test_an_empty_frame_is_a_frame() -> None:
    reader = FrameReader(ReceiveBuffer(256), 1000)
    assert feed(reader, framed(b"", b"x"), 1) == [b"", b"x"]


@pytest.mark.parametrize(
    ("size", "is_copied"), [(RECEIVE_BUFFER_BYTES - LENGTH_SIZE, True), (RECEIVE_BUFFER_BYTES + 1, False)]
)
def test_a_kept_frame_is_copied_out_of_a_shared_buffer(size: int, is_copied: bool) -> None:
    shared = ReceiveBuffer()
    reader = FrameReader(shared, 1 << 30)
    data = memoryview(struct.pack(">i", size) + b"a" * size)
    held = []
    while data:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        held += [(kept(frame), kept_part(frame[10:20]), frame) for frame in reader.received(count)]
    [(frame, part, view)] = held
    reader.get_buffer()[:] = b"b" * len(reader.get_buffer())
    assert bytes(frame) == b"a" * size
    assert bytes(part) == b"a" * 10
    assert (frame is not view) is is_copied
    assert isinstance(part, bytearray) is is_copied
