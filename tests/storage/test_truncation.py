"""Logs that are truncated off the event loop, several at a time."""

from __future__ import annotations

import errno

import pytest

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.errors import LogBusy, LogDeleted, StorageError
from barnabas.storage.log_closing import prepare_close
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.storage.truncation import Cut
from tests.storage.blocking import flush, truncate


def fill(logs, names="abc", count=6, **settings):
    """So many logs, each with batches of one record."""
    found = [logs.log(name, **settings) for name in names]
    for log in found:
        for number in range(count):
            logs.append(log, b"v%d" % number, epoch=number // 2, producer_id=7, producer_epoch=0, base_sequence=number)
        flush(log)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    return found


def cut(logs, *cuts):
    truncations = logs.manager.truncations([Cut(*found) for found in cuts])
    truncations.run()
    truncations.complete()
    return truncations.errors


def test_many_logs_are_cut_with_one_write_of_the_checkpoints(logs, tools):
    """After the loss of a leader of 200 partitions one write per log took longer the more logs there were."""
    found = fill(logs, [f"t{number}" for number in range(20)], 3)
    logs.files.opened.clear()
    assert not cut(logs, *((log, 1) for log in found))
    written = [path for path in logs.files.opened if "recovery-point-offset-checkpoint" in path]
    assert len(written) == 1
    assert all((log.log_end_offset, log.recovery_point, log.high_watermark) == (1, 1, 1) for log in found)
    for log in found:
        logs.append(log, b"other", epoch=7)
    logs.restart(clean=False)
    assert tools.read_all(logs.log("t3")) == [0, 1]


def test_nothing_uses_a_log_while_it_is_cut(logs):
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 3)])
    assert isinstance(log.failure, LogBusy)
    for use in (
        lambda: logs.append(log, b"x"),
        lambda: log.append_as_follower(b"", now_ms=0),
        lambda: log.read(0, 100),
        log.prepare_flush,
        lambda: prepare_close(log),
        log.roll,
        lambda: delete_old_segments(log, 0),
        lambda: truncate(log, 1),
    ):
        with pytest.raises(LogBusy) as raised:
            use()
        assert raised.value.passes
    assert logs.manager.logs_to_flush(logs.clock.now_ms() + 10**9) == []
    truncations.run()
    truncations.complete()
    assert log.failure is None
    assert not logs.failures
    assert logs.append(log, b"x", epoch=9).base_offset == 3


def test_the_producers_are_built_by_what_runs_in_the_thread(logs):
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 4)])
    truncations.run()
    logs.files.opened.clear()
    truncations.complete()
    assert log.producer_state.producers[7].last_sequence == 3
    assert [found.last_offset for found in log.producer_state.producers[7].batches] == [0, 1, 2, 3]
    assert logs.files.opened == [], "nothing is read on the event loop"
    assert log.leader_epochs.entries == [(0, 0), (1, 2)]


def test_a_flush_under_way_covers_nothing_of_what_comes(logs):
    (log,) = fill(logs, "a")
    logs.append(log, b"more", epoch=9)
    task = log.prepare_flush()
    cut(logs, (log, 2))
    logs.append(log, b"other", epoch=10)
    task.run()
    log.complete_flush(task)
    assert log.recovery_point <= 2
    logs.restart(clean=False)
    assert logs.log("a").leader_epochs.entries == [(0, 0), (10, 2)]


def test_a_failed_truncation_does_not_affect_other_logs(logs):
    first, second = fill(logs, "ab")

    def refuse(path, **_):
        if "a-0" in path:
            raise OSError(errno.EIO, "broken disk")

    truncations = logs.manager.truncations([Cut(first, 3), Cut(second, 3)])
    logs.files.before["open"] = refuse
    truncations.run()
    logs.files.before.clear()
    truncations.complete()
    assert list(truncations.errors) == [first]
    assert isinstance(first.failure, StorageError)
    assert not isinstance(first.failure, LogBusy)
    assert (second.failure, second.log_end_offset) == (None, 3)


def test_without_its_checkpoint_a_cut_log_takes_nothing_more(logs):
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 3)])
    has_begun = []

    def refuse(path, **_):
        if "a-0" in path:
            has_begun.append(path)
        elif "offset-checkpoint" in path and has_begun:
            raise OSError(errno.ENOSPC, "the disk is full")

    logs.files.before["open"] = refuse
    truncations.run()
    logs.files.before.clear()
    truncations.complete()
    assert has_begun
    assert "checkpoints" in truncations.errors[log].message
    assert not truncations.errors[log].passes
    with pytest.raises(StorageError):
        logs.append(log, b"x")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("starts_anew", [False, True])
