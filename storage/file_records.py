"""Whole batches as a region of their file: the kernel sends them to the client's socket, without copying them through
this process (sendfile, as Kafka's FileRecords.writeTo).
"""

from __future__ import annotations

import threading
from typing import Final

from barnabas.storage.descriptors import DescriptorCache
from barnabas.storage.errors import ReadWouldBlock
from barnabas.storage.files import Buffer
from barnabas.wire.record_batch import HEADER_SIZE, CorruptBatch, parse_header

REGION_BYTES_MIN: Final = 256 * 1024
"""Smaller reads are copied: that is faster than checking whether sendfile would block."""

WINDOW_BYTES: Final = 1024 * 1024
"""The unit of page cache checks and of sending."""

_SAMPLED_BYTES: Final = 128 * 1024

Hints = dict[int, tuple[int, int]]

_counting = threading.Lock()


class SentRecords:
    """The number of a log's records that were sent as regions; a region's last batch is known only after sending."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class FileRegion:
    """A part of a log file, in the place of a buffer among the parts of a response.

    The region has its own descriptor, closed with the last reference to the region, so the log may be truncated,
    rolled, renamed or deleted meanwhile. The descriptor shares the kernel's read-ahead with the log's.

    If the offset index names a batch that ends with `last_offset` right behind the region, the first `send` adds the
    batch's position to `hints`, because the client fetches it next; `counts_itself` is true then.
    """

    __slots__ = ("_cache", "_descriptor", "_following", "_hints", "_position", "_size", "counts_itself")

    def __init__(self, cache: DescriptorCache, descriptor: int, position: int, size: int) -> None:
        """`descriptor`: lent by `cache`; the region gives it back."""
        self._cache = cache
        self._descriptor = descriptor
        self._position = position
        self._size = size
        self._hints: Hints | None = None
        self._following: tuple[int, int, int, SentRecords]
        self.counts_itself = False

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        self._cache.give_back(self._descriptor)

    def tell_end(
        self, hints: Hints, segment_base_offset: int, last_offset: int, start_offset: int, sent: SentRecords
    ) -> None:
        """Have `send` add to `hints` the position of the batch that follows the region and should end with
        `last_offset`, and to `sent` the number of records from `start_offset` up to that batch.
        """
        self._hints = hints
        self._following = (segment_base_offset, last_offset, start_offset, sent)
        self.counts_itself = True

    def is_cached(self, start: int) -> bool:
        """Whether the next piece for `send` is in the page cache, judged by samples: the kernel reads and evicts more
        than a page at a time. No I/O; only on file systems that support it (`Files.reads_cached`).
        """
        files, descriptor = self._cache.files, self._descriptor
        first, end = self._position + start, self._position + min(start + WINDOW_BYTES, self._size)
        positions = [*range(first, end, _SAMPLED_BYTES), end - 1]
        if self._hints is not None:  # `send` will read the header of the following batch
            positions.append(self._position + self._size + HEADER_SIZE - 1)
        try:
            for position in positions:
                files.pread_cached(descriptor, 1, position)
        except ReadWouldBlock:
            return False
        return True

    def send(self, socket: int, start: int) -> int:
        """Write the bytes from `start` on, at most `WINDOW_BYTES`, to a non-blocking socket; returns the number of
        bytes sent. Blocking if they are not in the page cache.

        Raises:
            BlockingIOError: the socket's buffer is full.
            OSError: the disk failed, the connection is closed, or the file has become shorter.
        """
        if self._hints is not None:
            self._add_hint(self._hints)
        size = min(WINDOW_BYTES, self._size - start)
        sent = self._cache.files.send(socket, self._descriptor, size, self._position + start)
        if sent <= 0:
            raise OSError("the log was truncated while it was being sent")
        return sent

    def read(self, start: int = 0, size: int | None = None) -> Buffer:
        """Read `size` bytes from `start` on into memory, by default all, for a transport that encrypts them or has no
        socket. Blocking. Raises OSError as `send` does."""
        if self._hints is not None:
            self._add_hint(self._hints)
        size = self._size - start if size is None else size
        data = self._cache.files.pread(self._descriptor, size, self._position + start)
        if len(data) < size:
            raise OSError("the log was truncated while it was being sent")
        return data

    def read_cached(self, start: int, size: int) -> Buffer:
        """As `read`, without waiting for the disk. Raises ReadWouldBlock if the bytes are not in the page cache."""
        files, descriptor = self._cache.files, self._descriptor
        if self._hints is not None:
            # `_add_hint` reads the header of the following batch.
            files.pread_cached(descriptor, 1, self._position + self._size + HEADER_SIZE - 1)
            self._add_hint(self._hints)
        data = files.pread_cached(descriptor, size, self._position + start)
        if len(data) < size:
            raise ReadWouldBlock
        return data

    def _add_hint(self, hints: Hints) -> None:
        """Add the position of the batch behind the region to the hints, if the file has one there: the region's end
        comes from the offset index only.
        """
        self._hints = None
        segment_base_offset, last_offset, start_offset, sent = self._following
        end = self._position + self._size
        try:
            header = parse_header(self._cache.files.pread(self._descriptor, HEADER_SIZE, end), 0)
        except CorruptBatch:
            return
        if header.last_offset == last_offset:
            hints[header.base_offset] = (segment_base_offset, end)
            with _counting:
                sent.count += header.base_offset - start_offset
