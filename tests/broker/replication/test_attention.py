"""Fetches of a session look only at changed partitions. They return the same as fetches that look at all partitions: at
random, with real logs, consumers and followers, and every kind of change."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.observability.unforeseen import UnforeseenErrors
from barnabas.broker.replication.fetch_operation import FetchLimits, FetchOperation
from barnabas.broker.replication.fetch_partition import FetchPartition, PartitionKey
from barnabas.broker.replication.fetch_sessions import FetchPlan, FetchSessions
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.read_policy import HIGH_WATERMARK, LOG_END, TXN_COMMITTED
from barnabas.broker.replication.replica_fetch import ReplicaFetch
from barnabas.broker.replication.replica_selector import RackAwareFetch
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.records import Record, build_batch
from tests.broker.replication.conftest import NODE_ID, NOW_MS, OTHER_ID, TOPIC_ID, Hosting, Storage, told

PARTITIONS = 6
STEPS = 250
SEEDS = range(20)
PRODUCER_ID = 7

NEAR, FAR = "near", "far"

Told = list[tuple[int, int, int, int, int, bytes]]
"""The partitions that a reply names, each as index, error, high watermark, log start offset, preferred replica,
records."""


class Racks:
    """The racks of the two brokers; `changes` counts."""

    def __init__(self) -> None:
        self.of = {NODE_ID: FAR, OTHER_ID: NEAR}
        self.changes = 0

    def change(self, broker_id: int, rack: str) -> None:
        self.of[broker_id] = rack
        self.changes += 1


class Reader:
    """A session, and at most one fetch that waits. With `scans` it looks at all partitions; with `racks` it is a
    consumer near a follower, which it is redirected to."""

    def __init__(
        self, hosting: Hosting, storage: Storage, *, is_follower: bool, uses_topic_ids: bool, racks: Racks | None = None
    ) -> None:
        self._racks = racks
        self._hosting = hosting
        self._storage = storage
        self._is_follower = is_follower
        self._uses_topic_ids = uses_topic_ids
        self.scans = False
        ids = itertools.count(1)
        self.sessions = FetchSessions(3, lambda: next(ids))
        self.id = self.epoch = 0
        self.plan: FetchPlan | None = None
        self.operation: FetchOperation | None = None
        self.enough: Any = None
        self.looks = 0

    def fetch(self, asked: dict[int, int], forgotten: list[int], limits: FetchLimits) -> Told | None:
        """The response; None if the fetch waits."""
        topic_id = TOPIC_ID if self._uses_topic_ids else ZERO_TOPIC_ID
        partitions = [FetchPartition("t", topic_id, index, offset, 1 << 20) for index, offset in asked.items()]
        keys: list[PartitionKey] = [(TOPIC_ID if self._uses_topic_ids else "t", index) for index in forgotten]
        self._wake()
        now_ms = self._storage.clock.monotonic_ms()
        self.plan = self.sessions.plan(
            self.id, self.epoch, partitions, keys, uses_topic_ids=self._uses_topic_ids, now_ms=now_ms
        )
        replicas, unforeseen = self._hosting.replicas, UnforeseenErrors(self._storage.clock)
        if self._is_follower:
            self.operation = ReplicaFetch(
                replicas, unforeseen, self.plan, limits, replica_id=OTHER_ID, broker_epoch=80, now_ms=now_ms
            )
        elif (racks := self._racks) is not None:
            self.operation = RackAwareFetch(
                replicas, unforeseen, self.plan, limits,
                rack=NEAR, rack_of=racks.of.get, standpoint=lambda: racks.changes,
            )  # fmt: skip
        else:
            self.operation = FetchOperation(replicas, unforeseen, self.plan.partitions, limits, self.plan.attention)
        self.looks += len(self.operation._asked)
        assert self.operation.read_now() is None
        if not self.operation.is_satisfied:
            self.enough = self.operation.listen()
            return None
        return self._finish()

    def end_wait(self) -> Told:
        """End the wait as a timeout does."""
        assert self.operation is not None
        self.enough.cancel()
        self.enough = None
        self._wake()
        assert self.operation.read_again() is None
        return self._finish()

    def _wake(self) -> None:
        for session in self.sessions._sessions.values():
            if self.scans:
                for asked in session.partitions.values():
                    session.attention.wake(asked)

    def _finish(self) -> Told:
        assert self.plan is not None
        assert self.operation is not None
        error, self.id, results = self.sessions.finish(self.plan, self.operation.results, 0)
        assert error == ErrorCode.NONE
        self.epoch = self.epoch + 1 if self.id else 0
        return [
            (
                data.partition_index,
                data.error_code,
                data.high_watermark,
                data.log_start_offset,
                data.preferred_read_replica,
                bytes(data.records or b""),
            )
            for _, data in results
        ]


class Comparison:
    """Two readers of the same partitions with the same requests, and the changes to these partitions."""

    def __init__(self, seed: int, hosting: Hosting, storage: Storage, racks: Racks | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.is_follower = rng.random() < 0.4 and racks is None
        uses_topic_ids = rng.random() < 0.7
        self.racks = racks
        self.hosting = hosting
        self.leader_epochs = dict.fromkeys(range(PARTITIONS), 0)
        self.partition_epochs = itertools.count(1)
        self.sequences: dict[int, int] = {}
        self.readers = [
            Reader(hosting, storage, is_follower=self.is_follower, uses_topic_ids=uses_topic_ids, racks=self.racks)
            for _ in range(2)
        ]
        self.readers[1].scans = True
        self.offsets: dict[int, int] = {}
        """The next fetch offsets of the partitions of the session."""
        self.told_offsets: dict[int, int] = {}
        """The fetch offsets of the last request."""
        self.replies = self.waits = self.redirections = 0

    async def run(self) -> None:
        for index in range(PARTITIONS):
            await self.lead(index)
        changes: list[Callable[[int], Any]] = [
            self.append, self.append, self.append, self.append, self.append_of_transaction, self.end_transaction,
            self.delete_records, self.replicate, self.lead, self.resign, self.stop,
        ]  # fmt: skip
        if self.racks is not None:
            changes += [self.move, self.move, self.change_isr, self.change_isr, *[self.replicate] * 6]
        for _ in range(STEPS):
            if self.rng.random() < 0.55:
                change = self.rng.choice(changes)
                done = change(self.rng.randrange(PARTITIONS))
                if done is not None:
                    await done
                self.compare_waiting()
            else:
                self.fetch()

    # --- what happens to partitions

    def leads(self, index: int) -> Partition | None:
        partition = self.hosting.replicas.partition("t", index)
        return partition if partition is not None and partition.state.is_leader else None

    async def lead(self, index: int, leader: int = NODE_ID) -> None:
        self.leader_epochs[index] += 1
        has_follower = self.is_follower or self.rng.random() < (0.3 if self.racks is None else 0.8)
        replicas = [NODE_ID, OTHER_ID] if has_follower else [NODE_ID]
        await self.hosting.live(NODE_ID, OTHER_ID)
        state = told(
            partition_index=index, leader=leader, leader_epoch=self.leader_epochs[index], replicas=replicas,
            partition_epoch=next(self.partition_epochs), isr=replicas,
        )  # fmt: skip
        assert await self.hosting.lead(state) == [ErrorCode.NONE]

    def move(self, _index: int) -> None:
        """Move a broker to another rack; the leader is seldom near."""
        if self.racks is not None:
            broker_id, nearness = self.rng.choice([(NODE_ID, 0.2), (OTHER_ID, 0.5)])
            self.racks.change(broker_id, NEAR if self.rng.random() < nearness else FAR)

    async def change_isr(self, index: int) -> None:
        """In the same leader epoch."""
        partition = self.leads(index)
        if partition is not None and partition.leadership is not None:
            state = told(
                partition_index=index, leader=NODE_ID, leader_epoch=self.leader_epochs[index],
                replicas=[NODE_ID, OTHER_ID], partition_epoch=next(self.partition_epochs),
                isr=self.rng.choice([[NODE_ID], [NODE_ID, OTHER_ID]]),
            )  # fmt: skip
            assert await self.hosting.lead(state) == [ErrorCode.NONE]

    async def resign(self, index: int) -> None:
        if self.rng.random() < 0.1:
            await self.lead(index, leader=OTHER_ID)

    async def stop(self, index: int) -> None:
        if self.rng.random() < 0.1:
            await self.hosting.stop(index, delete=self.rng.random() < 0.5)
            self.sequences.pop(index, None)

    def append(self, index: int) -> None:
        if self.leads(index) is not None:
            self.hosting.append(b"x" * self.rng.randint(1, 300), index=index, acks=1)

    def append_of_transaction(self, index: int) -> None:
        partition = self.leads(index)
        if partition is not None:
            sequence = self.sequences.get(index, 0)
            batch = build_batch(
                [Record(0, NOW_MS, None, b"y" * 50, [], 0)],
                producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence, transactional=True,
            )  # fmt: skip
            try:
                self.hosting.replicas.append("t", index, batch, 1, 11, AppendOrigin.COORDINATOR)
            except ApiError:  # a log that was there before, or was deleted
                self.sequences.pop(index, None)
            else:
                self.sequences[index] = sequence + 1

    def end_transaction(self, index: int) -> None:
        partition = self.leads(index)
        if partition is not None and index in self.sequences:
            kind = self.rng.choice([ControlRecordType.COMMIT, ControlRecordType.ABORT])
            batch = build_end_txn_marker(
                EndTxnMarker(kind, 0), producer_id=PRODUCER_ID, producer_epoch=0, timestamp_ms=NOW_MS
            )
            self.hosting.replicas.append("t", index, batch, 1, 11, AppendOrigin.COORDINATOR)

    def delete_records(self, index: int) -> None:
        partition = self.leads(index)
        if partition is not None:
            log = partition.log
            self.hosting.replicas.delete_records(partition, self.rng.randint(log.log_start_offset, log.high_watermark))

    def replicate(self, index: int) -> None:
        partition = self.leads(index)
        if partition is not None and partition.leadership is not None:
            log = partition.log
            offset = self.rng.randint(log.high_watermark, log.log_end_offset)
            partition.leadership.fetched(OTHER_ID, 80, offset, log.log_start_offset)

    # --- what readers ask

    def fetch(self) -> None:
        if self.readers[0].enough is not None:
            self.compare([reader.end_wait() for reader in self.readers])
            return
        rng = self.rng
        asked: dict[int, int] = {}
        for index in range(PARTITIONS):
            if index not in self.offsets and rng.random() < (0.1 if self.offsets else 0.8):
                asked[index] = 0
            elif index in self.offsets and rng.random() < 0.05:
                asked[index] = rng.randint(0, 20)
        forgotten = [index for index in self.offsets if index not in asked and rng.random() < 0.03]
        changed = {
            index: offset for index, offset in self.offsets.items() if self.moved(index) and index not in forgotten
        }
        asked = {**{index: self.offsets[index] for index in changed}, **asked}
        self.told_offsets |= asked
        for index in forgotten:
            del self.offsets[index]
        self.offsets |= asked
        if self.readers[0].epoch == 0 and rng.random() < 0.9:
            asked, forgotten = dict(self.offsets), []
        if self.is_follower:  # that one reader tells what it has is no news for the other one then
            for index, offset in self.offsets.items():
                partition = self.leads(index)
                if partition is None or partition.leadership is None:
                    continue
                if partition.log.log_start_offset <= offset <= partition.log.log_end_offset:
                    partition.leadership.fetched(OTHER_ID, 80, offset, -1)
        limits = FetchLimits(
            max_wait_ms=rng.choice([0, 100_000]),
            min_bytes=rng.choice([1, 1, 500]),
            max_bytes=rng.choice([150, 400, 1 << 20]),
            policy=LOG_END if self.is_follower else rng.choices([TXN_COMMITTED, HIGH_WATERMARK], [0.3, 0.7])[0],
        )
        told = [reader.fetch(asked, forgotten, limits) for reader in self.readers]
        assert (told[0] is None) == (told[1] is None)
        if told[0] is not None:
            self.compare(told)
        else:
            self.waits += 1
            self.compare_waiting()

    def moved(self, index: int) -> bool:
        """Whether the readers have read on since they last asked."""
        return self.told_offsets.get(index) != self.offsets[index]

    def compare_waiting(self) -> None:
        """Check that the changes are enough for both fetches, or for neither."""
        if self.readers[0].enough is not None:
            assert self.readers[0].enough.done() == self.readers[1].enough.done()
            if self.readers[0].enough.done():
                self.compare([reader.end_wait() for reader in self.readers])

    def compare(self, told: list[Told | None]) -> None:
        assert told[0] == told[1]
        self.replies += 1
        for index, error, _, start, preferred, records in told[0] or ():
            self.redirections += preferred >= 0
            if error == ErrorCode.OFFSET_OUT_OF_RANGE:
                partition = self.leads(index)
                self.offsets[index] = 0 if partition is None else partition.log.log_start_offset
            elif records:
                self.offsets[index] = max(start, self.offsets.get(index, 0)) + 1  # a record a batch


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_changed_partitions_equal_those_of_a_full_scan(seed: int, storage: Storage) -> None:
    async with storage.hosting() as hosting:
        comparison = Comparison(seed, hosting, storage)
        await comparison.run()
        assert comparison.replies > 20
        assert comparison.waits
        looks, looks_at_all = (reader.looks for reader in comparison.readers)
        assert looks < 0.9 * looks_at_all


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_nearer_replicas_equal_those_of_a_full_scan(seed: int, storage: Storage) -> None:
    async with storage.hosting() as hosting:
        comparison = Comparison(seed, hosting, storage, Racks())
        await comparison.run()
        assert comparison.replies > 20
        assert comparison.redirections
        looks, looks_at_all = (reader.looks for reader in comparison.readers)
        assert looks < looks_at_all


def listeners(hosting: Hosting) -> int:
    return sum(hosting.partition(index).is_waited_for for index in range(PARTITIONS))


async def test_a_session_that_has_ended_is_told_of_nothing(storage: Storage) -> None:
    async with storage.hosting() as hosting:
        await hosting.lead(*(told(partition_index=index) for index in range(PARTITIONS)))
        reader = Reader(hosting, storage, is_follower=False, uses_topic_ids=True)
        limits = FetchLimits(0, 1, 1 << 20, policy=HIGH_WATERMARK)
        for _ in range(3):
            reader.fetch(dict.fromkeys(range(PARTITIONS), 0) if not reader.epoch else {}, [], limits)
        assert listeners(hosting) == PARTITIONS
        reader.fetch({}, [0], limits)
        assert listeners(hosting) == PARTITIONS - 1
        reader.epoch = -1
        reader.fetch({}, [], limits)
        assert listeners(hosting) == 0
