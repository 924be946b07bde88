"""Kafka Streams at least once: word count and its relatives."""

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tools.waiting import PATIENCE_S, wait_until

TEXT = ["all streams lead to kafka", "hello kafka streams", "join kafka summit"]


@pytest.fixture
def produce(cluster: Any) -> Callable[..., None]:
    """Send text values, each with a key of its own, an equal one, or none."""
    from confluent_kafka import Producer

    def send(topic: str, values: list[str], keys: list[str] | None = None, **arguments: Any) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number, value in enumerate(values):
            producer.produce(topic, value=value, key=keys[number] if keys else None, **arguments)
        assert producer.flush(PATIENCE_S) == 0

    return send


@pytest.fixture
def latest_by_key(cluster: Any) -> Iterator[Callable[..., None]]:
    """Wait until the newest value of each key of a topic is what is expected."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest", "group.id": "unused"}
    consumers: dict[str, tuple[Any, dict[Any, Any]]] = {}

    def wait(topic: str, expected: dict[Any, Any], *, key: Any = bytes.decode, value: Any = bytes.decode) -> None:
        if topic not in consumers:
            consumer = Consumer({**settings, "enable.auto.commit": False})
            consumer.subscribe([topic])
            consumers[topic] = consumer, {}
        consumer, seen = consumers[topic]
        deadline = time.monotonic() + PATIENCE_S
        while seen != expected and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                seen[key(message.key())] = value(message.value())
        assert seen == expected

    settings["group.id"] = f"reader-{time.monotonic_ns()}"
    yield wait
    for consumer, _ in consumers.values():
        consumer.close()


@pytest.fixture
def configs_of(cluster: Any) -> Callable[[str], dict[str, str]]:
    """The configs of a topic."""
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    def ask(topic: str) -> dict[str, str]:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        [answer] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
        return {name: entry.value for name, entry in answer.result(PATIENCE_S).items()}

    return ask


def long_value(data: bytes) -> int:
    number: int = struct.unpack(">q", data)[0]
    return number


def words_of(lines: list[str]) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


def word_count(streams: Any, source: str, sink: str) -> Any:
    """The topology of Kafka's own demo."""
    dsl, text, long = streams.dsl, streams.text, streams.long
    builder = streams.streams.StreamsBuilder()
    (
        builder.stream(source, streams.named(dsl.Consumed, "with", text, text))
        .flatMapValues(streams.values(lambda line: streams.list_of(line.lower().split())))
        .groupBy(streams.keys_and_values(lambda _, word: word), streams.named(dsl.Grouped, "with", text, text))
        .count(streams.named(dsl.Materialized, "as", "counts"))
        .toStream()
        .to(sink, streams.named(dsl.Produced, "with", text, long))
    )
    return builder


def test_word_count_survives_the_loss_of_its_state(
    streams: Any,
    application: str,
    make_topic: Any,
    produce: Callable[..., None],
    latest_by_key: Callable[..., None],
    configs_of: Callable[[str], dict[str, str]],
) -> None:
    source, sink = make_topic(partitions=3), make_topic()
    produce(source, TEXT)
    first = streams.start(application, word_count(streams, source, sink), num_stream_threads=2)
    latest_by_key(sink, words_of(TEXT), value=long_value)
    streams.close(first)

    changelog, repartition = (f"{application}-counts-{kind}" for kind in ("changelog", "repartition"))
    assert configs_of(changelog)["cleanup.policy"] == "compact"
    of_repartition = configs_of(repartition)
    assert (of_repartition["cleanup.policy"], of_repartition["retention.ms"]) == ("delete", "-1")

    produce(source, TEXT[:2])
    streams.start(application, word_count(streams, source, sink))
    latest_by_key(sink, words_of(TEXT + TEXT[:2]), value=long_value)


