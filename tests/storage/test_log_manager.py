"""Log directories: ownership, loading, checkpoints, deletion, descriptors."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, LOST_LOGS_FILE, RECOVERY_POINT_FILE
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import DirectoryLocked, DirectoryMismatch, StorageError
from barnabas.storage.flush import SharedSync
from barnabas.storage.log_directory import parse_log_name
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.threads import OsThreads
from barnabas.wire.errors import ApiError, ErrorCode
from tests.storage.blocking import flush, run_flushes, run_retention, truncate_with_checkpoints
from tests.support.files import RuledFiles, path_of
from tests.support.reference_loop import assert_within, timed, work_s

TOPIC_ID = bytes(range(1, 17))


def open_manager(logs, paths, node_id=1, cluster_id="a-cluster"):
    manager = LogManager(
        LogEnvironment(logs.files, logs.clock, OsThreads(), logs.new_id),
        LogManagerSettings(paths, lambda _topic: LogConfig(), node_id=node_id, cluster_id=cluster_id),
    )
    manager.lock()
    manager.load()
    if cluster_id is not None:
        manager.set_cluster_id(cluster_id)
    return manager


def test_a_directory_is_used_once_in_a_process(logs):
    with pytest.raises(DirectoryLocked):
        open_manager(logs, [logs.path])
    logs.stop()
    open_manager(logs, [logs.path]).close()
    logs.start()


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_that_ends_before_loading_changes_nothing(logs, clean):
    """For example, the metadata store is absent and the administrator stops the broker."""
    log = logs.log()
    logs.append(log, b"a", b"b")
    log.increment_log_start_offset(1)
    flush(log)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    logs.manager.checkpoint(LOG_START_FILE)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.stop(clean=clean)

    def files():
        return {file.name: file.read_bytes() for file in logs.path.iterdir() if file.is_file()}

    before = files()
    after = {}

    def give_up(manager):
        manager.lock()
        manager.close()
        after.update(files())

    logs.start(before_opening=give_up)
    assert after == before
    assert (logs.manager.was_closed, logs.log().log_start_offset, logs.log().log_end_offset) == (clean, 1, 2)


def test_another_process_is_kept_out(logs):
    code = (
        "import sys; from barnabas.clock import SystemClock; from barnabas.storage.config import LogConfig;"
        "from barnabas.storage.os_files import OsFiles; from barnabas.threads import OneThread;"
        "from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings;"
        "environment = LogEnvironment(OsFiles(), SystemClock(), OneThread(), lambda: 'the-only-one');"
        "manager = LogManager(environment, LogManagerSettings([sys.argv[1]], lambda _: LogConfig(), node_id=1));"
        "manager.lock(); manager.load()"
    )
    refused = subprocess.run([sys.executable, "-c", code, logs.path], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "DirectoryLocked" in refused.stderr
    logs.stop()
    subprocess.run([sys.executable, "-c", code, logs.path], check=True)
    logs.start()


def test_meta_properties_have_version_0_and_are_compared(logs):
    """They are those of Kafka."""
    logs.stop()
    text = (logs.path / "meta.properties").read_text()
    assert "version=0\nbroker.id=1\ncluster.id=a-cluster\n" in text
    for node_id, cluster_id in ((2, "a-cluster"), (1, "another")):
        with pytest.raises(DirectoryMismatch):
            open_manager(logs, [logs.path], node_id, cluster_id)
    late = open_manager(logs, [logs.path], cluster_id=None)
    with pytest.raises(DirectoryMismatch):
        late.set_cluster_id("another")
    late.set_cluster_id("a-cluster")
    late.close()
    (logs.path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a-cluster\n")
    with pytest.raises(DirectoryMismatch, match="KRaft"):
        open_manager(logs, [logs.path])
    (logs.path / "meta.properties").write_text(text)
    logs.start()


def test_partition_metadata_names_the_topic_and_is_compared(logs):
    logs.topic_id = TOPIC_ID
    logs.log()
    text = (logs.path / "topic-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA"
    logs.restart()
    assert logs.log().topic_id == TOPIC_ID
    with pytest.raises(ApiError) as raised:
        logs.manager.get_or_create("topic", 0, bytes(16 * [7]), LogConfig())
    assert raised.value.error is ErrorCode.INCONSISTENT_TOPIC_ID


def test_an_empty_partition_metadata_is_written_again(logs):
    """A crash leaves it empty."""
    logs.topic_id = TOPIC_ID
    logs.log()
    logs.stop(clean=False)
    (logs.path / "topic-0" / "partition.metadata").write_bytes(b"")
    logs.start()
    assert logs.log().topic_id == TOPIC_ID


def test_new_logs_go_where_there_are_fewest(logs, tmp_path):
    paths = [tmp_path / "one", tmp_path / "two"]
    manager = open_manager(logs, paths)
    for partition in range(5):
        manager.get_or_create("t", partition, bytes(16), LogConfig())
    counts = sorted(len(list(path.glob("t-*"))) for path in paths)
    assert counts == [2, 3]
    assert {log.directory.rpartition("/")[0] for log in manager.logs} == set(map(str, paths))
    assert set(manager.directories) == set(paths)
    manager.close()
    manager = open_manager(logs, paths)
    assert len(manager.logs) == 5
    manager.close()
    (paths[1] / "t-0").mkdir(exist_ok=True)
    (paths[0] / "t-0").mkdir(exist_ok=True)
    with pytest.raises(DirectoryMismatch):
        open_manager(logs, paths)


def test_checkpoints_are_kafkas_text(logs):
    log = logs.log("my-topic", 3)
    logs.append(log, b"a", epoch=2)
    logs.append(log, b"b", epoch=5)
    log.update_high_watermark(1)
    log.increment_log_start_offset(1)
    logs.stop()
    read = {path.name: path.read_text() for path in logs.path.rglob("*-checkpoint")}
    assert (
        read
        == {
            "recovery-point-offset-checkpoint": "0\n1\nmy-topic 3 2\n",
            "replication-offset-checkpoint": "0\n1\nmy-topic 3 1\n",
            "log-start-offset-checkpoint": "0\n1\nmy-topic 3 1\n",
            "leader-epoch-checkpoint": "0\n2\n2 1\n5 1\n",
        }
        or read["leader-epoch-checkpoint"] == "0\n1\n5 1\n"
    )
    assert (logs.path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    logs.start()
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    log = logs.log("my-topic", 3)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 1, 2)


def test_the_epoch_before_counts_if_all_directories_agree(logs, tmp_path):
    logs.stop()
    paths = [logs.path, tmp_path / "second"]
    for epoch in (7, 8):
        manager = open_manager(logs, paths)
        manager.close(broker_epoch=epoch)
    manager = open_manager(logs, paths[:1])
    assert manager.previous_broker_epoch == 8
    manager.close(broker_epoch=9)
    manager = open_manager(logs, paths)
    assert manager.previous_broker_epoch == -1, "one says 9, the other 8"
    manager.close(broker_epoch=10)
    (paths[1] / ".kafka_cleanshutdown").write_bytes(b"garbage")
    manager = open_manager(logs, paths)
    assert manager.previous_broker_epoch == -1
    manager.close()
    logs.start()


def test_a_directory_with_a_failed_log_is_not_called_clean(logs):
    log = logs.log()
    logs.append(log, b"a")
    logs.files.fail_sync = True
    run_flushes(logs.manager, logs.clock.now_ms())
    logs.files.fail_sync = False
    logs.stop()
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    logs.start()
    assert logs.log().log_end_offset == 1


def test_a_deleted_log_is_renamed_and_later_removed(logs, tools):
    log = logs.log(file_delete_delay_ms=1000)
    logs.append(log, b"a")
    logs.manager.delete("topic", 0)
    (left,) = [path for path in logs.path.iterdir() if path.is_dir()]
    name, _, suffix = left.name.partition(".")
    assert name == "topic-0"
    assert len(suffix) == 32 + len("-delete")
    assert logs.manager.get("topic", 0) is None
    again = logs.log(file_delete_delay_ms=1000)
    assert (again.log_end_offset, tools.read(again, 0).records) == (0, b"")
    assert logs.manager.delete_due_files() == 0
    logs.clock.advance(1000)
    assert logs.manager.delete_due_files() == 1
    assert not left.exists()
    logs.manager.delete("nothing", 7)


def test_an_interrupted_deletion_is_finished_at_the_start(logs):
    """A crash interrupts it."""
    logs.append(logs.log(), b"a")
    logs.manager.delete("topic", 0)
    stray = logs.path / "other-0.0123-stray"
    stray.mkdir()
    logs.restart(clean=False)
    assert [path.name for path in logs.path.iterdir() if path.is_dir()] == [stray.name]
    assert logs.manager.logs == []


def test_a_log_created_again_does_not_inherit_checkpoints(logs, tools):
    log = logs.log()
    for _ in range(5):
        logs.append(log, b"old")
    log.increment_log_start_offset(4)
    flush(log)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.manager.checkpoint(LOG_START_FILE)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    for restart in (False, True):
        logs.manager.delete("topic", 0)
        if restart:
            logs.restart(clean=False)
        logs.append(logs.log(), b"new")
        logs.restart(clean=False)
        assert tools.read_all(logs.log()) == [0]


def test_a_log_that_was_deleted_is_not_missed(logs):
    """Otherwise a new topic of its name would have no leader, if its brokers died before they created its logs."""
    for lost_before in (False, True):
        logs.append(logs.log(), b"a")
        logs.manager.lost.settle([])
        logs.manager.checkpoint(RECOVERY_POINT_FILE)
        logs.manager.checkpoint(HIGH_WATERMARK_FILE)
        if lost_before:
            shutil.rmtree(logs.path / "topic-0")
            logs.restart(clean=False)
            logs.manager.lost.settle([("topic", 0)])
            logs.manager.write_lost_logs()
            assert logs.manager.lost.is_lost("topic", 0)
        logs.manager.delete("topic", 0)
        logs.manager.sync_deletions()
        logs.restart(clean=False)
        assert not logs.manager.lost.is_lost("topic", 0)


def test_lost_logs_are_remembered_through_a_start_on_a_full_disk(logs, tmp_path):
    """Until there is space to write them, no file is written that would hide them."""
    logs.append(logs.log(), b"a")
    logs.append(logs.log("kept"), b"a")
    logs.manager.lost.settle([])
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    shutil.rmtree(logs.path / "topic-0")

    def refuse(path, **_):
        if LOST_LOGS_FILE in path and path.endswith(".tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")

    logs.files.before["open"] = refuse
    for clean in (False, True, False):
        logs.restart(clean=clean)
        assert logs.manager.lost.is_lost("topic", 0)
        assert not logs.manager.lost.is_lost("kept", 0)
        logs.manager.checkpoint(RECOVERY_POINT_FILE)
        logs.manager.checkpoint(HIGH_WATERMARK_FILE)
        with pytest.raises(StorageError, match="No space left") as raised:
            logs.log()
        assert raised.value.passes
        logs.append(logs.log("new"), b"a")
    logs.files.before.clear()
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    assert (logs.path / LOST_LOGS_FILE).read_text() == "0\n1\ntopic 0\n"
    logs.restart(clean=False)
    assert logs.manager.lost.is_lost("topic", 0)
    assert logs.failures == []


def test_a_new_directory_is_new_until_lost_logs_are_written(logs, tmp_path):
    logs.append(logs.log(), b"a")
    logs.manager.lost.settle([])
    logs.manager.write_lost_logs()
    logs.stop(clean=False)
    paths = [logs.path, tmp_path / "new"]

    def refuse(path, **_):
        if LOST_LOGS_FILE in path and path.endswith(".tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")

    logs.files.before["open"] = refuse
    for _ in range(2):
        manager = open_manager(logs, paths)
        assert manager.lost.is_lost("any", 0)
        manager.abandon()
    assert not (tmp_path / "new" / "meta.properties").exists()
    logs.files.before.clear()
    manager = open_manager(logs, paths)
    assert (tmp_path / "new" / "meta.properties").exists()
    assert (logs.path / LOST_LOGS_FILE).read_text() == "0\n1\n*\n"
    manager.close()
    logs.start()


def test_small_segments_grow_if_there_are_very_many(logs, tools, caplog):
    """A client may make each of its batches start a segment, by size, by time and by indexes."""
    for setting in ({"segment_bytes": 100}, {"segment_ms": 1}, {"segment_index_bytes": 16}):
        name, config = next(iter(setting)), {"index_interval_bytes": 0, **setting}

        def write(count, name=name, config=config):
            log = logs.log(name, **config)
            for _ in range(count):
                logs.clock.advance(10)
                logs.append(log, b"value")
            return log

        logs.manager.bound_segments(1_000)
        assert len(write(20).segments) == 20
        logs.manager.bound_segments(18)
        log = write(20)
        assert len(log.segments) == 20
        assert "no segment below 1048576 bytes rolls" in caplog.text
        assert tools.read_all(log) == list(range(40))
        logs.manager.bound_segments(1_000)
        assert len(write(5).segments) == 25
        logs.restart()
        assert tools.read_all(logs.log(name, **config)) == list(range(45))
        logs.manager.delete(name, 0)


def test_a_delete_under_a_flush_is_no_failure(logs):
    log = logs.log()
    logs.append(log, b"a")
    task = log.prepare_flush()
    logs.manager.delete("topic", 0)
    task.run()
    log.complete_flush(task)
    assert logs.failures == []


def test_a_flush_spares_the_leader_epochs_of_a_later_log(logs):
    """The later log has the same name."""
    old = logs.log()
    logs.append(old, b"a", epoch=7)
    task = old.prepare_flush()
    assert task.leader_epochs is not None
    logs.manager.delete("topic", 0)
    new = logs.log()
    task.run()
    old.complete_flush(task)
    assert not list((logs.path / "topic-0").glob("leader-epoch-checkpoint*"))
    assert new.leader_epochs.entries == []
    assert logs.failures == []


def test_a_log_that_did_not_move_writes_its_leader_epochs_later(logs):
    """The next flush writes them."""
    log = logs.log()
    logs.append(log, b"a", epoch=7)
    task = log.prepare_flush()
    logs.files.before["rename"] = refuse_rename
    with pytest.raises(StorageError, match="deleting"):
        logs.manager.delete("topic", 0)
    logs.files.before.clear()
    task.run()
    log.complete_flush(task)
    assert log.recovery_point == 0, "the next start has to look at the batches for their epochs"
    flush(log)
    assert log.recovery_point == 1
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n7 0\n"


def test_a_start_removes_what_was_not_complete(logs):
    logs.append(logs.log(), b"a")
    logs.stop(clean=False)
    (logs.path / "topic-0" / "leader-epoch-checkpoint.7f00.tmp").write_bytes(b"0")
    logs.start()
    logs.log()
    assert not list((logs.path / "topic-0").glob("*.tmp"))


def refuse_rename(_old, _new):
    raise OSError(errno.EIO, "the disk refused")


def test_names_of_log_directories():
    assert parse_log_name("a-b-3") == ("a-b", 3)
    for name in ("plain", "-3", "a-", "a-b", "a-٣", "snapshots"):
        assert parse_log_name(name) is None, name


@pytest.mark.parametrize("clean", [True, False])
def test_logs_of_topics_with_a_dot_in_front_are_found_again(logs, tools, clean):
    """A directory with such a name, and without files of a log, belongs to another program."""
    logs.append(logs.log(".Trash", 1000), b"v")
    (logs.path / ".Trash-1001" / "files").mkdir(parents=True)
    logs.restart(clean=clean)
    assert tools.read_all(logs.log(".Trash", 1000)) == [0]
    assert logs.manager.get(".Trash", 1001) is None


def test_long_topic_names_are_cut_when_deleted(logs):
    topic = "t" * 249
    logs.append(logs.log(topic), b"a")
    logs.manager.delete(topic, 0)
    logs.restart(clean=False)
    assert logs.manager.logs == []


def test_many_logs_work_with_few_descriptors(logs, tools):
    logs.stop()
    logs.files.descriptors = 12
    logs.start()
    found = [logs.log(partition=partition) for partition in range(30)]
    for turn in range(3):
        for log in found:
            assert logs.append(log, b"%d" % turn).base_offset == turn
    assert all(tools.read_all(log) == [0, 1, 2] for log in found)
    run_flushes(logs.manager, logs.clock.now_ms())
    logs.restart()
    assert all(tools.read_all(logs.log(partition=partition)) == [0, 1, 2] for partition in range(30))


def test_running_out_of_descriptors_is_waited_out(logs, tools):
    import errno

    for partition in range(4):
        logs.log(partition=partition)
    logs.restart()
    found = [logs.log(partition=partition) for partition in range(4)]
    failures = [0]

    def scarce(path, **_):
        if path.endswith(".log") and sum(log.segments[-1].file.descriptor >= 0 for log in found) >= 2:
            failures[0] += 1
            raise OSError(errno.EMFILE, "too many open files")

    logs.files.before["open"] = scarce
    for turn in range(2):
        for log in found:
            logs.append(log, b"%d" % turn)
    assert failures[0] > 0
    assert all(tools.read_all(log) == [0, 1] for log in found)


@pytest.mark.full
@pytest.mark.alone
def test_a_thousand_clean_logs_start_quickly_and_cost_little(logs):
    """Some 0.2 s."""
    for partition in range(1000):
        logs.append(logs.log(partition=partition), b"a")

    def start_s():
        logs.stop(clean=True)
        taken_s = timed(logs.start)()
        assert len(logs.manager.logs) == 1000
        return taken_s

    assert_within(60, work_s, start_s, "a start with a thousand logs")


def test_expired_deletions_and_retention_run_over_all_logs(logs):
    config = LogConfig(retention_ms=1000, segment_bytes=100, file_delete_delay_ms=0)
    for partition in range(3):
        log = logs.manager.get_or_create("topic", partition, bytes(16), config)
        for _ in range(3):
            logs.append(log, b"x")
    logs.clock.advance(2000)
    assert run_retention(logs.manager, logs.clock.now_ms()) == 9
    assert logs.manager.delete_due_files() == 9
    assert all(log.log_start_offset == 3 for log in logs.manager.logs)


def noting_syncs():
    """The real disk, and the paths of the synced files."""
    synced = []

    def note(concerned):
        synced.append(path_of(concerned))

    return RuledFiles(sync=note, sync_directory=note), synced


def test_a_clean_stop_syncs_what_has_changed_and_nothing_twice(logs, tools, tmp_path):
    files, synced = noting_syncs()
    root = tmp_path / "counted"
    manager = LogManager(
        LogEnvironment(files, logs.clock, OsThreads(), logs.new_id),
        LogManagerSettings([root], lambda _topic: LogConfig(), node_id=1, cluster_id="a-cluster"),
    )
    manager.lock()
    manager.load()
    untouched, written, numbered = [manager.get_or_create("t", index, bytes(16), LogConfig()) for index in range(3)]
    for log in (untouched, written, numbered):
        logs.append(log, b"a")
    run_flushes(manager, logs.clock.now_ms())
    for log in (untouched, written, numbered):
        flush(log)
    manager.close()
    manager = LogManager(
        LogEnvironment(files, logs.clock, OsThreads(), logs.new_id),
        LogManagerSettings([root], lambda _topic: LogConfig(), node_id=1, cluster_id="a-cluster"),
    )
    manager.lock()
    manager.load()
    logs.append(manager.get("t", 1), b"b")
    logs.append(manager.get("t", 2), b"b", producer_id=7, producer_epoch=0, base_sequence=0)
    synced.clear()
    manager.close()
    found = sorted(path.removeprefix(f"{root}/") for path in synced if "/t-" in path)
    segment = f"{0:020}"
    assert found == [
        f"t-1/{segment}.index",
        f"t-1/{segment}.log",
        f"t-1/{segment}.timeindex",
        "t-2",
        f"t-2/{segment}.index",
        f"t-2/{segment}.log",
        f"t-2/{segment}.timeindex",
        f"t-2/{2:020}.snapshot",
    ]


def test_a_clean_stop_of_new_logs_syncs_their_directory_once(logs, tools, tmp_path):
    """It syncs nothing else of logs without records."""
    files, synced = noting_syncs()
    root = tmp_path / "counted"
    manager = LogManager(
        LogEnvironment(files, logs.clock, OsThreads(), logs.new_id),
        LogManagerSettings([root], lambda _topic: LogConfig(), node_id=1, cluster_id="a-cluster"),
    )
    manager.lock()
    manager.load()
    manager.set_cluster_id("a-cluster")
    new = [manager.get_or_create("t", index, bytes([1] * 16), LogConfig()) for index in range(3)]
    for log in new:
        log.leader_epochs.assign(0, log.log_end_offset)
    logs.append(new[2], b"a")
    synced.clear()
    manager.close()
    names = [re.sub(r"\.[0-9a-f]+(?=\.tmp$)", "", path.removeprefix(f"{root}/")) for path in synced]
    found = Counter(path for path in names if path.startswith("t-"))
    segment = f"{0:020}"
    with_records = [f"t-2/{segment}.index", f"t-2/{segment}.timeindex", "t-2/leader-epoch-checkpoint.tmp"]
    of_all = [
        name for log in ("t-0", "t-1", "t-2") for name in (log, f"{log}/{segment}.log", f"{log}/partition.metadata")
    ]
    assert found == Counter([*of_all, *with_records])
    checkpoints_and_marker = 4
    assert synced.count(str(root)) == 1 + checkpoints_and_marker
    files_of_kafka = [f"{segment}.{kind}" for kind in ("index", "log", "timeindex")]
    files_of_kafka += ["leader-epoch-checkpoint", "partition.metadata"]
    assert sorted(path.name for path in (root / "t-0").iterdir()) == files_of_kafka


def test_a_name_that_is_made_during_a_sync_needs_another_one():
    class Disk:
        synced = 0

        def sync_directory(self, path):
            self.synced += 1
            if self.synced == 1:
                later.append(names.note_name())

    disk, names, later = Disk(), SharedSync(), []
    names.sync(disk, "logs", names.note_name())
    names.sync(disk, "logs", later[0])
    assert disk.synced == 2


def test_names_that_wait_for_one_sync_share_it_and_its_failure():
    class Disk:
        synced = 0
        error = None

        def sync_directory(self, path):
            if self.error is not None:
                raise self.error
            self.synced += 1

    disk, names = Disk(), SharedSync()
    first, second = names.note_name(), names.note_name()
    names.sync(disk, "logs", first)
    names.sync(disk, "logs", second)
    assert disk.synced == 1
    third = names.note_name()
    disk.error = OSError(errno.EMFILE, "too many open files")
    with pytest.raises(OSError, match="too many"):
        names.sync(disk, "logs", third)
    disk.error = OSError(errno.EIO, "lost")
    with pytest.raises(OSError, match="lost"):
        names.sync(disk, "logs", third)
    disk.error = None
    with pytest.raises(OSError, match="lost"):
        names.sync(disk, "logs", third)
    assert disk.synced == 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("clean", [True, False])
def test_several_threads_open_and_close_the_same_logs(logs, tools, tmp_path, threads, clean):
    roots = [tmp_path / "first", tmp_path / "second"]

    def opened():
        manager = LogManager(
            LogEnvironment(logs.files, logs.clock, OsThreads(), logs.new_id),
            LogManagerSettings(roots, lambda _topic: LogConfig(), node_id=1, threads_per_directory=threads),
        )
        manager.lock()
        manager.load()
        return manager

    manager = opened()
    for partition in range(7):
        log = manager.get_or_create("t", partition, bytes(16), LogConfig())
        for _ in range(partition):
            logs.append(log, b"v")
    places = {(log.topic, log.partition): log.directory for log in manager.logs}
    if clean:
        manager.close()
    else:
        manager.abandon()
    manager = opened()
    assert {(log.topic, log.partition): log.directory for log in manager.logs} == places
    assert [log.partition for log in manager.logs] == [0, 2, 4, 6, 1, 3, 5]
    for partition in range(7):
        assert tools.read_all(manager.get("t", partition)) == list(range(partition))
    manager.close()


def test_a_stop_in_the_middle_of_a_flush_is_not_clean(logs):
    log = logs.log()
    logs.append(log, b"a")
    assert log.prepare_flush() is not None
    logs.stop(clean=True)
    assert not (logs.path / ".kafka_cleanshutdown").exists()
    logs.start()
    assert logs.log().log_end_offset == 1


@pytest.mark.parametrize("clean", [True, False])
def test_index_files_of_a_segment_without_records_are_ignored(logs, clean):
    logs.append(logs.log(), b"a", timestamp=1_700_000_000_000)
    logs.stop()
    [time_index] = logs.path.glob("topic-0/*.timeindex")
    content = time_index.read_bytes()
    logs.start()
    truncate_with_checkpoints(logs.manager, logs.log(), 0)
    logs.stop(clean=clean)
    assert content
    time_index.write_bytes(content)
    logs.start()
    assert logs.log().timestamp_lookup().largest() is None
    logs.append(logs.log(), b"b", timestamp=1_600_000_000_000)
    assert logs.log().timestamp_lookup().largest().timestamp == 1_600_000_000_000


def test_created_files_count_against_the_limit_of_open_files(logs):
    """Otherwise the creation of many logs would use all descriptors, and none would be left for topic ids and the
    like."""
    logs.files.descriptors = 64
    logs.restart()
    for number in range(100):
        log = logs.log("t", number)
        logs.append(log, b"v")
        assert len(log.context.cache) <= 48
    logs.restart()
    assert [logs.log("t", number).log_end_offset for number in range(100)] == [1] * 100
