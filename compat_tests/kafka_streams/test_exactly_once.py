"""Kafka Streams with `processing.guarantee=exactly_once_v2`: its Java client speaks transaction version 2."""

import struct
import time
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tools.waiting import PATIENCE_S

LINES = ["one two three two one two", "three three two one"] * 10


def word_count(streams: Any, source: str, sink: str) -> Any:
    dsl, text, long = streams.dsl, streams.text, streams.long
    builder = streams.streams.StreamsBuilder()
    (
        builder.stream(source, streams.named(dsl.Consumed, "with", text, text))
        .flatMapValues(streams.values(lambda line: streams.list_of(line.split())))
        .groupBy(streams.keys_and_values(lambda _, word: word), streams.named(dsl.Grouped, "with", text, text))
        .count(streams.named(dsl.Materialized, "as", "counts"))
        .toStream()
        .to(sink, streams.named(dsl.Produced, "with", text, long))
    )
    return builder


def committed_counts(cluster: Any, topic: str, count: int) -> list[tuple[bytes, int]]:
    """The first `count` committed (word, count), and whatever comes within a moment after."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "counts", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes, int]] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            messages = consumer.consume(500, timeout=1.0)
            for message in messages:
                assert message.error() is None, message.error()
                (number,) = struct.unpack(">q", message.value() or b"")
                found.append((message.key() or b"", number))
            if not messages and len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count} counts were committed")
    finally:
        consumer.close()


def test_every_word_is_counted_once(streams: Any, application: str, make_topic: Any, cluster: Any) -> None:
    source, sink = make_topic(partitions=2), make_topic()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    words: Counter[bytes] = Counter()
    for _ in range(2):  # the second application finds what the first one committed
        for number, line in enumerate(LINES):
            producer.produce(source, line.encode(), partition=number % 2)
            words.update(word.encode() for word in line.split())
        assert producer.flush(PATIENCE_S) == 0
        running = streams.start(application, word_count(streams, source, sink), processing_guarantee="exactly_once_v2")
        counts = committed_counts(cluster, sink, sum(words.values()))
        streams.close(running)
    by_word: dict[bytes, list[int]] = {}
    for word, number in counts:
        by_word.setdefault(word, []).append(number)
    assert by_word == {word: list(range(1, total + 1)) for word, total in words.items()}
