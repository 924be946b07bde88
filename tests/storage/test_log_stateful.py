"""PartitionLog against a list of batches: any sequence of operations, any offset read back after each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barnabas.storage.checkpoints import LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import iter_headers
from tests.storage.blocking import flush, truncate_with_checkpoints

pytestmark = pytest.mark.slow

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT
IDEMPOTENT, TRANSACTIONAL = (1, 2), (3, 4)


class Model:
    """The expected content of the log: (base offset, last offset, leader epoch) of each batch; of those with sequences,
    by their base offset, the producer id; and of those that belong to transactions (producer id, how a marker ends it
    or None).
    """

    def __init__(self):
        self.batches = []
        self.producers = {}
        self.transactions = {}
        self.start = self.end = self.flushed = 0

    def visible(self):
        return [found for found in self.batches if found[1] >= self.start]

    def truncate(self, offset):
        self.batches = [found for found in self.batches if found[0] < offset]
        self.producers = {base: producer_id for base, producer_id in self.producers.items() if base < offset}
        self.transactions = {base: what for base, what in self.transactions.items() if base < offset}
        self.end = offset
        self.start = min(self.start, offset)

    def replay(self):
        """The base offsets of the batches in open transactions, and of those in aborted ones."""
        open_batches, aborted = {}, set()
        for base_offset, (producer_id, outcome) in self.transactions.items():
            if outcome is None:
                open_batches.setdefault(producer_id, []).append(base_offset)
            else:
                ended = open_batches.pop(producer_id, [])
                aborted.update(ended if outcome is ABORT else [])
        return {base for bases in open_batches.values() for base in bases}, aborted


def machine_class(tools):  # noqa: C901 - one class, made here because fixtures cannot be imported
    class LogMachine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.directory = Path(tempfile.mkdtemp())
            self.logs = tools.Logs(self.directory / "data")
            self.model = Model()
            self.epoch = 0
            self.sequences = dict.fromkeys(IDEMPOTENT + TRANSACTIONAL, 0)

        @initialize(
            segment_bytes=st.sampled_from([90, 160, 300, 700, 5000]), interval=st.sampled_from([0, 1, 70, 100, 4096])
        )
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

        @rule(producer_id=st.sampled_from(IDEMPOTENT), count=st.integers(1, 2))
        def append_idempotent(self, producer_id, count):
            self._append_in_sequence(producer_id, count)

        @rule(producer_id=st.sampled_from(TRANSACTIONAL), count=st.integers(1, 2))
        def append_transactional(self, producer_id, count):
            self.model.transactions[self.model.end] = (producer_id, None)
            self._append_in_sequence(producer_id, count, transactional=True)

        @rule(producer_id=st.sampled_from(TRANSACTIONAL), outcome=st.sampled_from([COMMIT, ABORT]))
        def end_transaction(self, producer_id, outcome):
            marker = build_end_txn_marker(
                EndTxnMarker(outcome, 0), producer_id=producer_id, producer_epoch=0,
                timestamp_ms=self.logs.clock.now_ms(),
            )  # fmt: skip
            self.model.transactions[self.model.end] = (producer_id, outcome)
            info = self.log.append_as_leader(
                marker, leader_epoch=self.epoch, now_ms=self.logs.clock.now_ms(), origin=AppendOrigin.COORDINATOR
            )
            self.log.update_high_watermark(self.log.log_end_offset)
            self._appended(info, 1)
            self._take_up_sequences()

        def _append_in_sequence(self, producer_id, count, **keywords):
            sequence = self.sequences[producer_id]
            self.model.producers[self.model.end] = producer_id
            keywords |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            info = self.logs.append(self.log, *[b""] * count, epoch=self.epoch, **keywords)
            self.sequences[producer_id] += count
            self._appended(info, count)
            again = self.logs.append(self.log, *[b""] * count, epoch=self.epoch, **keywords)
            assert again.duplicate
            assert again[:2] == info[:2]

        @rule()
        def new_leader(self):
            self.epoch += 1
            self.log.leader_epochs.assign(self.epoch, self.log.log_end_offset)

        @rule()
        def roll(self):
            self.log.roll()

        @rule()
        def flush(self):
            flush(self.log)
            self.logs.manager.checkpoint(RECOVERY_POINT_FILE)
            self.model.flushed = self.model.end
            assert self.log.recovery_point == self.model.end

        @precondition(lambda self: self.model.batches)
        @rule(data=st.data())
        def truncate(self, data):
            base_offset = data.draw(st.sampled_from(self.model.batches))[0]
            truncate_with_checkpoints(self.logs.manager, self.log, base_offset)
            self.model.truncate(base_offset)
            self.epoch += 1
            # What producers have sent is forgotten with the batches: new ones take their place.
            self.sequences = dict.fromkeys(self.sequences, 0)
            self._take_up_sequences()

        def _take_up_sequences(self):
            """Go on where the log expects it: anywhere, if it knows nothing of a producer."""
            producers = self.log.producer_state.producers
            self.sequences |= {entry.producer_id: entry.last_sequence + 1 for entry in producers.values()}

        @rule(data=st.data())
        def delete_records(self, data):
            offset = data.draw(st.integers(self.model.start, self.model.end))
            self.log.increment_log_start_offset(offset)
            self.model.start = offset
            delete_old_segments(self.log, 0)
            self.logs.manager.delete_due_files()

        @rule(clean=st.booleans(), cached=st.booleans())
        def restart(self, clean, cached):
            self.logs.manager.checkpoint(LOG_START_FILE)
            self.logs.files.cached = cached
            self.logs.restart(clean=clean)
            self.log = self.logs.log(**self.settings)
            self.log.update_high_watermark(self.log.log_end_offset)
            last = {producer_id: base for base, producer_id in self.model.producers.items()}
            before = dict(self.sequences)
            self._take_up_sequences()
            # A crash, or having nothing left, may make the log forget producers of which no data is left, as in Kafka.
            ends = {found[0]: found[1] for found in self.model.batches}
            for producer_id, base_offset in last.items():
                if ends[base_offset] >= self.model.start or (clean and self.model.end > self.model.start):
                    assert self.sequences[producer_id] == before[producer_id]

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
        def readers_of_committed_data_see_that_alone(self):
            """The batches that a client keeps after it filters by the aborted transactions of its fetch, as Kafka's
            client does. A log whose start lies within a transaction may or may not have its begin."""
            if not hasattr(self, "log"):
                return
            log, model = self.log, self.model
            open_batches, aborted = model.replay()
            visible = [found[0] for found in model.visible()]
            stable = log.last_stable_offset
            assert stable <= min(
                (max(base, model.start) for base in visible if base in open_batches), default=model.end
            )
            assert stable >= min((max(base, model.start) for base in open_batches), default=model.end)
            told = sorted(log.aborted_transactions(model.start, stable), key=lambda entry: entry[1])
            ignored, seen = set(), []
            for base_offset in [base for base in visible if base < stable]:
                while told and told[0][1] <= base_offset:
                    ignored.add(told.pop(0)[0])
                producer_id, outcome = model.transactions.get(base_offset, (-1, None))
                if outcome is ABORT:
                    ignored.discard(producer_id)
                elif outcome is None and producer_id not in ignored:
                    seen.append(base_offset)
            markers = {base for base, (_, outcome) in model.transactions.items() if outcome is not None}
            assert seen == [base for base in visible if base < stable and base not in aborted | markers]

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


@pytest.mark.parametrize(
    ("examples", "steps"), [(40, 25), pytest.param(1000, 30, marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
def test_any_sequence_of_operations(tools, examples, steps):
    case = machine_class(tools).TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    case().runTest()