def test_a_truncation_without_room_for_checkpoints_cuts_nothing(logs, tools, starts_anew, number):
    """The log is unchanged, and is truncated when there is space. A failed disk is no longer trusted."""
    (log,) = fill(logs, "a", segment_bytes=200)
    log.high_watermark, log.clean_offset = 5, 4
    segments, entries = list(log.segments), log.leader_epochs.entries
    written = []

    def refuse(path, **_):
        if "offset-checkpoint" in path:
            written.append(path)
            if len(written) == number:
                raise OSError(errno.ENOSPC, "the disk is full")

    logs.files.before["open"] = refuse
    errors = cut(logs, (log, 3, starts_anew))
    logs.files.before.clear()
    assert errors[log].passes
    assert not logs.failures
    assert (log.failure, list(log.segments), log.leader_epochs.entries) == (None, segments, entries)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 5, 6)
    assert (log.recovery_point, log.clean_offset) == (6, 4)
    assert tools.read_all(log) == list(range(6))
    assert logs.append(log, b"more", epoch=3, producer_id=7, producer_epoch=0, base_sequence=6).base_offset == 6
    assert not cut(logs, (log, 3, starts_anew))
    assert (log.log_start_offset, log.log_end_offset) == (3 if starts_anew else 0, 3)
    logs.restart(clean=False)
    assert tools.read_all(logs.log("a")) == ([] if starts_anew else [0, 1, 2])


def test_a_disk_failure_before_a_truncation_is_offline(logs):
    (log,) = fill(logs, "a")

    def refuse(path, **_):
        if "offset-checkpoint" in path:
            raise OSError(errno.EIO, "broken disk")

    logs.files.before["open"] = refuse
    errors = cut(logs, (log, 3))
    logs.files.before.clear()
    assert not errors[log].passes
    with pytest.raises(StorageError):
        logs.append(log, b"x")


def test_a_log_deleted_before_a_truncation_stays_deleted(logs):
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 3)])

    def refuse(path, **_):
        if "offset-checkpoint" in path:
            raise OSError(errno.ENOSPC, "the disk is full")

    logs.files.before["open"] = refuse
    truncations.run()
    logs.files.before.clear()
    logs.manager.delete("a", 0)
    truncations.complete()
    assert not logs.failures
    assert isinstance(truncations.errors[log], LogDeleted)


@pytest.mark.parametrize("place", ["a-0", "offset-checkpoint"])
def test_a_mistake_takes_a_log_offline_and_leaves_none_busy(logs, place):
    """No broker would lead, fetch or close a log that stays busy."""
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 3)])

    def fail(path, **_):
        if place in path:
            raise ZeroDivisionError("a mistake")

    logs.files.before["open"] = fail
    truncations.run()
    logs.files.before.clear()
    truncations.complete()
    assert "ZeroDivisionError" in truncations.errors[log].message
    assert not isinstance(log.failure, LogBusy)
    with pytest.raises(StorageError):
        logs.append(log, b"x")


def test_a_mistake_before_or_after_takes_a_log_offline_too(logs):
    first, second, third = fill(logs, "abc")
    # Offsets that cannot be compared: there is no log of which to find the place, or to complete.
    truncations = logs.manager.truncations([Cut(first, "1"), Cut(second, 3), Cut(third, 3)])
    truncations.run()
    truncations._begun[second].task.last_segment = object()
    truncations.complete()
    assert set(truncations.errors) == {first, second}
    for log in first, second:
        assert not isinstance(log.failure, LogBusy)
        with pytest.raises(StorageError):
            logs.append(log, b"x")
    assert (third.failure, third.log_end_offset) == (None, 3)


def test_a_log_that_is_deleted_meanwhile_stays_deleted(logs):
    (log,) = fill(logs, "a")
    truncations = logs.manager.truncations([Cut(log, 3)])
    logs.manager.delete("a", 0)
    truncations.run()
    truncations.complete()
    assert isinstance(truncations.errors[log], LogDeleted)
    assert not logs.failures


def test_a_log_that_was_deleted_before_is_not_cut(logs):
    first, second = fill(logs, "ab")
    logs.manager.delete("a", 0)
    errors = cut(logs, (first, 3), (second, 3))
    assert list(errors) == [first]
    assert second.log_end_offset == 3


@pytest.mark.parametrize("offset", [3, 20])
def test_a_log_that_starts_anew_is_found_so_after_a_crash(logs, tools, offset):
    """Also at an earlier offset than its log start offset, whose checkpoint would otherwise delete later records."""
    (log,) = fill(logs, "a", 8, segment_bytes=200)
    log.increment_log_start_offset(5)
    logs.manager.checkpoint(LOG_START_FILE)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    assert not cut(logs, (log, offset, True))
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset, offset, offset)
    assert log.leader_epochs.entries == []
    assert not log.producer_state.producers
    logs.append(log, b"x", epoch=1)
    flush(log)
    logs.restart(clean=False)
    log = logs.log("a")
    assert tools.read_all(log) == [offset]
    assert log.leader_epochs.entries == [(1, offset)]


def test_a_log_that_is_cut_at_its_start_begins_anew_there(logs):
    (log,) = fill(logs, "a")
    log.increment_log_start_offset(4)
    assert not cut(logs, (log, 2))
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert logs.append(log, b"x", epoch=9).base_offset == 2


def test_a_truncation_voids_a_running_compactions_result(logs):
    """A follower's log is truncated and appended to during a pass: the result of the pass is about other batches."""
    (log,) = fill(logs, "a")
    before = log.cut_count
    logs.manager.checkpoint_clean_offset(log, 2, before)
    cut(logs, (log, 1))
    for _ in range(4):
        logs.append(log, b"other", epoch=9)
    logs.manager.checkpoint_clean_offset(log, 4, before)
    assert log.clean_offset == 1
    logs.manager.checkpoint_clean_offset(log, 4, log.cut_count)
    assert log.clean_offset == 4
