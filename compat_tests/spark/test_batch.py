"""Batch reads and writes: `spark.read.format("kafka")` and `df.write.format("kafka")`."""

import json
from typing import Any

import pytest

from compat_tests.semantics.client import Connection, batch_of, produce_batch, with_max_timestamp
from tools.waiting import PATIENCE_S

NOW = 1_700_000_000_000
"""A time of today, of which a broker may think otherwise than of the first years of 1970."""


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_written_records_are_read_back(spark: Any, kafka: Any, make_topic: Any) -> None:
    topic = make_topic(partitions=3)
    frame = spark.range(1000).selectExpr("cast(id % 7 as string) as key", "cast(id as string) as value")

    kafka.write(frame, topic)

    rows = (
        kafka.read(subscribe=topic)
        .selectExpr("cast(key as string)", "cast(value as string)", "partition", "offset")
        .collect()
    )
    assert sorted(int(row.value) for row in rows) == list(range(1000))
    assert {row.key == str(int(row.value) % 7) for row in rows} == {True}
    partitions_of_key: dict[str, set[int]] = {}
    for row in rows:
        partitions_of_key.setdefault(row.key, set()).add(row.partition)
    assert {len(partitions) for partitions in partitions_of_key.values()} == {1}
    assert {(row.partition, row.offset) for row in rows} == {
        (partition, offset)
        for partition in range(3)
        for offset in range(sum(row.partition == partition for row in rows))
    }


def test_columns(kafka: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"v"], key=b"k", timestamp=1_700_000_000_123)

    [row] = kafka.read(subscribe=topic).selectExpr("*", "unix_millis(timestamp) as millis").collect()

    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (b"k", b"v", topic, 0, 0)
    assert (row.millis, row.timestampType) == (1_700_000_000_123, 0)


def test_null_keys_and_values(spark: Any, kafka: Any, topic: str) -> None:
    frame = spark.createDataFrame([(None, "a"), ("k", None), ("", "")], "key string, value string").coalesce(1)

    kafka.write(frame, topic)

    rows = kafka.read(subscribe=topic).orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(None, b"a"), (b"k", None), (b"", b"")]


def test_headers(spark: Any, kafka: Any, topic: str) -> None:
    headers = "headers array<struct<key string, value binary>>"
    rows = [("a", [("h", b"1"), ("h", b"2"), ("empty", b""), ("none", None)]), ("b", None)]

    kafka.write(spark.createDataFrame(rows, f"value string, {headers}").coalesce(1), topic)

    first, second = kafka.read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert [(each.key, each.value) for each in first.headers] == rows[0][1]
    assert second.headers is None


def test_topic_and_partition_columns_choose_where_rows_go(spark: Any, kafka: Any, make_topic: Any) -> None:
    first, second = make_topic(partitions=2), make_topic(partitions=2)
    rows = [(first, 0, "a"), (first, 1, "b"), (second, 1, "c")]

    kafka.write(spark.createDataFrame(rows, "topic string, partition int, value string"))

    read = kafka.read(subscribe=f"{first},{second}").selectExpr("topic", "partition", "cast(value as string)")
    assert sorted(tuple(row) for row in read.collect()) == sorted(rows)


def test_subscribe_pattern(kafka: Any, make_topic: Any, topic_name: str, produce: Any) -> None:
    for suffix in ("a", "b", "other"):
        produce(make_topic(name=f"{topic_name}-{suffix}"), [suffix.encode()])

    assert kafka.values(kafka.read(subscribePattern=f"{topic_name}-[ab]")) == ["a", "b"]


def test_assign(kafka: Any, make_topic: Any, produce: Any) -> None:
    topic = make_topic(partitions=3)
    for partition in range(3):
        produce(topic, [b"%d" % partition], partition=partition)

    assert kafka.values(kafka.read(assign=json.dumps({topic: [0, 2]}))) == ["0", "2"]


def test_starting_and_ending_offsets(kafka: Any, make_topic: Any, produce: Any) -> None:
    topic = make_topic(partitions=2)
    for partition in range(2):
        produce(topic, [b"%d-%d" % (partition, number) for number in range(10)], partition=partition)

    frame = kafka.read(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 7, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 2}}),
    )

    assert kafka.values(frame) == ["0-7", "0-8", "0-9", "1-0", "1-1"]


def test_offsets_by_timestamp(kafka: Any, make_topic: Any, produce: Any) -> None:
    topic = make_topic(partitions=2)
    for partition in range(2):
        for number in range(10):
            produce(topic, [b"%d-%d" % (partition, number)], partition=partition, timestamp=1000 * (number + 1))

    frame = kafka.read(
        subscribe=topic,
        startingOffsetsByTimestamp=json.dumps({topic: {"0": 4500, "1": 9000}}),
        endingOffsetsByTimestamp=json.dumps({topic: {"0": 6500, "1": 99_000}}),
    )
    assert kafka.values(frame) == ["0-4", "0-5", "1-8", "1-9"]

    everywhere = kafka.read(subscribe=topic, startingTimestamp="8001", endingTimestamp="9001")
    assert kafka.values(everywhere) == ["0-8", "1-8"]


