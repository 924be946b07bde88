"""PartitionLog: append, read, roll, duplicates, failures of the disk."""

from __future__ import annotations

import pytest

from barnabas.storage.checkpoints import HIGH_WATERMARK_FILE
from barnabas.storage.errors import StorageError
from barnabas.storage.segment_reader import ColdRead
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import parse_header
from tests.storage.blocking import flush, run_flushes, truncate


def error_of(raised):
    return raised.value.error


def test_append_assigns_offsets_and_epoch(logs, tools):
    """The bytes that are read have them."""
    log = logs.log()
    assert logs.append(log, b"a", b"b", epoch=3)[:2] == (0, 1)
    assert logs.append(log, b"c", epoch=3)[:2] == (2, 2)
    data = tools.read(log, 0)
    assert tools.base_offsets(data.records) == [0, 2]
    assert parse_header(data.records).partition_leader_epoch == 3
    assert data.next_offset == log.log_end_offset == 3
    assert log.end_offset_for_epoch(3) == (3, 3)


def test_the_first_segment_has_kafkas_name_and_bytes(logs, tools):
    log = logs.log()
    produced = tools.batch(b"a")
    log.append_as_leader(bytearray(produced), leader_epoch=0, now_ms=logs.clock.now_ms())
    written = (logs.path / "topic-0" / "00000000000000000000.log").read_bytes()
    assert written[:8] == bytes(8)
    assert written[12:16] == bytes(4)
    assert written[16:] == produced[16:]


def test_a_read_starts_with_the_batch_that_contains_the_offset(logs, tools):
    log = logs.log()
    logs.append(log, b"a", b"b", b"c")
    logs.append(log, b"d")
    assert tools.base_offsets(tools.read(log, 1).records) == [0, 3]
    assert tools.base_offsets(tools.read(log, 3).records) == [3]


def test_a_read_stops_before_the_batch_that_reaches_the_limit(logs, tools):
    log = logs.log()
    for _ in range(3):
        logs.append(log, b"a", b"b")
    assert tools.base_offsets(tools.read(log, 0, max_offset=4).records) == [0, 2]
    assert tools.base_offsets(tools.read(log, 0, max_offset=5).records) == [0, 2]
    assert tools.read(log, 4, max_offset=4).records == b""


def test_max_bytes_returns_whole_batches(logs, tools):
    """The first batch is whole even if it is larger."""
    log = logs.log()
    for _ in range(3):
        logs.append(log, b"x" * 1000)
    size = log.size_in_bytes // 3
    assert tools.base_offsets(tools.read(log, 0, 2 * size + 10).records) == [0, 1]
    for max_bytes in (0, 1, 60, 61, size - 1, size, size + 1):
        assert tools.base_offsets(tools.read(log, 1, max_bytes).records) == [1], max_bytes
    small = tools.read(log, 1, size - 1, min_one_message=False)
    assert (small.records, small.is_cut) == (b"", True)
    assert tools.read(log, 1, 0, min_one_message=False).records == b""


def test_offsets_outside_the_log_are_refused(logs, tools):
    log = logs.log()
    logs.append(log, b"a")
    assert tools.read(log, 1).records == b""
    for offset in (-1, 2):
        with pytest.raises(ApiError) as raised:
            tools.read(log, offset)
        assert error_of(raised) is ErrorCode.OFFSET_OUT_OF_RANGE
    log.increment_log_start_offset(1)
    with pytest.raises(ApiError):
        tools.read(log, 0)


def test_every_offset_is_found_across_segments_and_index_entries(logs, tools):
    log = logs.log(segment_bytes=4000, index_interval_bytes=300)
    for number in range(100):
        logs.append(log, *[b"v" * 20] * (1 + number % 4))
    assert len(log.segments) > 2
    expected = tools.read_all(log)
    for warm in (True, False):
        if not warm:
            logs.files.cached = False
            logs.restart()
            log = logs.log()
        for offset in range(log.log_end_offset):
            containing = max(base for base in expected if base <= offset)
            assert tools.base_offsets(tools.read(log, offset, 1).records) == [containing]
        assert tools.read_all(log) == expected


def test_a_batch_larger_than_a_segment_is_refused(logs, tools):
    """Tiny segments work."""
    log = logs.log(segment_bytes=14)
    with pytest.raises(ApiError) as raised:
        logs.append(log, b"a")
    assert error_of(raised) is ErrorCode.RECORD_LIST_TOO_LARGE
    log = logs.log(segment_bytes=70)
    for _ in range(3):
        logs.append(log, b"a")
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert tools.read_all(log) == [0, 1, 2]


