"""Splits the bytes of one connection into request frames, without I/O (the socket belongs to
broker/network/connection.py).

A frame on the wire is a signed 32-bit big-endian length and that many bytes (Kafka protocol guide, "Common request and
response structure").

Memory: all connections of a loop read into one shared `ReceiveBuffer`, and complete frames are returned as views of it.
Only a frame that arrives in pieces gets its own buffer, which grows with the bytes that have arrived: a declared length
never allocates. An idle connection therefore has no buffer at all. A frame is valid until the next call of
`get_buffer`: to keep it longer, copy it first.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from barnabas.wire.errors import ForeignProtocol, ProtocolError

LENGTH_SIZE = 4
RECEIVE_BUFFER_BYTES = 256 * 1024
FIRST_BUFFER_BYTES = 4 * 1024
LARGE_BUFFER_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">i")


_FIRST_BYTES: Final = {
    b"\x16\x03": "TLS",
    b"SSH-": "SSH",
    **dict.fromkeys((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI "), "HTTP"),
}


def foreign_protocol(first_bytes: bytes) -> str | None:
    """The protocol of a connection that begins with these four bytes, if they are known not to be Kafka's length."""
    return next((name for start, name in _FIRST_BYTES.items() if first_bytes.startswith(start)), None)


class ReceiveBuffer:
    """The buffer that every connection of one event loop reads into; its content is consumed before the next read."""

    __slots__ = ("view",)

    def __init__(self, size: int = RECEIVE_BUFFER_BYTES) -> None:
        self.view = memoryview(bytearray(size))


def kept(frame: memoryview | bytearray) -> memoryview | bytearray:
    """The frame in a form that may be kept beyond the next read: a copy, unless it has its own buffer, as every frame
    has that is larger than the shared buffer.
    """
    if isinstance(frame, bytearray) or len(frame) > RECEIVE_BUFFER_BYTES:
        return frame
    return bytearray(frame)


def kept_part(part: memoryview) -> memoryview | bytearray:
    """A part of a frame in a form that may be kept beyond the next read: a copy, unless the frame is larger than the
    shared buffer.
    What is not copied keeps the whole frame in memory.
    """
    return part if memoryview(part.obj).nbytes > RECEIVE_BUFFER_BYTES else bytearray(part)


class FrameReader:
    """Splits one connection's stream into frames.

    The caller gets `get_buffer()`, fills its beginning, and iterates over `received(count)` to the end before the next
    read.

    `buffered_bytes` is the memory of a partial frame; `frame_bytes_max` bounds the declared length
    (`socket.request.max.bytes`). `has_room` says whether that many bytes may be allocated for a frame that is
    incomplete.
    """

    __slots__ = ("_filled", "_frame_end", "_has_room", "_largest_frame", "_shared", "frame_bytes_max", "partial_frame")

    def __init__(
        self, shared: ReceiveBuffer, frame_bytes_max: int, has_room: Callable[[int], bool] = lambda _size: True
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._shared = shared
        self._has_room = has_room
        self.partial_frame: bytearray | None = None
        """The beginning of an incomplete frame; public, so that others can check whether there is one."""
        self._filled = 0
        self._frame_end = 0  # the end of the frame in `partial_frame`; 0 while its length is unknown
        self._largest_frame = 0

    @property
    def buffered_bytes(self) -> int:
        return 0 if self.partial_frame is None else len(self.partial_frame)

    def get_buffer(self) -> memoryview:
        """The buffer for the next bytes of the socket; never empty."""
        if self.partial_frame is None:
            return self._shared.view
        end = self._frame_end or LENGTH_SIZE
        if self._filled == len(self.partial_frame):
            self._grow(end)
        return memoryview(self.partial_frame)[self._filled : min(end, len(self.partial_frame))]

    def is_shared(self, frame: memoryview) -> bool:
        """Whether the next read will overwrite a frame of `received`; else it has its own buffer."""
        return frame.obj is self._shared.view.obj

    def received(self, count: int) -> Iterator[memoryview]:
        """Frames completed by `count` bytes written to the last `get_buffer()`, without their length prefix.

        Raises ProtocolError on a negative or too large length: the connection cannot be resynchronised and must be
        closed.
        """
        if self.partial_frame is None:
            return self._split(self._shared.view[:count])
        return self._continue(self.partial_frame, count)

    def _continue(self, buffer: bytearray, count: int) -> Iterator[memoryview]:
        """Process more bytes of a partial frame."""
        self._filled += count
        if self._frame_end == 0 and self._filled == LENGTH_SIZE:
            length: int = _LENGTH.unpack_from(buffer, 0)[0]
            if not 0 <= length <= self.frame_bytes_max:
                raise self._bad_length(length)
            self._frame_end = LENGTH_SIZE + length
        if self._frame_end and self._filled == self._frame_end:
            self.partial_frame = None
            self._largest_frame = max(self._largest_frame, self._frame_end - LENGTH_SIZE)
            yield memoryview(buffer)[LENGTH_SIZE : self._frame_end]

    def _split(self, data: memoryview) -> Iterator[memoryview]:
        position, end = 0, len(data)
        while end - position >= LENGTH_SIZE:
            frame_start = position + LENGTH_SIZE
            length: int = _LENGTH.unpack_from(data, position)[0]
            if not 0 <= length <= self.frame_bytes_max:
                raise self._bad_length(length)
            frame_end = frame_start + length
            if frame_end > end:
                self._keep(data[position:], frame_end - position)
                return
            position = frame_end
            if length > self._largest_frame:
                self._largest_frame = length
            yield data[frame_start:frame_end]
        if position < end:
            self._keep(data[position:], 0)

    def _bad_length(self, length: int) -> ProtocolError:
        spoken = foreign_protocol(_LENGTH.pack(length))
        if spoken is not None:
            return ForeignProtocol(f"the peer speaks {spoken}; this port speaks Kafka's protocol, without TLS")
        return ProtocolError(
            f"frame length {length} is not between 0 and {self.frame_bytes_max} (socket.request.max.bytes)"
        )

    def _keep(self, part: memoryview, frame_end: int) -> None:
        """Move the beginning of a frame out of the shared buffer."""
        self.partial_frame = bytearray(self._capacity(len(part), frame_end or LENGTH_SIZE))
        self.partial_frame[: len(part)] = part
        self._filled = len(part)
        self._frame_end = frame_end

    def _grow(self, frame_end: int) -> None:
        assert self.partial_frame is not None
        more = bytes(self._capacity(self._filled + 1, frame_end) - self._filled)
        try:
            # In place: the kernel moves the pages of a large buffer, so that old and new do not exist at the same time.
            self.partial_frame.extend(more)
        except BufferError:  # the reader of the socket still has a view
            self.partial_frame = self.partial_frame + more

    def _capacity(self, needed: int, frame_end: int) -> int:
        """At most twice the received bytes, a quarter more from 1 MiB on, but the whole frame at once if the peer has
        already sent a frame of that size and there is room.
        """
        if frame_end <= 2 * self._largest_frame and self._has_room(frame_end):
            return frame_end
        wanted = 2 * needed if needed < LARGE_BUFFER_BYTES else needed + needed // 4
        return min(frame_end, max(FIRST_BUFFER_BYTES, wanted))
