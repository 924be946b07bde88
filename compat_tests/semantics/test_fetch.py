"""Fetch: limits, positions, long polls, epochs, sessions (KIP-227)."""

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.wire.compression import CompressionType
from barnabas.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.wire.record_batch import iter_headers
from compat_tests.semantics.client import (
    Connection,
    batch_of,
    fetch_partition,
    fetch_request,
    produce_batch,
    records_of,
    topic_metadata,
)

Connect = Callable[[], Connection]
MakeTopic = Callable[..., str]

HOUR_MS = 3_600_000
"""Longer than a client waits: whoever gets an answer does not get it because the time is over."""


def test_no_records_are_empty_not_null(topic: str, connection: Connection) -> None:
    for version in (4, 11, 12):
        answer = fetch_partition(connection, topic, 0, version=version)
        assert answer.error_code == 0
        assert answer.records is not None
        assert bytes(answer.records) == b""
        assert (answer.high_watermark, answer.last_stable_offset) == (0, 0)


@pytest.mark.parametrize("version", range(4, 18))
def test_every_version_is_served(topic: str, connection: Connection, version: int) -> None:
    produce_batch(connection, topic, batch_of([b"a", b"b"]))
    name: Any = topic_metadata(connection, topic).topic_id if version >= 13 else topic
    answer = fetch_partition(connection, name, 0, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    assert [record.value for record in records_of(answer)] == [b"a", b"b"]
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert answer.preferred_read_replica == -1


def test_the_batch_around_the_offset_is_returned_whole(topic: str, connection: Connection) -> None:
    for values in ([b"0", b"1", b"2"], [b"3", b"4"], [b"5"]):
        produce_batch(connection, topic, batch_of(values, compression=CompressionType.ZSTD))
    assert [record.offset for record in records_of(fetch_partition(connection, topic, 1))] == [0, 1, 2, 3, 4, 5]
    assert [record.offset for record in records_of(fetch_partition(connection, topic, 4))] == [3, 4, 5]
    assert [record.offset for record in records_of(fetch_partition(connection, topic, 5))] == [5]
    assert records_of(fetch_partition(connection, topic, 6)) == []


def test_the_first_batch_is_whole_beyond_every_limit(topic: str, connection: Connection) -> None:
    for number in range(3):
        produce_batch(connection, topic, batch_of([bytes([number]) * 5000]))
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}, {"max_bytes": 1, "partition_max_bytes": 1}):
        answer = fetch_partition(connection, topic, 1, **limits)
        assert [(record.offset, len(record.value or b"")) for record in records_of(answer)] == [(1, 5000)]