def test_segments_roll_by_the_timestamps_of_batches(logs):
    log = logs.log(segment_ms=1000)
    start = logs.clock.now_ms()
    logs.append(log, b"a", timestamp=start)
    logs.clock.advance(5000)
    logs.append(log, b"b", timestamp=start + 1000)
    assert len(log.segments) == 1
    logs.append(log, b"c", timestamp=start + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_batch_without_timestamp_rolls_by_the_segments_age(logs):
    log = logs.log(segment_ms=1000)
    logs.append(log, b"a", timestamp=-1)
    logs.clock.advance(1001)
    logs.append(log, b"b", timestamp=-1)
    assert len(log.segments) == 2


def test_an_offset_too_far_from_the_base_rolls(logs, tools):
    log = logs.log()
    logs.append(log, b"a")
    far = tools.batch(b"b", base_offset=1 << 31, partition_leader_epoch=0)
    # Offset 2^31 is one too many for an index entry of four bytes.
    log.append_as_follower(far, now_ms=logs.clock.now_ms())
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31]


def test_sealed_segments_leave_index_files_as_kafka_writes_them(logs):
    log = logs.log(segment_bytes=1000, index_interval_bytes=100)
    start = logs.clock.now_ms()
    size = 0
    for number in range(20):
        logs.append(log, b"x" * 40, timestamp=start + number)
        size = size or log.size_in_bytes
    stem = logs.path / "topic-0" / "00000000000000000000"
    per_segment = 1000 // size
    index = stem.with_suffix(".index").read_bytes()
    entries = [
        (int.from_bytes(index[at : at + 4]), int.from_bytes(index[at + 4 : at + 8])) for at in range(0, len(index), 8)
    ]
    # A batch is larger than the interval: an entry for every batch but the first.
    assert entries == [(number, number * size) for number in range(1, per_segment)]
    times = stem.with_suffix(".timeindex").read_bytes()
    last = (int.from_bytes(times[-12:-4]), int.from_bytes(times[-4:]))
    assert last == (start + per_segment - 1, per_segment - 1)
    assert (logs.path / "topic-0" / f"{per_segment:020d}.snapshot").exists()


def producer(sequence, count=1, epoch=0, producer_id=9, **settings):
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence, **settings}, count


def send(logs, log, sequence, count=1, epoch=0, **settings):
    keywords, _ = producer(sequence, count, epoch, **settings)
    return logs.append(log, *[b"v"] * count, **keywords)


@pytest.mark.parametrize("restart", [None, True, False])
def test_the_last_five_batches_of_a_producer_are_recognised(logs, tools, restart):
    """Also after a restart."""
    log = logs.log(index_interval_bytes=100)
    logs.append(log, b"someone else")
    infos = [send(logs, log, sequence, 2) for sequence in range(0, 14, 2)]
    if restart is not None:
        logs.restart(clean=restart)
        log = logs.log()
    end = log.log_end_offset
    for number in range(2, 7):
        info = send(logs, log, 2 * number, 2)
        assert info.duplicate
        assert info[:2] == infos[number][:2]
    for sequence, count in ((0, 2), (2, 2), (12, 1), (13, 1), (16, 2)):
        with pytest.raises(ApiError) as raised:
            send(logs, log, sequence, count)
        assert error_of(raised) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == end
    assert not send(logs, log, 14).duplicate


def test_epochs_and_sequences_of_producers(logs):
    log = logs.log()
    send(logs, log, 77, epoch=1)  # unknown producers may start anywhere
    send(logs, log, 78, epoch=1)
    with pytest.raises(ApiError) as raised:
        send(logs, log, 79, epoch=0)
    assert error_of(raised) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ApiError) as raised:
        send(logs, log, 79, epoch=2)
    assert error_of(raised) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(logs, log, 0, epoch=2)
    (producer,) = list(log.producer_state.producers.values())
    assert (producer.producer_id, producer.epoch, producer.last_sequence) == (9, 2, 0)


def test_sequences_wrap_around(logs):
    log = logs.log()
    send(logs, log, 2**31 - 2, 3)
    assert next(iter(log.producer_state.producers.values())).last_sequence == 0
    send(logs, log, 1)
    assert send(logs, log, 2**31 - 2, 3).duplicate


