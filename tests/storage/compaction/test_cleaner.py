"""Compaction of a log: against a model, through each crash, and with concurrent readers."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from barnabas.broker.upkeep.cleaner_process import decode_job, encode_job
from barnabas.storage.checkpoints import RECOVERY_POINT_FILE
from barnabas.storage.compaction.cleaner import (
    CleanedSegment,
    LastRecord,
    PassEnd,
    group_segments,
    remove_cleaned_files,
    run_pass,
)
from barnabas.storage.compaction.cleaner_manager import (
    SegmentSwap,
    dirtiest,
    log_to_clean,
    make_job,
)
from barnabas.storage.compaction.offset_map import KeyMap
from barnabas.storage.config import LogConfig
from barnabas.storage.errors import CorruptLog, StorageError
from barnabas.storage.segment_reader import ColdRead
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.record_batch import CompressionType, crc_is_valid, iter_headers, parse_header, patch
from barnabas.wire.records import Record, assemble_batch, build_batch, iter_records
from barnabas.wire.varint import encode_varint
from tests.storage.blocking import flush, truncate_with_checkpoints

DAY_MS = 86_400_000


def compacted(**changes):
    """Settings of a compacted log with small segments, on which every pass pays."""
    return {"cleanup_policy": frozenset({"compact"}), "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 1 << 20,
            "index_interval_bytes": 100, **changes}  # fmt: skip


def append(logs, log, *pairs, control=None, **fields):
    """Append a batch of (key, value) pairs, or a marker."""
    now_ms = logs.clock.now_ms()
    if control is not None:
        data = build_end_txn_marker(EndTxnMarker(control, 0), timestamp_ms=now_ms, **fields)
        return logs.append_raw(log, data, AppendOrigin.COORDINATOR)
    records = [Record(number, now_ms, key, value) for number, (key, value) in enumerate(pairs)]
    return logs.append_raw(log, build_batch(records, **fields))


def cleanable(log, clean_offset, now_ms):
    """The input of a pass, with the whole log flushed."""
    flush(log)
    return log_to_clean(log, clean_offset, now_ms)


def clean(log, *, clean_offset=None, now_ms=None, map_slots=1000, files=None):
    """One pass over a log with its swaps; the offset up to which it is clean."""
    now_ms = log.context.clock.now_ms() if now_ms is None else now_ms
    to_clean = cleanable(log, clean_offset, now_ms)
    assert to_clean is not None
    job = make_job(to_clean, now_ms, map_bytes=map_slots * 24, map_load_factor=0.9)
    for result in run_pass(files or log.context.cache.files, job, lambda _: None):
        if isinstance(result, PassEnd):
            return result.end_offset
        swap = SegmentSwap(log, job, result)
        assert swap.begin()
        swap.sync()
        assert swap.finish()
    raise AssertionError("a pass ends with its end")


def batches(tools, log):
    """(header, records) of every batch that can be read, from the log's start."""
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = tools.read(log, offset, 1 << 24)
        if not data.records:
            break
        for header in iter_headers(data.records):
            assert crc_is_valid(data.records, header)
            found.append((header, list(iter_records(data.records, header))))
            offset = header.next_offset
    return found


def records(tools, log):
    return [(record.offset, record.key, record.value)
            for header, found in batches(tools, log) if not header.is_control for record in found]  # fmt: skip


def test_the_last_record_of_each_key_stays(logs, tools):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    append(logs, log, (b"b", b"2"))
    log.roll()
    append(logs, log, (b"c", b"1"))
    log.roll()
    append(logs, log, (b"a", b"active"))
    assert clean(log) == 5
    assert records(tools, log) == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1"), (5, b"a", b"active")]
    assert [header.base_offset for header, _ in batches(tools, log)] == [0, 3, 4, 5]
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert (log.log_start_offset, log.log_end_offset) == (0, 6)


