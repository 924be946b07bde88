"""The segments that retention deletes."""

from __future__ import annotations

import pytest

from barnabas.storage import retention
from barnabas.storage.segment_removal import delete_old_segments
from barnabas.wire.errors import ApiError, ErrorCode


def test_plans():
    assert retention.count_replicated([5, 10, 15], 10) == 2
    assert retention.breached_by_start([5, 10], 9) == 1
    assert retention.breached_by_size([10, 10, 10], 20) == 1
    assert retention.breached_by_size([10, 10, 10], 11) == 1
    assert retention.breached_by_size([10, 10, 10], 0) == 3
    assert retention.breached_by_size([10, 10, 10], -1) == 0
    assert retention.breached_by_size([10, 10, 10], 40) == 0
    assert retention.breached_by_time([0, 50, 99], 49, 100) == 2
    assert retention.breached_by_time([0, None, 0], 49, 100) == 1
    assert retention.breached_by_time([0], -1, 100) == 0


def fill(logs, **settings):
    log = logs.log(segment_bytes=70, file_delete_delay_ms=0, **settings)
    for _ in range(6):
        logs.append(log, b"x", epoch=1)
        logs.clock.advance(1000)
    assert len(log.segments) == 6
    return log


def names(logs, suffix):
    return sorted(path.name for path in (logs.path / "topic-0").glob("*" + suffix))


def test_by_size_with_the_settings_of_spark_s_tests(logs, tools):
    log = fill(logs, retention_bytes=40)
    assert delete_old_segments(log, logs.clock.now_ms()) == 5
    assert (log.log_start_offset, tools.read_all(log)) == (5, [5])
    assert log.leader_epochs.entries == [(1, 5)]
    assert logs.manager.delete_due_files() == 5
    assert names(logs, ".log") == ["00000000000000000005.log"]
    assert names(logs, ".snapshot") == ["00000000000000000005.snapshot"]
    assert names(logs, "index") == []
    with pytest.raises(ApiError) as raised:
        tools.read(log, 4)
    assert raised.value.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_by_time_the_active_segment_too(logs, tools):
    log = fill(logs, retention_ms=2500)
    assert delete_old_segments(log, logs.clock.now_ms()) == 4
    logs.clock.advance(10_000)
    assert delete_old_segments(log, logs.clock.now_ms()) == 2
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (6, 6, 1)
    assert delete_old_segments(log, logs.clock.now_ms()) == 0
    assert logs.append(log, b"y").base_offset == 6
    for clean in (True, False):
        logs.restart(clean=clean)
        assert tools.read_all(logs.log()) == [6]


def test_by_time_of_the_file_where_batches_have_no_timestamp(logs):
    log = logs.log(retention_ms=1000)
    logs.append(log, b"x", timestamp=-1)
    log.roll()
    modified = int((logs.path / "topic-0" / "00000000000000000000.log").stat().st_mtime * 1000)
    assert delete_old_segments(log, modified + 900) == 0
    assert delete_old_segments(log, modified + 2000) == 1


def test_nothing_beyond_the_high_watermark_goes(logs):
    log = fill(logs, retention_ms=0)
    log.update_high_watermark(3)
    logs.clock.advance(1)
    assert delete_old_segments(log, logs.clock.now_ms()) == 3
    assert log.log_start_offset == 3


def test_compacted_topics_lose_only_what_was_deleted_explicitly(logs):
    log = fill(logs, retention_ms=0, retention_bytes=0)
    log.update_config(logs.config.__class__(cleanup_policy=frozenset({"compact"}), retention_ms=0, retention_bytes=0))
    assert delete_old_segments(log, logs.clock.now_ms() + 10**9) == 0
    log.increment_log_start_offset(3)
    assert delete_old_segments(log, logs.clock.now_ms()) == 3
    assert [segment.base_offset for segment in log.segments] == [3, 4, 5]


def test_delete_records_moves_the_log_start_offset(logs, tools):
    """It is never beyond the high watermark."""
    log = fill(logs)
    log.update_high_watermark(4)
    with pytest.raises(ApiError) as raised:
        log.increment_log_start_offset(5)
    assert raised.value.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.increment_log_start_offset(4)
    assert not log.increment_log_start_offset(2)
    assert log.log_start_offset == log.high_watermark == 4
    assert tools.read_all(log) == [4, 5]


def test_retention_after_a_restart_reads_what_it_needs(logs):
    fill(logs, retention_ms=2500)
    logs.restart()
    assert delete_old_segments(logs.log(), logs.clock.now_ms()) == 4


def test_deleted_files_wait_for_file_delete_delay(logs):
    log = fill(logs, retention_bytes=0)
    log.update_config(logs.config.__class__(retention_bytes=0, file_delete_delay_ms=100))
    delete_old_segments(log, logs.clock.now_ms())
    assert len(names(logs, ".log.deleted")) == 6
    assert logs.manager.delete_due_files() == 0
    logs.clock.advance(100)
    assert logs.manager.delete_due_files() == 6
    assert names(logs, ".deleted") == []


def test_files_of_a_deleted_log_are_not_those_of_the_next_log(logs):
    """Both logs have the same name and a segment that retention deleted. The later segment is still being flushed when
    the earlier one is due."""
    log = fill(logs, retention_bytes=0)
    log.update_config(logs.config.__class__(retention_bytes=0, file_delete_delay_ms=100))
    delete_old_segments(log, logs.clock.now_ms())
    logs.manager.delete("topic", 0)
    again = fill(logs, retention_bytes=0)
    again.update_config(logs.config.__class__(retention_bytes=0, file_delete_delay_ms=1000))
    flush = again.prepare_flush()
    delete_old_segments(again, logs.clock.now_ms())
    logs.clock.advance(100)
    logs.manager.delete_due_files()
    flush.run()
    again.complete_flush(flush)
    assert flush.error is None
    assert len(names(logs, ".log.deleted")) == 6
