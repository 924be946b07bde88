"""Each point at which the machine may stop, and each state of the disk that this may leave: synced data is there, only
written data is served, and a second recovery changes nothing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from barnabas.clock import ManualClock
from barnabas.storage import checkpoints, local_log, log_directory
from barnabas.storage import truncation as storage_truncation
from barnabas.storage.checkpoints import CLEAN_SHUTDOWN_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.compaction.cleaner import PassEnd, _Pass, run_pass
from barnabas.storage.compaction.cleaner_manager import SegmentSwap, log_to_clean, make_job
from barnabas.storage.config import LogConfig
from barnabas.storage.durability import Durability
from barnabas.storage.errors import StorageError
from barnabas.storage.files import unlink_if_exists, write_file
from barnabas.storage.flush import FlushTask
from barnabas.storage.log import PartitionLog
from barnabas.storage.log_directory import LogDirectory
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.recovery import log_loader as recovery
from barnabas.storage.recovery import swaps
from barnabas.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.storage.truncation import Cut
from barnabas.storage.validation import AppendOrigin
from barnabas.threads import OneThread
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.names import ZERO_TOPIC_ID
from barnabas.wire.records import Record, build_batch
from tests.storage.blocking import flush, run_flushes, run_retention, truncate_with_checkpoints
from tests.support.log_history import LogHistory, Untrue, check_log, committed_records, read_log
from tools.simulation.world.disk import SimulatedDisk

ROOT = "/data/logs"
SEED = 20261121
SAMPLES = 1
"""Mixtures with torn writes per crash point, besides the orderly outcomes."""
TOPIC_ID = bytes(range(1, 17))
ANOTHER_ID = bytes(range(2, 18))


class Scene:
    """A log manager on a disk, and the history of its logs."""

    def __init__(self, files, **settings):
        self.files = files
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        settings = {"segment_bytes": 2500, "index_interval_bytes": 300, "file_delete_delay_ms": 0, **settings}
        self.config = LogConfig(**settings)
        self.histories = defaultdict(LogHistory)
        self.sequences = Counter()
        self.started_at = None
        self.open()

    def open(self, root=ROOT):
        self.manager = LogManager(
            LogEnvironment(self.files, self.clock, OneThread(), lambda: "the-only-one"),
            LogManagerSettings([root], lambda _topic: self.config, node_id=1, cluster_id="a-cluster"),
        )
        self.manager.lock()
        self.manager.load()
        self.manager.set_cluster_id("a-cluster")
        self.started_at = self.started_at or self.moment

    @property
    def moment(self):
        return len(self.files.operations) if isinstance(self.files, SimulatedDisk) else 0

    def log(self, topic="t", topic_id=TOPIC_ID):
        log = self.manager.get_or_create(topic, 0, topic_id, self.config)
        self.history(log).topic_id = topic_id
        return log

    def history(self, log):
        return self.histories[log.topic, log.partition]

    def append(self, log, count=1, *, epoch=0, size=400, producer=None, transactional=False, key=None, deletes=False,
               later_ms=0):  # fmt: skip
        for _ in range(count):
            self.clock.advance(7)
            settings = {}
            if producer is not None:
                settings = {"producer_id": producer, "producer_epoch": 0, "transactional": transactional,
                            "base_sequence": self.sequences[log, producer]}  # fmt: skip
                self.sequences[log, producer] += 2
            now_ms, number = self.clock.now_ms() + later_ms, log.log_end_offset
            value = None if deletes else random.Random(number).randbytes(size // 2)
            records = [Record(at, now_ms - at, key, value) for at in range(2)]
            self.append_raw(log, build_batch(records, **settings), epoch)

    def append_raw(self, log, data, epoch=0, origin=AppendOrigin.CLIENT):
        log.append_as_leader(data, leader_epoch=epoch, now_ms=self.clock.now_ms(), origin=origin)
        log.update_high_watermark(log.log_end_offset)
        self.history(log).wrote(data)

    def end_transaction(self, log, producer, outcome):
        self.clock.advance(7)
        marker = build_end_txn_marker(
            EndTxnMarker(outcome, 0), timestamp_ms=self.clock.now_ms(), producer_id=producer, producer_epoch=0
        )
        self.append_raw(log, marker, origin=AppendOrigin.COORDINATOR)

    def flush(self):
        """Flush, as the broker does every second."""
        run_flushes(self.manager, self.clock.now_ms())
        for log in self.manager.logs:
            flush(log)
        self.flushed()

    def flushed(self):
        for log in self.manager.logs:
            history = self.history(log)
            history.flushed(self.moment, log.recovery_point)
            if log.recovery_point == log.log_end_offset:
                history.epochs_durable.append((self.moment, log.leader_epochs.entries))

    def checkpoint(self):
        """Write the checkpoints, as the broker does every few seconds."""
        self.manager.checkpoint(RECOVERY_POINT_FILE)
        self.manager.checkpoint(LOG_START_FILE)
        self.manager.checkpoint(HIGH_WATERMARK_FILE)
        for log in self.manager.logs:
            self.history(log).starts_at(self.moment, log.log_start_offset)

    def close(self):
        self.manager.close()
        for log in self.manager.logs:
            self.history(log).flushed(self.moment, log.log_end_offset)


# --- what happens before the machine stops


def append_and_roll(scene):
    """Appends that roll segments, flushes in between, one of them with an append and a roll while it runs."""
    log = scene.log()
    scene.append(log, 3, producer=1)
    scene.flush()
    scene.append(log, 3, producer=2)
    task = log.prepare_flush()
    scene.append(log, 2, epoch=1)
    log.roll()
    task.run()
    log.complete_flush(task)
    scene.flushed()
    scene.checkpoint()
    scene.flush()
    scene.append(log, 1, epoch=2)
    scene.flush()
    scene.checkpoint()
    scene.append(log, 2, epoch=2, size=1800)
    scene.flush()
    log.roll()
    scene.checkpoint()
    scene.append(log, 2, epoch=3, producer=1)
    scene.append(log, 1, epoch=3, size=30)


def sealed_after_a_start(scene):
    """A segment has index files of a clean stop, and gets new ones when it is sealed after the next start. Its latest
    record is neither at its end nor among those of before the stop: if the old time index comes back, its entries are
    right, and nothing but the batches shows that the latest one is missing.
    """
    scene.append(scene.log(), 3, size=300)
    scene.close()
    scene.open()
    log = scene.log()
    scene.append(log, 1, size=300, later_ms=500)
    scene.append(log, 2, size=300, later_ms=-100)
    scene.flush()
    log.roll()
    scene.checkpoint()
    scene.append(log, 1)
    scene.flush()
    scene.checkpoint()
    scene.append(log, 1)


def transactions(scene):
    """Snapshots of producers, aborted transactions and open ones, across segments."""
    log = scene.log()
    for number in range(5):
        scene.append(log, 2, producer=number % 2, transactional=True, size=700)
        if number == 2:
            scene.flush()
            scene.checkpoint()
        if number < 4:
            scene.end_transaction(log, number % 2, ControlRecordType.ABORT if number % 3 else ControlRecordType.COMMIT)
        if number == 3:
            log.roll()
    scene.flush()
    scene.checkpoint()
    scene.append(log, 1, producer=7)


def checkpoints_and_deletion(scene):
    """DeleteRecords, retention, unlinking, and the checkpoints that remember it."""
    log = scene.log()
    scene.append(log, 9, size=900)
    scene.flush()
    scene.checkpoint()
    history = scene.history(log)
    history.may_start_at(7)
    log.increment_log_start_offset(7)
    scene.checkpoint()
    run_retention(scene.manager, scene.clock.now_ms())
    scene.manager.delete_due_files()
    scene.append(log, 2)
    scene.flush()
    history.may_start_at(log.log_end_offset)
    log.increment_log_start_offset(log.log_end_offset)
    run_retention(scene.manager, scene.clock.now_ms())
    scene.checkpoint()
    scene.manager.delete_due_files()
    scene.append(log, 1)


def truncation(scene):
    """A follower that diverged: within a segment, across segments, to nothing; and appends in another epoch."""
    log = scene.log()
    for number, offset in enumerate((19, 9, 4)):
        scene.append(log, 7, epoch=2 * number, size=600, producer=number)
        if number != 1:
            scene.flush()
            scene.checkpoint()
        scene.history(log).cuts(scene.moment, offset - offset % 2)  # batches have two records
        truncate_with_checkpoints(scene.manager, log, offset)
        scene.history(log).cut(scene.moment, offset)
        for producer in range(number + 1):
            entry = log.producer_state.producers.get(producer)
            scene.sequences[log, producer] = entry.last_sequence + 1 if entry else 0
        scene.append(log, 1, epoch=2 * number + 1, producer=number)
    scene.flush()


def truncations_together(scene):
    """A leader changed for several logs: they are cut together, and appended to, with one checkpoint for all."""
    logs = [scene.log(name) for name in "ab"]
    for round_number, offsets in enumerate(((7, 20), (5, 3))):
        for log in logs:
            scene.append(log, 3, epoch=2 * round_number, size=600, producer=round_number)
        scene.flush()
        scene.checkpoint()
        scene.append(logs[0], 1, epoch=2 * round_number)
        for log, offset in zip(logs, offsets, strict=True):
            scene.history(log).cuts(scene.moment, offset - offset % 2)
            scene.history(log).epochs_durable.append((scene.moment, []))
        truncations = scene.manager.truncations([Cut(*found) for found in zip(logs, offsets, strict=True)])
        truncations.run()
        truncations.complete()
        assert not truncations.errors
        for log, offset in zip(logs, offsets, strict=True):
            scene.history(log).cut(scene.moment, offset)
            entry = log.producer_state.producers.get(round_number)
            scene.sequences[log, round_number] = entry.last_sequence + 1 if entry else 0
            scene.append(log, 2, epoch=2 * round_number + 1, producer=round_number)
    scene.flush()


def starts_anew(scene):
    """A follower whose leader no longer has what it needs: everything goes, and the log goes on later, or earlier than
    it began.
    """
    log = scene.log()
    for number, offset in enumerate((40, 30, 60)):
        scene.append(log, 6, epoch=number, size=900, producer=number)
        scene.flush()
        scene.checkpoint()
        start_anew(scene, log, offset, epoch=number)


def starts_anew_beyond_its_start(scene):
    """The same, where records were deleted: once more than the checkpoint knows, once with their segments there."""
    log = scene.log()
    for number, offset in enumerate((40, 60)):
        scene.append(log, 6, epoch=number, size=900, producer=number)
        scene.flush()
        if number:
            log.increment_log_start_offset(log.high_watermark - 1)
        scene.checkpoint()
        if not number:
            log.increment_log_start_offset(log.high_watermark - 1)
        start_anew(scene, log, offset, epoch=number)


def start_anew(scene, log, offset, epoch):
    history = scene.history(log)
    history.may_start_at(max(offset, log.log_start_offset))
    history.cuts(scene.moment, 0)
    history.epochs_durable.append((scene.moment, []))
    truncations = scene.manager.truncations([Cut(log, offset, starts_anew=True)])
    truncations.run()
    truncations.complete()
    assert not truncations.errors
    history.cut(scene.moment, 0)
    history.starts.clear()
    scene.sequences.clear()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset, offset, offset)
    assert not log.producer_state.producers
    scene.append(log, 2, epoch=epoch, size=900, producer=epoch)
    scene.flush()


def compaction(scene):
    """Passes over superseded and deleted keys and aborted transactions, with appends between them."""
    log = scene.log()
    scene.history(log).is_compacted = True
    for number in range(18):
        is_transaction = number % 6 == 0
        producer = 9 if is_transaction else None
        scene.append(log, 1, producer=producer, transactional=is_transaction, key=b"key-%d" % (number % 5),
                     deletes=number in (9, 16))  # fmt: skip
        if is_transaction:
            scene.end_transaction(log, 9, ControlRecordType.ABORT if number % 12 else ControlRecordType.COMMIT)
    scene.append(log, 1, producer=8, transactional=True, key=b"key-1")
    scene.end_transaction(log, 8, ControlRecordType.ABORT)
    scene.append(log, 1, key=b"key-5", size=1600)
    scene.flush()
    scene.checkpoint()
    scene.started_at = scene.moment
    compact(log, scene.manager, scene.clock.now_ms())
    scene.append(log, 1, key=b"key-0", deletes=True)
    scene.append(log, 2, key=b"key-2")
    scene.manager.delete_due_files()
    log.roll()
    scene.clock.advance(scene.config.delete_retention_ms + 1)
    compact(log, scene.manager, scene.clock.now_ms())  # nothing that is not on the disk
    scene.flush()
    compact(log, scene.manager, scene.clock.now_ms())
    scene.append(log, 1, key=b"key-3")
    scene.manager.delete_due_files()


def first_compaction(scene):
    """The first pass of a log leaves gaps between segments, above the recovery point that a start will find."""
    log = scene.log()
    scene.history(log).is_compacted = True
    scene.checkpoint()
    for number in range(4):
        scene.append(log, 1, key=b"key-%d" % number, size=1500)
        scene.append(log, 1, key=b"key", size=300)
        log.roll()
    scene.append(log, 1, key=b"key-4")
    scene.flush()
    scene.started_at = scene.moment
    compact(log, scene.manager, scene.clock.now_ms())
    assert [segment.base_offset for segment in log.segments][:4] == [0, 4, 8, 12]
    scene.append(log, 2, key=b"key-1")
    scene.flush()


def compaction_refused(scene):
    """Retention deletes what a pass has cleaned, between the two halves of its swap."""
    log = scene.log()
    history = scene.history(log)
    history.is_compacted = True
    for number in range(6):
        scene.append(log, 1, key=b"key-%d" % (number % 2), size=700)
        scene.append(log, 1, producer=number, transactional=True, key=b"key", size=700)
        scene.end_transaction(log, number, ControlRecordType.ABORT)
    scene.flush()
    scene.checkpoint()
    scene.started_at = scene.moment
    now_ms = scene.clock.now_ms()
    job = make_job(log_to_clean(log, None, now_ms), now_ms, map_bytes=2400, map_load_factor=0.9)
    swap = SegmentSwap(log, job, next(run_pass(scene.files, job, lambda _: None)))
    assert swap.begin()
    swap.sync()
    start_offset = log.segments[1].base_offset
    history.may_start_at(start_offset)
    log.increment_log_start_offset(start_offset)
    delete_old_segments(log, now_ms)
    assert not swap.finish()
    scene.manager.delete_due_files()
    scene.append(log, 1, key=b"key-0")
    scene.flush()
    scene.checkpoint()


def compact(log, manager, now_ms):
    """A pass as the broker makes it; returns whether there was something to clean."""
    found = log_to_clean(log, log.clean_offset, now_ms)
    if found is None:
        return False
    job = make_job(found, now_ms, map_bytes=2400, map_load_factor=0.9)
    files = log.context.cache.files
    if log.clean_offset is None:
        manager.checkpoint_clean_offset(log, job.first_dirty_offset)
    for result in run_pass(files, job, lambda _: None):
        if isinstance(result, PassEnd):
            manager.checkpoint_clean_offset(log, result.end_offset)
        else:
            swap = SegmentSwap(log, job, result)
            assert swap.begin()
            swap.sync()
            assert swap.finish()
    return True


def topics_come_and_go(scene):
    """Creation and deletion, also of a topic of the same name; a clean stop and a start in between."""
    first = scene.log("a")
    scene.append(first, 3, producer=1)
    scene.flush()
    scene.append(scene.log("b"), 2)
    scene.close()
    scene.open()
    scene.append(scene.log("b"), 2)
    scene.checkpoint()
    history = scene.histories.pop(("a", 0))
    scene.histories["a", 0] = scene.deleted = history
    history.cuts(scene.moment, 0)
    scene.manager.delete("a", 0)
    scene.manager.sync_deletions()
    scene.deleted_at = scene.moment
    scene.recreated = LogHistory()
    scene.histories["a", 0] = scene.recreated
    scene.append(scene.log("a", ANOTHER_ID), 2)
    scene.flush()
    scene.manager.delete_due_files()
    scene.append(scene.log("b"), 1)
    scene.close()


SCENES = {
    append_and_roll: {},
    sealed_after_a_start: {},
    transactions: {},
    checkpoints_and_deletion: {"segment_bytes": 2000},
    truncation: {},
    truncations_together: {},
    starts_anew: {},
    starts_anew_beyond_its_start: {},
    compaction: {
        "cleanup_policy": frozenset({"compact"}),
        "min_cleanable_dirty_ratio": 0.0,
        "segment_bytes": 2200,
        "delete_retention_ms": 1000,
    },
    first_compaction: {
        "cleanup_policy": frozenset({"compact"}),
        "min_cleanable_dirty_ratio": 0.0,
        "segment_bytes": 2200,
        "delete_retention_ms": 1000,
    },
    compaction_refused: {
        "cleanup_policy": frozenset({"compact", "delete"}),
        "min_cleanable_dirty_ratio": 0.0,
        "segment_bytes": 1800,
        "delete_retention_ms": 1000,
    },
    topics_come_and_go: {},
}


# --- the machine stops


class Counts:
    def __init__(self):
        self.points = self.states = self.distinct = 0

    def __str__(self):
        return f"{self.points} crash points, {self.states} states of the disk, {self.distinct} of them different"


def play(scenario, **settings):
    scene = Scene(SimulatedDisk(), **(SCENES[scenario] | settings))
    scenario(scene)
    scene.manager.abandon()
    return scene


def crash_everywhere(scene, samples, every=1, seed=SEED):
    """Stop the machine after each operation, with each outcome, and check the next start. Raises Untrue."""
    chance, counts, seen = random.Random(seed), Counts(), set()
    # Which number is given to a mixture depends on the seed alone.
    for moment in range(scene.started_at, len(scene.files.operations) + 1, every):
        counts.points += 1
        check_killed(scene, moment)
        for outcome in scene.files.outcomes(moment, chance, samples):
            disk = scene.files.crash(moment, outcome)
            counts.states += 1
            key = (hash(tuple(disk.tree().items())), tuple(found.end_min(moment) for found in scene.histories.values()))
            if key not in seen:
                seen.add(key)
                counts.distinct += 1
                check_state(scene, disk, moment)
    return counts


def check_killed(scene, moment):
    """The process ends, another one starts, and then the machine stops: no served record may be lost."""
    disk = scene.files.killed(moment)
    served = recover(scene, disk, moment)
    if recover(scene, disk.crash(len(disk.operations), nothing_unsynced(disk)), moment, derived=False) != served:
        raise Untrue("what was served after a kill was not on the disk")


def nothing_unsynced(disk):
    return next(disk.outcomes(len(disk.operations), random.Random(0), 0))


def check_state(scene, disk, moment):
    was_closed = disk.exists(f"{ROOT}/{CLEAN_SHUTDOWN_FILE}")
    served = recover(scene, disk, moment)
    if was_closed and recover(scene, disk, moment) != served:
        raise Untrue("a recovery found something else than a clean start")
    before = disk.tree()
    if recover(scene, disk, moment, derived=False) != served:
        raise Untrue("recovering again changed what is served")
    changed = {path for path, _ in before.items() ^ disk.tree().items()}
    if changed:
        raise Untrue(f"recovering again changed {changed}")
    left = [path for path in before if path.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX))]
    if left:
        raise Untrue(f"a start left {left}")
    if scene.config.is_compacted:
        check_cleaning_goes_on(scene, disk)


def check_cleaning_goes_on(scene, disk):
    """The part that the cleaner's checkpoint calls clean is clean: later passes leave the last value of each key, and
    no other."""
    manager = open_manager(scene, disk)
    try:
        log = manager.get("t", 0)
        end_offset = log.log_end_offset
        last = {record.key: record for record in committed_records(log, read_log(log))}
        expected = [record for record in last.values() if record.value is not None]
        log.update_config(scene.config)
        now_ms = scene.clock.now_ms()
        for _ in range(2):
            log.append_as_leader(build_batch([Record(0, now_ms, b"more", b"")]), leader_epoch=0, now_ms=now_ms)
            log.update_high_watermark(log.log_end_offset)
            log.roll()
            flush(log)
            assert compact(log, manager, now_ms)
            now_ms += scene.config.delete_retention_ms + 1
        found = [record for record in committed_records(log, read_log(log)) if record.offset < end_offset]
        if sorted(found) != sorted(expected):
            raise Untrue(f"compacted, {log} has {found} and not {expected}")
    finally:
        manager.abandon()


def open_manager(scene, disk, on_failure=lambda _: None):
    """Start as a broker does, which does not know yet which topics are compacted."""
    config = replace(scene.config, cleanup_policy=frozenset({"delete"}))
    manager = LogManager(
        LogEnvironment(disk, scene.clock, OneThread(), lambda: "the-only-one", on_failure=on_failure),
        LogManagerSettings([ROOT], lambda _topic: config, node_id=1, cluster_id="a-cluster"),
    )
    manager.lock()
    manager.load()
    manager.set_cluster_id("a-cluster")
    return manager


def recover(scene, disk, moment, *, derived=True):
    """Start on a disk; returns the contents of each log."""
    failures = []
    manager = open_manager(scene, disk, failures.append)
    try:
        served = {}
        for key, history in histories_at(scene, moment).items():
            log = manager.get(*key)
            if log is None:
                if history.end_min(moment):
                    raise Untrue(f"{key} is gone")
                continue
            served[key] = check_log(log, history, moment, derived=derived)
            if log.topic_id != history.topic_id and (log.topic_id != ZERO_TOPIC_ID or history.end_min(moment)):
                raise Untrue(f"{log} belongs to topic {log.topic_id!r}")
        if failures:
            raise Untrue(failures[0])
        return served
    finally:
        manager.abandon()


def histories_at(scene, moment):
    if moment < getattr(scene, "deleted_at", moment + 1) and hasattr(scene, "deleted"):
        return {**scene.histories, ("a", 0): scene.deleted}
    return scene.histories


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.__name__)
def test_every_crash_leaves_what_was_synced_and_nothing_else(scenario, every):
    """Each tenth point in the gate."""
    counts = crash_everywhere(play(scenario), SAMPLES, every)
    print(f"{scenario.__name__}: {counts}, seed {SEED}")
    assert counts.points > 40 / every
    assert counts.distinct > 50 / every


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.__name__)
def test_many_more_torn_states(scenario):
    counts = crash_everywhere(play(scenario), samples=60, seed=SEED + 1)
    print(f"{scenario.__name__}: {counts}, seed {SEED + 1}")


def crash_while_recovering(scene, every, samples):
    """Stop the machine, start, and stop it again while it recovers, after each of the operations that takes."""
    chance, states = random.Random(SEED), 0
    for moment in range(scene.started_at, len(scene.files.operations) + 1, every):
        *_, outcome = scene.files.outcomes(moment, chance, 1)
        disk = scene.files.crash(moment, outcome)
        recover(scene, disk, moment, derived=False)
        for step in range(len(disk.operations)):
            for again in list(disk.outcomes(step, chance, samples))[-1 - samples :]:
                states += 1
                recover(scene, disk.crash(step, again), moment)
    return states


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.__name__)
def test_a_crash_during_recovery_is_recovered_from(scenario):
    states = crash_while_recovering(play(scenario), every=40 if scenario is compaction else 25, samples=0)
    print(f"{scenario.__name__}: {states} states of a disk during recovery, seed {SEED}")
    assert states > 20


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENES, ids=lambda scenario: scenario.__name__)
def test_a_crash_during_any_recovery_is_recovered_from(scenario):
    states = crash_while_recovering(play(scenario), every=2, samples=2)
    print(f"{scenario.__name__}: {states} states of a disk during recovery, seed {SEED}")


# --- what the search is worth: it finds what is left out
#
# Mutants: each breaks the code on purpose, which is why these alone are patched into it and not handed in.


class NoSync:
    """A disk that forgets to sync."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return (lambda _: None) if name.startswith("sync") else getattr(self._disk, name)


