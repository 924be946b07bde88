"""Reads whole batches from one segment: on the event loop if the bytes are in the page cache, else in a thread."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from barnabas.storage.descriptors import DescriptorCache, LogFile
from barnabas.storage.errors import CorruptFile, CorruptLog, refusal
from barnabas.storage.file_records import FileRegion
from barnabas.storage.files import Buffer, read_file, write_file
from barnabas.storage.offset_index import OffsetIndex, OffsetIndexCache
from barnabas.wire.record_batch import HEADER_SIZE, LOG_OVERHEAD, CorruptBatch, RecordBatchHeader, parse_header

logger = logging.getLogger(__name__)

Read: TypeAlias = Callable[[int, int], Buffer]
"""`read(size, position)`: that many bytes, fewer only at the end of the file; may raise ReadWouldBlock."""

_HEADER_START: Final = struct.Struct(">qi")
_DELTA_POSITION: Final = 23
_DELTA: Final = struct.Struct(">i")
_SMALLEST_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
OFFSET_INDEX_SUFFIX: Final = ".index"
SEARCH_CHUNK: Final = 8192
_SCAN_CHUNK: Final = 64 * 1024


class FetchData(NamedTuple):
    """The result of a read: whole batches, in `records`.

    `next_offset` is the offset after the last batch, or -1 if determining it would cost another pass over the batches;
    it equals the start offset if there are none. `is_cut` says that there was more than the read allowed: a first batch
    that is too large is not returned. With `may_stay_in_file` the result may have a `region` instead of `records`;
    `next_offset` may then be later, within the following batch.
    """

    records: Buffer
    start_offset: int
    next_offset: int
    segment_base_offset: int
    position: int
    is_cut: bool = False
    region: FileRegion | None = None


class ReadPlan(NamedTuple):
    """The captured input of a read of one segment: it does not change when the log does.

    `position` starts a batch at or before the wanted one. With `is_exact` it is the wanted one's; otherwise it comes
    from an index entry for `index_offset` (-1: the start of the segment, which needs no entry). Without `has_index` the
    index has to be read first. `size` is that of the segment; bytes beyond `limit` are not read. If `limit_offset` is
    not -1, it is the offset that starts at `limit`, and all batches before are below `max_offset`; else batches are
    checked one by one.
    """

    file: LogFile
    base_offset: int
    start_offset: int
    max_offset: int
    max_bytes: int
    min_one_message: bool
    size: int
    limit: int
    limit_offset: int
    position: int = 0
    is_exact: bool = False
    has_index: bool = True
    index_offset: int = -1
    index_interval_bytes: int = 4096


class IndexMismatch(Exception):
    """An index entry does not lead to the batch that it names."""


def execute(plan: ReadPlan, read: Read) -> FetchData | None:
    """Execute a plan; None if the segment ends before the wanted offset (compaction leaves such gaps).

    Raises:
        ReadWouldBlock: from `read`.
        IndexMismatch: the index is wrong.
        CorruptLog: the bytes in the segment are no batch.
    """
    position = plan.position
    if not plan.is_exact:
        position = find_batch(plan, read)
        if position < 0:
            return None
    available = plan.limit - position
    wanted = min(plan.max_bytes, available)
    is_cut = wanted < available
    if plan.min_one_message and wanted < HEADER_SIZE:
        wanted = min(available, HEADER_SIZE)
    if wanted <= 0:
        return FetchData(b"", plan.start_offset, plan.start_offset, plan.base_offset, position, is_cut)
    data = read(wanted, position)
    if wanted == available and plan.limit_offset >= 0 and len(data) == wanted:
        return FetchData(data, plan.start_offset, plan.limit_offset, plan.base_offset, position)
    end, next_offset = whole_batches(data, plan.max_offset)
    if end == 0:
        size = _first_size(data, plan, position)
        if size > available:
            raise CorruptLog(plan.file.path, position, f"a batch of {size} bytes does not end where the segment does")
        if 0 < size <= available and plan.min_one_message:
            data = read(size, position)
            end, next_offset = whole_batches(data, plan.max_offset)
        if end == 0:
            return FetchData(b"", plan.start_offset, plan.start_offset, plan.base_offset, position, is_cut)
    records = data if end == len(data) else memoryview(data)[:end]
    return FetchData(records, plan.start_offset, next_offset, plan.base_offset, position, is_cut)


def whole_batches(data: Buffer, max_offset: int) -> tuple[int, int]:
    """The end of the last whole batch whose records all lie below `max_offset`, and the offset after it; (0, -1) if
    there is none.
    """
    position, next_offset = 0, -1
    size = len(data)
    while size - position >= HEADER_SIZE:
        base_offset, length = _HEADER_START.unpack_from(data, position)
        end = position + LOG_OVERHEAD + length
        following = base_offset + _DELTA.unpack_from(data, position + _DELTA_POSITION)[0] + 1
        if end > size or following > max_offset or length < _SMALLEST_LENGTH:
            break
        position, next_offset = end, following
    return position, next_offset


def batch_size(start: Buffer) -> int:
    """The size in bytes of a batch with these first bytes, by its length field."""
    return LOG_OVERHEAD + int(_HEADER_START.unpack_from(start, 0)[1])


def _first_size(data: Buffer, plan: ReadPlan, position: int) -> int:
    """The size of the first batch, or a lower bound of it; 0 if the batch may not be read at all."""
    if len(data) < HEADER_SIZE:
        return HEADER_SIZE
    base_offset, length = _HEADER_START.unpack_from(data, 0)
    if length < _SMALLEST_LENGTH:
        raise CorruptLog(plan.file.path, position, f"a batch of length {length}")
    if base_offset + _DELTA.unpack_from(data, _DELTA_POSITION)[0] >= plan.max_offset:
        if plan.limit_offset >= 0:
            raise CorruptLog(plan.file.path, position, f"a batch has offset {base_offset}, beyond what was written")
        return 0
    return LOG_OVERHEAD + int(length)


def find_batch(plan: ReadPlan, read: Read) -> int:
    """The position of the first batch that ends at or beyond the wanted offset; -1 if there is none."""
    for header in file_headers(read, plan.file, plan.position, plan.limit, chunk_size=SEARCH_CHUNK):
        last_offset = header.base_offset + header.last_offset_delta
        if header.position == plan.position and plan.index_offset >= 0 and last_offset != plan.index_offset:
            raise IndexMismatch
        if last_offset >= plan.start_offset:
            return header.position
    if plan.index_offset >= 0 and plan.limit - plan.position < HEADER_SIZE:
        raise IndexMismatch  # no batch starts there
    return -1


def file_headers(
    read: Read, file: LogFile, position: int, end: int, *, chunk_size: int = _SCAN_CHUNK
) -> Iterator[RecordBatchHeader]:
    """The headers of the batches in [position, end), each with its position in the file, without reading large bodies.

    Raises:
        CorruptLog: the bytes are no batch.
        IndexMismatch: the very first position is not a batch's, so the index that named it is wrong.
    """
    chunk: Buffer = b""
    chunk_start = start = position
    while end - position >= HEADER_SIZE:
        if position + HEADER_SIZE > chunk_start + len(chunk):
            chunk = read(min(chunk_size, end - position), position)
            chunk_start = position
        try:
            header = parse_header(chunk, position - chunk_start)
        except CorruptBatch as error:
            if position == start and position > 0:
                raise IndexMismatch from None
            raise CorruptLog(file.path, position, str(error)) from None
        yield header._replace(position=position)
        position += header.size_in_bytes


def build_offset_index(read: Read, file: LogFile, base_offset: int, size: int, interval_bytes: int) -> OffsetIndex:
    """The index that appends of the segment's batches would have built. Blocking."""
    index = OffsetIndex(base_offset)
    since_last = 0
    for header in file_headers(read, file, 0, size):
        if since_last > interval_bytes:
            index.append(header.last_offset, header.position)
            since_last = 0
        since_last += header.size_in_bytes
    return index


