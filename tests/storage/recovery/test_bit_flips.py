"""One bit of any file is wrong, after a clean stop and after a crash: no wrong data is served as right. A reader that
checks a batch's checksum, as each client does, receives the written batch or an error; or the log stays offline with an
error message. Some fields have no checksum in Kafka's formats (a batch's offset and leader epoch, time and transaction
index) and can be wrong where no start reads them: then `barnabas check` has to report them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from barnabas.clock import ManualClock
from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import DirectoryMismatch, StorageError
from barnabas.storage.log_manager import LogEnvironment, LogManager, LogManagerSettings
from barnabas.storage.segment_reader import ColdRead
from barnabas.storage.validation import AppendOrigin
from barnabas.threads import OneThread
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ApiError
from barnabas.wire.record_batch import HEADER_SIZE, CorruptBatch, crc_is_valid, iter_headers
from barnabas.wire.records import Record, build_batch
from tests.storage.blocking import flush
from tests.support.log_history import Untrue, check_derived
from tools.simulation.world.disk import SimulatedDisk

ROOT = "/logs"
SEED = 20261121
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
CRC_FROM = 17
"""Where in a batch the checksum stands; what it covers follows."""
EPOCH_END = 15
"""The last byte of a batch's leader epoch."""
EPOCH_START = 11
"""Where epoch 1 starts."""
UNCHECKED = frozenset({"another offset", "another epoch", "an index wrong"})


def open_manager(disk, clock):
    manager = LogManager(
        LogEnvironment(disk, clock, OneThread(), lambda: "the-only-one"),
        LogManagerSettings([ROOT], lambda _topic: CONFIG, node_id=1, cluster_id="a-cluster"),
    )
    manager.lock()
    manager.load()
    return manager


