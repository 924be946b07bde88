"""Compaction against a model that knows nothing of batches: random keys, tombstones, producers, transactions, codecs,
maps that are too small, and one pass after the other.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE
from barnabas.storage.compaction.cleaner import PassEnd, run_pass
from barnabas.storage.compaction.cleaner_manager import SegmentSwap, log_to_clean, make_job
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import CompressionType, crc_is_valid, iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tests.storage.blocking import flush

RETENTION_MS = 1000

pairs = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.none(), st.binary(max_size=30)), st.integers(-5000, 5000)),
    min_size=1,
    max_size=5,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), pairs, st.sampled_from(list(CompressionType)), st.sampled_from([-1, 5])),
        st.tuples(st.just("transact"), pairs, st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean"), st.sampled_from([3, 1000]), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1, RETENTION_MS])),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=5,
    max_size=40,
)


class Model:
    """Every record ever written: (offset, key, value, is aborted), and what must be readable of them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes | None, bool]] = []
        self.clean_offset = 0
        self.tombstones_may_go: dict[int, int] = {}

    def required(self, now_ms: int) -> set[int]:
        """Offsets that must still be there: the last of each key below the clean end, all above it; a tombstone until
        its horizon, set by the first pass that rewrites its segment. Such segments may lose aborted records, also
        behind the end of the pass."""
        last = {key: offset for offset, key, _, aborted in self.records if not aborted and offset < self.clean_offset}
        return {
            offset
            for offset, key, value, aborted in self.records
            if not aborted
            and (
                offset >= self.clean_offset
                or (
                    last.get(key) == offset
                    and (value is not None or self.tombstones_may_go.get(offset, now_ms + 1) > now_ms)
                )
            )
        }

    def passed(self, end_offset: int, written_end_offset: int, first_pass_ms: int) -> None:
        self.clean_offset = max(self.clean_offset, end_offset)
        for offset, _, value, _ in self.records:
            if value is None and offset < written_end_offset:
                self.tombstones_may_go.setdefault(offset, first_pass_ms + RETENTION_MS)


class World:
    def __init__(self, tools, path: Path) -> None:
        self.tools = tools
        self.logs = tools.Logs(path)
        self.logs.clock.advance(0)
        self.log = self.logs.log(
            cleanup_policy=frozenset({"compact"}), segment_bytes=2000, index_interval_bytes=100,
            delete_retention_ms=RETENTION_MS, min_cleanable_dirty_ratio=0.0)  # fmt: skip
        self.model = Model()
        self.sequence = {5: 0, 9: 0}

    def write(self, found, *, aborted=False, producer_id=-1, **fields):
        now_ms = self.logs.clock.now_ms()
        records = [Record(number, now_ms + moved, b"key%d" % key, value)
                   for number, (key, value, moved) in enumerate(found)]  # fmt: skip
        if producer_id >= 0:
            fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": self.sequence[producer_id]}
            self.sequence[producer_id] += len(found)
        base_offset = self.logs.append_raw(self.log, build_batch(records, **fields)).base_offset
        self.model.records += [(base_offset + record.offset, record.key, record.value, aborted) for record in records]

    def append(self, found, codec, producer_id):
        self.write(found, compression=codec, producer_id=producer_id)

    def transact(self, found, committed):
        self.write(found, aborted=not committed, producer_id=9, transactional=True)
        outcome = ControlRecordType.COMMIT if committed else ControlRecordType.ABORT
        marker = build_end_txn_marker(
            EndTxnMarker(outcome, 0), producer_id=9, producer_epoch=0, timestamp_ms=self.logs.clock.now_ms()
        )
        self.logs.append_raw(self.log, marker, AppendOrigin.COORDINATOR)

    def roll(self):
        self.log.roll()

    def wait(self, count):
        self.logs.clock.advance(count)

    def restart(self, is_clean):
        flush(self.log)
        self.logs.manager.checkpoint(RECOVERY_POINT_FILE)
        self.logs.manager.checkpoint(HIGH_WATERMARK_FILE)
        self.logs.restart(clean=is_clean)
        self.log = self.logs.manager.get("topic", 0)

    def clean(self, map_slots, from_start):
        flush(self.log)
        now_ms = self.logs.clock.now_ms()
        to_clean = log_to_clean(self.log, 0 if from_start else self.model.clean_offset, now_ms)
        if to_clean is None:
            return
        before = self.readable()
        if from_start and map_slots < 10:
            map_slots = 1000
        job = make_job(to_clean, now_ms, map_bytes=24 * map_slots, map_load_factor=0.9)
        for result in run_pass(self.logs.files, job, lambda _: None):
            if isinstance(result, PassEnd):
                bases = [*(segment.base_offset for segment in job.segments), job.first_uncleanable_offset]
                written_end_offset = min(base for base in bases if base >= result.end_offset)
                self.model.passed(result.end_offset, written_end_offset, now_ms)
                assert result.end_offset > to_clean.first_dirty_offset
                continue
            swap = SegmentSwap(self.log, job, result)
            assert swap.begin()
            swap.sync()
            assert swap.finish()
        after = self.readable()
        assert after.items() <= before.items()

    def readable(self):
        """offset -> (timestamp, key, value) of the records that each reader receives, without markers."""
        found, offset = {}, 0
        while offset < self.log.log_end_offset:
            data = self.tools.read(self.log, offset)
            if not data.records:
                break
            for header in iter_headers(data.records):
                assert header.base_offset >= offset
                assert crc_is_valid(data.records, header)
                offset = header.next_offset
                if not header.is_control:
                    for record in iter_records(data.records, header):
                        assert header.base_offset <= record.offset <= header.last_offset
                        found[record.offset] = (record.timestamp, record.key, record.value)
        return found

    def check(self):
        found = self.readable()
        written = {offset: (key, value) for offset, key, value, _ in self.model.records}
        assert all(written[offset] == record[1:] for offset, record in found.items())
        now_ms = self.logs.clock.now_ms()
        assert self.model.required(now_ms) <= found.keys()
        newest = {key: offset for offset, key, _, aborted in self.model.records
                  if not aborted and offset < self.model.clean_offset}  # fmt: skip
        for offset, key, _, aborted in self.model.records:
            if offset in found and offset < self.model.clean_offset and not aborted:
                assert newest[key] == offset, "a superseded record is still there"
            assert not (aborted and offset < self.model.clean_offset and offset in found)
        for producer_id, sequence in self.sequence.items():
            entry = self.log.producer_state.producers.get(producer_id)
            assert sequence == 0 or (entry is not None and entry.last_sequence == sequence - 1)
        assert self.log.log_start_offset == 0


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_compaction_keeps_what_the_model_keeps(tools, script):
    with tempfile.TemporaryDirectory() as folder:
        world = World(tools, Path(folder) / "data")
        try:
            for name, *arguments in [*script, ("roll",), ("clean", 1000, False), ("restart", False)]:
                end_offset = world.log.log_end_offset
                getattr(world, name)(*arguments)
                assert world.log.log_end_offset >= end_offset
                world.check()
        finally:
            world.logs.stop(clean=False)