def test_reads_at_every_offset_find_the_next_record(logs, tools):
    log = logs.log(**compacted(segment_bytes=400))
    for number in range(60):
        append(logs, log, (b"key%d" % (number % 7), b"x" * 40), (b"only%d" % number if number % 9 == 0 else b"k", b"y"))
    clean(log)
    expected = [offset for offset, _, _ in records(tools, log)]
    for cached in (True, False):
        for start in range(log.log_end_offset):
            data = tools.read(log, start)
            assert data.records, start
            found = [record.offset for header in iter_headers(data.records)
                     for record in iter_records(data.records, header) if record.offset >= start]  # fmt: skip
            wanted = next(offset for offset in expected if offset >= start)
            assert not found or found[0] == wanted
        if cached:
            logs.files.cached = False
            logs.restart()
            log = logs.manager.get("topic", 0)


def test_a_group_of_segments_that_leaves_nothing_is_passed_over(logs, tools):
    log = logs.log(**compacted())
    for number in range(4):
        append(logs, log, (b"a", b"%d" % number * 3000))
        log.roll()
    append(logs, log, (b"a", b"active"))
    log.update_config(dataclasses.replace(log.config, segment_bytes=3100))
    clean(log)
    assert [(segment.base_offset, segment.size > 0) for segment in log.segments] == [
        (0, False), (1, False), (2, False), (3, True), (4, True)]  # fmt: skip
    for again in range(2):
        assert [tools.read(log, start).records[7] for start in range(5)] == [3, 3, 3, 3, 4]
        assert log.timestamp_lookup().first_at_or_after(0).offset == 3
        assert (log.log_start_offset, log.log_end_offset) == (0, 5)
        logs.restart(clean=again == 0)
        log = logs.manager.get("topic", 0)


def test_tombstones_stay_until_their_horizon(logs, tools):
    log = logs.log(**compacted(delete_retention_ms=1000))
    append(logs, log, (b"a", b"1"), (b"b", b"1"))
    append(logs, log, (b"a", None), (b"c", b"1"))
    log.roll()
    append(logs, log, (b"z", b""))
    log.roll()
    append(logs, log, (b"active", b""))
    start_ms = logs.clock.now_ms()
    clean(log)
    assert records(tools, log)[:3] == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    header, found = batches(tools, log)[1]
    assert header.delete_horizon_ms == start_ms + 1000
    assert [record.timestamp for record in found] == [start_ms, start_ms]
    logs.clock.advance(999)
    clean(log, clean_offset=0)
    assert (2, b"a", None) in records(tools, log)
    logs.clock.advance(1)
    clean(log, clean_offset=0)
    assert records(tools, log)[:2] == [(1, b"b", b"1"), (3, b"c", b"1")]


@pytest.mark.parametrize("delete_retention_ms", [2**63 - 1, 2**63 - 2_000_000_000_000])
def test_a_horizon_beyond_what_a_long_holds_is_never_reached(logs, tools, delete_retention_ms):
    log = logs.log(**compacted(delete_retention_ms=delete_retention_ms))
    append(logs, log, (b"a", b"1"), (b"b", None))
    log.roll()
    append(logs, log, (b"active", b""))
    written_ms = logs.clock.now_ms()
    for _ in range(2):
        clean(log, clean_offset=0)
        logs.clock.advance(365 * DAY_MS)
        header, found = batches(tools, log)[0]
        assert header.delete_horizon_ms == min(written_ms + delete_retention_ms, 2**63 - 1)
        assert [(record.key, record.value, record.timestamp) for record in found] == [
            (b"a", b"1", written_ms),
            (b"b", None, written_ms),
        ]


