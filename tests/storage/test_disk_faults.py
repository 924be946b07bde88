"""A log on a disk that refuses operations: a failure is final and logged once; a lack of space passes."""

from __future__ import annotations

import errno
import os

import pytest

from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE
from barnabas.storage.errors import StateUnknown, StorageError, is_passing
from barnabas.storage.os_files import OsFiles
from barnabas.storage.segment_removal import delete_old_segments, retain, times_for_retention
from barnabas.storage.txn_index import ENTRY_SIZE
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.storage.blocking import flush, run_flushes, run_retention, truncate

FAILS, IS_FULL = errno.EIO, errno.ENOSPC


def refuse(files, call, number):
    """Have every call of a method fail; returns the calls made since."""
    calls = []

    def refused(*arguments, **_):
        calls.append(arguments)
        raise OSError(number, f"{call} was refused")

    files.before[call] = refused
    return calls


def heal(files, call):
    del files.before[call]


def append(logs, log):
    logs.append(log, b"v" * 100, producer_id=1, producer_epoch=0, base_sequence=log.log_end_offset)


def touch_disk(logs, log, action):
    if action == "append":
        append(logs, log)
    elif action == "roll":
        log.roll()
    elif action == "delete segments":
        log.increment_log_start_offset(log.log_end_offset)
        delete_old_segments(log, logs.clock.now_ms())
    elif action == "truncate":
        truncate(log, 1)
    else:
        flush(log)


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
        flush(log)
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
    flush(log)
    assert not logs.failures
    logs.restart(clean=False)
    assert tools.read_all(logs.log()) == [0, 1, 2, 3]
    assert next(iter(logs.log().producer_state.producers.values())).last_sequence == 3


def test_leader_epochs_are_written_when_there_is_room(logs):
    log = logs.log(segment_bytes=300)
    logs.append(log, b"a", epoch=1)
    flush(log)
    logs.append(log, b"b", epoch=2)
    log.roll()
    refuse(logs.files, "pwrite", IS_FULL)
    for _ in range(2):
        task = log.prepare_flush()
        task.run()
        log.complete_flush(task)
        assert task.may_be_repeated
        assert log.recovery_point == 1
        assert log.local.durability.recovery_point_to_write == 0
    heal(logs.files, "pwrite")
    flush(log)
    assert log.recovery_point == log.local.durability.recovery_point_to_write == 2
    assert not logs.failures
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [".log", ".index", "directory", ".tmp"])
def test_a_flush_without_a_descriptor_is_made_again(logs, tools, lacking):
    """The file could not be opened, so that no sync has failed."""
    log = logs.log(segment_bytes=300)
    append(logs, log)
    log.roll()
    append(logs, log)
    call = "sync_directory" if lacking == "directory" else "open"

    def scarce(path, **_):
        if call == "sync_directory" or path.endswith(lacking):
            raise OSError(errno.EMFILE, "too many open files")

    logs.files.before[call] = scarce
    run_flushes(logs.manager, logs.clock.now_ms())
    with pytest.raises(StorageError):
        flush(log)
    assert log.recovery_point == log.local.durability.recovery_point_to_write == 0
    assert log.flush_is_due(logs.clock.now_ms())
    heal(logs.files, call)
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1
    assert log.recovery_point == log.local.durability.recovery_point_to_write == 2
    assert not logs.failures
    append(logs, log)
    logs.restart(clean=True)
    assert tools.read_all(logs.log()) == [0, 1, 2]


def test_an_error_in_a_flush_takes_the_log_offline(logs):
    log = logs.log()
    append(logs, log)
    logs.files.before["sync"] = lambda _: 1 // 0
    with pytest.raises(StorageError, match="ZeroDivision"):
        flush(log)
    assert len(logs.failures) == 1


@pytest.mark.parametrize("call", ["pwrite", "rename", "sync", "sync_directory"])
def test_a_checkpoint_that_fails_is_a_failure_of_its_directory(logs, call):
    append(logs, logs.log())
    refuse(logs.files, call, FAILS)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    heal(logs.files, call)
    assert len(logs.failures) == 1
    logs.stop(clean=True)
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    logs.start()
    assert logs.log().log_end_offset == 1


def test_a_checkpoint_that_does_not_fit_is_written_later(logs):
    append(logs, logs.log())
    flush(logs.log())
    refuse(logs.files, "pwrite", IS_FULL)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    heal(logs.files, "pwrite")
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
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


