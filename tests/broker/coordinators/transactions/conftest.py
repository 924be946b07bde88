"""A shard of transactions without a broker: time stands still unless told to move, and every effect is kept for the
test to look at.
"""

import itertools
from dataclasses import replace

import pytest

from barnabas.broker.coordinators.transactions.events import Effects, Event, NeedsProducerId
from barnabas.broker.coordinators.transactions.records import encode_record
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.wire.records import Record as LogRecord
from barnabas.wire.records import build_batch

START_MS = 1_000_000


class Machine:
    """Runs events through a shard as its runner would, with a log in memory. Fresh producer ids count from 1000."""

    def __init__(self, **settings: int) -> None:
        self.settings = replace(TransactionSettings(), **settings)
        self.shard = TransactionShard()
        self.now_ms = START_MS
        self.log: list[bytes] = []
        self.log_end_offset = 0
        self.fresh_ids = itertools.count(1000)
        self.is_uncommitted = False

    def run(self, event: Event) -> Effects:
        effects = self.decide(event)
        if needs_producer_id(effects):
            effects = self.decide(event._replace(fresh_producer_id=next(self.fresh_ids)))
        records = TransactionShard.records_of(effects.changes)
        if records:
            self.append(records)
        self.shard.apply(event[0], effects.changes)
        return effects

    def decide(self, event: Event) -> Effects:
        before = dict(self.shard.transactions)
        uncommitted = set(before) if self.is_uncommitted else ()
        effects = self.shard.decide(event, self.now_ms, self.settings, uncommitted)
        assert self.shard.transactions == before, "a decision altered the state"
        if needs_producer_id(effects):
            assert not effects.changes
            assert not effects.is_followed_up
        return effects

    def append(self, records) -> None:
        version = self.settings.log_value_version
        batch = [
            LogRecord(self.log_end_offset + index, self.now_ms, *encode_record(record, version))
            for index, record in enumerate(records)
        ]
        self.log.append(bytes(build_batch(batch, base_offset=self.log_end_offset)))
        self.log_end_offset += len(batch)

    def reloaded(self) -> TransactionShard:
        shard = TransactionShard()
        for chunk in self.log:
            shard.load(chunk)
        return shard


def needs_producer_id(effects: Effects) -> bool:
    return any(isinstance(reply, NeedsProducerId) for _, reply in effects.replies)


@pytest.fixture(scope="session")
def machine_type() -> type[Machine]:
    return Machine
