"""PartitionLog against a list of batches: any sequence of operations, any offset read back after each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.wire.record_batch import iter_headers


class Model:
    """What the log should hold: (base offset, last offset, leader epoch) of each batch."""

    def __init__(self):
        self.batches = []
        self.start = self.end = self.flushed = 0

    def visible(self):
        return [found for found in self.batches if found[1] >= self.start]


def machine_class(tools):  # noqa: C901 - one class, made here because fixtures cannot be imported
    class LogMachine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.directory = Path(tempfile.mkdtemp())
            self.logs = tools.Logs(self.directory / "data")
            self.model = Model()
            self.epoch = 0
            self.sequences = {1: 0, 2: 0}

        @initialize(segment_bytes=st.sampled_from([90, 300, 5000]), interval=st.sampled_from([0, 100, 4096]))
        def create(self, segment_bytes, interval):
            self.settings = {
                "segment_bytes": segment_bytes,
                "index_interval_bytes": interval,
                "file_delete_delay_ms": 0,
            }
            self.log = self.logs.log(**self.settings)

        def _appended(self, info, count):
            assert info.base_offset == self.model.end
            self.model.batches.append((info.base_offset, info.last_offset, self.epoch))
            self.model.end = info.base_offset + count

        @rule(count=st.integers(1, 3))
        def append(self, count):
            self._appended(self.logs.append(self.log, *[b""] * count, epoch=self.epoch), count)

        @rule(producer_id=st.sampled_from([1, 2]), count=st.integers(1, 2))
        def append_idempotent(self, producer_id, count):
            sequence = self.sequences[producer_id]
            keywords = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            info = self.logs.append(self.log, *[b""] * count, epoch=self.epoch, **keywords)
            self.sequences[producer_id] += count
            self._appended(info, count)
            again = self.logs.append(self.log, *[b""] * count, epoch=self.epoch, **keywords)
            assert again.duplicate
            assert again[:2] == info[:2]

        @rule()
        def new_leader(self):
            self.epoch += 1
            self.log.assign_leader_epoch(self.epoch)

        @rule()
        def roll(self):
            self.log.roll()

        @rule()
        def flush(self):
            self.log.flush()
            self.logs.manager.checkpoint_recovery_points()
            self.model.flushed = self.model.end
            assert self.log.recovery_point == self.model.end

        @precondition(lambda self: self.model.batches)
        @rule(data=st.data())
        def truncate(self, data):
            base_offset = data.draw(st.sampled_from(self.model.batches))[0]
            self.logs.manager.truncate_to(self.log, base_offset)
            self.model.batches = [found for found in self.model.batches if found[0] < base_offset]
            self.model.end = base_offset
            self.model.start = min(self.model.start, base_offset)
            self.epoch += 1
            # What producers have sent is forgotten with the batches: new ones take their place.
            self.sequences = {1: 0, 2: 0}
            for entry in self.log.active_producers():
                self.sequences[entry.producer_id] = entry.last_sequence + 1

        @rule(data=st.data())
        def delete_records(self, data):
            offset = data.draw(st.integers(self.model.start, self.model.end))
            self.log.increment_log_start_offset(offset)
            self.model.start = offset
            self.log.delete_old_segments(0)
            self.logs.manager.delete_due_files()

        @rule(clean=st.booleans(), cached=st.booleans())
        def restart(self, clean, cached):
            self.logs.manager.checkpoint_log_start_offsets()
            self.logs.files.cached = cached
            self.logs.restart(clean=clean)
            self.log = self.logs.log(**self.settings)
            self.log.update_high_watermark(self.log.log_end_offset)

        @invariant()
        def offsets_agree(self):
            if not hasattr(self, "log"):
                return
            log, model = self.log, self.model
            assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
            assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
            assert log.recovery_point <= log.log_end_offset

        @invariant()
        def every_offset_reads_as_it_should(self):
            if not hasattr(self, "log"):
                return
            visible = self.model.visible()
            for offset in range(self.model.start, self.model.end):
                data = tools.read(self.log, offset, 1)
                (header,) = iter_headers(data.records)
                expected = next(found for found in visible if found[0] <= offset <= found[1])
                assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == expected
                assert data.next_offset in (-1, header.next_offset)
            assert tools.read_all(self.log) == [found[0] for found in visible]

        @invariant()
        def epochs_agree(self):
            if not hasattr(self, "log"):
                return
            for base_offset, last_offset, epoch in self.model.visible():
                assert self.log.leader_epochs.epoch_for(max(base_offset, self.model.start)) == epoch
                assert self.log.end_offset_for_epoch(epoch)[1] > last_offset

        def teardown(self):
            self.logs.stop(clean=False)
            shutil.rmtree(self.directory)

    return LogMachine


@pytest.mark.usefixtures("tools")
def test_any_sequence_of_operations(tools):
    case = machine_class(tools).TestCase
    case.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    case().runTest()
