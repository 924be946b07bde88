"""Sends responses with parts in log files: the kernel copies them from there (sendfile, as Kafka's
FileRecords.writeTo).

Parts in the page cache are sent at once, on the event loop; for the rest, sendfile waits for the disk, in a thread.
"""

import asyncio
import select
import socket
from contextlib import suppress
from enum import Enum

from barnabas.storage.file_records import WINDOW_BYTES, FileRegion
from barnabas.storage.files import Buffer
from barnabas.threads import Threads

WAIT_MS = 1
"""The time for which a thread waits for a client to read on before the event loop waits in its place."""

THREAD_BYTES_MAX = 4 * 1024 * 1024
"""The bytes that a thread sends in one go, as others wait for it."""

JOINED_BYTES_MAX = 64 * 1024
"""Smaller parts are sent together; larger ones are not copied."""

_MORE = getattr(socket, "MSG_MORE", 0)


class _Pause(Enum):
    """The reason for a pause of the sending."""

    DONE = 1
    FULL = 2  # the socket's buffer is full
    COLD = 3  # the next bytes have to be read from the disk


class FileSender:
    """Sends responses on a connection, one at a time, while its transport has nothing to send.

    It has a socket of its own, because the transport's may be closed while a thread is at work. `held_bytes` are those
    of the present response that are in memory; `sent_bytes` those that the kernel has accepted so far, of all
    responses.
    """

    def __init__(self, descriptor: int, threads: Threads) -> None:
        """`descriptor`: the connection's, which stays the transport's. Raises OSError if it cannot be duplicated."""
        self._threads = threads
        self.held_bytes = 0
        self.sent_bytes = 0
        self._socket = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._parts: list[Buffer | FileRegion] = []
        self._part = 0
        self._start = 0
        self._is_busy = False
        self._is_in_thread = False
        self._is_closed = False

    @classmethod
    def past(cls, transport: asyncio.Transport, threads: Threads) -> "FileSender | None":
        """A sender over the socket of a transport. None if that has no socket of the kernel, or is not plain: what is
        sent past TLS is not encrypted. Raises OSError as `FileSender`."""
        found = transport.get_extra_info("socket")
        is_plain = transport.get_extra_info("ssl_object") is None
        return cls(found.fileno(), threads) if found is not None and is_plain else None

    def begin(self, parts: list[Buffer | FileRegion]) -> None:
        """Set the next response: then call `send_now`, and `finish` if that was not all."""
        self._parts, self._part, self._start = [], 0, 0
        small = bytearray()
        for part in parts:
            if isinstance(part, FileRegion) or len(part) >= JOINED_BYTES_MAX:
                self._parts += (small, part) if small else (part,)
                small = bytearray()
            else:
                small += part
        if small:
            self._parts.append(small)
        self.held_bytes = sum(len(part) for part in self._parts if not isinstance(part, FileRegion))

    def send_now(self) -> bool:
        """Send the parts that can be sent without waiting; returns whether that was all. Raises OSError as `finish`
        does."""
        return self._proceed(in_thread=False) is _Pause.DONE

    async def finish(self) -> None:
        """Wait until the kernel has accepted everything. Raises OSError when the connection ends or the disk fails."""
        loop = asyncio.get_running_loop()
        self._is_busy = True
        try:
            while (pause := self._proceed(in_thread=False)) is not _Pause.DONE:
                if pause is _Pause.COLD:
                    self._is_in_thread = True
                    pause = await self._threads.call(self._proceed_in_thread)
                if pause is _Pause.FULL:
                    await self._writable(loop)
        finally:
            self._is_busy = self._is_in_thread  # after a cancellation the thread goes on
            if self._is_closed and not self._is_in_thread:
                self._socket.close()

    def close(self) -> None:
        """End `finish`, wherever it waits."""
        self._is_closed = True
        if not self._is_busy:
            self._socket.close()
            return
        with suppress(OSError):  # it may not be connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def _proceed_in_thread(self) -> _Pause:
        try:
            return self._proceed(in_thread=True)
        finally:
            self._is_in_thread = False

    def _proceed(self, *, in_thread: bool) -> _Pause:
        total = 0
        while self._part < len(self._parts):
            part = self._parts[self._part]
            if not in_thread and isinstance(part, FileRegion) and not part.is_cached(self._start):
                return _Pause.COLD
            try:
                sent = self._send_part(part)
            except BlockingIOError:
                if not (in_thread and self._can_soon_write()):
                    return _Pause.FULL
                continue
            self._start += sent
            self.sent_bytes += sent
            total += sent
            if self._start == len(part):
                self._part += 1
                self._start = 0
            elif not in_thread and sent < WINDOW_BYTES:
                return _Pause.FULL
            if in_thread and total >= THREAD_BYTES_MAX:
                return _Pause.COLD
        self._parts = []
        self.held_bytes = 0
        return _Pause.DONE

    def _send_part(self, part: Buffer | FileRegion) -> int:
        if isinstance(part, FileRegion):
            return part.send(self._socket.fileno(), self._start)
        is_last = self._part == len(self._parts) - 1
        return self._socket.send(memoryview(part)[self._start :], 0 if is_last else _MORE)

    def _can_soon_write(self) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        return bool(poller.poll(WAIT_MS))

    async def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        writable: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._socket.fileno(), _wake, writable)
        try:
            await writable
        finally:
            loop.remove_writer(self._socket.fileno())


def _wake(writable: asyncio.Future[None]) -> None:
    if not writable.done():
        writable.set_result(None)
