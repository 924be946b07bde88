"""One partition of a coordinator's internal topic in memory: the interface of every coordinator's pure machine to its
shell.

Source: Kafka's CoordinatorShard and CoordinatorLoaderImpl.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Container, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from barnabas.broker.coordinators.effects import NO_PRODUCER_ID, Effects
from barnabas.wire.control_records import ControlRecordType, parse_end_txn_marker
from barnabas.wire.errors import ApiError, ProtocolError
from barnabas.wire.record_batch import RecordBatchHeader, iter_headers
from barnabas.wire.records import iter_records

EventType = TypeVar("EventType", bound=tuple[Any, ...])
ChangeType = TypeVar("ChangeType", bound=tuple[Any, ...])
ReplyType = TypeVar("ReplyType")


class Shard(ABC, Generic[EventType, ChangeType, ReplyType]):
    """The coordinated entities, by key; owned by one runner (or by the thread that loads it). Its length is the number
    of keys.

    `decide` reads only, `apply` is the only mutator, and `load` applies the records of the log. `end_offset` is the
    offset after the last applied record, `skipped` counts records that loading skipped, by reason.
    """

    RECORDS: ClassVar[tuple[type, ...]]
    """The changes that are written to the log."""

    __slots__ = ("end_offset", "skipped")

    def __init__(self) -> None:
        self.end_offset = 0
        self.skipped: Counter[str] = Counter()

    # Specific to each coordinator

    @abstractmethod
    def __len__(self) -> int:
        """The number of keys."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """An estimate of the shard's memory."""

    @staticmethod
    @abstractmethod
    def decode_record(key: bytes, value: bytes | None) -> Any:
        """Decode a record of the log. Errors: ProtocolError if that is not possible."""

    @abstractmethod
    def decide(
        self, event: EventType, now_ms: int, settings: Any, uncommitted: Container[str]
    ) -> Effects[ChangeType, ReplyType]:
        """The effects of an event; alters nothing. `now_ms` is wall-clock time, `settings` the coordinator's;
        `uncommitted` are the keys whose last records may still be lost.
        """

    @abstractmethod
    def _apply(self, key: str, change: ChangeType, record_offset: int, producer_id: int) -> None:
        """Apply one change; `record_offset` is its offset in the log if it is a record, and `producer_id` that of its
        transaction.
        """

    @abstractmethod
    def commit_timeout_ms(self, key: str, settings: Any) -> int:
        """The time for which a request that changes `key` waits for the commit before it fails with a
        retriable error."""

    def events_at_start(self) -> list[EventType]:
        """The initial events of a shard that is loaded and begins to serve."""
        return []

    def timer_fired(self, key: str, timer_key: Any) -> EventType:
        """The event for a timer of `key` that has run out; only for coordinators whose decisions set timers."""
        raise AssertionError(f"{type(self).__name__} sets no timers, {key} none called {timer_key}")

    def after_refusal(self, event: EventType, error: ApiError) -> EventType | None:
        """The event that follows when the log refuses the records of an event; None: nothing, its sender retries."""
        return None

    def _end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """End a transaction with records here: they take effect, or are dropped."""

    # The same for all coordinators

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
        """Apply the changes of one decision; `base_offset` is that of the first of its records, None if it has none;
        `producer_id` that of their transaction.
        """
        if base_offset is not None:
            self.end_offset = base_offset
        for change in changes:
            self._apply(key, change, self.end_offset, producer_id)
            if isinstance(change, self.RECORDS):
                self.end_offset += 1

    def end_transaction(self, producer_id: int, end_offset: int, *, is_commit: bool) -> None:
        """A transaction marker was appended; `end_offset` is the log end offset after it."""
        self._end_transaction(producer_id, is_commit=is_commit)
        self.end_offset = end_offset

    def load(self, chunk: bytes | bytearray | memoryview) -> None:
        """Apply whole batches of the log. Records that cannot be decoded are skipped and counted: one of them must not
        make the whole partition unavailable.

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
