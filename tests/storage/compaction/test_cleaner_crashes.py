"""A process that ends in the middle of a compaction: the log is the old or the cleaned one, whole, at every step."""

from __future__ import annotations

import errno
import itertools

import pytest

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE
from barnabas.storage.compaction.cleaner import PassEnd, remove_cleaned_files, run_pass
from barnabas.storage.compaction.cleaner_manager import SegmentSwap, log_to_clean, make_job
from barnabas.storage.errors import StorageError
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import iter_headers
from barnabas.wire.records import Record, build_batch, iter_records
from tests.storage.blocking import flush
from tests.support.log_history import check_derived, read_log

pytestmark = pytest.mark.slow

MUTATIONS = ("pwrite", "sync", "sync_directory", "rename", "unlink", "truncate")


class Crash(BaseException):
    """The process ended here."""


def disturb(files, before_change):
    """Call `before_change` with the number and the name of each change of the disk, which does not happen if the call
    raises; returns a function that undoes this."""
    numbers = itertools.count()

    def before(name):
        return lambda *_, **_settings: before_change(next(numbers), name)

    files.before.update({name: before(name) for name in MUTATIONS})
    return files.before.clear


def crash_at(files, step):
    """Skip the `step`th change of the disk from now on, and all later ones; returns a function that undoes this."""

    def crash(number, _):
        if number >= step:
            raise Crash

    return disturb(files, crash)


def fill(logs, *, checkpoints):
    log = logs.log(cleanup_policy=frozenset({"compact"}), segment_bytes=700, index_interval_bytes=100,
                   min_cleanable_dirty_ratio=0.0)  # fmt: skip
    now_ms = logs.clock.now_ms()
    producer = {"producer_id": 9, "producer_epoch": 0}
    for number in range(18):
        settings = {"base_sequence": number // 6, "transactional": True, **producer} if number % 6 == 0 else {}
        records = [Record(0, now_ms, b"k%d" % (number % 5), b"v%d" % number * 10)]
        logs.append_raw(log, build_batch(records, **settings))
        if settings:
            outcome = ControlRecordType.ABORT if number % 12 else ControlRecordType.COMMIT
            marker = build_end_txn_marker(EndTxnMarker(outcome, 0), timestamp_ms=now_ms, **producer)
            logs.append_raw(log, marker, AppendOrigin.COORDINATOR)
    flush(log)
    if checkpoints:
        logs.manager.checkpoint(RECOVERY_POINT_FILE)
        logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    return log


def compact(log, files):
    """A pass as the broker makes it."""
    now_ms = log.context.clock.now_ms()
    job = make_job(log_to_clean(log, None, now_ms), now_ms, map_bytes=2400, map_load_factor=0.9)
    for result in run_pass(files, job, lambda _: None):
        if isinstance(result, PassEnd):
            return
        swap = SegmentSwap(log, job, result)
        assert swap.begin()
        swap.sync()
        assert swap.finish()


def committed(tools, log):
    """The result of a reader of committed data: offset and value of the last record of each key."""
    found = {}
    aborted = log.aborted_transactions(0, log.log_end_offset)
    open_aborts = {}
    offset = 0
    while offset < log.log_end_offset:
        data = tools.read(log, offset)
        if not data.records:
            break
        for header in iter_headers(data.records):
            offset = header.next_offset
            for producer_id, first_offset in aborted:
                if producer_id == header.producer_id and first_offset == header.base_offset:
                    open_aborts[producer_id] = True
            if header.is_control:
                open_aborts.pop(header.producer_id, None)
            elif not (header.is_transactional and header.producer_id in open_aborts):
                for record in iter_records(data.records, header):
                    found[record.key] = (record.offset, record.value)
    return found


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_crash_at_every_step_leaves_a_whole_log(make_logs, tools, checkpoints):
    steps = 0
    while True:
        logs = make_logs(f"crash-{steps}")
        log = fill(logs, checkpoints=checkpoints)
        expected, end_offset = committed(tools, log), log.log_end_offset
        undo = crash_at(logs.files, steps)
        try:
            compact(log, logs.files)
        except Crash:
            undo()
        else:
            undo()
            assert committed(tools, log) == expected
            assert sum(segment.size for segment in log.segments) < 1500
            assert steps > 20
            return
        log = None
        for again in range(2):
            logs.restart(clean=False)
            log = logs.manager.get("topic", 0)
            assert committed(tools, log) == expected, steps
            assert (log.log_start_offset, log.log_end_offset) == (0, end_offset), steps
            assert not logs.failures
            names = [path.name for path in (logs.path / "topic-0").iterdir()]
            assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], (steps, again)
        if steps % 4 == 0:
            log.update_high_watermark(end_offset)
            compact(log, logs.files)
            assert committed(tools, log) == expected, steps
        logs.stop(clean=False)
        steps += 1


def fail_at(files, step):
    """Fail the `step`th change of the disk from now on, and no other; returns a function that undoes this and returns
    the name of the failed change, None if there was none."""
    failed = []

    def fail(number, name):
        if number == step:
            failed.append(name)
            raise OSError(errno.EIO, f"{name} failed on purpose")

    undo = disturb(files, fail)

    def undo_and_tell():
        undo()
        return failed[0] if failed else None

    return undo_and_tell


def test_a_failure_at_every_step_leaves_a_whole_log(make_logs, tools):
    """Before the swap the log goes on without the pass; during the swap it goes offline until the next start."""
    failed = []
    while True:
        logs = make_logs(f"failure-{len(failed)}")
        log = fill(logs, checkpoints=True)
        expected = committed(tools, log)
        undo = fail_at(logs.files, len(failed))
        try:
            compact(log, logs.files)
        except (OSError, StorageError, AssertionError):
            pass
        else:
            undo()
            assert {"rename", "sync_directory", "pwrite", "sync"} <= {name for name, _ in failed}
            assert {name for name, is_offline in failed if is_offline} == {"rename", "sync_directory"}
            return
        failed.append((undo(), log.failure is not None))
        if log.failure is None:
            remove_cleaned_files(logs.files, log.directory)
            assert committed(tools, log) == expected, failed
            log.roll()
        log = None
        logs.restart(clean=False)
        log = logs.manager.get("topic", 0)
        assert committed(tools, log) == expected, failed
        check_derived(log, read_log(log))
        names = [path.name for path in (logs.path / "topic-0").iterdir()]
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], failed
        log.update_high_watermark(log.log_end_offset)
        compact(log, logs.files)
        assert committed(tools, log) == expected, failed
        logs.stop(clean=False)
