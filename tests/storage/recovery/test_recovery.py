"""Opening logs after a crash: truncated tails, rebuilt files, refused damage."""

from __future__ import annotations

import shutil
from itertools import islice

import pytest

from barnabas.storage.check.directory import check_directory
from barnabas.storage.check.report import Level
from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from barnabas.storage.errors import StorageError
from barnabas.storage.log_manager import LogManager
from barnabas.storage.os_files import OsFiles
from barnabas.storage.producer_snapshot import decode_snapshot
from barnabas.storage.recovery.opening import OpeningGivenUp
from barnabas.storage.scan import SECTOR_BYTES
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from tests.storage.blocking import flush, run_flushes, truncate, truncate_with_checkpoints


def copy(logs, tmp_path, name):
    """A copy of the directory as a crash would leave it now."""
    target = tmp_path / name
    shutil.copytree(logs.path, target)
    return target


def segment_file(path, base_offset=0, suffix=".log"):
    return path / "topic-0" / f"{base_offset:020d}{suffix}"


def contents(path):
    return {found.name: found.read_bytes() for found in (path / "topic-0").iterdir()}


def test_a_recovery_that_is_given_up_leaves_all_to_the_next_one(logs, tmp_path):
    log = logs.log()
    for number in range(5):
        logs.append(log, b"v%d" % number)
    crashed = copy(logs, tmp_path, "crashed")
    found = contents(crashed)
    logs.stop()
    with pytest.raises(OpeningGivenUp):
        logs.start(crashed, before_opening=LogManager.give_up_opening)
    assert contents(crashed) == found
    logs.start(crashed)
    assert logs.log().log_end_offset == 5
    logs.stop()
    logs.start(crashed, before_opening=LogManager.give_up_opening)  # nothing is to be recovered
    assert logs.log().log_end_offset == 5


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", ["*", "*.log"])
def test_a_log_without_its_segments_is_no_empty_one(logs, what, clean):
    """Its directory is still there: as an empty leader it would make others truncate theirs. After a kill with nothing
    flushed but the names, only the high watermark's checkpoint shows that the log had more records."""
    for _ in range(5):
        logs.append(logs.log(), b"v")
    run_flushes(logs.manager, logs.clock.now_ms())
    logs.append(logs.log(), b"v")
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    logs.stop(clean=clean)
    for found in (logs.path / "topic-0").glob(what):
        found.unlink()
    logs.start()
    with pytest.raises(StorageError, match="its segments are missing"):
        logs.log()
    assert logs.manager.is_damaged("topic", 0)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_killed_log_that_lacks_flushed_records_is_offline(logs, left):
    """The start changes no file: the log has all records again once the segments are put back."""
    log = logs.log(segment_bytes=200)
    for _ in range(8):
        logs.append(log, b"value")
    flush(log)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    logs.stop(clean=False)
    segments = sorted((logs.path / "topic-0").glob("*.log"))
    assert len(segments) > 3
    taken = {path: path.read_bytes() for path in segments[left:]}
    for path in taken:
        path.unlink()
    logs.start()
    with pytest.raises(StorageError, match="its segments are missing" if not left else "segments are missing"):
        logs.log()
    assert logs.manager.is_damaged("topic", 0)
    logs.stop(clean=False)
    for path, content in taken.items():
        path.write_bytes(content)
    logs.start()
    assert logs.log().log_end_offset == 8


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"])
def test_after_a_kill_one_checkpoint_alone_is_no_proof(logs, tools, name):
    """It does not show that the log was longer."""
    log = logs.log()
    logs.append(log, b"v")
    flush(log)
    logs.stop(clean=False)
    (logs.path / name).write_text("0\n1\ntopic 0 9\n")
    logs.start()
    assert tools.read_all(logs.log()) == [0]


def test_segments_beyond_the_checkpoints_may_be_missing(logs, tools):
    """After a power cut the log ends before the missing segments, too."""
    for _ in range(3):
        logs.append(logs.log(), b"v")
    logs.stop(clean=False)
    for found in (logs.path / "topic-0").iterdir():
        found.unlink()
    logs.start()
    assert logs.log().log_end_offset == 0
    for _ in range(8):
        logs.append(logs.log(segment_bytes=200), b"value")
    logs.stop(clean=False)
    *kept, last = sorted((logs.path / "topic-0").glob("*.log"))
    last.unlink()
    logs.start()
    end = int(last.stem)
    assert kept
    assert tools.read_all(logs.log()) == list(range(end))
    assert logs.append(logs.log(), b"v").base_offset == end


