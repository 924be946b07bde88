"""A shard of groups without a broker: time stands still unless told to move, and every effect is kept for the test to
look at.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from barnabas.broker.coordinators.effects import Schedule
from barnabas.broker.coordinators.groups.changes import Record
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    Effects,
    GroupEvent,
    OffsetEvent,
    Reply,
    TimerFired,
    TimerKey,
)
from barnabas.broker.coordinators.groups.records import encode_record
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.groups.shard import GroupShard
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.records import Record as LogRecord
from barnabas.wire.records import build_batch

START_MS = 1_000_000
NO_DELAYS = GroupSettings(group_initial_rebalance_delay_ms=0, barnabas_group_newcomer_delay_ms=0)


class Machine:
    """Runs events through a shard as its runner would, with a log in memory; the log refuses records while `refuses`
    is set.
    """

    def __init__(self, **settings: int) -> None:
        self.settings = replace(NO_DELAYS, **settings)
        self.shard = GroupShard()
        self.now_ms = START_MS
        self.log: list[bytes] = []
        self.log_end_offset = 0
        self.timers: dict[tuple[str, TimerKey], int] = {}
        self.replies: dict[int, Reply] = {}
        self.tokens = itertools.count(1)
        self.ids = itertools.count(1)

    def run(self, event: GroupEvent | OffsetEvent) -> Effects:
        before = self.snapshot(event.group_id)
        effects = self.shard.decide(event, self.now_ms, self.settings)
        assert self.snapshot(event.group_id) == before, "a decision altered the state"
        records = GroupShard.records_of(effects.changes)
        producer_id = event.producer_id if isinstance(event, CommitOffsets) else -1
        base_offset = self.append(records, producer_id) if records else None
        self.shard.apply(event.group_id, effects.changes, base_offset, producer_id)
        for timer in effects.timers:
            if isinstance(timer, Schedule):
                self.timers[event.group_id, timer.key] = self.now_ms + timer.delay_ms
            else:
                self.timers.pop((event.group_id, timer.key), None)
        for token, reply in effects.replies:
            assert token not in self.replies, f"request {token} was answered twice: {self.replies[token]}, {reply}"
            self.replies[token] = reply
        return effects

    def append(self, records: Iterable[Record], producer_id: int = -1) -> int:
        batch = [
            LogRecord(self.log_end_offset + index, self.now_ms, *encode_record(record))
            for index, record in enumerate(records)
        ]
        producer = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True} if producer_id >= 0 else {}
        self.log.append(bytes(build_batch(batch, base_offset=self.log_end_offset, **producer)))
        base_offset = self.log_end_offset
        self.log_end_offset += len(batch)
        return base_offset

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        marker = EndTxnMarker(ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT, 0)
        batch = build_end_txn_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=self.now_ms,
            base_offset=self.log_end_offset,
        )
        self.log.append(bytes(batch))
        self.log_end_offset += 1
        self.shard.end_transaction(producer_id, self.log_end_offset, is_commit=is_commit)

    def snapshot(self, group_id: str) -> object:
        group = self.shard.groups.get(group_id)
        if group is None:
            return None
        return [repr(getattr(group, name)) for name in type(group).__slots__]

    def next_timer(self) -> tuple[str, TimerKey] | None:
        return min(self.timers, key=lambda key: (self.timers[key], key), default=None)

    def fire(self, key: tuple[str, TimerKey]) -> Effects:
        self.now_ms = max(self.now_ms, self.timers.pop(key))
        return self.run(TimerFired(*key))

    def reloaded(self) -> GroupShard:
        shard = GroupShard()
        for chunk in self.log:
            shard.load(chunk)
        return shard


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(scope="session")
def machine_type() -> type[Machine]:
    return Machine
