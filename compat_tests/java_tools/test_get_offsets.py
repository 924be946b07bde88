"""kafka-get-offsets: every special time, timestamps, filters."""

from typing import Any

import pytest

from compat_tests.java_tools.kafka_tools import of_4_3_only
from tools.waiting import PATIENCE_S


@pytest.fixture
def filled(make_topic: Any, produce: Any) -> str:
    """Partition 0: ten records of time 1000, 2000, ...; partition 1: one; partition 2: none."""
    topic: str = make_topic(partitions=3)
    for number in range(10):
        produce(topic, [b"x"], partition=0, timestamp=(number + 1) * 1000)
    produce(topic, [b"x"], partition=1, timestamp=5500)
    return topic


@pytest.mark.parametrize(
    ("time", "offsets"),
    [
        ("latest", {0: 10, 1: 1, 2: 0}),
        ("-1", {0: 10, 1: 1, 2: 0}),
        ("earliest", {0: 0, 1: 0, 2: 0}),
        ("-2", {0: 0, 1: 0, 2: 0}),
        ("max-timestamp", {0: 9, 1: 0}),
        ("-3", {0: 9, 1: 0}),
        ("earliest-local", {0: 0, 1: 0, 2: 0}),
        ("-4", {0: 0, 1: 0, 2: 0}),
        ("latest-tiered", {}),
        ("-5", {}),
        ("0", {0: 0, 1: 0}),
        ("1000", {0: 0, 1: 0}),
        ("5001", {0: 5, 1: 0}),
        ("6000", {0: 5}),
        ("10001", {}),
    ],
)
def test_times(tools: Any, filled: str, time: str, offsets: dict[int, int]) -> None:
    assert tools.offsets(filled, time) == offsets


@of_4_3_only
def test_earliest_pending_upload(tools: Any, filled: str) -> None:
    assert tools.offsets(filled, "earliest-pending-upload") == {}, "no remote storage"


def test_max_timestamp_is_the_first_of_the_latest_records(tools: Any, topic: str, produce: Any) -> None:
    for timestamp in (1000, 9000, 9000, 3000):
        produce(topic, [b"x"], timestamp=timestamp)

    assert tools.offsets(topic, "max-timestamp") == {0: 1}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_timestamps_inside_a_compressed_batch(tools: Any, topic: str, cluster: Any, codec: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec, "linger.ms": 200})
    for number in range(100):
        producer.produce(topic, b"x" * 50, timestamp=1000 + number)
    assert producer.flush(PATIENCE_S) == 0

    assert tools.offsets(topic, 1042) == {0: 42}
    assert tools.offsets(topic, "max-timestamp") == {0: 99}


def test_filters(tools: Any, filled: str) -> None:
    by_pattern = tools.run("kafka-get-offsets", "--topic-partitions", f"{filled[:-2]}..:1-2,{filled}:1")
    by_list = tools.run("kafka-get-offsets", "--topic", filled, "--partitions", "1,2")

    assert by_pattern.lines == [f"{filled}:1:1"]  # the end of a range is exclusive
    assert by_list.lines == [f"{filled}:1:1", f"{filled}:2:0"]


def test_nothing_matches(tools: Any, topic_name: str) -> None:
    missing = tools.run("kafka-get-offsets", "--topic", topic_name, status=1)

    assert "Could not match any topic-partitions" in missing.err


def test_internal_topics_can_be_left_out(tools: Any, filled: str, group: str, member: Any) -> None:
    member(group, filled, partitions=3)

    assert "__consumer_offsets:0:" in tools.run("kafka-get-offsets").out
    assert "__consumer_offsets" not in tools.run("kafka-get-offsets", "--exclude-internal-topics").out
