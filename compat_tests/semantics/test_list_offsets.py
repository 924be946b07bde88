"""ListOffsets: the special timestamps, times inside compressed batches, errors."""

from collections.abc import Callable

import pytest

from barnabas.wire.compression import CompressionType
from barnabas.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from barnabas.wire.record_batch import parse_header
from compat_tests.semantics.client import (
    Connection,
    batch_of,
    fetch_partition,
    produce_batch,
    topic_metadata,
    with_max_timestamp,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
CODECS = list(CompressionType)


def offset_for(
    connection: Connection,
    topic: str,
    timestamp: int,
    *,
    version: int = 11,
    partition: int = 0,
    current_leader_epoch: int = -1,
    isolation_level: int = 0,
) -> tuple[int, int, int]:
    """(error, timestamp, offset)."""
    part = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=current_leader_epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
    )
    answer = connection.ask(request, version).topics[0].partitions[0]
    return answer.error_code, answer.timestamp, answer.offset


@pytest.mark.parametrize("version", range(1, 12))
def test_earliest_and_latest_in_every_version(topic: str, connection: Connection, version: int) -> None:
    assert offset_for(connection, topic, EARLIEST, version=version) == (0, -1, 0)
    assert offset_for(connection, topic, LATEST, version=version) == (0, -1, 0)
    produce_batch(connection, topic, batch_of([b"a", b"b"]))
    assert offset_for(connection, topic, EARLIEST, version=version) == (0, -1, 0)
    assert offset_for(connection, topic, LATEST, version=version) == (0, -1, 2)
    assert offset_for(connection, topic, LATEST, version=max(version, 2), isolation_level=1) == (0, -1, 2)


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("claimed", [2000, 9000])
def test_a_header_that_contradicts_its_records(
    topic: str, connection: Connection, compression: CompressionType, claimed: int
) -> None:
    """The largest timestamp is that of the records, for who looks for a time and for who reads."""
    batch = batch_of([b"x"] * 3, timestamps=[1000, 5000, 2000], compression=compression)
    assert produce_batch(connection, topic, with_max_timestamp(batch, claimed)).error_code == 0
    produce_batch(connection, topic, batch_of([b"x"], timestamps=[6000]))
    expected = {3000: (5000, 1), 5001: (6000, 3), 6001: (-1, -1), MAX_TIMESTAMP: (6000, 3)}
    assert {time: offset_for(connection, topic, time)[1:] for time in expected} == expected
    assert parse_header(fetch_partition(connection, topic, 0).records).max_timestamp == 5000


@pytest.mark.parametrize("compression", CODECS)
def test_times_inside_batches(topic: str, connection: Connection, compression: CompressionType) -> None:
    for timestamps in ([1000, 3000, 2000], [2500, 5000], [4000]):
        values: list[bytes | None] = [b"x" * 100] * len(timestamps)
        produce_batch(connection, topic, batch_of(values, timestamps=timestamps, compression=compression))
    expected = {
        0: (1000, 0),
        1000: (1000, 0),
        1001: (3000, 1),
        2001: (3000, 1),
        3000: (3000, 1),
        3001: (5000, 4),
        5000: (5000, 4),
        5001: (-1, -1),
    }
    for wanted, found in expected.items():
        assert offset_for(connection, topic, wanted) == (0, *found), wanted
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, 5000, 4)


def test_the_oldest_of_equal_maximal_timestamps(topic: str, connection: Connection) -> None:
    produce_batch(connection, topic, batch_of([b"a", b"b", b"c"], timestamps=[10, 90, 90]))
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, 90, 1)


def test_records_without_timestamps(topic: str, connection: Connection) -> None:
    """Some clients write -1: the largest timestamp is that until another one comes."""
    produce_batch(connection, topic, batch_of([b"a", b"b"], timestamps=[-1, -1]))
    produce_batch(connection, topic, batch_of([b"c"], timestamps=[-1]))
    assert offset_for(connection, topic, 0) == (0, -1, -1)
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, -1, 0)
    produce_batch(connection, topic, batch_of([b"d", b"e"], timestamps=[-1, 1000]))
    assert offset_for(connection, topic, 0) == (0, 1000, 4)
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, 1000, 4)


