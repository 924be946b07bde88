"""Records of a topic: those that a consumer with isolation.level=read_committed would see, read at the leaders of their
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Self

from barnabas.broker.replication.partition import Partition
from barnabas.storage.files import Buffer
from barnabas.storage.segment_reader import ColdRead, FetchData
from barnabas.testing.contents.partitions import Partitions
from barnabas.wire.control_records import ControlRecordType, control_record_type
from barnabas.wire.record_batch import RecordBatchHeader, iter_headers
from barnabas.wire.records import Record as BatchRecord
from barnabas.wire.records import iter_records

READ_BYTES: Final = 4 * 1024 * 1024
DESCRIBED_MAX: Final = 5
"""The maximum number of records in a description."""

VALUE_LENGTH_MAX: Final = 80


class Record(NamedTuple):
    """A record in a topic. `timestamp` is in ms; header names may repeat."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_of(topic: str, partition: int, record: BatchRecord) -> Record:
    """A record of a batch in that partition."""
    headers = tuple(record.headers)
    return Record(topic, partition, record.offset, record.timestamp, record.key, record.value, headers)


class Range(NamedTuple):
    """The committed records of a partition: `start` <= offset < `end`."""

    partition: int
    start: int
    end: int

    @classmethod
    def of(cls, partition: Partition) -> Self:
        """The range that is committed now."""
        return cls(partition.index, partition.log.log_start_offset, partition.log.last_stable_offset)


class CommittedBatches:
    """Distinguishes batches that a consumer with isolation.level=read_committed would see from the others.

    `aborted` are the aborted transactions of the range, as (producer id, first offset). Batches have to be passed in
    the order of their offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
        self._aborting: set[int] = set()

    def includes(self, buffer: Buffer) -> Callable[[RecordBatchHeader], bool]:
        """A filter for the batches in `buffer`."""
        return lambda header: self._is_committed(buffer, header)

    def _is_committed(self, buffer: Buffer, header: RecordBatchHeader) -> bool:
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._aborting.add(self._to_come.pop()[0])
        if header.is_control:
            if any(control_record_type(r) is ControlRecordType.ABORT for r in iter_records(buffer, header)):
                self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


class Reading:
    """The progress of reading the committed records of a range; the next read is at `offset`."""

    def __init__(self, range_: Range, aborted: Iterable[tuple[int, int]]) -> None:
        self._range = range_
        self._committed = CommittedBatches(aborted)
        self.offset = range_.start

    @property
    def is_over(self) -> bool:
        """Whether everything is read."""
        return self.offset >= self._range.end

    def records(self, topic: str, data: FetchData | ColdRead) -> list[Record]:
        """The records in the data read at `offset`; reads the disk if that was not done yet."""
        if isinstance(data, ColdRead):
            data = data.load()
        headers = list(iter_headers(data.records))
        records = [
            record_of(topic, self._range.partition, record)
            for header in filter(self._committed.includes(data.records), headers)
            for record in iter_records(data.records, header)
            if self.offset <= record.offset < self._range.end
        ]
        self.offset = headers[-1].next_offset if headers else self._range.end  # none: deleted meanwhile
        return records


async def aborted_transactions(owner: Partitions, topic: str, found: Range) -> list[tuple[int, int]]:
    """The aborted transactions of a range, as (producer id, first offset). Errors: ApiError, TimeoutError."""
    partition = (await owner._leading(topic, found.partition)).partition
    return partition.log.aborted_transactions(found.start, found.end)


async def fetch(owner: Partitions, topic: str, found: Range, offset: int) -> FetchData | ColdRead:
    """The batches of a range from `offset` on, or the disk's part that has to be read for them. Errors: ApiError,
    TimeoutError.
    """
    partition = (await owner._leading(topic, found.partition)).partition
    start = max(offset, partition.log.log_start_offset)
    if start >= found.end:
        return FetchData(b"", start, start, 0, 0)
    try:
        return partition.log.read(start, READ_BYTES, max_offset=found.end)
    except ColdRead as cold:
        return cold


def described(records: Sequence[Record]) -> list[str]:
    """The last records of a topic, one per line."""
    left_out = [f"  ... {len(records) - DESCRIBED_MAX} before these"] if len(records) > DESCRIBED_MAX else []
    return left_out + [
        f"  {record.topic}-{record.partition} offset {record.offset}: key {_short(record.key)}, value "
        f"{_short(record.value)}"
        for record in records[-DESCRIBED_MAX:]
    ]


def _short(value: bytes | None) -> str:
    if value is None:
        return "None"
    more = f"... ({len(value)} bytes)" if len(value) > VALUE_LENGTH_MAX else ""
    return f"{value[:VALUE_LENGTH_MAX]!r}{more}"