class ColdRead(Exception):
    """The bytes are not in the page cache: call `load` in a thread.

    `load` uses only captured state and may be called once, from any thread; the log may be truncated, rolled, renamed
    or deleted meanwhile.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        indexes: OffsetIndexCache,
        hints: dict[int, tuple[int, int]],
        plans: list[ReadPlan],
    ) -> None:
        super().__init__("the bytes to read are not in memory")
        self._cache = cache
        self._indexes = indexes
        self._hints = hints
        self._plans = plans
        self._held = [plan.file for plan in plans]
        for file in self._held:
            cache.hold(file)

    def adds_to(self, hints: dict[int, tuple[int, int]]) -> bool:
        """Whether the read will add its result to these very hints."""
        return self._hints is hints

    def load(self) -> FetchData:
        """Read from the disk.

        Raises:
            StorageError: the disk failed, or its content is no batch.
        """
        try:
            for plan in self._plans:
                found = self._load(plan)
                if found is not None:
                    if found.next_offset > found.start_offset:
                        self._hints[found.next_offset] = (
                            found.segment_base_offset,
                            found.position + len(found.records),
                        )
                    return found
        except OSError as error:
            raise refusal(f"reading {self._plans[0].file.path}", error) from error
        finally:
            self._release()
        first = self._plans[0]
        return FetchData(b"", first.start_offset, first.start_offset, first.base_offset, first.position)

    def _load(self, plan: ReadPlan) -> FetchData | None:
        files = self._cache.files
        descriptor = self._cache.open_privately(plan.file)

        def read(size: int, position: int) -> Buffer:
            return files.pread(descriptor, size, position)

        try:
            if not plan.has_index:
                index = self._indexes.get(plan.file)
                if index is None:
                    index = self._read_index(plan, read)
                index_offset, position = index.lookup(plan.start_offset)
                plan = plan._replace(has_index=True, index_offset=index_offset, position=position)
            try:
                return execute(plan, read)
            except IndexMismatch:
                index = self._rebuild_index(plan, read)
                index_offset, position = index.lookup(plan.start_offset)
                return execute(plan._replace(index_offset=index_offset, position=position), read)
        finally:
            files.close(descriptor)

    def _read_index(self, plan: ReadPlan, read: Read) -> OffsetIndex:
        try:
            data = read_file(self._cache.files, index_path(plan.file.path))
            index = OffsetIndex.from_bytes(plan.base_offset, data, plan.size)
        except (FileNotFoundError, CorruptFile) as error:
            logger.warning("building the offset index of %s anew: %s", plan.file.path, error)
            return self._rebuild_index(plan, read)
        self._indexes.put(plan.file, index)
        return index

    def _rebuild_index(self, plan: ReadPlan, read: Read) -> OffsetIndex:
        """Scan the segment and replace its index file. The file is only a hint: a failed write is no error."""
        index = build_offset_index(read, plan.file, plan.base_offset, plan.size, plan.index_interval_bytes)
        self._indexes.put(plan.file, index)
        path = index_path(plan.file.path)
        if path.endswith(OFFSET_INDEX_SUFFIX):  # else the segment is being deleted, and its index with it
            with suppress(OSError):
                write_file(self._cache.files, path, index.to_bytes())
        return index

    def _release(self) -> None:
        held, self._held = self._held, []
        for file in held:
            self._cache.release(file)

    def __del__(self) -> None:
        self._release()


def index_path(log_path: str) -> str:
    """The path of the offset index beside a log file, which may have a suffix such as `.deleted`."""
    stem, _, suffix = log_path.rpartition(".log")
    return f"{stem}{OFFSET_INDEX_SUFFIX}{suffix}"