@pytest.mark.parametrize("delta", [2**63 - 1, -(2**63)])
def test_unchecked_timestamps_wrap_around(logs, tools, delta):
    """A topic that is not compacted accepts them, as records of small batches are not decoded; it may become
    compacted."""
    log = logs.log(**compacted(segment_bytes=1 << 20))
    now_ms = logs.clock.now_ms()
    for base_timestamp in (now_ms, 2**63 - 1, -(2**63)):
        start = log.log_end_offset
        parts = []
        for number, (key, value) in enumerate([(b"same", b"1"), (b"other%d" % (base_timestamp % 7), None)]):
            body = b"\0" + encode_varint(delta) + encode_varint(number) + encode_varint(len(key)) + key
            body += (encode_varint(-1) if value is None else encode_varint(len(value)) + value) + encode_varint(0)
            parts.append(encode_varint(len(body)) + body)
        header = parse_header(build_batch([Record(0, now_ms, b"", b""), Record(1, now_ms, b"", b"")]))
        batch = assemble_batch(header._replace(base_timestamp=base_timestamp, max_timestamp=now_ms), b"".join(parts))
        patch(batch, 0, start, 0)
        log.append_as_follower(batch, now_ms=now_ms)
    log.roll()
    append(logs, log, (b"active", b""))
    clean(log, clean_offset=0)
    data = b"".join(Path(segment.file.path).read_bytes() for segment in log.segments)
    assert data.count(b"same") == 1
    assert all(crc_is_valid(data, header) for header in iter_headers(data))


