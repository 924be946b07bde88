"""One partition of `__transaction_state` in memory. Pure, like its parts."""

from collections.abc import Container
from typing import ClassVar

from barnabas.broker.coordinators.effects import NO_PRODUCER_ID
from barnabas.broker.coordinators.shard import Shard
from barnabas.broker.coordinators.transactions import machine, records
from barnabas.broker.coordinators.transactions.events import Effects, Event, Expire, Loaded, Reply
from barnabas.broker.coordinators.transactions.machine import is_expired, is_timed_out
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import (
    Change,
    Record,
    Transaction,
    TransactionTombstone,
    apply,
    held_bytes,
)


class TransactionShard(Shard[Event, Change, Reply]):
    """Transactions by their ids. They have no timers: jobs search for timed-out and expired ones."""

    RECORDS: ClassVar = (Transaction, TransactionTombstone)

    __slots__ = ("_held_bytes", "transactions")

    def __init__(self) -> None:
        super().__init__()
        self.transactions: dict[str, Transaction] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self.transactions)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @staticmethod
    def decode_record(key: bytes, value: bytes | None) -> Record:
        return records.decode_record(key, value)

    def decide(
        self, event: Event, now_ms: int, settings: TransactionSettings, uncommitted: Container[str] = ()
    ) -> Effects:
        if isinstance(event, Expire):
            return self._expire(event, now_ms, settings, uncommitted)
        known = self.transactions.get(event.transactional_id)
        is_uncommitted = event.transactional_id in uncommitted
        return machine.decide(known, event, now_ms, settings, is_uncommitted=is_uncommitted)

    def _expire(
        self, event: Expire, now_ms: int, settings: TransactionSettings, uncommitted: Container[str]
    ) -> Effects:
        expired: list[Change] = [
            TransactionTombstone(transactional_id)
            for transactional_id in event.transactional_ids
            if transactional_id not in uncommitted
            and (known := self.transactions.get(transactional_id)) is not None
            and is_expired(known, now_ms, settings)
        ]
        notes: list[tuple[object, ...]] = [("%d transactional ids have expired", len(expired))] if expired else []
        return Effects(expired, notes=notes)

    def commit_timeout_ms(self, key: str, settings: TransactionSettings) -> int:
        return self.transactions[key].timeout_ms

    def events_at_start(self) -> list[Event]:
        return [Loaded(known.transactional_id) for known in self.transactions.values() if known.state.is_prepared]

    def timed_out(self, now_ms: int) -> list[Transaction]:
        """Open transactions that exceed their timeout."""
        return [known for known in self.transactions.values() if is_timed_out(known, now_ms)]

    def expired(self, now_ms: int, settings: TransactionSettings) -> list[str]:
        """Transactional ids that have not been used for too long."""
        return [known.transactional_id for known in self.transactions.values() if is_expired(known, now_ms, settings)]

    def _apply(self, key: str, change: Change, record_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        before = self.transactions.get(change.transactional_id)
        apply(self.transactions, change)
        after = self.transactions.get(change.transactional_id)
        if before is None or after is None or before.partitions is not after.partitions:
            self._held_bytes += held_bytes(after) - held_bytes(before)