def test_an_abort_marker_is_appended_with_its_index_entry(logs):
    """Or without both, wherever the disk becomes full: the transaction remains open, and is aborted when there is
    space."""
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
    assert [found for found in check_directory(OsFiles(), logs.path).findings if found.level is not Level.NOTE] == []


@pytest.mark.parametrize("room", [10, 40])
def test_a_failed_truncation_of_an_index_is_final_for_its_log(logs, room):
    """It is the transaction index, after a failed write: the log is offline."""
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


def test_a_failed_sync_is_final_for_a_log_that_did_not_move(logs):
    log = logs.log()
    append(logs, log)
    task = log.prepare_flush()
    refuse(logs.files, "rename", errno.ENOSPC)
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
        flush(log)
    assert not list((logs.path / "topic-0").glob("*.tmp"))
    heal(logs.files, "rename")
    flush(log)
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").exists()
    assert logs.failures == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    ("call", "what"), [("open", ".snapshot"), ("pwrite", ""), ("open", ".index"), ("open", ".log"), ("rename", ".log")]
)
def test_retention_that_lacks_room_or_descriptors_comes_later(logs, tools, number, call, what):
    """Retention rolls the active segment, which writes a snapshot, indexes and a new file, and renames the old one."""
    log, other = logs.log(retention_ms=1000), logs.log("other", retention_ms=1000)
    for _ in range(2):
        append(logs, log)
        append(logs, other)
    logs.clock.advance(2000)
    refusals = []

    def scarce(concerned, *_, **_settings):
        name = os.readlink(f"/proc/self/fd/{concerned}") if isinstance(concerned, int) else concerned
        if "/topic-0/" in name and what in name:
            refusals.append(name)
            raise OSError(number, f"{call} was refused")

    logs.files.before[call] = scarce
    for _ in range(2):
        run_retention(logs.manager, logs.clock.now_ms())
        assert (log.log_start_offset, log.log_end_offset) == (0, 2)
    assert len(refusals) >= 2
    assert other.log_start_offset == 2, "the others go on"
    assert not logs.failures
    heal(logs.files, call)
    assert tools.read_all(log) == [0, 1]
    run_retention(logs.manager, logs.clock.now_ms())
    assert log.log_start_offset == 2
    append(logs, log)
    assert tools.read_all(log) == [2]
    logs.restart(clean=False)
    assert not logs.failures
    assert tools.read_all(logs.log()) == [2]


@pytest.mark.parametrize(("number", "is_final"), [(errno.EMFILE, False), (errno.EIO, True), (errno.ENOSPC, True)])
def test_deletions_that_could_not_be_synced_are_told(logs, number, is_final):
    """A failed sync is final for any reason: the next one would succeed without effect."""
    append(logs, logs.log())
    logs.manager.delete("topic", 0)

    def refused(_):
        raise (StateUnknown if is_final else OSError)(number, "refused")

    logs.files.before["sync_directory"] = refused
    with pytest.raises(StorageError):
        logs.manager.sync_deletions()
    assert len(logs.failures) == is_final
    heal(logs.files, "sync_directory")
    if is_final:
        with pytest.raises(StorageError):
            logs.manager.sync_deletions()
    else:
        logs.manager.sync_deletions()


def test_a_deletion_that_outlives_the_stop_writes_nothing(logs, tmp_path):
    """A stop waits for a deletion for some time. Then the directory is unlocked, and may belong to another process."""
    append(logs, logs.log())
    logs.manager.delete("topic", 0)

    def written():
        return {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}

    at_the_close = {}

    def hangs_until_all_is_closed(_):
        heal(logs.files, "sync_directory")
        logs.manager.close()
        at_the_close.update(written())

    logs.files.before["sync_directory"] = hangs_until_all_is_closed
    logs.manager.sync_deletions()
    assert at_the_close == written() != {}


def test_every_error_of_a_sync_is_final():
    """A pipe cannot be synced, nor can a directory of a virtual file system."""
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb"):
        with pytest.raises(StateUnknown):
            OsFiles().sync(writing)
        with pytest.raises(StateUnknown):
            OsFiles().sync_directory("/proc")
    assert is_passing(OSError(errno.ENOSPC, "no space left"))
    assert not is_passing(StateUnknown(errno.ENOSPC, "no space left"))


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_sync_that_failed_for_want_of_room_is_final(logs, call):
    def refused(_):
        raise StateUnknown(errno.ENOSPC, "no space left")

    log = logs.log()
    append(logs, log)
    logs.files.before[call] = refused
    with pytest.raises(StorageError, match="no space left"):
        flush(log)
    assert len(logs.failures) == 1