@pytest.fixture(scope="module", params=["closed", "flushed", "unflushed"])
def directory(request):
    """A log of several segments with transactions and epochs; its batches; the files."""
    disk, clock = SimulatedDisk(), ManualClock(now_ms=1_700_000_000_000)
    manager = open_manager(disk, clock)
    log = manager.get_or_create("t", 0, bytes(range(1, 17)), CONFIG)
    written = []

    def append(data, epoch, origin=AppendOrigin.CLIENT):
        log.append_as_leader(data, leader_epoch=epoch, now_ms=clock.now_ms(), origin=origin)
        log.update_high_watermark(log.log_end_offset)
        written.append(bytes(data))

    for number in range(14):
        clock.advance(10)
        producer = {"producer_id": number % 2, "producer_epoch": 0, "base_sequence": number // 2 * 2}
        records = [Record(at, clock.now_ms() + at, b"k", random.Random(number).randbytes(90)) for at in range(2)]
        append(build_batch(records, transactional=number % 2 == 1, **producer), number // 5)
        if number % 4 == 3:
            marker = EndTxnMarker(ControlRecordType.ABORT if number % 8 == 3 else ControlRecordType.COMMIT, 0)
            data = build_end_txn_marker(marker, timestamp_ms=clock.now_ms(), producer_id=1, producer_epoch=0)
            append(data, number // 5, AppendOrigin.COORDINATOR)
    if request.param != "unflushed":
        flush(log)
    manager.checkpoint(RECOVERY_POINT_FILE)
    manager.checkpoint(LOG_START_FILE)
    manager.checkpoint(HIGH_WATERMARK_FILE)
    manager.close() if request.param == "closed" else manager.abandon()
    return request.param, disk, written


def flips(disk, chance, share):
    """Paths and bits to turn: a share of them, four times as many in the headers of batches and in small files."""
    for path, content in disk.tree().items():
        if content is None or path.endswith("/.lock"):
            continue
        headers = set()
        if path.endswith(".log"):
            for header in iter_headers(content):
                headers |= set(range(header.position, header.position + HEADER_SIZE))
        for position in range(len(content)):
            wanted = 4 * share if position in headers or not path.endswith(".log") else share
            for bit in range(8):
                if chance.random() < wanted:
                    yield path, position, bit


def flipped(disk, path, position, bit):
    copy = disk.killed(len(disk.operations))
    descriptor = copy.open(path)
    byte = copy.pread(descriptor, 1, position)[0]
    copy.pwrite(descriptor, bytes([byte ^ 1 << bit]), position)
    copy.close(descriptor)
    return copy


def read_until_error(log):
    """The batches that a reader receives, up to the first error, or up to an error that the reader itself detects."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            try:
                data = log.read(offset, 1 << 20)
            except ColdRead as cold:
                data = cold.load()
            headers = list(iter_headers(data.records))
        except (ApiError, CorruptBatch) as error:
            yield None, type(error).__name__
            return
        if not headers:
            yield None, "incomplete" if data.records else "stuck"
            return
        for header in headers:
            batch = bytes(data.records[header.position : header.end_position])
            if not crc_is_valid(batch, header._replace(position=0)):
                yield None, "checksum"
                return
            yield header._replace(position=0), batch
            offset = header.next_offset


def outcome_of(disk, written):
    """The outcome of a start on a directory, as one term; AssertionError if wrong data is served as right."""
    try:
        manager = open_manager(disk, ManualClock(now_ms=1_700_000_001_000))
    except DirectoryMismatch:
        return "refused"
    try:
        try:
            log = manager.get("t", 0)
            assert log is not None, "the log is gone"
            log.topic_id  # noqa: B018 - reads a file
        except StorageError:
            return "offline"
        return served_outcome(log, written)
    finally:
        manager.abandon()


def served_outcome(log, written):
    by_checked_bytes = {data[CRC_FROM:]: data for data in written}
    served, result = [], "as before"
    for header, batch in read_until_error(log):
        if header is None:
            result = batch
            break
        original = by_checked_bytes.get(batch[CRC_FROM:])
        assert original is not None, "a batch that was never written is served"
        served.append((header, batch))
        if batch[:8] != original[:8]:
            return "another offset"
        if batch != original:
            result = "another epoch"
    assert result != "stuck", "nothing is served, and nobody is told"
    if result == "as before" and len(served) < len(written):
        result = "shorter"
    if result in ("as before", "shorter") and log.log_start_offset == 0:
        try:
            check_derived(log, served)
        except StorageError:
            return "an index refused"
        except Untrue:
            return "an index wrong"
    return result


def is_told_by_check(disk):
    return any(found.level is not Level.NOTE for found in check_directory(disk, Path(ROOT)).findings)


def may_stay_untold(state, disk, path, position, found):
    """Fields that no other field contradicts: offset and epoch of the very last batch, an epoch while no file has the
    epochs, the epoch before the start of a new one, the start of the first epoch of a log."""
    logs = [name for name in disk.tree() if name.endswith(".log")]
    *_, last = iter_headers(disk.tree()[max(logs)])
    if path.endswith(".log"):
        starts = {header.base_offset: header.position for header in iter_headers(disk.tree()[path])}
        is_epoch_start = found == "another epoch" and position - starts.get(EPOCH_START, position) == EPOCH_END
        return state == "unflushed" or is_epoch_start or (path == max(logs) and position >= last.position)
    return path.endswith(LEADER_EPOCH_FILE)


@pytest.mark.slow
def test_a_flipped_bit_is_never_served_for_right(directory):
    check_flips(directory, share=0.01)


@pytest.mark.full
def test_flipped_bits_are_never_served_for_right(directory):
    check_flips(directory, share=0.1)


def check_flips(directory, share):
    state, disk, written = directory
    assert not is_told_by_check(disk)
    chance, outcomes = random.Random(SEED), {}
    for path, position, bit in flips(disk, chance, share):
        suffix = path.rpartition("/")[2]
        kind = suffix.rpartition(".")[2] if suffix[0].isdigit() else suffix
        try:
            found = outcome_of(flipped(disk, path, position, bit), written)
            if found in UNCHECKED and not may_stay_untold(state, disk, path, position, found):
                assert is_told_by_check(flipped(disk, path, position, bit)), f"{found}, and check finds nothing"
        except Exception as error:
            raise AssertionError(f"{state}: bit {bit} of byte {position} of {path}: {error!r}") from error
        outcomes.setdefault(kind, Counter())[found] += 1
    for kind, found in outcomes.items():
        print(f"{state} {kind}: {dict(found)}")
