"""Idempotent producers of a compacted topic: with any records compacted and any snapshots lost, a duplicate batch is
recognised, and the next one is appended."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from barnabas.storage.compaction.cleaner import PassEnd, run_pass
from barnabas.storage.compaction.cleaner_manager import SegmentSwap, log_to_clean, make_job
from barnabas.wire.errors import ApiError
from barnabas.wire.records import Record, build_batch
from tests.storage.blocking import flush

EXPIRATION_MS = 24 * 60 * 60 * 1000


class LiveProducer:
    """A producer that never stops: its last batch, and the response to it."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.last = b""
        self.told: tuple[int, int] | None = None


class World:
    def __init__(self, logs, seed, *, knows_producers=True):
        self.logs = logs
        self.knows_producers = knows_producers
        self.chance = random.Random(seed)
        self.log = logs.log(cleanup_policy=frozenset({"compact"}), segment_bytes=1500, index_interval_bytes=100,
                            min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000)  # fmt: skip
        self.producers = [LiveProducer(1000 + number) for number in range(4)]
        self.clean_offset = 0
        self.retries = 0

    def append(self):
        """One producer appends, some more often than others, to keys that all share."""
        producer = self.chance.choice(self.producers[: self.chance.randint(1, len(self.producers))])
        self.send_next(producer)

    def send_next(self, producer):
        now_ms = self.logs.clock.now_ms()
        records = [
            Record(number, now_ms, b"key%d" % self.chance.randrange(3), self.chance.choice([b"value", None]))
            for number in range(self.chance.randint(1, 3))
        ]
        producer.last = bytes(
            build_batch(records, producer_id=producer.producer_id, producer_epoch=0, base_sequence=producer.sequence)
        )
        info = self.logs.append_raw(self.log, bytearray(producer.last))
        assert not info.duplicate
        producer.sequence += len(records)
        producer.told = info.base_offset, info.last_offset

    def send_last_again(self):
        for producer in self.producers:
            if producer.told is not None:
                end_offset = self.log.log_end_offset
                info = self.logs.append_raw(self.log, bytearray(producer.last))
                assert info.duplicate, producer.producer_id
                assert (info.base_offset, info.last_offset) == producer.told
                assert self.log.log_end_offset == end_offset
                self.retries += 1

    def roll(self):
        self.log.roll()

    def wait(self):
        self.logs.clock.advance(700)

    def compact(self):
        self.log.roll()
        flush(self.log)
        now_ms = self.logs.clock.now_ms()
        found = log_to_clean(self.log, self.clean_offset, now_ms)
        if found is None:
            return
        job = make_job(found, now_ms, map_bytes=2400, map_load_factor=0.9)
        if not self.knows_producers:
            job = replace(job, producers={})
        for result in run_pass(self.logs.files, job, lambda _: None):
            if isinstance(result, PassEnd):
                self.clean_offset = result.end_offset
            else:
                swap = SegmentSwap(self.log, job, result)
                assert swap.begin()
                swap.sync()
                assert swap.finish()
        self.logs.manager.delete_due_files()

    def restart(self):
        is_clean = self.chance.random() < 0.5
        flush(self.log)
        self.logs.stop(clean=is_clean)
        for path in sorted((self.logs.path / "topic-0").glob("*.snapshot")):
            loss = self.chance.random()
            if loss < 0.4:
                path.unlink()
            elif loss < 0.6:
                path.write_bytes(path.read_bytes()[:-1])
        self.logs.start()
        self.log = self.logs.manager.get("topic", 0)
        self.log.update_high_watermark(self.log.log_end_offset)


def live(world, steps):
    for step in range(steps):
        world.chance.choice(
            [world.append] * 8 + [world.roll, world.wait, world.compact, world.compact, world.restart]
        )()
        if step % 5 == 0:
            world.send_last_again()
    world.compact()
    world.restart()
    world.send_last_again()
    for producer in world.producers:
        world.send_next(producer)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 20))])
def test_a_live_producer_is_always_recognised(logs, seed):
    world = World(logs, seed)
    live(world, 250)
    assert world.retries > 100


def test_a_planted_loss_of_producer_state_is_found(logs):
    with pytest.raises((AssertionError, ApiError)):
        live(World(logs, 0, knows_producers=False), 250)


def test_an_open_transaction_does_not_expire(logs):
    """At any time of the clocks, with or without its snapshot: a later marker still ends it."""
    log = logs.log()
    logs.append(log, b"open", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    logs.append(log, b"done", producer_id=8, producer_epoch=0, base_sequence=0)
    log.roll()
    logs.clock.advance(10 * EXPIRATION_MS)
    log.producers.remove_expired(logs.clock.now_ms())
    assert [entry.producer_id for entry in log.producer_state.producers.values()] == [7]
    for is_clean, loses in ((True, False), (False, False), (True, True), (False, True)):
        logs.stop(clean=is_clean)
        if loses:
            for path in (logs.path / "topic-0").glob("*.snapshot"):
                path.unlink()
        logs.start()
        log = logs.manager.get("topic", 0)
        log.update_high_watermark(log.log_end_offset)
        log.producers.remove_expired(logs.clock.now_ms())
        assert log.last_stable_offset == 0
        info = logs.append(log, b"more", producer_id=7, producer_epoch=0, transactional=True,
                           base_sequence=log.producer_state.producers[7].last_sequence + 1)  # fmt: skip
        assert not info.duplicate
