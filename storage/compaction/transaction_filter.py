"""The transactions of a log in compaction: aborted data is removed, and markers once their transaction has no batches.

Source: org.apache.kafka.storage.internals.log.CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from barnabas.storage.files import Buffer
from barnabas.storage.txn_index import AbortedTransaction
from barnabas.wire.control_records import ControlRecordType, control_record_type
from barnabas.wire.record_batch import CorruptBatch, RecordBatchHeader
from barnabas.wire.records import iter_records


@dataclass(slots=True)
class _OngoingAbort:
    aborted: AbortedTransaction
    has_batches: bool = False


class TransactionFilter:
    """Follows the transactions of a log from batch to batch: finds aborted data and markers that are no longer needed.

    Batches must come in order. `retained` collects the aborted transactions that still have a marker and may have data:
    the content of the new transaction index. The indexes may lack transactions that began below `start_offset`.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction], start_offset: int = 0) -> None:
        self._aborted = sorted(aborted, key=lambda found: found.first_offset)
        self._next = 0
        self._ongoing_aborted: dict[int, _OngoingAbort] = {}
        self._ongoing_committed: set[int] = set()
        self._not_aborted: set[int] = set()
        self._start_offset = start_offset
        self.retained: list[AbortedTransaction] = []

    def _advance(self, offset: int) -> None:
        while self._next < len(self._aborted) and self._aborted[self._next].first_offset <= offset:
            aborted = self._aborted[self._next]
            self._ongoing_aborted.setdefault(aborted.producer_id, _OngoingAbort(aborted))
            self._next += 1

    def is_aborted(self, header: RecordBatchHeader) -> bool:
        """Process a data batch; returns whether its transaction was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing_aborted.get(header.producer_id)
        if ongoing is None:
            self._ongoing_committed.add(header.producer_id)
            if header.base_offset >= self._start_offset:
                self._not_aborted.add(header.producer_id)
            return False
        ongoing.has_batches = True
        return True

    def is_needless_marker(self, header: RecordBatchHeader, batch: Buffer) -> bool:
        """Process a control batch; returns whether its transaction has no batches left.

        Raises:
            CorruptBatch: it is unreadable, or aborts a transaction that is in no transaction index. Such an index is
                incomplete, and without the entry aborted records would count as the last ones of their keys.
        """
        self._advance(header.last_offset)
        record = next(iter_records(batch, header), None)
        if record is None:
            return True
        control_type = control_record_type(record)
        if control_type is ControlRecordType.ABORT:
            ongoing = self._ongoing_aborted.pop(header.producer_id, None)
            if ongoing is None and header.producer_id in self._not_aborted:
                raise CorruptBatch("it aborts a transaction that is in no transaction index")
            if ongoing is None or not ongoing.has_batches:
                return True
            self.retained.append(ongoing.aborted)
            return False
        if control_type is ControlRecordType.COMMIT:
            if header.producer_id not in self._ongoing_committed:
                return True
            self._ongoing_committed.discard(header.producer_id)
            self._not_aborted.discard(header.producer_id)
        return False
