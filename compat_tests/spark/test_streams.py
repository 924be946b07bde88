"""Structured streaming: micro-batches from and to topics, checkpoints, restarts."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.waiting import PATIENCE_S


def as_text(frame: Any) -> Any:
    return frame.selectExpr("cast(value as string)")


def values(rows: list[tuple[str]]) -> list[str]:
    return sorted(value for (value,) in rows)


def test_a_restarted_query_goes_on_where_it_stopped(
    kafka: Any, make_topic: Any, produce: Any, collect_stream: Any, tmp_path: Path
) -> None:
    topic = make_topic(partitions=2)
    frame = as_text(kafka.read_stream(subscribe=topic, startingOffsets="earliest"))
    produce(topic, [b"a", b"b"], partition=0)
    produce(topic, [b"c"], partition=1)

    assert values(collect_stream(frame, tmp_path)) == ["a", "b", "c"]
    assert collect_stream(frame, tmp_path) == []
    produce(topic, [b"d"], partition=1)
    assert values(collect_stream(frame, tmp_path)) == ["d"]


def test_from_topic_to_topic(spark: Any, kafka: Any, make_topic: Any, tmp_path: Path) -> None:
    source, sink = make_topic(partitions=3), make_topic(partitions=2)
    numbers = spark.range(300).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    kafka.write(numbers, source)
    squares = kafka.read_stream(subscribe=source, startingOffsets="earliest").selectExpr(
        "key", "cast(cast(cast(value as string) as bigint) * cast(cast(value as string) as bigint) as string) as value"
    )

    kafka.stream_to_topic(squares, sink, tmp_path)
    assert sorted(map(int, kafka.values(kafka.read(subscribe=sink)))) == [number**2 for number in range(300)]

    kafka.write(spark.createDataFrame([("300", "300")], "key string, value string"), source)
    kafka.stream_to_topic(squares, sink, tmp_path)
    assert sorted(map(int, kafka.values(kafka.read(subscribe=sink)))) == [number**2 for number in range(301)]


def test_batches_of_limited_size(kafka: Any, topic: str, produce: Any, tmp_path: Path) -> None:
    produce(topic, [b"%d" % number for number in range(100)])
    sizes: list[int] = []
    frame = kafka.read_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")

    query = (
        frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)

    assert sum(sizes) == 100
    assert max(sizes) <= 30


def test_starting_at_the_latest_offset(
    kafka: Any, topic: str, produce: Any, collect_stream: Any, tmp_path: Path
) -> None:
    produce(topic, [b"before"])
    frame = as_text(kafka.read_stream(subscribe=topic, startingOffsets="latest"))

    assert collect_stream(frame, tmp_path) == []
    produce(topic, [b"after"])
    assert values(collect_stream(frame, tmp_path)) == ["after"]


def test_starting_at_a_timestamp(kafka: Any, topic: str, produce: Any, collect_stream: Any, tmp_path: Path) -> None:
    for number in range(5):
        produce(topic, [b"%d" % number], timestamp=1000 * (number + 1))
    frame = as_text(kafka.read_stream(subscribe=topic, startingOffsetsByTimestamp=json.dumps({topic: {"0": 3001}})))

    assert values(collect_stream(frame, tmp_path)) == ["3", "4"]


def test_a_pattern_finds_topics_that_come_later(
    kafka: Any, make_topic: Any, topic_name: str, produce: Any, collect_stream: Any, tmp_path: Path
) -> None:
    pattern = {"subscribePattern": f"{topic_name}-.*", "startingOffsets": "earliest"}
    produce(make_topic(name=f"{topic_name}-1"), [b"first"])
    frame = as_text(kafka.read_stream(**pattern))

    assert values(collect_stream(frame, tmp_path)) == ["first"]
    produce(make_topic(name=f"{topic_name}-2"), [b"second"])
    assert values(collect_stream(frame, tmp_path)) == ["second"]


def test_added_partitions_are_read_from_their_start(
    kafka: Any, topic: str, produce: Any, collect_stream: Any, cluster: Any, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

    frame = as_text(kafka.read_stream(subscribe=topic, startingOffsets="latest"))
    assert collect_stream(frame, tmp_path) == []
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    produce(topic, [b"in the new partition"], partition=1)

    assert values(collect_stream(frame, tmp_path)) == ["in the new partition"]


@pytest.mark.parametrize("reader", ["false", "true"], ids=["admin client", "consumer"])
def test_both_ways_of_asking_for_offsets(
    spark: Any, kafka: Any, topic: str, produce: Any, collect_stream: Any, tmp_path: Path, reader: str
) -> None:
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, reader)
    try:
        produce(topic, [b"a"])
        frame = as_text(kafka.read_stream(subscribe=topic, startingOffsets="earliest"))
        assert values(collect_stream(frame, tmp_path)) == ["a"]
        produce(topic, [b"b"])
        assert values(collect_stream(frame, tmp_path)) == ["b"]
    finally:
        spark.conf.unset(setting)


def test_counts_kept_over_batches(kafka: Any, make_topic: Any, produce: Any, tmp_path: Path) -> None:
    source, sink = make_topic(partitions=2), make_topic()
    counts = (
        kafka.read_stream(subscribe=source, startingOffsets="earliest")
        .groupBy("value")
        .count()
        .selectExpr("value as key", "cast(count as string) as value")
    )

    def run() -> dict[str, int]:
        kafka.stream_to_topic(counts, sink, tmp_path, mode="update")
        return {row.key.decode(): int(row.value) for row in kafka.read(subscribe=sink).orderBy("offset").collect()}

    produce(source, [b"a", b"b", b"a"])
    assert run() == {"a": 2, "b": 1}
    produce(source, [b"a", b"c"])
    assert run() == {"a": 3, "b": 1, "c": 1}