def test_special_timestamps_of_an_empty_log(topic: str, connection: Connection) -> None:
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, -1, -1)
    assert offset_for(connection, topic, EARLIEST_LOCAL) == (0, -1, 0)
    assert offset_for(connection, topic, LATEST_TIERED) == (0, -1, -1)
    assert offset_for(connection, topic, EARLIEST_PENDING_UPLOAD) == (0, -1, -1)
    assert offset_for(connection, topic, 0) == (0, -1, -1)


def test_special_timestamps_without_tiers(topic: str, connection: Connection) -> None:
    produce_batch(connection, topic, batch_of([b"a", b"b"], timestamps=[1000, 2000]))
    assert offset_for(connection, topic, EARLIEST_LOCAL) == (0, -1, 0)
    assert offset_for(connection, topic, LATEST_TIERED) == (0, -1, -1)
    assert offset_for(connection, topic, EARLIEST_PENDING_UPLOAD) == (0, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
        (-100, 11),
    ],
)
def test_special_timestamps_that_the_version_lacks(
    topic: str, connection: Connection, timestamp: int, version: int
) -> None:
    assert offset_for(connection, topic, timestamp, version=version) == (35, -1, -1)


def test_after_records_were_deleted(topic: str, connection: Connection) -> None:
    produce_batch(connection, topic, batch_of([b"x"] * 5, timestamps=[1000, 2000, 3000, 4000, 5000]))
    request = DeleteRecordsRequest(
        timeout_ms=10_000,
        topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=3)])],
    )
    answer = connection.ask(request, 2).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 3)
    assert offset_for(connection, topic, EARLIEST) == (0, -1, 3)
    assert offset_for(connection, topic, LATEST) == (0, -1, 5)
    assert offset_for(connection, topic, 1000) == (0, 4000, 3)


def test_errors(topic: str, topic_name: str, connection: Connection) -> None:
    assert offset_for(connection, topic_name, LATEST) == (3, -1, -1)
    assert offset_for(connection, topic, LATEST, partition=1) == (3, -1, -1)
    epoch = topic_metadata(connection, topic).partitions[0].leader_epoch
    assert offset_for(connection, topic, LATEST, current_leader_epoch=epoch)[0] == 0
    assert offset_for(connection, topic, LATEST, current_leader_epoch=epoch + 1) == (75, -1, -1)


def test_a_partition_asked_for_twice(topic: str, connection: Connection) -> None:
    parts = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (LATEST, EARLIEST)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=parts)])
    answers = [part.error_code for found in connection.ask(request, 9).topics for part in found.partitions]
    assert set(answers) == {42}


def test_leader_epochs_are_told(topic: str, connection: Connection) -> None:
    produce_batch(connection, topic, batch_of([b"a"], timestamps=[1000]))
    epoch = topic_metadata(connection, topic).partitions[0].leader_epoch
    for timestamp in (LATEST, EARLIEST, 500, MAX_TIMESTAMP):
        parts = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=parts)])
        assert connection.ask(request, 9).topics[0].partitions[0].leader_epoch == epoch


def test_times_over_many_segments(ready_topic: Callable[..., str], connection: Connection) -> None:
    topic = ready_topic(configs={"segment.bytes": "1048576"})
    for number in range(12):
        values: list[bytes | None] = [b"x" * 300_000]
        produce_batch(connection, topic, batch_of(values, timestamps=[1000 * number]))
    for number in range(1, 12):
        assert offset_for(connection, topic, 1000 * number) == (0, 1000 * number, number)
        assert offset_for(connection, topic, 1000 * number - 999)[2] == number
    assert offset_for(connection, topic, 11_001) == (0, -1, -1)
    assert offset_for(connection, topic, MAX_TIMESTAMP) == (0, 11_000, 11)
