"""The responses of one connection: in the order of their requests, gathered where several are sent together, and sent
without the transport if parts of them are in log files."""

import asyncio
from collections import deque
from typing import Final, Protocol

from barnabas.broker.network.file_sender import FileSender
from barnabas.storage.errors import ReadWouldBlock
from barnabas.storage.file_records import FileRegion
from barnabas.storage.files import Buffer
from barnabas.threads import Threads

Parts = list[bytes | bytearray | memoryview | FileRegion]

GATHERED_BYTES_MAX: Final = 64 * 1024
"""Gathered responses of this size are sent: waiting for more gains nothing."""

HIGH_WATER_BYTES: Final = 64 * 1024
"""The unsent bytes beyond which asyncio's and uvloop's transports are full."""

ENCRYPTED_BYTES_MAX: Final = 256 * 1024
"""The bytes of a response from files that are encrypted in one turn of the event loop: a third of a millisecond."""

TRANSPORT_WAIT_S_MAX: Final = 0.25


class Replying(Protocol):
    """The queue's interface to its connection."""

    def pause_for_files(self, finishing: "asyncio.Task[None]") -> None:
        """The file sender is sending a response: serve nothing before `resume_from_files`, and do not end the loop
        before that task has ended."""
        ...

    def resume_from_files(self) -> None:
        """A response from files has been sent: continue, and call `write_known`."""
        ...

    def abort(self, reason: str | None = None) -> None: ...

    @property
    def threads(self) -> Threads:
        """The threads in which a response waits for the disk."""
        ...


class Reply:
    """The place of one response in the order of requests; `parts` is None if nothing is to be sent."""

    __slots__ = ("is_known", "parts")

    def __init__(self, parts: Parts | None = None, *, is_known: bool = False) -> None:
        self.is_known = is_known
        self.parts = parts


