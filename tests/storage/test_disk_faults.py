"""What a log makes of a disk that refuses: a failure is final, and told once; a lack of room passes."""

from __future__ import annotations

import errno

import pytest

from barnabas.storage.check import check_directory
from barnabas.storage.check_report import Level
from barnabas.storage.errors import StorageError
from barnabas.storage.txn_index import ENTRY_SIZE
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.records import ControlRecordType, EndTxnMarker, build_end_txn_marker

FAILS, IS_FULL = errno.EIO, errno.ENOSPC


def refuse(files, call, number):
    """Have every call of a method fail; returns the calls made since."""
    calls = []

    def refused(*arguments, **_):
        calls.append(arguments)
        raise OSError(number, f"{call} was refused")

    setattr(files, call, refused)
    return calls


def heal(files, call):
    delattr(files, call)


def append(logs, log):
    logs.append(log, b"v" * 100, producer_id=1, producer_epoch=0, base_sequence=log.log_end_offset)


def touch_disk(logs, log, action):
    if action == "append":
        append(logs, log)
    elif action == "roll":
        log.roll()
    elif action == "delete segments":
        log.increment_log_start_offset(log.log_end_offset)
        log.delete_old_segments(logs.clock.now_ms())
    elif action == "truncate":
        log.truncate_to(1)
    else:
        log.flush()


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("pwrite", "append"),
        ("pwrite", "roll"),
        ("open", "roll"),
        ("sync", "flush"),
        ("sync_directory", "flush"),
        ("open", "flush"),
        ("rename", "delete segments"),
        ("truncate", "truncate"),
        ("sync", "truncate"),
    ],
)
def test_a_failing_disk_takes_the_log_offline_for_good(logs, tools, call, action):
    log = logs.log()
    for _ in range(3):
        append(logs, log)
    if action == "delete segments":
        log.roll()
    if action != "flush":
        log.flush()
    calls = refuse(logs.files, call, FAILS)
    with pytest.raises(StorageError):
        touch_disk(logs, log, action)
    assert calls
    heal(logs.files, call)
    for again in ("append", "roll", "flush", "truncate"):
        with pytest.raises(StorageError):
            touch_disk(logs, log, again)
    with pytest.raises(StorageError):
        log.read(0, 1000)
    assert len(logs.failures) == 1
    logs.restart(clean=True)
    assert not logs.failures[1:]
    log = logs.log()
    assert log.log_end_offset in ((1, 3) if action == "truncate" else (3,))
    assert tools.read_all(log) == list(range(log.log_start_offset, log.log_end_offset))
    append(logs, log)


@pytest.mark.parametrize(("call", "action"), [("pwrite", "append"), ("pwrite", "roll"), ("open", "roll")])
def test_a_full_disk_takes_the_records_later(logs, tools, call, action):
    log = logs.log()
    for _ in range(3):
        append(logs, log)
    refuse(logs.files, call, IS_FULL)
    for _ in range(2):
        with pytest.raises(StorageError):
            touch_disk(logs, log, action)
    assert tools.read_all(log) == [0, 1, 2]
    heal(logs.files, call)
    log.roll()
    append(logs, log)
    log.flush()
    assert not logs.failures
    logs.restart(clean=False)
    assert tools.read_all(logs.log()) == [0, 1, 2, 3]
    assert logs.log().active_producers()[0].last_sequence == 3


def test_leader_epochs_that_do_not_fit_are_written_by_a_later_flush(logs):
    log = logs.log(segment_bytes=300)
    logs.append(log, b"a", epoch=1)
    log.flush()
    logs.append(log, b"b", epoch=2)
    log.roll()
    refuse(logs.files, "pwrite", IS_FULL)
    for _ in range(2):
        task = log.prepare_flush()
        task.run()
        log.complete_flush(task)
        assert task.may_be_repeated
        assert log.recovery_point == 1
        assert log.recovery_point_to_write == 0
    heal(logs.files, "pwrite")
    log.flush()
    assert log.recovery_point == log.recovery_point_to_write == 2
    assert not logs.failures
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"


@pytest.mark.parametrize("lacking", [".log", ".index", "directory", ".tmp"])
def test_a_flush_without_a_descriptor_is_made_again(logs, tools, lacking):
    """Nothing was synced through what could not be opened, so that no sync has failed."""
    log = logs.log(segment_bytes=300)
    append(logs, log)
    log.roll()
    append(logs, log)
    call, real_open = ("sync_directory", None) if lacking == "directory" else ("open", logs.files.open)

    def scarce(path, **settings):
        if real_open is None or path.endswith(lacking):
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, **settings)

    setattr(logs.files, call, scarce)
    logs.manager.run_flushes(logs.clock.now_ms())
    with pytest.raises(StorageError):
        log.flush()
    assert log.recovery_point == log.recovery_point_to_write == 0
    assert log.flush_is_due(logs.clock.now_ms())
    heal(logs.files, call)
    assert logs.manager.run_flushes(logs.clock.now_ms()) == 1
    assert log.recovery_point == log.recovery_point_to_write == 2
    assert not logs.failures
    append(logs, log)
    logs.restart(clean=True)
    assert tools.read_all(logs.log()) == [0, 1, 2]