@pytest.mark.parametrize("gone", ["the first ones", "some in the middle"])
def test_readers_go_on_after_segments_that_are_gone(logs, tools, gone):
    """Retention and compaction leave such gaps, too."""
    log = logs.log(segment_bytes=200)
    for _ in range(12):
        logs.append(log, b"value")
    logs.stop()
    segments = sorted((logs.path / "topic-0").glob("*.log"))
    assert len(segments) >= 5
    first, last = (0, 2) if gone == "the first ones" else (1, 3)
    for path in segments[first:last]:
        for found in path.parent.glob(f"{path.stem}.*"):
            found.unlink()
    begin, end = int(segments[first].stem), int(segments[last].stem)
    left = [offset for offset in range(12) if not begin <= offset < end]
    for _ in range(2):
        logs.start()
        assert tools.read_all(logs.log()) == left
        for offset in range(begin, end) if begin else ():
            assert tools.base_offsets(tools.read(logs.log(), offset, 1).records) == [end]
        logs.stop()
    logs.start()
    assert logs.log().log_start_offset == left[0]
    assert logs.append(logs.log(), b"v").base_offset == 12


def test_the_high_watermark_waits_for_the_names_of_segments(logs):
    """The names are flushed first. Otherwise a power cut, after which only the directory may exist, would leave the log
    damaged."""
    log = logs.log()
    logs.append(log, b"v")
    checkpoint = logs.path / "replication-offset-checkpoint"
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    assert checkpoint.read_text() == "0\n1\ntopic 0 0\n"
    flush(log)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    assert checkpoint.read_text() == "0\n1\ntopic 0 1\n"


def test_a_log_that_was_emptied_after_a_clean_stop_is_offline(logs):
    for _ in range(5):
        logs.append(logs.log(), b"v")
    logs.stop()
    segment_file(logs.path).write_bytes(b"")
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        assert (logs.path / name).read_text() == "0\n1\ntopic 0 5\n"
    logs.start()
    with pytest.raises(StorageError, match="its clean stop was at a later offset"):
        logs.log()
    assert logs.manager.is_damaged("topic", 0)


def test_a_checkpoint_alone_does_not_say_that_a_log_was_longer(logs, tools):
    logs.append(logs.log(), b"v")
    logs.stop()
    (logs.path / "recovery-point-offset-checkpoint").write_text("0\n1\ntopic 0 9\n")
    logs.start()
    assert tools.read_all(logs.log()) == [0]


@pytest.mark.slow
def test_a_torn_tail_is_truncated_at_every_byte(logs, tools, tmp_path):
    """The bytes are those of the last three batches."""
    log = logs.log()
    ends = [0]
    for number in range(5):
        logs.append(log, b"v" * (1 + number), producer_id=1, producer_epoch=0, base_sequence=number)
        ends.append(log.size_in_bytes)
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    crashed = copy(logs, tmp_path, "crashed")
    logs.stop(clean=False)
    whole = segment_file(crashed).read_bytes()
    for cut in range(ends[2], ends[5]):
        segment_file(crashed).write_bytes(whole[:cut])
        logs.start(crashed)
        kept = sum(1 for end in ends[1:] if end <= cut)
        log = logs.log()
        assert log.log_end_offset == kept
        assert segment_file(crashed).stat().st_size == ends[kept]
        assert tools.read_all(log) == list(range(kept))
        assert next(iter(log.producer_state.producers.values())).last_sequence == kept - 1
        logs.stop(clean=False)


def test_a_tail_of_zeros_or_garbage_is_torn(logs, tools):
    log = logs.log()
    logs.append(log, b"a")
    size = log.size_in_bytes
    for tail in (bytes(100), bytes(5000), b"\xff" * 200, b"\x02" * 200, bytes(12)):
        logs.stop(clean=False)
        with segment_file(logs.path).open("ab") as file:
            file.write(tail)
        logs.start()
        assert tools.read_all(logs.log()) == [0]
        assert segment_file(logs.path).stat().st_size == size