def test_repartitioned_records_are_deleted(
    streams: Any, application: str, make_topic: Any, produce: Callable[..., None], latest_by_key: Any, cluster: Any
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    source, sink = make_topic(), make_topic()
    produce(source, TEXT)
    streams.start(application, word_count(streams, source, sink), repartition_purge_interval_ms=200)
    latest_by_key(sink, words_of(TEXT), value=long_value)

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": application + "-watermarks"})
    partition = TopicPartition(f"{application}-counts-repartition", 0)

    def watermarks() -> Any:
        return consumer.get_watermark_offsets(partition, timeout=PATIENCE_S)

    wait_until(lambda: watermarks()[0] >= 11, watermarks)
    assert watermarks() == (11, 11)  # one for each word
    consumer.close()


def test_two_instances_share_the_work_and_one_takes_over(
    streams: Any, application: str, make_topic: Any, produce: Callable[..., None], latest_by_key: Any
) -> None:
    source, sink = make_topic(partitions=4), make_topic(partitions=2)
    first = streams.start(application, word_count(streams, source, sink))
    second = streams.start(application, word_count(streams, source, sink))
    wait_until(lambda: [_active_tasks(each) for each in (first, second)] == [4, 4], "four tasks each")
    produce(source, TEXT * 20)
    latest_by_key(sink, words_of(TEXT * 20), value=long_value)

    streams.close(first)
    produce(source, TEXT)
    latest_by_key(sink, words_of(TEXT * 21), value=long_value)
    wait_until(lambda: _active_tasks(second) == 8, "eight tasks, of which it may tell later than they work")


def _active_tasks(running: Any) -> int:
    return sum(thread.activeTasks().size() for thread in running.metadataForLocalThreads())


def test_a_stream_joins_a_table(
    streams: Any, application: str, make_topic: Any, produce: Callable[..., None], latest_by_key: Any
) -> None:
    clicks, users, sink = make_topic(partitions=2), make_topic(partitions=2), make_topic()
    produce(users, ["Ada", "Bob", "Cyd"], keys=["a", "b", "c"])
    dsl, text = streams.dsl, streams.text
    builder = streams.streams.StreamsBuilder()
    consumed = streams.named(dsl.Consumed, "with", text, text)
    table = builder.table(users, consumed)
    (
        builder.stream(clicks, consumed)
        .join(table, streams.joiner(lambda page, user: f"{user} looks at {page}"))
        .to(sink, streams.named(dsl.Produced, "with", text, text))
    )
    running = streams.start(application, builder, max_task_idle_ms=2000)
    produce(clicks, ["home", "news", "home"], keys=["a", "b", "nobody"])

    latest_by_key(sink, {"a": "Ada looks at home", "b": "Bob looks at news"})
    streams.wait_running(running)


def test_counts_in_windows(
    streams: Any,
    application: str,
    make_topic: Any,
    produce: Callable[..., None],
    latest_by_key: Any,
    configs_of: Callable[[str], dict[str, str]],
) -> None:
    source, sink = make_topic(), make_topic()
    dsl, text = streams.dsl, streams.text
    windows = dsl.TimeWindows.ofSizeWithNoGrace(streams.java.java.time.Duration.ofMinutes(1))
    builder = streams.streams.StreamsBuilder()
    (
        builder.stream(source, streams.named(dsl.Consumed, "with", text, text))
        .groupByKey()
        .windowedBy(windows)
        .count(streams.named(dsl.Materialized, "as", "windows"))
        .toStream(streams.keys_and_values(lambda key, _: f"{key.key()}@{key.window().start()}"))
        .to(sink, streams.named(dsl.Produced, "with", text, streams.long))
    )
    now = 1_700_000_040_000  # the start of a minute
    for offset_ms, keys in ((0, ["a", "b", "a"]), (59_999, ["a"]), (60_000, ["a", "b"])):
        produce(source, ["x"] * len(keys), keys=keys, timestamp=now + offset_ms)
    streams.start(
        application, builder, default_key_serde="org.apache.kafka.common.serialization.Serdes$StringSerde",
        default_value_serde="org.apache.kafka.common.serialization.Serdes$StringSerde",
    )  # fmt: skip

    expected = {f"a@{now}": 3, f"b@{now}": 1, f"a@{now + 60_000}": 1, f"b@{now + 60_000}": 1}
    latest_by_key(sink, expected, value=long_value)
    assert configs_of(f"{application}-windows-changelog")["cleanup.policy"] == "compact,delete"