def segments_not_synced(patch):
    patch.setattr(FlushTask, "_sync_segment", lambda task, file: None)


def names_not_synced(patch):
    run = FlushTask.run

    def run_without_names(task):
        task.names_dirty, task.number = False, 0
        run(task)

    patch.setattr(FlushTask, "run", run_without_names)


def replaced_without_syncing_the_name(patch):
    def replace(files, path, data):
        write_file(files, path + ".tmp", data, sync=True)
        files.rename(path + ".tmp", path)

    patch.setattr(checkpoints, "replace_file", replace)


def checkpoints_written_in_place(patch):
    patch.setattr(checkpoints, "replace_file", lambda files, path, data: write_file(files, path, data, sync=True))


def recovery_syncs_nothing(patch):
    prepare = recovery._Loader.__init__

    def prepare_without_sync(loader, *arguments):
        prepare(loader, *arguments)
        loader.files = NoSync(loader.files)

    patch.setattr(recovery._Loader, "__init__", prepare_without_sync)


def checksums_not_compared(patch):
    def why_bad(header, batch, *_):
        return "" if header is not None and batch is not None else "it is not whole"

    patch.setattr(recovery, "why_bad", why_bad)


def clean_marker_comes_back(patch):
    def take(files, directory):
        return -1 if unlink_if_exists(files, f"{directory}/{CLEAN_SHUTDOWN_FILE}") else None

    patch.setattr(log_directory, "take_clean_shutdown", take)


