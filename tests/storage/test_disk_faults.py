"""What a log makes of a disk that refuses: a failure is final, and told once; a lack of room passes."""

from __future__ import annotations

import errno

import pytest

from barnabas.storage.errors import StorageError

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