def test_offsets_by_timestamp_follow_records_not_headers(
    kafka: Any, cluster: Any, make_topic: Any, produce: Any
) -> None:
    """Batches as some clients write them: the largest timestamp is too small, too large or missing. The records'
    own timestamps count."""
    claims = [([1000, 5000, 2000], 2000), ([1000, 5000, 2000], 9000), ([NOW, NOW + 5000, NOW], -1), ([1000], 9000)]
    topic = make_topic(partitions=len(claims))
    for partition in range(len(claims)):
        produce(topic, ["first"], partition=partition, timestamp=500)
    with Connection(cluster.bootstrap_servers) as connection:
        for partition, (timestamps, claimed) in enumerate(claims):
            values = [b"%d-%d" % (partition, timestamp % NOW) for timestamp in timestamps]
            batch = with_max_timestamp(batch_of(values, timestamps=timestamps), claimed)
            assert produce_batch(connection, topic, batch, partition=partition).error_code == 0
    for partition in range(len(claims)):
        produce(topic, ["last"], partition=partition, timestamp=NOW + 6000)

    wanted = {"0": 3000, "1": 3000, "2": NOW + 3000, "3": 3000}
    ends = {"0": 5001, "1": 5001, "2": NOW + 5001, "3": 9001}
    frame = kafka.read(
        subscribe=topic,
        startingOffsetsByTimestamp=json.dumps({topic: wanted}),
        endingOffsetsByTimestamp=json.dumps({topic: ends}),
    )
    assert kafka.values(frame) == ["0-2000", "0-5000", "1-2000", "1-5000", "2-0", "2-5000"]


def test_a_timestamp_nothing_is_newer_than(kafka: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"x"], timestamp=1000)

    with pytest.raises(Exception, match="No offset matched from request"):
        kafka.read(subscribe=topic, startingTimestamp="2000").collect()
    latest = kafka.read(subscribe=topic, startingTimestamp="2000", startingOffsetsByTimestampStrategy="latest")
    assert kafka.values(latest) == []


def test_min_partitions_splits_the_reading(kafka: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"%d" % number for number in range(100)])

    frame = kafka.read(subscribe=topic, minPartitions="4")

    assert frame.rdd.getNumPartitions() == 4
    assert sorted(map(int, kafka.values(frame))) == list(range(100))


def test_a_second_read_sees_what_was_written_since(spark: Any, kafka: Any, topic: str) -> None:
    kafka.write(spark.createDataFrame([("a",)], "value string"), topic)
    assert kafka.values(kafka.read(subscribe=topic)) == ["a"]

    kafka.write(spark.createDataFrame([("b",)], "value string"), topic)
    assert kafka.values(kafka.read(subscribe=topic)) == ["a", "b"]


def test_a_topic_of_the_same_name_again(
    spark: Any, kafka: Any, cluster: Any, make_topic: Any, topic: str, produce: Any
) -> None:
    from confluent_kafka.admin import AdminClient

    produce(topic, [b"old"] * 5)
    assert len(kafka.values(kafka.read(subscribe=topic))) == 5
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    make_topic(name=topic)
    kafka.write(spark.createDataFrame([("new",)], "value string"), topic)

    assert kafka.values(kafka.read(subscribe=topic)) == ["new"]


def test_an_empty_topic(kafka: Any, topic: str) -> None:
    assert kafka.values(kafka.read(subscribe=topic)) == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs(spark: Any, kafka: Any, topic: str, codec: str) -> None:
    frame = spark.range(500).selectExpr("concat('value ', id) as value")

    kafka.write(frame, topic, **{"kafka.compression.type": codec})

    assert kafka.values(kafka.read(subscribe=topic)) == sorted(f"value {number}" for number in range(500))


def test_read_committed(kafka: Any, topic: str, produce: Any) -> None:
    produce(topic, [b"a", b"b"])

    assert kafka.values(kafka.read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})) == ["a", "b"]


def test_a_topic_that_is_not_there(kafka: Any, topic_name: str) -> None:
    with pytest.raises(Exception, match=r"UnknownTopicOrPartition|does not exist|This server does not host"):
        kafka.read(subscribe=topic_name).collect()


def test_records_deleted_under_the_reader(kafka: Any, topic: str, produce: Any, cluster: Any) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    produce(topic, [b"%d" % number for number in range(10)])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 6
    from_zero = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 0}})}

    with pytest.raises(Exception, match=r"data loss|out of range|not available|may have been lost"):
        kafka.read(**from_zero, failOnDataLoss="true").collect()
    assert kafka.values(kafka.read(**from_zero, failOnDataLoss="false")) == ["6", "7", "8", "9"]