def test_limits_are_kept_after_the_first_batch(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic(partitions=2)
    for partition in range(2):
        for _ in range(3):
            produce_batch(connection, topic, batch_of([b"x" * 5000]), partition=partition)

    def offsets(**limits: int) -> dict[int, list[int]]:
        response = connection.ask(fetch_request([(topic, 0, 0), (topic, 1, 0)], **limits), 12)
        return {
            part.partition_index: [header.base_offset for header in iter_headers(bytes(part.records))]
            for answered in response.responses
            for part in answered.partitions
        }

    assert offsets(max_bytes=1) == {0: [0], 1: []}
    assert offsets(partition_max_bytes=1) == {0: [0], 1: []}
    assert offsets(partition_max_bytes=11_000) == {0: [0, 1], 1: [0, 1]}
    assert offsets(max_bytes=21_000) == {0: [0, 1, 2], 1: [0]}


def test_partitions_are_answered_in_the_order_asked(ready_topic: MakeTopic, connection: Connection) -> None:
    first, second = ready_topic(), ready_topic()
    for topic in (first, second):
        produce_batch(connection, topic, batch_of([topic.encode()]))
    for order in ([first, second], [second, first]):
        response = connection.ask(fetch_request([(topic, 0, 0) for topic in order], max_bytes=1), 12)
        sizes = {answered.topic: len(answered.partitions[0].records) for answered in response.responses}
        assert sizes[order[0]] > 0
        assert sizes[order[1]] == 0


def test_offsets_out_of_range(topic: str, connection: Connection) -> None:
    produce_batch(connection, topic, batch_of([b"a", b"b"]))
    for offset in (3, 1000, -1, -2):
        answer = fetch_partition(connection, topic, offset)
        assert (answer.error_code, bytes(answer.records or b"")) == (1, b""), offset
    assert fetch_partition(connection, topic, 2).error_code == 0


def test_an_error_is_answered_at_once(topic: str, topic_name: str, connection: Connection) -> None:
    assert fetch_partition(connection, topic, 99, max_wait_ms=HOUR_MS).error_code == 1
    assert fetch_partition(connection, topic_name, 0, max_wait_ms=HOUR_MS).error_code == 3
    assert fetch_partition(connection, topic, 0, partition=5, max_wait_ms=HOUR_MS).error_code == 3
    assert fetch_partition(connection, b"\x01" * 16, 0, version=13, max_wait_ms=HOUR_MS).error_code == 100


def test_a_long_poll_that_is_over_answers_empty(topic: str, connection: Connection) -> None:
    answer = fetch_partition(connection, topic, 0, max_wait_ms=600)
    assert bytes(answer.records) == b""


@pytest.mark.full
@pytest.mark.alone
def test_a_long_poll_waits(topic: str, connection: Connection) -> None:
    started = time.monotonic()
    fetch_partition(connection, topic, 0, max_wait_ms=600)
    assert time.monotonic() - started > 0.5


def test_nothing_to_wait_for_is_answered_at_once(topic: str, connection: Connection) -> None:
    fetch_partition(connection, topic, 0, max_wait_ms=HOUR_MS, min_bytes=0)
    fetch_partition(connection, topic, 0, max_wait_ms=0)
    assert connection.ask(fetch_request([], max_wait_ms=HOUR_MS), 12).responses == []


def test_a_long_poll_wakes_at_once_on_an_append(topic: str, connect: Connect, connection: Connection) -> None:
    waiting = connect()
    for number in range(5):
        waiting.send(fetch_request([(topic, 0, number)], max_wait_ms=HOUR_MS), 12)
        assert waiting.is_silent(0.15)  # Real time: for a broker that would answer at once
        produce_batch(connection, topic, batch_of([b"wake"]))
        answer = waiting.receive().responses[0].partitions[0]
        assert [record.offset for record in records_of(answer)] == [number]
        assert answer.high_watermark == number + 1


def test_a_long_poll_waits_for_min_bytes(topic: str, connect: Connect, connection: Connection) -> None:
    waiting = connect()
    waiting.send(fetch_request([(topic, 0, 0)], max_wait_ms=20_000, min_bytes=10_000), 12)
    for _ in range(3):
        produce_batch(connection, topic, batch_of([b"x" * 3000]))
    assert waiting.is_silent(0.3)
    produce_batch(connection, topic, batch_of([b"x" * 3000]))
    assert len(records_of(waiting.receive().responses[0].partitions[0])) == 4


def test_many_long_polls_on_one_partition(topic: str, connect: Connect, connection: Connection) -> None:
    waiting = [connect() for _ in range(10)]
    for each in waiting:
        each.send(fetch_request([(topic, 0, 0)], max_wait_ms=20_000), 12)
    assert all(each.is_silent(0.02) for each in waiting)
    produce_batch(connection, topic, batch_of([b"for all"]))
    for each in waiting:
        assert [record.value for record in records_of(each.receive().responses[0].partitions[0])] == [b"for all"]


def test_a_long_poll_ends_when_its_topic_is_deleted(topic: str, connect: Connect, connection: Connection) -> None:
    from barnabas.wire.messages.delete_topics import DeleteTopicsRequest

    waiting = connect()
    waiting.send(fetch_request([(topic, 0, 0)], max_wait_ms=HOUR_MS), 12)
    assert waiting.is_silent(0.2)  # Real time: for a broker that would answer at once
    assert connection.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5).responses[0].error_code == 0
    assert waiting.receive().responses[0].partitions[0].error_code in (3, 6)


def test_a_slow_reader_gets_everything(topic: str, connection: Connection) -> None:
    values = [bytes([number]) * 900_000 for number in range(6)]
    for value in values:
        produce_batch(connection, topic, batch_of([value]))
    for _ in range(3):
        connection.send(fetch_request([(topic, 0, 0)], partition_max_bytes=50_000_000), 12)
    time.sleep(0.5)  # Real time: this reader is slow
    for _ in range(3):
        partition = connection.receive().responses[0].partitions[0]
        assert [record.value for record in records_of(partition)] == values