def test_what_a_flush_trips_over_takes_the_log_offline(logs, monkeypatch):
    log = logs.log()
    append(logs, log)
    monkeypatch.setattr(logs.files, "sync", lambda _: 1 // 0)
    with pytest.raises(StorageError, match="ZeroDivision"):
        log.flush()
    assert len(logs.failures) == 1


@pytest.mark.parametrize("call", ["pwrite", "rename", "sync", "sync_directory"])
def test_a_checkpoint_that_fails_is_a_failure_of_its_directory(logs, call):
    append(logs, logs.log())
    refuse(logs.files, call, FAILS)
    logs.manager.checkpoint_high_watermarks()
    heal(logs.files, call)
    assert len(logs.failures) == 1
    logs.stop(clean=True)
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    logs.start()
    assert logs.log().log_end_offset == 1


def test_a_checkpoint_that_does_not_fit_is_written_later(logs):
    append(logs, logs.log())
    refuse(logs.files, "pwrite", IS_FULL)
    logs.manager.checkpoint_high_watermarks()
    heal(logs.files, "pwrite")
    logs.manager.checkpoint_high_watermarks()
    assert not logs.failures
    assert (logs.path / "replication-offset-checkpoint").read_text() == "0\n1\ntopic 0 1\n"


def begin_transaction(logs, log, producer_id):
    """Two records of a new transaction, at the log's end."""
    logs.append(log, b"a", b"b", producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


def abort_transaction(logs, log, producer_id):
    marker = EndTxnMarker(ControlRecordType.ABORT, coordinator_epoch=0)
    batch = build_end_txn_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=logs.clock.now_ms())
    logs.append_raw(log, batch, AppendOrigin.COORDINATOR)
    return len(batch)


def test_an_abort_marker_takes_the_index_of_transactions_with_it_or_none(logs):
    """Wherever the disk becomes full, the transaction stays open as it was, and is aborted when there is room."""
    log = logs.log()
    expected = []
    begin_transaction(logs, log, 1)
    refuse(logs.files, "open", IS_FULL)
    with pytest.raises(StorageError):
        abort_transaction(logs, log, 1)
    heal(logs.files, "open")
    needed = ENTRY_SIZE + abort_transaction(logs, log, 1)
    expected.append((1, 0))
    for room in range(needed):
        producer_id, first_offset = 2 + room, log.log_end_offset
        begin_transaction(logs, log, producer_id)
        for _ in range(2):
            logs.files.write_limit = room
            with pytest.raises(StorageError, match="full"):
                abort_transaction(logs, log, producer_id)
            assert log.last_stable_offset == first_offset
            assert log.log_end_offset == first_offset + 2
            assert log.aborted_transactions(0, log.log_end_offset) == expected
        logs.files.write_limit = None
        abort_transaction(logs, log, producer_id)
        expected.append((producer_id, first_offset))
        assert log.last_stable_offset == log.log_end_offset == first_offset + 3
        assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert not logs.failures
    for clean in (True, False):
        logs.restart(clean=clean)
        log = logs.log()
        assert log.log_end_offset == 3 * len(expected)
        assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert [found for found in check_directory(logs.path).findings if found.level is not Level.NOTE] == []


@pytest.mark.parametrize("room", [10, 40])
def test_an_index_of_transactions_that_cannot_be_cut_back_takes_the_log_offline(logs, room):
    log = logs.log()
    begin_transaction(logs, log, 1)
    logs.files.write_limit, logs.files.fail_truncate = room, True
    with pytest.raises(StorageError):
        abort_transaction(logs, log, 1)
    assert len(logs.failures) == 1
    logs.files.write_limit, logs.files.fail_truncate = None, False
    logs.restart(clean=False)
    log = logs.log()
    assert log.log_end_offset == 2
    assert log.aborted_transactions(0, 2) == []
    abort_transaction(logs, log, 1)
    assert log.aborted_transactions(0, 3) == [(1, 0)]


def test_a_failed_sync_is_final_for_a_log_that_could_not_move_away_too(logs):
    log = logs.log()
    append(logs, log)
    task = log.prepare_flush()
    refuse(logs.files, "rename", errno.EIO)
    with pytest.raises(StorageError, match="deleting"):
        logs.manager.delete("topic", 0)
    heal(logs.files, "rename")
    refuse(logs.files, "sync", errno.EIO)
    task.run()
    log.complete_flush(task)
    assert len(logs.failures) == 1


def test_flushes_of_a_full_disk_leave_no_temporary_files(logs):
    log = logs.log()
    append(logs, log)
    refuse(logs.files, "rename", errno.ENOSPC)
    with pytest.raises(StorageError):
        log.flush()
    assert not list((logs.path / "topic-0").glob("*.tmp"))
    heal(logs.files, "rename")
    log.flush()
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").exists()
    assert logs.failures == []