def test_producers_expire(logs):
    log = logs.log()
    send(logs, log, 0)
    logs.clock.advance(86_400_000)
    log.producers.remove_expired(logs.clock.now_ms())
    assert list(log.producer_state.producers.values()) == []
    assert not send(logs, log, 55).duplicate


def test_a_failed_write_is_rolled_back_and_a_later_one_succeeds(logs, tools):
    log = logs.log()
    logs.append(log, b"a")
    size = log.size_in_bytes
    for limit in (0, 1, 60):
        logs.files.write_limit = limit
        with pytest.raises(StorageError):
            send(logs, log, 0)
        assert (logs.path / "topic-0" / "00000000000000000000.log").stat().st_size == size
        assert log.log_end_offset == 1
    logs.files.write_limit = None
    assert log.failure is None
    assert not send(logs, log, 0).duplicate
    assert tools.read_all(log) == [0, 1]


def test_a_failed_roll_back_takes_the_log_offline(logs):
    log = logs.log()
    logs.append(log, b"a")
    logs.files.write_limit, logs.files.fail_truncate = 10, True
    with pytest.raises(StorageError):
        logs.append(log, b"b")
    logs.files.write_limit, logs.files.fail_truncate = None, False
    assert len(logs.failures) == 1
    for attempt in (lambda: logs.append(log, b"c"), lambda: log.read(0, 100), lambda: flush(log)):
        with pytest.raises(StorageError):
            attempt()


def test_short_writes_are_completed(logs, tools):
    log = logs.log()
    logs.files.write_size_max = 7
    logs.append(log, b"a")
    logs.append(log, b"b")
    assert tools.read_all(log) == [0, 1]


def test_a_failed_flush_is_final(logs):
    log = logs.log()
    logs.append(log, b"a")
    task = log.prepare_flush()
    assert log.prepare_flush() is None, "one flush at a time"
    logs.files.fail_sync = True
    task.run()
    log.complete_flush(task)
    logs.files.fail_sync = False
    assert log.recovery_point == 0
    with pytest.raises(StorageError):
        logs.append(log, b"b")
    assert len(logs.failures) == 1


def test_flush_messages_needs_a_flush_before_acknowledging(logs):
    log = logs.log(flush_messages=2)
    assert not logs.append(log, b"a").flush_required
    assert logs.append(log, b"b").flush_required
    flush(log)
    assert log.recovery_point == 2
    assert not logs.append(log, b"c").flush_required


def test_a_duplicate_of_an_unflushed_batch_needs_the_flush(logs):
    log = logs.log(flush_messages=1)
    for flushes in (False, True):
        if flushes:
            flush(log)
        info = send(logs, log, 0)
        assert (info.duplicate, info.flush_required) == (flushes, not flushes)
        assert send(logs, log, 0).flush_required is (not flushes)


def test_flush_ms_makes_a_log_due(logs):
    log = logs.log(flush_ms=500)
    logs.append(log, b"a")
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1, "the log is new"
    logs.append(log, b"b")
    assert logs.manager.logs_to_flush(logs.clock.now_ms()) == []
    logs.clock.advance(500)
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1
    assert log.recovery_point == 2


def test_a_clock_that_is_set_back_puts_no_flush_off(logs):
    """By a day, for example: `flush.ms` counts from there."""
    log = logs.log(flush_ms=500)
    logs.append(log, b"a")
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1, "the log is new"
    logs.append(log, b"b")
    day_before_ms = logs.clock.now_ms() - 86_400_000
    assert run_flushes(logs.manager, day_before_ms) == 0
    assert run_flushes(logs.manager, day_before_ms + 500) == 1
    assert log.recovery_point == 2