def test_current_leader_epoch_is_checked(topic: str, connection: Connection) -> None:
    epoch = topic_metadata(connection, topic).partitions[0].leader_epoch
    assert fetch_partition(connection, topic, 0, current_leader_epoch=epoch).error_code == 0
    assert fetch_partition(connection, topic, 0, current_leader_epoch=epoch + 1).error_code == 75
    if epoch > 0:
        assert fetch_partition(connection, topic, 0, current_leader_epoch=epoch - 1).error_code == 74


def test_last_fetched_epoch_finds_a_diverging_log(topic: str, connection: Connection) -> None:
    epoch = topic_metadata(connection, topic).partitions[0].leader_epoch
    produce_batch(connection, topic, batch_of([b"a", b"b"]))
    agreeing = fetch_partition(connection, topic, 2, last_fetched_epoch=epoch)
    assert (agreeing.error_code, agreeing.diverging_epoch.epoch, agreeing.diverging_epoch.end_offset) == (0, -1, -1)
    ahead = fetch_partition(connection, topic, 1, last_fetched_epoch=epoch, current_leader_epoch=epoch)
    assert ahead.diverging_epoch.epoch == -1
    assert fetch_partition(connection, topic, 0, last_fetched_epoch=epoch + 5).error_code == 1


def test_offset_for_leader_epoch(topic: str, topic_name: str, connection: Connection) -> None:
    epoch = topic_metadata(connection, topic).partitions[0].leader_epoch
    produce_batch(connection, topic, batch_of([b"a", b"b", b"c"]))

    def ask(name: str, leader_epoch: int, current: int = -1, version: int = 4) -> tuple[int, int, int]:
        part = OffsetForLeaderPartition(partition=0, leader_epoch=leader_epoch, current_leader_epoch=current)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[part])]
        )
        answer = connection.ask(request, version).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    for version in (2, 3, 4):
        assert ask(topic, epoch, version=version) == (0, epoch, 3)
    assert ask(topic, epoch + 1) == (0, -1, -1)
    assert ask(topic, epoch, current=epoch) == (0, epoch, 3)
    assert ask(topic, epoch, current=epoch + 1) == (75, -1, -1)
    assert ask(topic_name, 0) == (3, -1, -1)


def sessions_answer(connection: Connection, *arguments: Any, **more: Any) -> Any:
    return connection.ask(fetch_request(*arguments, **more), 12)


def answered(response: Any) -> dict[tuple[str, int], tuple[int, int]]:
    """(error, bytes) by topic and partition."""
    return {
        (topic.topic, partition.partition_index): (partition.error_code, len(partition.records or b""))
        for topic in response.responses
        for partition in topic.partitions
    }


def test_an_incremental_session(ready_topic: MakeTopic, connection: Connection) -> None:
    first, second = ready_topic(), ready_topic()
    size = len(batch_of([b"x"]))
    full = sessions_answer(connection, [(first, 0, 0), (second, 0, 0)], session=(0, 0))
    assert full.error_code == 0
    assert full.session_id > 0
    assert answered(full) == {(first, 0): (0, 0), (second, 0): (0, 0)}
    session = full.session_id
    # Nothing changed: nothing is listed.
    quiet = sessions_answer(connection, [], session=(session, 1))
    assert (quiet.error_code, quiet.session_id, quiet.responses) == (0, session, [])
    # Only what has news is listed.
    produce_batch(connection, second, batch_of([b"x"]))
    news = sessions_answer(connection, [], session=(session, 2), max_wait_ms=5000)
    assert answered(news) == {(second, 0): (0, size)}
    # A changed offset is remembered; the same news is not told twice.
    moved = sessions_answer(connection, [(second, 0, 1)], session=(session, 3))
    assert answered(moved) == {}
    # A new high watermark is news even while nothing else is asked.
    produce_batch(connection, first, batch_of([b"x"]))
    assert answered(sessions_answer(connection, [], session=(session, 4), max_wait_ms=5000)) == {(first, 0): (0, size)}
    # A forgotten partition is no longer told of.
    forgotten = sessions_answer(connection, [], session=(session, 5), forgotten=[(first, 0)])
    assert answered(forgotten) == {}
    # A partition may come back, and is listed in full then.
    again = sessions_answer(connection, [(first, 0, 0)], session=(session, 6))
    assert answered(again) == {(first, 0): (0, size)}