def clean_marker_too_early(patch):
    prepare = LogDirectory.prepare_close

    def prepare_close(directory):
        checkpoints.write_clean_shutdown(directory.context.cache.files, directory.path, -1)
        return prepare(directory)

    patch.setattr(LogDirectory, "prepare_close", prepare_close)


def recovery_point_passes_unsynced_indexes(patch):
    patch.setattr(Durability, "recovery_point_to_write", property(lambda durability: durability.recovery_point))


def deletion_not_synced(patch):
    patch.setattr(LogManager, "sync_deletions", lambda manager: None)


def truncation_keeps_the_recovery_point(patch):
    patch.setattr(storage_truncation, "_CHECKPOINTS_BEFORE", ())


def anew_but_the_log_start_stays(patch):
    patch.setattr(storage_truncation, "_CHECKPOINTS_AFTER", ())


def cleaned_segments_not_synced(patch):
    clean = _Pass.clean

    def clean_without_sync(cleaning, *arguments):
        cleaning.files = NoSync(cleaning.files)
        return clean(cleaning, *arguments)

    patch.setattr(_Pass, "clean", clean_without_sync)


def swap_not_synced(patch):
    patch.setattr(SegmentSwap, "sync", lambda swap: None)


def swapped_log_gets_its_name_last(patch):
    patch.setattr(local_log, "LOG_SUFFIX", TXN_INDEX_SUFFIX)
    patch.setattr(local_log, "INDEX_SUFFIXES", (*INDEX_SUFFIXES[:-1], LOG_SUFFIX))


