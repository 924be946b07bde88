"""Limits the large requests that are served at the same time: a decoded request is many times as large as its bytes,
and stays in memory while it waits for something, or other tasks have their turn.

Requests beyond the limit wait in undecoded form, which the budget of unfinished requests counts.
"""

import asyncio
from collections import deque
from typing import Final

LARGE_REQUEST_BYTES: Final = 4 * 1024
"""A request of more bytes is large; smaller ones, nearly all requests of real clients, are served at once."""

SERVED_BYTES_MAX: Final = 1024 * 1024
"""The limit of bytes of the large requests that are being served together; a single one may have more. Decoded they
take up to fifty times as much."""

MANY_ELEMENTS_BYTES_MAX: Final = 256 * 1024
"""The limit of bytes of requests together that are large by their elements (Produce's partitions): an element without
records takes 6 bytes."""


class LargeRequests:
    """Admits large requests in the order of their arrival, up to `served_bytes_max` or one at a time; owned by the
    event loop."""

    def __init__(self, served_bytes_max: int = SERVED_BYTES_MAX) -> None:
        self._served_bytes_max = served_bytes_max
        self.served_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Return when a request of `size` bytes may be served; call `leave` afterwards."""
        if not self._waiting and self._has_room(size):
            self.served_bytes += size
            return
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, let_in))
        try:
            await let_in
        except asyncio.CancelledError:
            if let_in.done() and not let_in.cancelled():
                self.leave(size)
            else:
                self._let_in()  # the next one may be smaller
            raise

    def leave(self, size: int) -> None:
        """A request that was admitted is done, or its connection is gone: admit waiting ones."""
        self.served_bytes -= size
        self._let_in()

    def _has_room(self, size: int) -> bool:
        return not self.served_bytes or self.served_bytes + size <= self._served_bytes_max

    def _let_in(self) -> None:
        while self._waiting:
            size, let_in = self._waiting[0]
            if not let_in.done():
                if not self._has_room(size):
                    return
                self.served_bytes += size
                let_in.set_result(None)
            self._waiting.popleft()
