"""One partition of `__transaction_state` in memory. Pure, like what it is made of."""

from collections import Counter
from collections.abc import Iterable

from barnabas.broker.coordinators.transactions import machine
from barnabas.broker.coordinators.transactions.events import Effects, Event
from barnabas.broker.coordinators.transactions.records import decode_record
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import (
    Change,
    PartitionsEnded,
    Record,
    Transaction,
    apply,
    held_bytes,
)
from barnabas.wire.errors import ProtocolError
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import iter_records


def records_of(changes: Iterable[Change]) -> list[Record]:
    """The changes that are written to the log, in order."""
    return [change for change in changes if not isinstance(change, PartitionsEnded)]


class Shard:
    """Transactions by their ids; owned by one runner (or by the thread that loads it).

    `skipped` counts what loading left out, by reason; `held_bytes` is about how much memory the transactions take.
    """

    __slots__ = ("held_bytes", "skipped", "transactions")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.transactions: dict[str, Transaction] = {}
        self.skipped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.transactions)

    def decide(self, event: Event, now_ms: int, settings: TransactionSettings, *, is_uncommitted: bool) -> Effects:
        """What the event means; alters nothing."""
        known = self.transactions.get(event.transactional_id)
        return machine.decide(known, event, now_ms, settings, is_uncommitted=is_uncommitted)

    def apply(self, changes: Iterable[Change]) -> None:
        """Bring the changes of one decision about."""
        for change in changes:
            self._apply(change)

    def load(self, chunk: bytes | bytearray | memoryview) -> None:
        """Apply whole batches as the log holds them; what is not understood is left out and counted.

        Errors: CorruptBatch when the chunk is no sequence of batches.
        """
        for header in iter_headers(chunk):
            if header.is_control:
                continue
            for record in iter_records(chunk, header):
                try:
                    self._apply(decode_record(record.key or b"", record.value))
                except ProtocolError as error:
                    self.skipped[str(error)] += 1

    def _apply(self, change: Change) -> None:
        transactional_id = change.transactional_id
        before = self.transactions.get(transactional_id)
        apply(self.transactions, change)
        after = self.transactions.get(transactional_id)
        if before is None or after is None or before.partitions is not after.partitions:
            self.held_bytes += held_bytes(after) - held_bytes(before)