def start_keeps_what_a_swap_replaces(patch):
    patch.setattr(swaps, "_span", lambda files, directory, match: (0, 0))


def start_ignores_cleaned_files(patch):
    patch.setattr(swaps, "CLEANED_SUFFIX", "nothing")


def start_leaves_cleaned_files(patch):
    def unlink(files, path):
        return not path.endswith(CLEANED_SUFFIX) and unlink_if_exists(files, path)

    patch.setattr(swaps, "unlink_if_exists", unlink)


def start_takes_files_in_any_order(patch):
    patch.setattr(swaps, "_turn", lambda match: 0)


def cleans_what_is_not_on_the_disk(patch):
    """Puts the recovery point behind the log's end for as long as the job is made."""
    find = log_to_clean

    def find_all(log, *arguments):
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(PartitionLog, "recovery_point", property(lambda log: log.log_end_offset))
            return find(log, *arguments)

    patch.setitem(globals(), "log_to_clean", find_all)


def compaction_not_announced(patch):
    write = LogManager.checkpoint_clean_offset

    def write_at_the_end(manager, log, offset):
        if offset:
            write(manager, log, offset)

    patch.setattr(LogManager, "checkpoint_clean_offset", write_at_the_end)


def at_length(scenario, plant):
    return pytest.param(scenario, plant, marks=pytest.mark.full)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "plant"),
    [
        (append_and_roll, segments_not_synced),
        at_length(append_and_roll, names_not_synced),
        at_length(append_and_roll, recovery_syncs_nothing),
        (append_and_roll, checksums_not_compared),
        at_length(sealed_after_a_start, recovery_point_passes_unsynced_indexes),
        (checkpoints_and_deletion, replaced_without_syncing_the_name),
        at_length(checkpoints_and_deletion, checkpoints_written_in_place),
        (truncation, truncation_keeps_the_recovery_point),
        at_length(truncations_together, truncation_keeps_the_recovery_point),
        (starts_anew, anew_but_the_log_start_stays),
        at_length(compaction, cleaned_segments_not_synced),
        at_length(compaction, swap_not_synced),
        at_length(compaction, swapped_log_gets_its_name_last),
        (compaction, start_keeps_what_a_swap_replaces),
        at_length(compaction, start_ignores_cleaned_files),
        at_length(compaction, start_leaves_cleaned_files),
        at_length(compaction, cleans_what_is_not_on_the_disk),
        (first_compaction, compaction_not_announced),
        (topics_come_and_go, clean_marker_comes_back),
        (topics_come_and_go, clean_marker_too_early),
        (topics_come_and_go, deletion_not_synced),
    ],
    ids=lambda found: found.__name__,
)
def test_left_out_syncs_are_found(scenario, plant, monkeypatch):
    plant(monkeypatch)
    samples, every = (0, 3) if scenario is compaction else (4, 1)
    with pytest.raises((Untrue, StorageError)):
        crash_everywhere(play(scenario), samples, every)


@pytest.mark.slow
def test_left_out_syncs_of_a_start_are_found(monkeypatch):
    start_takes_files_in_any_order(monkeypatch)
    with pytest.raises(Untrue):
        crash_while_recovering(play(compaction), every=40, samples=0)