def test_a_roll_and_an_epoch_do_not_flush_the_active_segment(logs):
    """A sync of it would delay appends. By `flush.ms` it reaches the disk all the same."""
    log = logs.log(flush_ms=500)
    logs.append(log, b"a")
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1, "the log is new"
    logs.append(log, b"b")
    log.roll()
    logs.append(log, b"c", epoch=1)
    logs.files.synced.clear()
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1
    sealed, active = ((logs.path / "topic-0" / f"{offset:020}.log").as_posix() for offset in (0, 2))
    assert sealed in logs.files.synced
    assert active not in logs.files.synced
    assert (logs.path / "topic-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:] == ["0 0", "1 2"]
    assert log.recovery_point == 2
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 0
    logs.clock.advance(500)
    assert run_flushes(logs.manager, logs.clock.now_ms()) == 1
    assert active in logs.files.synced
    assert log.recovery_point == 3


def test_appends_during_a_flush_are_not_covered_by_it(logs):
    log = logs.log()
    logs.append(log, b"a")
    task = log.prepare_flush()
    logs.append(log, b"b")
    task.run()
    log.complete_flush(task)
    assert log.recovery_point == 1


def test_a_truncation_during_a_flush_limits_what_it_covers(logs):
    log = logs.log()
    for value in (b"a", b"b", b"c"):
        logs.append(log, value)
    task = log.prepare_flush()
    truncate(log, 1)
    logs.append(log, b"d", epoch=1)
    task.run()
    log.complete_flush(task)
    assert log.recovery_point <= 1
    flush(log)
    assert log.recovery_point == 2


@pytest.mark.parametrize("event", ["truncate", "roll", "retention", "delete topic", "unlink at once"])
def test_a_captured_read_survives_what_happens_to_the_log(logs, tools, event):
    log = logs.log(file_delete_delay_ms=0, retention_ms=1000)
    for number in range(5):
        logs.append(log, b"v%d" % number)
    if event != "truncate":
        log.roll()
    logs.files.cached = False
    logs.restart()
    log = logs.log()
    with pytest.raises(ColdRead) as raised:
        log.read(0, 1 << 20, max_offset=3)
    logs.clock.advance(10_000)
    if event == "truncate":
        truncate(log, 3)
    elif event == "roll":
        log.roll()
    elif event == "delete topic":
        logs.manager.delete("topic", 0)
    else:
        log.update_high_watermark(5)
        assert delete_old_segments(log, logs.clock.now_ms()) == 1
    if event == "unlink at once":
        logs.manager.delete_due_files()
        assert log.read(5, 100).records == b""
    assert tools.base_offsets(raised.value.load().records) == [0, 1, 2]
    logs.manager.delete_due_files()
    left = [path.name for path in logs.path.rglob("*.deleted")]
    assert left == []


def test_an_unused_cold_read_lets_go_of_its_file(logs):
    log = logs.log(file_delete_delay_ms=0)
    logs.append(log, b"a")
    logs.files.cached = False
    logs.restart()
    log = logs.log()
    with pytest.raises(ColdRead) as raised:
        log.read(0, 100)
    file = log.segments[0].file
    assert file.holders == 1
    del raised
    assert file.holders == 0


def test_readable_bytes_estimates_without_reading(logs):
    log = logs.log(segment_bytes=1000)
    for _ in range(40):
        logs.append(log, b"x" * 100)
    size = log.size_in_bytes // 40
    assert log.readable_bytes(40, 40, 1 << 20) == 0
    assert log.readable_bytes(39, 40, 1 << 20) == size
    assert log.readable_bytes(0, 40, 1 << 20) == 40 * size
    assert log.readable_bytes(0, 40, 50) == 50


def test_a_follower_keeps_offsets_and_epochs(logs, tools, make_logs):
    """It refuses a batch with another offset than the next one."""
    leader, follower = logs.log(), make_logs("follower").log()
    logs.append(leader, b"a", b"b", epoch=1)
    logs.append(leader, b"c", epoch=4)
    data = bytes(tools.read(leader, 0).records)
    info = follower.append_as_follower(data, now_ms=0)
    assert info[:2] == (0, 2)
    assert follower.leader_epochs.entries == [(1, 0), (4, 2)]
    assert bytes(tools.read(follower, 0).records) == data
    with pytest.raises(ApiError) as raised:
        follower.append_as_follower(data, now_ms=0)
    assert error_of(raised) is ErrorCode.OFFSET_OUT_OF_RANGE
    broken = bytearray(tools.batch(b"x", base_offset=3, partition_leader_epoch=4))
    broken[-1] ^= 1
    with pytest.raises(ApiError) as raised:
        follower.append_as_follower(broken, now_ms=0)
    assert error_of(raised) is ErrorCode.CORRUPT_MESSAGE
    higher = tools.batch(b"x", base_offset=3, partition_leader_epoch=9)
    assert follower.append_as_follower(higher, now_ms=0, leader_epoch=4) is None


def test_a_follower_refuses_a_response_with_descending_offsets(logs, tools):
    """A bit of a base offset, which no CRC covers, has turned at the leader. It is not known which batch is wrong."""
    follower = logs.log()
    far, next_one = (tools.batch(b"x", base_offset=at, partition_leader_epoch=0) for at in (1 << 40, 1))
    with pytest.raises(ApiError) as raised:
        follower.append_as_follower(far + next_one, now_ms=0)
    assert error_of(raised) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.log_end_offset == 0


@pytest.mark.parametrize("offset", [1, 60])
def test_a_log_that_is_cut_ends_behind_its_last_batch(logs, tools, offset):
    """Records before the truncation were compacted, or never fetched: they are fetched again, and not taken for
    records."""
    log = logs.log()
    logs.append(log, b"a")
    log.append_as_follower(tools.batch(b"x", base_offset=1 << 40, partition_leader_epoch=0), now_ms=0)
    assert len(log.segments) == 2
    log.high_watermark = 1
    truncate(log, offset)
    assert log.log_end_offset == 1
    assert len(log.segments) == 1


def test_truncation_restores_epochs_producers_and_offsets(logs, tools):
    log = logs.log(segment_bytes=400)
    for sequence in range(10):
        send(logs, log, sequence, epoch=0)
    log.leader_epochs.assign(7, log.log_end_offset)
    logs.append(log, b"other", epoch=7)
    assert truncate(log, 4)
    assert (log.log_end_offset, log.high_watermark) == (4, 4)
    assert log.leader_epochs.entries == [(0, 0)]
    assert tools.read_all(log) == [0, 1, 2, 3]
    assert next(iter(log.producer_state.producers.values())).last_sequence == 3
    assert send(logs, log, 2).duplicate
    assert not send(logs, log, 4).duplicate
    assert not truncate(log, 99)
    truncate(log, 50, starts_anew=True)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    assert logs.append(log, b"x").base_offset == 50
    logs.restart(clean=False)
    assert tools.read_all(logs.log()) == [50]


def test_the_appended_count_is_known_without_counting(logs, tools):
    """After rolls, retention and truncations, which remove records but do not append; records from before the start do
    not count."""
    log = logs.log(segment_bytes=400)
    size = len(tools.batch(b"value"))
    appended = 0

    def append(count: int) -> None:
        nonlocal appended
        for _ in range(count):
            logs.append(log, b"value")
        appended += count

    assert log.appended == (0, 0)
    append(20)
    assert len(log.segments) > 3
    assert log.appended == (20, 20 * size)
    assert truncate(log, 3)
    assert log.appended == (20, 20 * size)
    append(10)
    log.roll()
    assert log.appended == (30, 30 * size)
    truncate(log, 100, starts_anew=True)
    append(7)
    assert log.appended == (appended, appended * size) == (37, 37 * size)
    logs.restart()
    log = logs.log(segment_bytes=400)
    assert log.appended == (0, 0)
    logs.append(log, b"value")
    assert log.appended == (1, size)


def test_after_a_truncation_the_old_index_file_is_not_asked(logs, tools):
    log = logs.log(index_interval_bytes=0)
    logs.append(log, b"")
    logs.append(log, b"")
    logs.restart()  # writes the index: the batch of offset 1 stands at byte 68
    log = logs.log(index_interval_bytes=0)
    truncate(log, 0)
    logs.append(log, b"", b"", b"")
    logs.append(log, b"")
    logs.files.opened.clear()
    truncate(log, 3)
    assert tools.base_offsets(tools.read(log, 1).records) == [0]
    assert not [path for path in logs.files.opened if path.endswith(".index")]


def test_after_a_truncation_times_are_looked_up_in_what_there_is(logs):
    log = logs.log(index_interval_bytes=0)
    for timestamp in (100, 200, 300):
        logs.append(log, b"", timestamp=timestamp)
    logs.restart()
    log = logs.log(index_interval_bytes=0)
    truncate(log, 0)
    for timestamp in (250, 260, 270):
        logs.append(log, b"", timestamp=timestamp)
    for _ in range(2):
        assert log.timestamp_lookup().first_at_or_after(240).offset == 0
        assert log.timestamp_lookup().largest().offset == 2
        log.roll()


def test_an_index_entry_behind_which_no_batch_fits_is_wrong(logs, tools):
    log = logs.log(index_interval_bytes=0)
    logs.append(log, b"")
    log.roll()
    logs.append(log, b"", b"", b"")
    log.segments[-1].offset_index.append(2, 68)
    log.increment_log_start_offset(1)
    delete_old_segments(log, 0)  # what was remembered of the latest batches is forgotten
    assert tools.base_offsets(tools.read(log, 2).records) == [1]


def test_the_log_start_offset_moves_forward_only(logs):
    log = logs.log()
    logs.append(log, b"x", b"y", b"z")
    assert [log.increment_log_start_offset(offset) for offset in (0, 2, 2, 1, 3)] == [False, True, False, False, True]
    assert log.log_start_offset == 3


def test_truncating_below_the_first_segment_starts_there(logs):
    log = logs.log(segment_bytes=100)
    for _ in range(4):
        logs.append(log, b"x")
    log.increment_log_start_offset(2)
    delete_old_segments(log, 0)
    truncate(log, 1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)


def test_transactions_hold_the_last_stable_offset_back(logs, tools):
    from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker

    log = logs.log()
    logs.append(log, b"plain")
    send(logs, log, 0, transactional=True)
    logs.append(log, b"plain")
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    with pytest.raises(ApiError) as raised:
        send(logs, log, 1)
    assert error_of(raised) is ErrorCode.INVALID_TXN_STATE

    def marker(control_type, epoch=5, coordinator_epoch=5):
        return build_end_txn_marker(
            EndTxnMarker(control_type, coordinator_epoch),
            producer_id=9,
            producer_epoch=epoch,
            timestamp_ms=logs.clock.now_ms(),
        )

    info = log.append_as_leader(
        marker(ControlRecordType.ABORT, epoch=0),
        leader_epoch=0,
        now_ms=logs.clock.now_ms(),
        origin=AppendOrigin.COORDINATOR,
    )
    assert log.last_stable_offset == 1, "the marker is not replicated yet"
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 4
    assert log.aborted_transactions(0, 4) == [(9, 1)]
    assert log.aborted_transactions(info.last_offset + 1, 9) == []
    with pytest.raises(ApiError) as raised:
        logs.append_raw(log, marker(ControlRecordType.COMMIT, 0, 4), AppendOrigin.COORDINATOR)
    assert error_of(raised) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    send(logs, log, 1, transactional=True)
    for clean in (True, False):
        logs.restart(clean=clean)
        log = logs.log()
        log.update_high_watermark(log.log_end_offset)
        assert log.last_stable_offset == 4
        assert log.aborted_transactions(0, 4) == [(9, 1)]
    logs.append_raw(log, marker(ControlRecordType.COMMIT, 0), AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == log.log_end_offset


def test_a_crash_does_not_hide_committed_transactions(logs, tools):
    """They were replicated, too."""
    from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker

    log = logs.log()
    send(logs, log, 0, transactional=True)
    marker = build_end_txn_marker(
        EndTxnMarker(ControlRecordType.COMMIT, 5), producer_id=9, producer_epoch=0, timestamp_ms=logs.clock.now_ms()
    )
    logs.append_raw(log, marker, AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    flush(log)  # the disk knows the segment's name from then on
    logs.manager.checkpoint(HIGH_WATERMARK_FILE)

    logs.restart(clean=False)

    log = logs.log()
    assert log.last_stable_offset == log.high_watermark == log.log_end_offset == 2


def test_offsets_are_found_by_timestamp(logs, tools):
    log = logs.log(segment_bytes=2000, index_interval_bytes=200)
    start = logs.clock.now_ms()
    for number in range(60):
        logs.append(log, b"x" * 30, b"y" * 30, timestamp=start + 10 * (number if number != 33 else 40))
    for restarted in (False, True):
        if restarted:
            logs.restart()
            log = logs.log()
        assert log.timestamp_lookup().first_at_or_after(0).offset == 0
        for number in range(33):
            assert log.timestamp_lookup().first_at_or_after(start + 10 * number).offset == 2 * number
            assert log.timestamp_lookup().first_at_or_after(start + 10 * number + 1).offset == 2 * number + 2
        found = log.timestamp_lookup().first_at_or_after(start + 350)
        assert (found.timestamp, found.offset, found.leader_epoch) == (start + 400, 66, 0)
        assert log.timestamp_lookup().first_at_or_after(start + 591) is None
        assert log.timestamp_lookup().largest().offset == 118
    log.update_high_watermark(log.log_end_offset)
    log.increment_log_start_offset(101)
    assert log.timestamp_lookup().first_at_or_after(0).offset == 101


def test_the_largest_timestamp_of_an_empty_log_is_nowhere(logs):
    log = logs.log()
    assert log.timestamp_lookup().largest() is None
    assert log.timestamp_lookup().first_at_or_after(0) is None
