"""How many large requests are served at the same time: what is decoded is many times as large as what came in, and
stays as long as its request waits for something, or others have their turn meanwhile.

Requests beyond the bound wait as the bytes that they came in, which the budget of unfinished requests counts.
"""

import asyncio
from collections import deque
from typing import Final

LARGE_REQUEST_BYTES: Final = 4 * 1024
"""A request of more bytes is a large one; the others, by far the most of real clients, are served at once."""

SERVED_BYTES_MAX: Final = 1024 * 1024
"""How many bytes the large requests that are being served may have together; a single one may have more. Decoded they
take up to fifty times as much."""

MANY_ELEMENTS_BYTES_MAX: Final = 256 * 1024
"""How many bytes the requests may have together that are large by their elements (Produce's partitions): an element
without records takes 6 bytes."""


class LargeRequests:
    """Lets large requests in, in the order in which they came, `served_bytes_max` or one at a time; owned by the event
    loop."""

    def __init__(self, served_bytes_max: int = SERVED_BYTES_MAX) -> None:
        self._served_bytes_max = served_bytes_max
        self.served_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Return when a request of `size` bytes may be served; `leave` is to be called afterwards."""
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
                self._let_in()  # whoever came after it may be smaller
            raise

    def leave(self, size: int) -> None:
        """A request that was let in is answered, or its connection is gone: let in who waits."""
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