def test_a_log_without_descriptors_is_opened_later(logs, tools):
    log = logs.log()
    append(logs, log)
    logs.stop(clean=False)

    def scarce(path, **_):
        if "/topic-0/" in path:
            raise OSError(errno.EMFILE, "too many open files")

    logs.files.before["open"] = scarce
    logs.start()
    with pytest.raises(StorageError) as raised:
        logs.log()
    assert raised.value.passes
    job = logs.manager.reopening("topic", 0)
    logs.manager.reopened("topic", 0, job())
    with pytest.raises(StorageError):
        logs.log()
    heal(logs.files, "open")
    job = logs.manager.reopening("topic", 0)
    logs.manager.reopened("topic", 0, job())
    assert logs.manager.reopening("topic", 0) is None
    append(logs, logs.log())
    assert tools.read_all(logs.log()) == [0, 1]
    logs.restart(clean=True)
    assert tools.read_all(logs.log()) == [0, 1]
    assert not logs.failures


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_stop_on_a_full_disk_is_no_failure(logs, tools, number):
    """It claims no clean stop, either."""
    log = logs.log()
    append(logs, log)

    def scarce(path, **_):
        if path.endswith((".index", ".snapshot")):
            raise OSError(number, "refused")

    logs.files.before["open"] = scarce
    logs.stop(clean=True)
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    assert log.recovery_point == 1, "what is in the log is flushed all the same"
    assert not logs.failures
    heal(logs.files, "open")
    logs.start()
    assert tools.read_all(logs.log()) == [0]


def test_a_full_disk_does_not_keep_a_log_from_being_recovered(logs, tools):
    """Files that can be rebuilt are omitted, so that no partial file is trusted; an aborted transaction cannot be
    omitted."""
    log = logs.log(segment_bytes=300)
    for _ in range(4):
        append(logs, log)
    logs.stop(clean=False)
    refuse(logs.files, "pwrite", IS_FULL)
    logs.start()
    log = logs.log()
    assert tools.read_all(log) == [0, 1, 2, 3]
    with pytest.raises(StorageError):
        append(logs, log)
    heal(logs.files, "pwrite")
    append(logs, log)
    flush(log)
    logs.restart(clean=False)
    assert tools.read_all(logs.log()) == [0, 1, 2, 3, 4]
    assert next(iter(logs.log().producer_state.producers.values())).last_sequence == 4
    assert not logs.failures


def test_files_that_cannot_be_unlinked_are_unlinked_later(logs):
    log = logs.log(file_delete_delay_ms=0)
    append(logs, log)
    log.roll()
    log.increment_log_start_offset(1)
    assert delete_old_segments(log, logs.clock.now_ms()) == 1
    refuse(logs.files, "unlink", IS_FULL)
    assert logs.manager.delete_due_files() == 0
    heal(logs.files, "unlink")
    logs.clock.advance(60_000)
    assert logs.manager.delete_due_files() == 1
    assert not list((logs.path / "topic-0").glob("*.deleted"))


def test_a_segment_renamed_during_retention_is_checked_later(logs):
    append(logs, logs.log(retention_ms=1000))
    logs.restart(clean=True)
    log, now_ms = logs.log(), logs.clock.now_ms() + 2000
    times = times_for_retention(log, now_ms)
    assert not times.is_known
    refuse(logs.files, "open", errno.ENOENT)
    times.read()
    times.take_in()
    heal(logs.files, "open")
    assert isinstance(times.error, FileNotFoundError)
    assert retain(log, now_ms, times) == 0
    assert not logs.failures
    assert run_retention(logs.manager, now_ms) == 1


def test_a_segment_that_grows_during_retention_is_checked_later(logs):
    """For batches without timestamps the time of the file counts, which a new record changes."""

    def append_at(log):
        logs.append(log, b"v", timestamp=-1)
        time_ns = logs.clock.now_ms() * 1_000_000
        os.utime(logs.path / "topic-0" / "00000000000000000000.log", ns=(time_ns, time_ns))

    append_at(logs.log(retention_ms=1000))
    logs.restart(clean=True)
    log, now_ms = logs.log(), logs.clock.now_ms() + 2000
    times = times_for_retention(log, now_ms)
    times.read()
    logs.clock.advance(2000)
    append_at(log)
    times.take_in()
    assert times.error is None
    assert retain(log, now_ms, times) == 0
    assert run_retention(logs.manager, now_ms) == 0
    assert run_retention(logs.manager, now_ms + 2000) == 1