def test_the_last_batch_of_a_pass_and_of_each_producer_stays(logs, tools):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(logs, log, (b"a", b"2"), (b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=1)
    append(logs, log, (b"a", b"4"))
    log.roll()
    append(logs, log, (b"a", b"5"))
    append(logs, log, (b"b", b"1"))
    append(logs, log, (b"b", b"2"))
    log.roll()
    append(logs, log, (b"active", b"1"))
    clean(log)
    assert [(header.base_offset, header.last_offset, len(found)) for header, found in batches(tools, log)] == [
        (1, 2, 0), (4, 4, 1), (6, 6, 1), (7, 7, 1)]  # fmt: skip
    logs.restart(clean=False)
    log = logs.manager.get("topic", 0)
    assert log.producer_state.producers[7].last_sequence == 2
    assert append(logs, log, (b"a", b"2"), (b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=1).duplicate


def test_an_aborted_transaction_goes_before_its_marker(logs, tools):
    """The marker goes after the delete horizon."""
    log = logs.log(**compacted(delete_retention_ms=10))
    producer = {"producer_id": 9, "producer_epoch": 0}
    append(logs, log, (b"a", b"committed"), base_sequence=0, transactional=True, **producer)
    append(logs, log, control=ControlRecordType.COMMIT, **producer)
    append(logs, log, (b"a", b"aborted"), base_sequence=1, transactional=True, **producer)
    append(logs, log, control=ControlRecordType.ABORT, **producer)
    append(logs, log, (b"b", b"1"), base_sequence=2, transactional=True, **producer)
    append(logs, log, control=ControlRecordType.COMMIT, **producer)
    append(logs, log, (b"last", b"1"))
    log.roll()
    append(logs, log, (b"active", b"1"))

    def summary():
        return [(header.base_offset, len(found)) for header, found in batches(tools, log)]

    clean(log)
    assert summary() == [(0, 1), (1, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]
    assert log.aborted_transactions(0, 8) == [(9, 2)]
    clean(log, clean_offset=0)  # the abort marker has no data any more: it gets its horizon
    assert log.aborted_transactions(0, 8) == []
    assert batches(tools, log)[2][0].delete_horizon_ms == logs.clock.now_ms() + 10
    logs.clock.advance(10)
    clean(log, clean_offset=0)
    assert summary() == [(0, 1), (1, 1), (4, 1), (5, 1), (6, 1), (7, 1)]
    assert records(tools, log)[0] == (0, b"a", b"committed")


@pytest.mark.parametrize("clean_offset", [0, 4])
def test_aborted_records_are_not_last_without_an_index(logs, tools, clean_offset):
    """The transaction index and the note of it were deleted while the broker was stopped: the log is not compacted."""
    log = logs.log(**compacted())
    producer = {"producer_id": 9, "producer_epoch": 0}
    append(logs, log, (b"a", b"committed"))
    append(logs, log, (b"a", b"aborted"), base_sequence=0, transactional=True, **producer)
    append(logs, log, control=ControlRecordType.ABORT, **producer)
    append(logs, log, (b"b", b"1"), base_sequence=1, transactional=True, **producer)
    append(logs, log, (b"b", b"2"), base_sequence=2, transactional=True, **producer)
    append(logs, log, control=ControlRecordType.ABORT, **producer)
    log.roll()
    append(logs, log, (b"active", b"1"))
    before = batches(tools, log)
    logs.stop(clean=True)
    (logs.path / "topic-0" / f"{0:020}.txnindex").unlink()
    (logs.path / "barnabas-transaction-indexes").unlink()
    logs.start()
    log = logs.log(**compacted())
    with pytest.raises(CorruptLog, match="no transaction index"):
        clean(log, clean_offset=clean_offset)
    assert batches(tools, log) == before


def test_open_transactions_and_recent_segments_stay(logs):
    """The active segment stays, too."""
    log = logs.log(**compacted())
    for _ in range(3):
        append(logs, log, (b"a", b"1"))
        log.roll()
        logs.clock.advance(1000)
    now_ms = logs.clock.now_ms()
    assert cleanable(log, None, now_ms).first_uncleanable_offset == 3
    assert cleanable(log, 3, now_ms) is None
    log.update_config(dataclasses.replace(log.config, min_compaction_lag_ms=2500))
    assert cleanable(log, None, now_ms).first_uncleanable_offset == 1
    assert cleanable(log, 1, now_ms) is None
    log.update_config(dataclasses.replace(log.config, min_compaction_lag_ms=0))
    log.high_watermark = 2
    assert cleanable(log, None, now_ms).first_uncleanable_offset == 2
    log.update_high_watermark(3)
    append(logs, log, (b"a", b"1"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    append(logs, log, (b"a", b"1"))
    log.roll()
    assert cleanable(log, None, now_ms).first_uncleanable_offset == 3


def test_unflushed_records_are_not_cleaned(logs):
    """Otherwise a power cut could lose a record after the pass removed the record before it of the same key."""
    log = logs.log(**compacted())
    for number in range(3):
        append(logs, log, (b"a", b"%d" % number))
        log.roll()
        if number == 0:
            flush(log)
    assert log_to_clean(log, None, 0).first_uncleanable_offset == 1
    flush(log)
    assert log_to_clean(log, None, 0).first_uncleanable_offset == 3


def test_dirty_logs_are_chosen_by_ratio_and_lag(logs):
    log = logs.log(**compacted(min_cleanable_dirty_ratio=0.6))
    for _ in range(4):
        append(logs, log, (b"a", b"1"))
        log.roll()
    now_ms = logs.clock.now_ms()
    half = cleanable(log, 2, now_ms)
    assert half.dirty_ratio == 0.5
    assert dirtiest([half]) is None
    most = cleanable(log, 1, now_ms)
    assert dirtiest([half, most]) is most
    log.update_config(dataclasses.replace(log.config, max_compaction_lag_ms=1000))
    assert dirtiest([cleanable(log, 2, now_ms + 1000)]) is None
    assert dirtiest([cleanable(log, 2, now_ms + 1001)]) is not None


def test_checkpoints_outside_the_log_are_not_believed(logs):
    log = logs.log(**compacted())
    for _ in range(3):
        append(logs, log, (b"a", b"1"))
        log.roll()
    assert cleanable(log, 99, 0).first_dirty_offset == 0
    log.increment_log_start_offset(1)
    assert cleanable(log, 0, 0).first_dirty_offset == 1


def test_a_full_map_covers_a_prefix(logs, tools):
    log = logs.log(**compacted())
    for number in range(40):
        append(logs, log, (b"%d" % (number % 20), b"v"))
    log.roll()
    append(logs, log, (b"active", b""))
    end_offset = clean(log, map_slots=11)
    assert 0 < end_offset < 20
    passes = 1
    while end_offset < 40:
        passes += 1
        following = clean(log, clean_offset=end_offset, map_slots=11)
        assert following > end_offset
        end_offset = following
    assert passes > 2
    assert [offset for offset, _, _ in records(tools, log)] == list(range(20, 41))


def test_the_key_map():
    keys = KeyMap(100)
    for number in range(keys.capacity):
        assert keys.put(b"%d" % number, number)
    assert not keys.put(b"more", 1)
    assert keys.size == keys.capacity
    assert [keys.get(b"%d" % number) for number in range(keys.capacity)] == list(range(keys.capacity))
    assert keys.get(b"more") == -1
    assert 80 <= keys.capacity <= 90


def test_segments_are_grouped_by_size_and_offsets():
    sizes = [(0, 50, 1, 1), (10, 50, 1, 1), (20, 1, 1, 1), (30, 0, 9, 1), (2**31 + 50, 5, 1, 1)]
    assert group_segments(sizes, 100, 100, 2**31 + 59) == [[0, 10], [20, 30], [2**31 + 50]]
    assert group_segments(sizes, 1000, 10, 2**31 + 59) == [[0, 10, 20], [30], [2**31 + 50]]


def test_every_codec_and_kind_of_timestamp_survives(logs, tools):
    log = logs.log(**compacted())
    for codec in CompressionType:
        values = [Record(number, 1000 - number * 300 + codec, b"k%d" % (number % 3) + bytes([codec]),
                         b"v" * 50, [("h", b"1"), ("n", None)]) for number in range(6)]  # fmt: skip
        logs.append_raw(log, build_batch(values, compression=codec))
    log.roll()
    append(logs, log, (b"active", b""))
    before = {record.offset: record for _, found in batches(tools, log) for record in found}
    clean(log)
    after = [record for _, found in batches(tools, log) for record in found]
    assert [record.offset for record in after] == [6 * codec + number for codec in range(5) for number in (3, 4, 5)] + [
        30
    ]
    assert all(record == before[record.offset] for record in after)
    assert [header.compression_type for header, _ in batches(tools, log)][:5] == list(CompressionType)
    assert all(
        header.max_timestamp == max(record.timestamp for record in found) for header, found in batches(tools, log)
    )


def test_a_job_goes_through_its_pipe_unchanged(logs):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    log.roll()
    append(logs, log, (b"a", b"2"))
    import json

    job = make_job(cleanable(log, None, 0), 5, map_bytes=2400, map_load_factor=0.9)
    sent = json.loads(encode_job(job, is_durable=True, max_bytes_per_second=1e300))
    assert decode_job(sent["job"]) == job
    assert job.producers == {7: LastRecord(0, 0)}


def test_a_damaged_batch_ends_the_pass_and_nothing_is_lost(logs, tools):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"first"))
    append(logs, log, (b"a", b"second"))
    log.roll()
    append(logs, log, (b"active", b""))
    path = Path(log.segments[0].file.path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog):
        clean(log)
    assert path.read_bytes() == data


def test_a_reader_in_the_middle_of_a_replaced_segment_goes_on(logs, tools):
    log = logs.log(**compacted(file_delete_delay_ms=0))
    for number in range(20):
        append(logs, log, (b"a", b"%d" % number))
    log.roll()
    append(logs, log, (b"active", b""))
    logs.files.cached = False
    logs.restart()
    log = logs.manager.get("topic", 0)
    with pytest.raises(ColdRead) as first:
        log.read(5, 150)
    clean(log)
    with pytest.raises(ColdRead) as second:
        log.read(5, 150)
    clean(log, clean_offset=0)
    logs.manager.delete_due_files()
    assert tools.base_offsets(first.value.load().records)[0] == 5
    assert tools.base_offsets(second.value.load().records)[0] == 19
    logs.manager.delete_due_files()
    names = {path.name for path in Path(log.directory).iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".swap", ".cleaned"))]


def test_a_log_that_changed_meanwhile_refuses_the_swap(logs):
    log = logs.log(**compacted(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000))
    for number in range(3):
        append(logs, log, (b"a", b"%d" % number))
        log.roll()
    append(logs, log, (b"active", b""))
    job = make_job(cleanable(log, None, 0), 0, map_bytes=2400, map_load_factor=0.9)
    cleaned = next(run_pass(logs.files, job, lambda _: None))
    assert isinstance(cleaned, CleanedSegment)
    swap = SegmentSwap(log, job, cleaned)
    assert swap.begin()
    log.update_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(2)
    assert delete_old_segments(log, logs.clock.now_ms()) == 2
    assert not swap.finish()
    assert not SegmentSwap(log, job, cleaned).begin()
    remove_cleaned_files(logs.files, log.directory)
    assert not [path for path in Path(log.directory).iterdir() if path.suffix in (".swap", ".cleaned")]


def test_a_swap_without_a_descriptor_is_taken_back(logs, tools):
    """No file was synced, and nothing depends on the swap: the next pass repeats it."""
    log = logs.log(**compacted())
    for number in range(3):
        append(logs, log, (b"a", b"%d" % number))
        log.roll()
    append(logs, log, (b"active", b""))
    before = batches(tools, log)
    job = make_job(cleanable(log, None, 0), 0, map_bytes=2400, map_load_factor=0.9)
    swap = SegmentSwap(log, job, next(run_pass(logs.files, job, lambda _: None)))
    assert swap.begin()

    def refused(_):
        raise OSError(errno.EMFILE, "too many open files")

    logs.files.before["sync_directory"] = refused
    swap.sync()
    logs.files.before.clear()
    with pytest.raises(StorageError, match="too many open files"):
        swap.finish()
    assert not logs.failures
    assert batches(tools, log) == before
    assert not [path for path in Path(log.directory).iterdir() if path.suffix in (".swap", ".cleaned")]
    clean(log)
    assert [found for _, found, _ in records(tools, log)] == [b"a", b"active"]


def test_the_cleaner_checkpoint_survives_a_restart(logs):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"))
    path = logs.path / "cleaner-offset-checkpoint"
    assert path.read_text() == "0\n0\n", "written before anything is compacted"
    assert log.clean_offset is None
    logs.manager.checkpoint_clean_offset(log, 1)
    assert path.read_text() == "0\n1\ntopic 0 1\n"
    logs.restart()
    assert logs.log().clean_offset == 1


@pytest.mark.parametrize("clean", [False, True])
def test_lost_and_truncated_records_are_not_clean(logs, clean):
    log = logs.log(**compacted())
    for _ in range(4):
        append(logs, log, (b"a", b"1"))
    logs.manager.checkpoint_clean_offset(log, 4)
    truncate_with_checkpoints(logs.manager, log, 3)
    assert log.clean_offset == 3
    append(logs, log, (b"a", b"1"))
    logs.restart(clean=clean)
    assert logs.log().clean_offset == 3
    (logs.path / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 9\n")
    logs.restart(clean=clean)
    append(logs, logs.log(), *[(b"a", b"1")] * 9)
    logs.restart(clean=clean)
    assert logs.log().clean_offset == 4


def test_a_log_of_a_name_that_was_used_before_is_not_clean(logs):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"))
    logs.manager.checkpoint_clean_offset(log, 1)
    logs.manager.delete("topic", 0)
    logs.restart(clean=False)
    assert logs.log().clean_offset is None
    logs.restart(clean=False)
    assert logs.log().clean_offset is None


@pytest.mark.parametrize(
    ("content", "was_kafka_here"),
    [(None, False), ("", False), ("nonsense", False), ("0\n1\ntopic 0 1\n", False), ("0\n1\nother 0 1\n", True)],
)
def test_a_gap_in_a_log_that_was_compacted_is_no_damage(logs, tools, content, was_kafka_here):
    """Recovery reads from the checkpoint, written before the first swap, that a log was compacted: its policy may have
    changed since. Without a checkpoint any log may have been compacted, and also if Kafka, which writes the checkpoint
    after the swap, was killed."""
    log = logs.log(**compacted(segment_bytes=250))
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    append(logs, log, (b"b", bytes(100)))
    append(logs, log, (b"a", b"old"))
    log.roll()
    append(logs, log, (b"a", bytes(100)))
    log.roll()
    append(logs, log, (b"c", b"1"))
    logs.manager.checkpoint_clean_offset(log, 0)
    clean(log)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 3]
    logs.config = LogConfig()
    path = logs.path / "cleaner-offset-checkpoint"
    path.unlink() if content is None else path.write_text(content)
    if was_kafka_here:
        (logs.path / "barnabas-transaction-indexes").unlink()
    recovery_points = (logs.path / "recovery-point-offset-checkpoint").read_bytes()
    for _ in range(2):
        (logs.path / "recovery-point-offset-checkpoint").write_bytes(recovery_points)
        logs.restart(clean=False)
        log = logs.manager.get("topic", 0)
        assert records(tools, log) == [(0, b"b", bytes(100)), (2, b"a", bytes(100)), (3, b"c", b"1")]
        assert log.log_end_offset == 4


def test_the_clean_offset_of_an_offline_log_is_kept(logs):
    for topic in ("offline", "other"):
        log = logs.log(topic, **compacted())
        append(logs, log, (b"a", b"1"))
        append(logs, log, (b"b", b"1"))
        logs.manager.checkpoint_clean_offset(log, 1)
    path = logs.path / "offline-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + b"?" + whole[21:])
    logs.restart(clean=False)
    with pytest.raises(StorageError):
        logs.log("offline")
    logs.manager.checkpoint_clean_offset(logs.log("other"), 2)
    path.write_bytes(whole)
    logs.restart(clean=False)
    assert [logs.log(topic).clean_offset for topic in ("offline", "other")] == [1, 2]


@pytest.mark.parametrize("content", [None, "nonsense"])
def test_a_broker_starts_on_a_full_disk_without_the_checkpoint(logs, content):
    append(logs, logs.log(**compacted()), (b"a", b"1"))
    logs.stop()
    path = logs.path / "cleaner-offset-checkpoint"
    path.unlink() if content is None else path.write_text(content)
    logs.files.write_limit = 0
    logs.start()
    assert logs.manager.get("topic", 0).clean_offset == 0
    logs.files.write_limit = None
    logs.restart(clean=False)
    assert logs.manager.get("topic", 0).clean_offset == 0
    assert not logs.failures


@pytest.mark.parametrize("full", ["cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_notes_are_written_after_the_cleaner_checkpoint(logs, full):
    """The notes say that Kafka was not the last to write the directory. If Kafka was killed, the checkpoint names all
    logs before there are notes."""
    append(logs, logs.log(**compacted()), (b"a", b"1"))
    logs.stop(clean=False)
    (logs.path / "barnabas-transaction-indexes").unlink()
    checkpoint = logs.path / "cleaner-offset-checkpoint"
    checkpoint.write_text("0\n1\nother 0 1\n")

    def refused(path, *, create=False, truncate=False):
        if full in path and create:
            raise OSError(errno.ENOSPC, "the disk is full")

    logs.files.before["open"] = refused
    logs.start()
    assert logs.manager.get("topic", 0).clean_offset == 0
    assert ("topic 0 0" in checkpoint.read_text()) == (full != "cleaner-offset-checkpoint")
    assert not (logs.path / "barnabas-transaction-indexes").exists()
    logs.files.before.clear()
    logs.manager.checkpoint(RECOVERY_POINT_FILE)
    assert "topic 0 0" in checkpoint.read_text()
    logs.restart(clean=False)
    assert logs.manager.get("topic", 0).clean_offset == 0
    assert not logs.failures


@pytest.mark.parametrize("passing", [True, False])
def test_records_that_the_disk_refused_are_not_clean(logs, passing):
    log = logs.log(**compacted())
    append(logs, log, (b"a", b"1"))
    logs.files.write_limit, logs.files.fail_sync = (0, False) if passing else (None, True)
    with pytest.raises(OSError, match="disk"):
        logs.manager.checkpoint_clean_offset(log, 1)
    assert log.clean_offset is None
    assert len(logs.failures) == (0 if passing else 1)