@pytest.mark.parametrize("position", [0, 3, 8, 11, 16, 17, 22, 40, 60, 65])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 250])
def test_damage_before_whole_batches_is_refused(logs, position, segment_bytes):
    """Nothing is truncated."""
    log = logs.log(segment_bytes=segment_bytes)
    for _ in range(6):
        logs.append(log, b"value")
    logs.stop(clean=False)
    path = segment_file(logs.path)
    data = bytearray(path.read_bytes())
    size = 73
    data[size + position] ^= 0x41
    path.write_bytes(data)
    logs.start()
    with pytest.raises(StorageError) as raised:
        logs.log()
    assert str(path) in raised.value.message
    assert f"byte {size}" in raised.value.message
    assert path.read_bytes() == data
    logs.restart(clean=True)
    with pytest.raises(StorageError):
        logs.log()


def test_a_valid_batch_whose_offset_goes_back_is_no_torn_write(logs):
    """A bit of the base offset of the batch before has turned, which has no checksum."""
    log = logs.log()
    for _ in range(3):
        logs.append(log, b"value")
    logs.stop(clean=False)
    path = segment_file(logs.path)
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    data[size + 6] ^= 1
    path.write_bytes(data)
    logs.start()
    with pytest.raises(StorageError, match=f"damaged at byte {2 * size}: a batch has offset 2 where 258 follows"):
        logs.log()
    assert path.read_bytes() == data


@pytest.mark.parametrize("missing", [8, 9, 10])
@pytest.mark.parametrize("followers", [0, 1])
def test_a_batch_that_lacks_only_its_base_offset_is_a_torn_write(logs, tools, missing, followers):
    """The offset, over which there is no checksum, ends a sector that did not reach the disk; the next one did."""
    log = logs.log()
    for value in (*[b"value"] * 5, b"", b"x" * (11 - missing)):
        logs.append(log, value)
    size = log.size_in_bytes
    assert size == SECTOR_BYTES - missing
    for _ in range(1 + followers):
        logs.append(log, b"value")
    logs.stop(clean=False)
    path = segment_file(logs.path)
    data = bytearray(path.read_bytes())
    data[size:SECTOR_BYTES] = bytes(missing)
    path.write_bytes(data)
    logs.start()
    assert tools.read_all(logs.log()) == list(range(7))
    assert path.stat().st_size == size


def test_zeros_in_the_sector_of_the_next_batch_are_records(logs):
    """The damaged batch ends with zeros, the last ones in another sector. This sector reached the disk, since the next
    batch in it did."""
    log = logs.log()
    while log.size_in_bytes < SECTOR_BYTES - 100:
        logs.append(log, b"value")
    start = log.size_in_bytes
    logs.append(log, bytes(SECTOR_BYTES - start))
    assert log.size_in_bytes > SECTOR_BYTES
    end = log.size_in_bytes
    logs.append(log, b"value")
    assert log.size_in_bytes % SECTOR_BYTES > end % SECTOR_BYTES > 8
    logs.stop(clean=False)
    path = segment_file(logs.path)
    data = bytearray(path.read_bytes())
    assert not any(data[SECTOR_BYTES:end])
    data[start + 45] ^= 1
    path.write_bytes(data)
    logs.start()
    with pytest.raises(StorageError, match=f"whole batches follow at byte {end}"):
        logs.log()
    assert path.read_bytes() == data


def test_damage_before_the_recovery_point_is_refused(logs):
    """Also at the end of the log."""
    log = logs.log()
    logs.append(log, b"a")
    logs.append(log, b"b")
    flush(log)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.stop(clean=False)
    path = segment_file(logs.path)
    path.write_bytes(path.read_bytes()[:-1])
    logs.start()
    with pytest.raises(StorageError):
        logs.log()


def test_segments_below_the_recovery_point_are_not_read(logs, tools):
    log = logs.log(segment_bytes=250)
    for _ in range(9):
        logs.append(log, b"value")
    flush(log)
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    logs.append(log, b"value")
    logs.stop(clean=False)
    logs.files.opened.clear()
    logs.start()
    read = {path.rpartition("/")[2] for path in logs.files.opened if path.endswith(".log")}
    assert segment_file(logs.path).name not in read
    assert tools.read_all(logs.log()) == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_read"), [(2_849, False), (2_850, True)])