class ReplyQueue:
    """Responses on their way to the transport; owned by the event loop.

    While it `is_gathering`, the connection serves more requests of the same read, and calls `flush` after them; or more
    responses may become known in this iteration of the loop. `is_transport_full` is the last state that the transport
    reported.
    """

    __slots__ = (
        "_connection",
        "_file_sender",
        "_gathered",
        "_gathered_bytes",
        "_in_order",
        "_is_closed",
        "_last_sent_bytes",
        "_room",
        "is_gathering",
        "is_sending_files",
        "is_transport_full",
        "transport",
    )

    def __init__(self, connection: Replying) -> None:
        self._connection: Replying | None = connection
        self.transport: asyncio.Transport | None = None
        self._in_order: deque[Reply] | None = None
        self._gathered: list[bytes | bytearray | memoryview] | None = None
        self._gathered_bytes = 0
        self._last_sent_bytes = 0
        self._file_sender: FileSender | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_closed = False
        self.is_gathering = False
        self.is_sending_files = False
        self.is_transport_full = False

    # --- in request order -------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a response waits for an earlier one, or is not known yet."""
        return bool(self._in_order)

    def add(self, parts: Parts) -> None:
        """Send the response to the last request, after those of earlier ones."""
        if self._in_order or self.is_sending_files:
            if self._in_order is None:
                self._in_order = deque()
            self._in_order.append(Reply(parts, is_known=True))
        else:
            self._write(parts)

    def reserve(self) -> Reply:
        """Reserve a place for the response to the last request; later responses may become known before it, but are
        sent after it."""
        if self._in_order is None:
            self._in_order = deque()
        reply = Reply()
        self._in_order.append(reply)
        return reply

    def fill(self, reply: Reply, parts: Parts | None) -> None:
        """Set a reserved response. If more places are reserved, the same cause, for example a follower's fetch that
        commits the batches of several requests, often sets those in the same iteration of the loop: they are sent
        together after it."""
        reply.is_known, reply.parts = True, parts
        if not self.is_gathering and self._in_order is not None and len(self._in_order) > 1:
            self.is_gathering = True
            asyncio.get_running_loop().call_soon(self._flush_after_turn)
        self.write_known()

    def write_known(self) -> None:
        """Send the known responses up to the first unknown one."""
        while self._in_order and self._in_order[0].is_known and not (self._is_closed or self.is_sending_files):
            parts = self._in_order.popleft().parts
            if parts is not None:
                self._write(parts)

    # --- through the transport --------------------------------------------------------------------

    def _write(self, parts: Parts) -> None:
        """Send a response, or keep it while the next request of the same read is served: one system call, and one
        wake-up of the client, for the responses to all of them."""
        size = sum(map(len, parts))
        if size >= GATHERED_BYTES_MAX and FileRegion in map(type, parts):
            self._write_files(parts)
            return
        if self._gathered is None:
            self._gathered = []
        self._gathered += parts  # type: ignore[arg-type]  # no regions of files among them
        self._gathered_bytes += size
        if not self.is_gathering or self._gathered_bytes >= GATHERED_BYTES_MAX:
            self._send()

    def flush(self) -> None:
        """The requests of a read are served: send the gathered responses."""
        self.is_gathering = False
        if self._gathered is not None:
            self._send()

    def _flush_after_turn(self) -> None:
        if not self._is_closed:
            self.flush()

    def _send(self) -> None:
        assert self.transport is not None
        assert self._gathered is not None
        parts, size = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = None, 0
        if size < GATHERED_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self._last_sent_bytes = size
            self.transport.writelines(parts)
            if not self.is_transport_full and self.transport.get_write_buffer_size() > HIGH_WATER_BYTES:
                # writelines() of asyncio 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 does not call pause_writing()
                # (CVE-2024-12254); this does. The limits stay the default ones.
                self.transport.set_write_buffer_limits()
            if not self.is_transport_full:
                self._last_sent_bytes = 0

    def transport_has_room(self) -> None:
        """The client has read from the full transport."""
        self.is_transport_full = False
        self._last_sent_bytes = 0
        if self._room is not None:
            self._wake()

    # --- with parts in files ----------------------------------------------------------------------

    def _write_files(self, parts: Parts) -> None:
        """Send a response without the transport: at once if possible; else nothing is served until it is sent."""
        assert self.transport is not None
        assert self._connection is not None
        if self._is_closed:
            return
        if self._gathered is not None:
            self._send()
        try:
            if self.transport.get_extra_info("ssl_object") is not None:
                self.is_sending_files = True
                finishing = asyncio.get_running_loop().create_task(self._finish_encrypted(self.transport, parts))
                self._connection.pause_for_files(finishing)
                return
            if self._file_sender is None:
                self._file_sender = FileSender.past(self.transport, self._connection.threads)
                if self._file_sender is None:
                    self._write([part.read() if isinstance(part, FileRegion) else part for part in parts])
                    return
            self._file_sender.begin(parts)
            if not self.transport.get_write_buffer_size() and self._file_sender.send_now():
                return
        except OSError as error:
            self._cannot_send(error)
            return
        self.is_sending_files = True
        finishing = asyncio.get_running_loop().create_task(self._finish_files(self.transport, self._file_sender))
        self._connection.pause_for_files(finishing)

    async def _finish_files(self, transport: asyncio.Transport, sender: FileSender) -> None:
        wait_s = 0.0
        # Other responses were sent just before, or, rarely, the client has not read them: transports do not report when
        # it has.
        while transport.get_write_buffer_size() and not self._is_closed:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s or 0.001, TRANSPORT_WAIT_S_MAX)
        if self._is_closed:
            return
        try:
            await sender.finish()
        except OSError as error:
            self._cannot_send(error)
        except BaseException:
            if self._connection is not None:
                self._connection.abort()
            raise
        if self._is_closed:
            return
        assert self._connection is not None
        self.is_sending_files = False
        self._connection.resume_from_files()

    async def _finish_encrypted(self, transport: asyncio.Transport, parts: Parts) -> None:
        """Send a response through TLS, piece by piece: each is encrypted in a turn of the event loop, and followed by
        the next when the client has read it."""
        assert self._connection is not None
        threads = self._connection.threads
        try:
            for part in parts:
                for start in range(0, len(part), ENCRYPTED_BYTES_MAX):
                    size = min(ENCRYPTED_BYTES_MAX, len(part) - start)
                    if isinstance(part, FileRegion):
                        piece = await _read(part, start, size, threads)
                    else:
                        piece = memoryview(part)[start : start + size]
                    if self._is_closed:
                        return
                    transport.write(piece)
                    await asyncio.sleep(0)  # others have their turn
                    if self.is_transport_full and not self._is_closed:
                        self._room = asyncio.get_running_loop().create_future()
                        await self._room
        except OSError as error:
            self._cannot_send(error)
            return
        except BaseException:
            if self._connection is not None:
                self._connection.abort()
            raise
        if self._is_closed:
            return
        self.is_sending_files = False
        self._connection.resume_from_files()

    def _wake(self) -> None:
        """Let a response go on that waits for the client to read."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _cannot_send(self, error: OSError) -> None:
        if self._connection is not None:
            self._connection.abort(None if self._is_closed else str(error))

    # --- unsent responses -------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """The memory of responses that the client has not read."""
        size = 0
        if self.transport is not None and not self._is_closed:
            if self.is_transport_full:
                # A response stays in memory as a whole until its last byte is sent.
                size += max(self.transport.get_write_buffer_size(), self._last_sent_bytes)
            if self._file_sender is not None and self.is_sending_files:
                size += self._file_sender.held_bytes
        return size

    @property
    def progress(self) -> int:
        """A number that changes when the client has read something."""
        read = 0 if self.transport is None else -self.transport.get_write_buffer_size()
        return read if self._file_sender is None else read + self._file_sender.sent_bytes

    def stop(self) -> None:
        """Write nothing more, except gathered responses, with `flush`."""
        self._is_closed = True

    def close(self) -> None:
        """Send nothing more: the connection is closed."""
        self._is_closed = True
        self._connection = None
        self._in_order = self._gathered = None
        self._wake()
        if self._file_sender is not None:
            self._file_sender.close()


async def _read(region: FileRegion, start: int, size: int, threads: Threads) -> Buffer:
    """A piece of a region: at once if it is in the page cache, else in a thread, which costs as much as encrypting
    it. Raises OSError."""
    try:
        return region.read_cached(start, size)
    except ReadWouldBlock:
        return await threads.call(region.read, start, size)
