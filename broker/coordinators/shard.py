"""One partition of a coordinator's internal topic in memory: what every coordinator's pure machine offers its shell.

Source: Kafka's CoordinatorShard and CoordinatorLoaderImpl.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Container, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from barnabas.broker.coordinators.effects import NO_PRODUCER_ID, Effects
from barnabas.wire.errors import ApiError, ProtocolError
from barnabas.wire.record_batch import RecordBatchHeader, iter_headers
from barnabas.wire.records import ControlRecordType, iter_records, parse_end_txn_marker

EventType = TypeVar("EventType", bound=tuple[Any, ...])
ChangeType = TypeVar("ChangeType", bound=tuple[Any, ...])
ReplyType = TypeVar("ReplyType")


class Shard(ABC, Generic[EventType, ChangeType, ReplyType]):
    """What is coordinated, by key; owned by one runner (or by the thread that loads it). Its length is the number of
    keys.

    `decide` reads only, `apply` is the only mutator, and `load` is `apply` for what the log holds. `end_offset` is the
    offset after the last record that is applied, `skipped` counts what loading left out, by reason.
    """

    RECORDS: ClassVar[tuple[type, ...]]
    """The changes that are written to the log."""

    __slots__ = ("end_offset", "skipped")

    def __init__(self) -> None:
        self.end_offset = 0
        self.skipped: Counter[str] = Counter()

    # What each coordinator does in its own way

    @abstractmethod
    def __len__(self) -> int:
        """How many keys there are."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """About how much memory the shard takes."""

    @staticmethod
    @abstractmethod
    def decode_record(key: bytes, value: bytes | None) -> Any:
        """The record that the log holds. Errors: ProtocolError if it is not understood."""

    @abstractmethod
    def decide(
        self, event: EventType, now_ms: int, settings: Any, uncommitted: Container[str]
    ) -> Effects[ChangeType, ReplyType]:
        """What the event means; alters nothing. `now_ms` is wall-clock time, `settings` the coordinator's;
        `uncommitted` are the keys whose last records may still be lost.
        """

    @abstractmethod
    def _apply(self, key: str, change: ChangeType, record_offset: int, producer_id: int) -> None:
        """Bring one change about; `record_offset` is its place in the log if it is a record, and `producer_id` that of
        the transaction it is part of.
        """

    @abstractmethod
    def commit_timeout_ms(self, key: str, settings: Any) -> int:
        """How long who asked for a change of `key` waits for it to be committed, until it is told to ask again."""

    def events_at_start(self) -> list[EventType]:
        """What there is to decide when the shard is loaded and begins to serve."""
        return []

    def timer_fired(self, key: str, timer_key: Any) -> EventType:
        """The event that a timer of `key` has run out; of coordinators whose decisions set timers."""
        raise AssertionError(f"{type(self).__name__} sets no timers, {key} none called {timer_key}")

    def after_refusal(self, event: EventType, error: ApiError) -> EventType | None:
        """What happens because the log refused the records of an event; None: nothing, its sender asks again."""
        return None

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A transaction that wrote records here has ended: they count, or never did."""

    # What is the same for all

    @classmethod
    def records_of(cls, changes: Iterable[ChangeType]) -> list[ChangeType]:
        """The changes that are written to the log, in order."""
        return [change for change in changes if isinstance(change, cls.RECORDS)]

    def apply(
        self,
        key: str,
        changes: Collection[ChangeType],
        base_offset: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Bring the changes of one decision about; `base_offset` is that of the first of its records, None if it has
        none; `producer_id` that of the transaction they are part of.
        """
        if base_offset is not None:
            self.end_offset = base_offset
        for change in changes:
            self._apply(key, change, self.end_offset, producer_id)
            if isinstance(change, self.RECORDS):
                self.end_offset += 1

    def end_transaction(self, producer_id: int, end_offset: int, *, is_commit: bool) -> None:
        """A transaction's marker was appended; `end_offset` is the log's end after it."""
        self._end_transaction(producer_id, is_commit=is_commit)
        self.end_offset = end_offset

    def load(self, chunk: bytes | bytearray | memoryview) -> None:
        """Apply whole batches as the log holds them. What is not understood is left out and counted: one odd record
        must not take all of the partition down.

        Errors: CorruptBatch when the chunk is no sequence of batches.
        """
        for header in iter_headers(chunk):
            if header.is_control:
                self._load_marker(chunk, header)
            else:
                producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
                for record in iter_records(chunk, header):
                    try:
                        change = self.decode_record(record.key or b"", record.value)
                    except ProtocolError as error:
                        self.skipped[str(error)] += 1
                    else:
                        self._apply(change[0], change, record.offset, producer_id)
            self.end_offset = header.next_offset

    def _load_marker(self, chunk: bytes | bytearray | memoryview, header: RecordBatchHeader) -> None:
        for record in iter_records(chunk, header):
            marker = parse_end_txn_marker(record)
            if marker is not None:
                is_commit = marker.control_type is ControlRecordType.COMMIT
                self._end_transaction(header.producer_id, is_commit=is_commit)