def test_partitions_with_errors_are_told_each_time(topic: str, topic_name: str, connection: Connection) -> None:
    full = sessions_answer(connection, [(topic, 0, 0), (topic, 3, 0)], session=(0, 0))
    assert answered(full) == {(topic, 0): (0, 0), (topic, 3): (3, 0)}
    for epoch in (1, 2):
        again = sessions_answer(connection, [], session=(full.session_id, epoch))
        assert answered(again) == {(topic, 3): (3, 0)}


def test_an_unknown_session(topic: str, connection: Connection) -> None:
    response = sessions_answer(connection, [(topic, 0, 0)], session=(123_456_789, 1))
    assert (response.error_code, response.session_id, response.responses) == (70, 0, [])


def test_a_wrong_session_epoch(topic: str, connection: Connection) -> None:
    session = sessions_answer(connection, [(topic, 0, 0)], session=(0, 0)).session_id
    wrong = sessions_answer(connection, [], session=(session, 2))
    assert (wrong.error_code, wrong.responses) == (71, [])
    right = sessions_answer(connection, [], session=(session, 1))
    assert right.error_code == 0
    assert sessions_answer(connection, [], session=(session, 1)).error_code == 71


def test_a_session_is_closed_or_replaced(topic: str, connection: Connection) -> None:
    session = sessions_answer(connection, [(topic, 0, 0)], session=(0, 0)).session_id
    replaced = sessions_answer(connection, [(topic, 0, 0)], session=(session, 0))
    assert replaced.session_id not in (0, session)
    assert sessions_answer(connection, [], session=(session, 1)).error_code == 70
    closed = sessions_answer(connection, [(topic, 0, 0)], session=(replaced.session_id, -1))
    assert (closed.error_code, closed.session_id, answered(closed)) == (0, 0, {(topic, 0): (0, 0)})
    assert sessions_answer(connection, [], session=(replaced.session_id, 1)).error_code == 70


def test_sessions_are_not_bound_to_a_connection(topic: str, connect: Connect, connection: Connection) -> None:
    session = sessions_answer(connection, [(topic, 0, 0)], session=(0, 0)).session_id
    other = connect()
    assert sessions_answer(other, [], session=(session, 1)).error_code == 0


def test_a_full_request_without_a_session_makes_none(topic: str, connection: Connection) -> None:
    response = sessions_answer(connection, [(topic, 0, 0)], session=(0, -1))
    assert (response.error_code, response.session_id, answered(response)) == (0, 0, {(topic, 0): (0, 0)})


def test_sessions_by_topic_id(ready_topic: MakeTopic, connection: Connection) -> None:
    topic = ready_topic()
    topic_id = topic_metadata(connection, topic).topic_id
    created = connection.ask(fetch_request([(topic_id, 0, 0)], session=(0, 0)), 13)
    assert created.responses[0].topic_id == topic_id
    produce_batch(connection, topic, batch_of([b"x"]))
    news = connection.ask(fetch_request([], session=(created.session_id, 1), max_wait_ms=5000), 13)
    assert [record.value for record in records_of(news.responses[0].partitions[0])] == [b"x"]
    mixed = connection.ask(fetch_request([], session=(created.session_id, 2)), 12)
    assert mixed.error_code == 106


def test_a_waiting_session_wakes_for_any_of_its_partitions(ready_topic: MakeTopic, connect: Connect) -> None:
    topic = ready_topic(partitions=8)
    waiting, writing = connect(), connect()
    partitions = [(topic, partition, 0) for partition in range(8)]
    session = sessions_answer(waiting, partitions, session=(0, 0)).session_id
    writer = threading.Timer(0.3, lambda: produce_batch(writing, topic, batch_of([b"x"]), partition=6))
    writer.start()
    response = sessions_answer(waiting, [], session=(session, 1), max_wait_ms=HOUR_MS)
    assert set(answered(response)) == {(topic, 6)}
    writer.join()


def test_fetched_bytes_are_the_stored_batch_untouched(topic: str, connection: Connection) -> None:
    sent = batch_of([b"value %d" % number for number in range(50)], compression=CompressionType.GZIP)
    produce_batch(connection, topic, batch_of([b"before"]))
    produce_batch(connection, topic, sent)
    stored = bytes(fetch_partition(connection, topic, 1).records)
    assert struct.unpack_from(">q", stored) == (1,)
    assert stored[16:] == bytes(sent)[16:]