def test_many_producers_are_read_before_the_event_loop_waits(logs, count, is_read):
    log = logs.log()
    for producer_id in range(count):
        logs.append(log, b"v", producer_id=producer_id, producer_epoch=3, base_sequence=0)
    known = [(entry.producer_id, entry.epoch, entry.batches) for entry in log.producer_state.producers.values()]
    logs.restart(clean=True)
    log = logs.log()
    assert (log.producers.state is not None) is is_read
    assert [(entry.producer_id, entry.epoch, entry.batches) for entry in log.producer_state.producers.values()] == known


def test_a_torn_tail_before_an_empty_segment_is_no_corruption(logs, tools):
    """The empty segment was created just before the crash."""
    log = logs.log()
    logs.append(log, b"a")
    logs.append(log, b"b")
    log.roll()
    logs.stop(clean=False)
    path = segment_file(logs.path)
    path.write_bytes(path.read_bytes()[:-1])
    logs.start()
    log = logs.log()
    assert (tools.read_all(log), log.log_end_offset) == ([0], 1)
    assert logs.append(log, b"c").base_offset == 1
    assert not segment_file(logs.path, 2).exists()


def test_recovering_twice_gives_the_same_files(logs, tmp_path):
    log = logs.log(segment_bytes=300, index_interval_bytes=50)
    for number in range(12):
        logs.append(
            log, b"value", epoch=number // 4, producer_id=number % 3, producer_epoch=0, base_sequence=number // 3
        )
    first, second = copy(logs, tmp_path, "first"), tmp_path / "second"
    logs.stop(clean=False)
    with segment_file(first, log.segments[-1].base_offset).open("ab") as file:
        file.write(b"torn")
    logs.start(first)
    logs.stop(clean=False)
    shutil.copytree(first, second)
    logs.start(second)
    assert contents(first) == contents(second)


def test_files_derived_from_batches_are_rebuilt_equal(logs, tmp_path):
    """A crash right before a clean shutdown must leave the same files as the shutdown."""
    log = logs.log(segment_bytes=400, index_interval_bytes=100)
    for number in range(20):
        logs.append(log, b"value", epoch=number // 7, producer_id=5, producer_epoch=0, base_sequence=number)
    crashed = copy(logs, tmp_path, "crashed")
    for base_offset in [segment.base_offset for segment in log.segments]:
        for suffix in (".index", ".timeindex"):
            segment_file(crashed, base_offset, suffix).write_bytes(b"rubbish")
    logs.restart(clean=True)
    logs.stop(clean=True)
    closed = contents(logs.path)
    logs.start(crashed)
    recovered = contents(crashed)
    recovered.pop("partition.metadata", None)
    assert {name: data for name, data in recovered.items() if name in closed} == closed
    assert set(recovered) - set(closed) == set()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "half", "shifted", "foreign"])
