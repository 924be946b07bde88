"""Reads segments from end to end: every batch with its bytes, and the reasons why a batch is bad.

Everything here blocks, and belongs to the thread that calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from barnabas.storage.files import Buffer, Files
from barnabas.storage.segment_reader import Read
from barnabas.wire.record_batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    CorruptBatch,
    RecordBatchHeader,
    crc_is_valid,
    parse_header,
)

_SCAN_CHUNK: Final = 1 << 20
_MAX_OFFSET_STEP: Final = 1 << 31
SECTOR_BYTES: Final = 512
"""The unit that a disk writes completely or not at all."""


class OpenSegment:
    """A segment file that is open for reading in one thread."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> Read:
        self._descriptor = self._files.open(self._path)
        return self._read

    def _read(self, size: int, position: int) -> Buffer:
        return self._files.pread(self._descriptor, size, position)

    def __exit__(self, *_: object) -> None:
        self._files.close(self._descriptor)


def scan_batches(read: Read, size: int) -> Iterator[tuple[RecordBatchHeader | None, Buffer | None]]:
    """Read a segment's batches with their bytes. If the segment ends with an incomplete batch, the last pair contains
    None.

    The header's position is 0: it refers to the bytes of its pair.
    """
    position = 0
    rest = memoryview(b"")
    while position < size:
        if len(rest) < HEADER_SIZE:
            rest = memoryview(read(min(_SCAN_CHUNK, size - position), position))
        try:
            header = parse_header(rest)
        except CorruptBatch:
            yield None, None
            return
        batch_size = header.size_in_bytes
        if position + batch_size > size:
            yield header, None
            return
        if len(rest) < batch_size:
            rest = memoryview(read(max(min(_SCAN_CHUNK, size - position), batch_size), position))
        yield header, rest[:batch_size]
        rest = rest[batch_size:]
        position += batch_size


def why_bad(header: RecordBatchHeader | None, batch: Buffer | None, expected_offset: int, base_offset: int) -> str:
    """The reason why a batch that was read from a segment is bad; empty if it is good.

    A leader epoch below that of the batch before is not bad: neither Kafka's appends nor its recovery compare them, and
    its LeaderEpochFileCache tolerates epochs that go back, so that a log written by Kafka may contain some.
    """
    if header is None:
        return "there is no batch header"
    if batch is None:
        return f"a batch of {header.size_in_bytes} bytes is not whole"
    if not crc_is_valid(batch, header):
        return "the checksum of a batch is wrong"
    if header.base_offset < expected_offset or header.last_offset < header.base_offset:
        return f"a batch has offset {header.base_offset} where {expected_offset} follows"
    if header.last_offset - base_offset >= _MAX_OFFSET_STEP:
        return f"a batch has offset {header.last_offset}, too far from the segment's start"
    return ""


def find_batch_after(read: Read, position: int, size: int, expected_offset: int) -> int | None:
    """Find a whole valid batch anywhere behind a damaged one: it distinguishes corruption from a torn write."""
    start = position + 1
    while start + HEADER_SIZE <= size:
        chunk = bytes(read(min(_SCAN_CHUNK, size - start), start))
        magic = chunk.find(b"\x02", 16)
        while magic >= 0:
            found = magic - 16
            if len(chunk) - found >= HEADER_SIZE and _is_batch(read, chunk, found, start, size, expected_offset):
                return start + found
            magic = chunk.find(b"\x02", magic + 1)
        if start + len(chunk) >= size:
            return None
        start += len(chunk) - HEADER_SIZE + 1
    return None


def has_lost_sector(read: Read, position: int, end: int, expected_offset: int) -> bool:
    """Whether a damaged batch at `position`, where `expected_offset` should start, looks like a write of which only a
    part reached the disk before the machine stopped: sectors of zeros. `end` is the end of the file or the next whole
    batch.

    The first sector may contain earlier batches; the others are missing completely, including their part behind `end`:
    zeros at the end of a batch belong to it if the next batch is in the same sector. Anything else is damage.
    """
    if has_lost_start(read, position, expected_offset):
        return True
    position, end = _sector_after(position), -(-end // SECTOR_BYTES) * SECTOR_BYTES
    while chunk := bytes(read(min(_SCAN_CHUNK, max(end - position, 0)), position)):
        if any(not any(chunk[at : at + SECTOR_BYTES]) for at in range(0, len(chunk), SECTOR_BYTES)):
            return True
        position += len(chunk)
    return False


def has_lost_start(read: Read, position: int, expected_offset: int) -> bool:
    """Whether the sector in which a batch at `position` begins is as it was before the write: zeros from there on,
    where `expected_offset` should start.
    """
    start = bytes(read(_sector_after(position) - position, position))
    return not any(start) and (len(start) > 8 or any(expected_offset.to_bytes(8)[: len(start)]))


def _sector_after(position: int) -> int:
    return (position // SECTOR_BYTES + 1) * SECTOR_BYTES


def _is_batch(read: Read, chunk: bytes, position: int, chunk_start: int, size: int, expected_offset: int) -> bool:
    try:
        header = parse_header(chunk, position)
    except CorruptBatch:
        return False
    if not expected_offset <= header.base_offset < expected_offset + _MAX_OFFSET_STEP:
        return False
    if chunk_start + position + LOG_OVERHEAD + header.batch_length > size:
        return False
    batch = read(header.size_in_bytes, chunk_start + position)
    return crc_is_valid(batch, header._replace(position=0))