def test_damaged_indexes_are_rebuilt(logs, tools, damage, clean, caplog):
    log = logs.log(segment_bytes=2000, index_interval_bytes=150)
    for _ in range(60):
        logs.append(log, b"value" * 3)
    expected = tools.read_all(log)
    logs.stop(clean=clean)
    for path in (logs.path / "topic-0").glob("*.*index"):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "zeros":
            path.write_bytes(bytes(len(data)))
        elif damage == "half":
            path.write_bytes(data[: len(data) // 2 + 1])
        elif damage == "shifted":
            path.write_bytes(b"".join(_shift(data[at : at + 8]) for at in range(0, len(data), 8)))
        else:
            path.write_bytes(segment_file(logs.path, 0, path.suffix).read_bytes() if path.exists() else data)
    logs.files.cached = False
    logs.start()
    log = logs.log()
    for offset in range(log.log_end_offset):
        assert tools.base_offsets(tools.read(log, offset, 1).records) == [offset]
    logs.append(log, b"more")
    assert tools.read_all(log) == [*expected, 60]
    assert log.timestamp_lookup().first_at_or_after(0).offset == 0
    if clean:
        assert "anew" in caplog.text


def _damages(name, data):
    """An index file after one of its bits has turned, cut at each length, and with what lies beyond the end."""
    for bit in range(8 * len(data)):
        yield f"bit {bit} of {name}", data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
    for size in range(len(data)):
        yield f"{name} of {size} bytes", data[:size]
    entry = (1 << 30).to_bytes(4) * 2 if name.endswith(".index") else (1 << 41).to_bytes(8) + (1 << 30).to_bytes(4)
    yield f"{name} with an entry beyond the end", data + entry


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.slow
def test_no_damaged_index_has_a_look_up_go_astray(logs, tools, step, is_sorted):
    """By offset or by time, in a rolled segment and in the last one; nor retention, which uses the largest timestamp.
    If timestamps descend, a time index that lost its last entries cannot be detected: Kafka trusts it, too."""
    log = logs.log(segment_bytes=700, index_interval_bytes=150)
    times = [1000 + 10 * (number if is_sorted else (7 * number) % 16) for number in range(16)]
    for time in times:
        logs.append(log, b"value", timestamp=time)
    assert len(log.segments) == 2
    first = lambda wanted: next((at for at, time in enumerate(times) if time >= wanted), None)  # noqa: E731
    expected = {wanted: first(wanted) for wanted in range(995, 1165, 5)}
    largest = [segment.largest_timestamp(log.context.cache) for segment in log.segments]
    logs.stop()
    logs.files.cached = False
    for path in sorted((logs.path / "topic-0").glob("*.*index")):
        data = path.read_bytes()
        for damage, damaged in islice(_damages(path.name, data), 0, None, step):
            if not is_sorted and damage.startswith(f"{path.name} of") and len(damaged) and not len(damaged) % 12:
                continue
            path.write_bytes(damaged)
            logs.start()
            log = logs.log()
            found = {time: log.timestamp_lookup().first_at_or_after(time) for time in expected}
            assert {time: at and at.offset for time, at in found.items()} == expected, damage
            assert log.timestamp_lookup().largest().offset == times.index(max(times)), damage
            assert [segment.largest_timestamp(log.context.cache) for segment in log.segments] == largest, damage
            for offset in range(16):
                assert tools.base_offsets(tools.read(log, offset, 1).records) == [offset], damage
            logs.stop()
            path.write_bytes(data)
    logs.start()


@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "half", "shifted", "foreign"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery", ["from the start", "from the last segment"])
def test_damaged_transaction_indexes_are_rebuilt(logs, damage, clean, recovery, caplog):
    """Also those of segments that recovery does not read."""
    log = logs.log(segment_bytes=1500)
    for number in range(6):
        producer = {"producer_id": 1, "producer_epoch": 0}
        logs.append(log, b"v" * 200, transactional=True, base_sequence=number, **producer)
        marker = build_end_txn_marker(
            EndTxnMarker(ControlRecordType.ABORT, 0), timestamp_ms=logs.clock.now_ms(), **producer
        )
        logs.append_raw(log, marker, AppendOrigin.COORDINATOR)
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 6
    if recovery == "from the last segment":
        flush(log)
        logs.manager.checkpoint(RECOVERY_POINT_FILE)
    for turn in range(2):
        logs.stop(clean=clean)
        paths = sorted((logs.path / "topic-0").glob("*.txnindex"))
        assert len(paths) > 1
        contents = [path.read_bytes() for path in paths]
        for path, data in zip(paths, contents, strict=True):
            if damage == "missing":
                path.unlink()
            elif damage == "shifted":
                path.write_bytes(b"".join(_shift_marker(data[at : at + 34]) for at in range(0, len(data), 34)))
            else:
                found = {"empty": b"", "zeros": bytes(len(data)), "half": data[: len(data) // 2 + 1]}
                path.write_bytes(found.get(damage, contents[path == paths[0]]))
        caplog.clear()
        logs.start()
        log = logs.log()
        assert log.aborted_transactions(0, log.log_end_offset) == expected
        assert [path.read_bytes() for path in paths] == contents
        assert not [found for found in check_directory(OsFiles(), logs.path).findings if found.level is not Level.NOTE]
        assert ("anew" in caplog.text) == (clean or turn == 1 or recovery == "from the last segment")


@pytest.mark.parametrize("damage", ["zeros", "half", "foreign", "empty"])
def test_damaged_transaction_indexes_without_notes_are_rebuilt(logs, damage):
    """In a directory of Kafka a damaged index is found by its form only, and a missing one is not found."""
    log = logs.log(segment_bytes=600)
    for producer_id in (1, 2, 3):
        _abort(logs, log, producer_id)
        log.roll()
    expected = log.aborted_transactions(0, log.log_end_offset)
    assert len(expected) == 3
    logs.stop(clean=True)
    (logs.path / "barnabas-transaction-indexes").unlink()
    paths = sorted((logs.path / "topic-0").glob("*.txnindex"))
    data, later = paths[0].read_bytes(), paths[-1].read_bytes()
    found = {"empty": b"", "zeros": bytes(len(data)), "half": data[: len(data) // 2 + 1], "foreign": later}
    paths[0].write_bytes(found[damage])
    logs.start()
    assert logs.log().aborted_transactions(0, log.log_end_offset) == expected
    assert paths[0].read_bytes() == data


@pytest.mark.parametrize("content", [b"", b"0\n1\ntopic 0\n", b"rubbish", b"0\n2\ntopic 0 0 34 1\ngone 3 7 34 2\n"])
def test_wrong_notes_of_transaction_indexes_only_cost_time(logs, content):
    log = logs.log(segment_bytes=600)
    for producer_id in (1, 2, 3):
        _abort(logs, log, producer_id)
        log.roll()
    expected = log.aborted_transactions(0, log.log_end_offset)
    logs.stop(clean=True)
    path = logs.path / "barnabas-transaction-indexes"
    noted = path.read_bytes()
    path.write_bytes(content)
    logs.start()
    assert logs.log().aborted_transactions(0, log.log_end_offset) == expected
    logs.stop(clean=True)
    assert path.read_bytes() == noted
    logs.start()


def _abort(logs, log, producer_id):
    producer = {"producer_id": producer_id, "producer_epoch": 0}
    logs.append(log, b"v" * 200, transactional=True, base_sequence=0, **producer)
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.ABORT, 0), timestamp_ms=logs.clock.now_ms(), **producer
    )
    logs.append_raw(log, marker, AppendOrigin.COORDINATOR)


def _shift_marker(entry):
    """An entry of the transaction index whose marker is off by one offset."""
    return entry[:18] + (int.from_bytes(entry[18:26]) - 1).to_bytes(8) + entry[26:]


def _shift(entry):
    """An entry that is off by one offset."""
    return (int.from_bytes(entry[:4]) + 1).to_bytes(4) + entry[4:]


@pytest.mark.parametrize("content", [b"", b"0", b"0\n3\ntopic 0 5\n", b"\xff\xfe", b"1\n0\n", b"0\n1\ntopic zero 5\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_unusable_checkpoints_do_not_keep_a_log_from_starting(logs, tools, content, clean):
    log = logs.log()
    for number in range(4):
        logs.append(log, b"v", epoch=number)
    logs.stop(clean=clean)
    for path in logs.path.glob("*-checkpoint"):
        path.write_bytes(content)
    (logs.path / "topic-0" / "leader-epoch-checkpoint").write_bytes(content)
    logs.start()
    log = logs.log()
    assert tools.read_all(log) == [0, 1, 2, 3]
    assert log.leader_epochs.entries == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_an_epoch_without_batches_is_forgotten_by_a_restart(logs):
    log = logs.log()
    logs.append(log, b"a", epoch=3)
    log.leader_epochs.assign(4, log.log_end_offset)
    for clean in (True, False):
        logs.restart(clean=clean)
        assert logs.log().leader_epochs.entries == [(3, 0)]


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x00\x01garbage", None])
@pytest.mark.parametrize("clean", [True, False])
def test_unusable_producer_snapshots_are_replaced_by_the_log(logs, damage, clean):
    log = logs.log(segment_bytes=400)
    for sequence in range(12):
        logs.append(log, b"v", producer_id=3, producer_epoch=0, base_sequence=sequence)
    logs.stop(clean=clean)
    for path in (logs.path / "topic-0").glob("*.snapshot"):
        path.unlink() if damage is None else path.write_bytes(damage)
    logs.start()
    log = logs.log()
    assert next(iter(log.producer_state.producers.values())).last_sequence == 11
    assert logs.append(log, b"v", producer_id=3, producer_epoch=0, base_sequence=7).duplicate


def test_a_stale_recovery_point_only_costs_time(logs, tools):
    """One beyond the end of the log costs nothing."""
    log = logs.log(segment_bytes=250)
    for _ in range(9):
        logs.append(log, b"value")
    logs.stop(clean=False)
    for recovery_point in (0, 4, 9, 1000):
        (logs.path / "recovery-point-offset-checkpoint").write_text(f"0\n1\ntopic 0 {recovery_point}\n")
        logs.start()
        assert tools.read_all(logs.log()) == list(range(9))
        assert logs.log().recovery_point == 9
        logs.stop(clean=False)


def test_a_high_watermark_from_the_future_is_the_end_of_the_log(logs, tools):
    log = logs.log()
    for _ in range(3):
        logs.append(log, b"value")
    for clean in (False, True):
        logs.stop(clean=clean)
        (logs.path / "replication-offset-checkpoint").write_text("0\n1\ntopic 0 1000000\n")
        logs.start()
        assert logs.log().high_watermark == 3
        assert tools.read_all(logs.log()) == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"version":7}'])
def test_a_clean_shutdown_marker_counts_by_being_there_once(logs, content):
    logs.append(logs.log(), b"value")
    logs.stop(clean=True)
    (logs.path / ".kafka_cleanshutdown").write_bytes(content)
    logs.files.opened.clear()
    logs.start()
    assert not [path for path in logs.files.opened if path.endswith(".log")]
    logs.restart(clean=False)
    assert [path for path in logs.files.opened if path.endswith(".log")]
    assert logs.log().log_end_offset == 1


def test_a_log_start_offset_beyond_the_end_starts_the_log_anew(logs):
    log = logs.log()
    logs.append(log, b"a")
    logs.stop(clean=False)
    (logs.path / "log-start-offset-checkpoint").write_text("0\n1\ntopic 0 10\n")
    logs.start()
    log = logs.log()
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert logs.append(log, b"b").base_offset == 10


def test_deleted_records_stay_deleted_after_a_crash(logs, tools):
    log = logs.log()
    for _ in range(5):
        logs.append(log, b"a")
    log.increment_log_start_offset(3)
    logs.manager.checkpoint(LOG_START_FILE)
    for clean in (False, True):
        logs.restart(clean=clean)
        log = logs.log()
        assert log.log_start_offset == 3
        assert tools.base_offsets(tools.read(log, 3).records) == [3, 4]
        assert log.leader_epochs.entries == [(0, 3)]


@pytest.mark.parametrize("truncated", [False, True])
def test_producers_of_deleted_records_are_forgotten_by_a_crash(logs, truncated):
    """As in Kafka. A truncation forgot them, but a crash after it did not."""
    log = logs.log()
    logs.append(log, b"a", producer_id=1, producer_epoch=0, base_sequence=0)
    logs.append(log, b"b", producer_id=2, producer_epoch=0, base_sequence=0)
    logs.append(log, b"c")
    log.increment_log_start_offset(1)
    logs.manager.checkpoint(LOG_START_FILE)
    if truncated:
        truncate_with_checkpoints(logs.manager, log, 2)
        assert [entry.producer_id for entry in log.producer_state.producers.values()] == [2]
    logs.restart(clean=False)
    assert [entry.producer_id for entry in logs.log().producer_state.producers.values()] == [2]


def test_files_of_interrupted_operations_are_cleaned_up(logs, tools):
    """The operations are deletions and compactions."""
    log = logs.log(segment_bytes=250)
    for _ in range(9):
        logs.append(log, b"value")
    bases = [segment.base_offset for segment in log.segments]
    logs.stop(clean=False)
    directory = logs.path / "topic-0"
    (directory / "00000000000000000001.log.deleted").write_bytes(b"old")
    (directory / "00000000000000000500.index").write_bytes(b"orphan")
    # A compaction of the first two segments was complete but for the renaming.
    merged = segment_file(logs.path, bases[0]).read_bytes() + segment_file(logs.path, bases[1]).read_bytes()
    (directory / "00000000000000000000.log.swap").write_bytes(merged)
    logs.start()
    log = logs.log()
    assert [segment.base_offset for segment in log.segments] == [bases[0], *bases[2:]]
    assert tools.read_all(log) == list(range(9))
    logs.stop(clean=False)
    # One that was not complete leaves nothing behind.
    (directory / "00000000000000000000.log.cleaned").write_bytes(b"half")
    (directory / "00000000000000000003.log.swap").write_bytes(b"half")
    logs.start()
    assert tools.read_all(logs.log()) == list(range(9))
    names = {path.name for path in directory.iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".swap", ".cleaned"))]
    assert "00000000000000000500.index" not in names


def test_a_clean_start_opens_no_log(logs):
    for partition in range(20):
        logs.append(logs.log(partition=partition), b"a", producer_id=1, producer_epoch=0, base_sequence=0)
    logs.stop(clean=True)
    logs.files.opened.clear()
    logs.start()
    assert not [path for path in logs.files.opened if "topic-" in path]
    assert {log.log_end_offset for log in logs.manager.logs} == {1}


def test_a_doubtful_checkpoint_is_checked_despite_a_clean_stop(logs, tools):
    log = logs.log(index_interval_bytes=100)
    for _ in range(30):
        logs.append(log, b"a" * 20)
    logs.stop(clean=True)
    for checkpoint in ("", "0\n1\ntopic 0 7\n", "0\n1\ntopic 0 900\n"):
        (logs.path / "recovery-point-offset-checkpoint").write_text(checkpoint)
        logs.start()
        assert logs.log().log_end_offset == 30
        logs.append(logs.log(), b"b")
        truncate(logs.log(), 30)
        logs.stop(clean=True)


def test_snapshots_hold_the_last_batch_of_each_producer(logs):
    log = logs.log()
    for sequence in range(3):
        logs.append(log, b"v", b"w", producer_id=4, producer_epoch=1, base_sequence=2 * sequence)
    logs.stop(clean=True)
    (entry,) = decode_snapshot(segment_file(logs.path, 6, ".snapshot").read_bytes())
    assert (entry.producer_id, entry.epoch) == (4, 1)
    assert entry.batches[0][:4] == (4, 5, 5, 1)
    logs.start()


@pytest.mark.parametrize("clean", [True, False])
def test_snapshots_before_the_log_start_go_at_the_next_start(logs, clean):
    log = logs.log(segment_bytes=250)
    for sequence in range(12):
        logs.append(log, b"value", producer_id=4, producer_epoch=1, base_sequence=sequence)
    log.increment_log_start_offset(7)
    logs.manager.checkpoint(LOG_START_FILE)
    before = sorted(int(path.stem) for path in (logs.path / "topic-0").glob("*.snapshot"))
    assert before[0] <= 7
    logs.restart(clean=clean)
    logs.log()
    after = sorted(int(path.stem) for path in (logs.path / "topic-0").glob("*.snapshot"))
    assert [offset for offset in before if offset > 7] == [offset for offset in after if offset < 12]


def test_records_lost_with_the_machine_are_reported(logs, caplog):
    """The log is loaded without them."""
    log = logs.log()
    logs.append(log, b"a")
    flush(log)
    logs.append(log, b"b")
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)
    logs.stop(clean=False)
    segment_file(logs.path).write_bytes(segment_file(logs.path).read_bytes()[:-1])
    logs.start()
    assert (logs.log().log_end_offset, logs.log().high_watermark) == (1, 1)
    assert "not flushed" in caplog.text


@pytest.mark.parametrize("start", [4, 900, 2**63 - 2, 2**63 - 1, 2**63, 10**30, -1])
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_a_log_start_offset_that_cannot_be_removes_nothing(logs, tools, start, with_snapshot):
    """A clean stop leaves none beyond the log end offset, and no log has more offsets than there are."""
    producer = {"producer_id": 7, "producer_epoch": 0} if with_snapshot else {}
    for number in range(3):
        logs.append(logs.log(), b"v", **(producer | {"base_sequence": number} if producer else {}))
    logs.stop()
    (logs.path / "log-start-offset-checkpoint").write_text(f"0\n1\ntopic 0 {start}\n")
    logs.start()
    log = logs.log()
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    assert tools.read_all(log) == [0, 1, 2]
    assert [entry.last_sequence for entry in log.producer_state.producers.values()] == ([2] if with_snapshot else [])
    logs.append(log, b"v")
    logs.restart()
    assert tools.read_all(logs.log()) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint",
                                  "cleaner-offset-checkpoint", "log-start-offset-checkpoint"])  # fmt: skip
@pytest.mark.parametrize("offset", [-(2**63), -1, 0, 900, 2**63 - 2, 2**63 - 1, 2**63, 10**30])
@pytest.mark.parametrize("is_clean", [True, False])
def test_offsets_of_checkpoints_at_their_extremes(logs, tools, name, offset, is_clean):
    """With any trusted value the log works, and all its values can be sent."""
    logs.append(logs.log(), b"v")
    logs.stop(clean=is_clean)
    (logs.path / name).write_text(f"0\n1\ntopic 0 {offset}\n")
    logs.start()
    log = logs.log()
    if is_clean:
        assert tools.read_all(log) == [0]
    assert 0 <= log.log_start_offset <= log.log_end_offset < 2**63
    assert log.high_watermark < 2**63
