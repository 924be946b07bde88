"""kafka-console-producer and kafka-console-consumer, once each in a process of its own, with real pipes."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.coordinators.runtime import abs_java_hash
from compat_tests.java_tools.kafka_tools import PATIENCE_MS
from tools.waiting import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def formatted(tools: Any, cluster: Any) -> Callable[[str, str], list[str]]:
    """The output of one of Kafka's formatters for a group in the offsets topic: `formatted("Offsets", group)`."""

    def lines(kind: str, group: str) -> list[str]:
        partition, count = partition_of(group, cluster.bootstrap_servers)
        # By its partition the tool reads without a group: one of its own would write to the topic meanwhile.
        done = tools.run(
            "kafka-console-consumer", "--topic", OFFSETS_TOPIC, "--partition", partition, "--offset", "earliest",
            "--timeout-ms", PATIENCE_MS, "--max-messages", count,
            "--formatter", f"org.apache.kafka.tools.consumer.{kind}MessageFormatter",
        )  # fmt: skip
        return [line for line in done.out.splitlines() if f'"group":"{group}"' in line]

    return lines


def partition_of(group: str, bootstrap_servers: str) -> tuple[int, int]:
    """The partition of the offsets topic that holds a group, and how many records it has now."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "counts", "enable.partition.eof": True}
    # As the tool reads: with an open transaction in the partition, committed records would end before this group's.
    isolation = {"isolation.level": "read_uncommitted"}
    consumer = Consumer({**settings, **isolation, "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(OFFSETS_TOPIC, timeout=PATIENCE_S).topics[OFFSETS_TOPIC].partitions
        partition, count = abs_java_hash(group) % len(partitions), 0
        consumer.assign([TopicPartition(OFFSETS_TOPIC, partition, OFFSET_BEGINNING)])
        while True:
            [message] = consumer.consume(1, timeout=PATIENCE_S)
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return partition, count
            count += 1
    finally:
        consumer.close()


def test_lines_go_through(tools: Any, topic: str) -> None:
    tools.process("kafka-console-producer", "--topic", topic, stdin="one\ntwo\n\nŽižkov 🚋\n")

    done = tools.process(
        "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 4, "--timeout-ms", PATIENCE_MS
    )

    assert done.stdout.splitlines() == ["one", "two", "", "Žižkov 🚋"]
    assert "Processed a total of 4 messages" in done.stderr


def test_the_console_consumer_prints_keys_headers_and_nulls(tools: Any, topic: str) -> None:
    reading = {"parse.key": "true", "key.separator": ":", "parse.headers": "true", "null.marker": "NULL"}
    properties = [part for key, value in reading.items() for part in ("--reader-property", f"{key}={value}")]
    lines = "a:1,b:2\tkey:value\nc:\tNULL:value\nd:4\tkey:NULL\n"
    tools.run("kafka-console-producer", "--topic", topic, *properties, stdin=lines)

    what = ("timestamp", "key", "offset", "partition", "headers", "value", "epoch", "delivery")
    printing = [part for name in what for part in ("--formatter-property", f"print.{name}=true")]
    done = tools.run(
        "kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 3,
        "--timeout-ms", PATIENCE_MS, *printing, "--formatter-property", "null.literal=NULL",
    )  # fmt: skip

    fields = [line.split("\t") for line in done.out.splitlines()]
    assert [
        [field for field in line if not field.startswith(("CreateTime:", "Epoch:", "Delivery:"))] for line in fields
    ] == [
        ["Partition:0", "Offset:0", "a:1,b:2", "key", "value"],
        ["Partition:0", "Offset:1", "c:", "NULL", "value"],
        ["Partition:0", "Offset:2", "d:4", "key", "NULL"],
    ]
    assert {bool(re.fullmatch(r"CreateTime:\d{13}", line[0])) for line in fields} == {True}


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(tools: Any, topic: str, codec: str) -> None:
    lines = [f"line {number} " + "x" * 100 for number in range(200)]
    tools.run(
        "kafka-console-producer", "--topic", topic, "--compression-codec", codec, "--timeout", 200,
        stdin="".join(f"{line}\n" for line in lines),
    )  # fmt: skip

    assert tools.consume(topic, 200, "--from-beginning") == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("mode", ["--sync", "--batch-size=16384"])
def test_acks(tools: Any, topic: str, acks: str, mode: str) -> None:
    linger = ("--timeout", 20)  # a second by default, and for each line where they are sent one by one
    tools.run(
        "kafka-console-producer", "--topic", topic, "--request-required-acks", acks, mode, *linger, stdin="a\nb\n"
    )

    assert tools.consume(topic, 2, "--from-beginning") == ["a", "b"]


def test_a_topic_is_created_by_producing_to_it(tools: Any, topic_name: str) -> None:
    tools.run("kafka-console-producer", "--topic", topic_name, stdin="first\n")

    assert tools.consume(topic_name, 1, "--from-beginning") == ["first"]


def test_from_an_offset_of_a_partition(tools: Any, make_topic: Any, produce: Any) -> None:
    topic = make_topic(partitions=2)
    produce(topic, [b"%d" % number for number in range(10)], partition=1)

    assert tools.consume(topic, 3, "--partition", 1, "--offset", 7) == ["7", "8", "9"]
    assert tools.consume(topic, 10, "--partition", 1, "--offset", "earliest")[0] == "0"


def test_a_group_goes_on_where_it_stopped(tools: Any, topic: str, produce: Any, group: str) -> None:
    produce(topic, [b"%d" % number for number in range(6)])

    assert tools.consume(topic, 2, "--group", group, "--from-beginning") == ["0", "1"]
    # A console consumer commits its position, which is behind the last record it polled, not the last it printed.
    [row] = tools.table(tools.run("kafka-consumer-groups", "--describe", "--group", group))
    produce(topic, [b"more"])
    assert tools.consume(topic, 1, "--group", group) == [[*map(str, range(6)), "more"][int(row["CURRENT-OFFSET"])]]


def test_several_topics_by_a_pattern(tools: Any, make_topic: Any, produce: Any, topic_name: str) -> None:
    for suffix in ("a", "b", "other"):
        produce(make_topic(name=f"{topic_name}-{suffix}"), [suffix.encode()])

    done = tools.run(
        "kafka-console-consumer", "--include", f"{topic_name}-[ab]", "--from-beginning", "--max-messages", 2,
        "--timeout-ms", PATIENCE_MS,
    )  # fmt: skip

    assert sorted(done.lines) == ["a", "b"]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_levels(tools: Any, topic: str, produce: Any, level: str) -> None:
    produce(topic, [b"x"])

    assert tools.consume(topic, 1, "--from-beginning", "--isolation-level", level) == ["x"]


def test_nothing_to_read_ends_with_the_timeout(tools: Any, topic: str) -> None:
    done = tools.run("kafka-console-consumer", "--topic", topic, "--from-beginning", "--timeout-ms", 500)

    assert done.lines == []
    assert "TimeoutException" in done.err


def test_the_offsets_topic_is_readable_by_kafkas_formatter(
    tools: Any, topic: str, produce: Any, group: str, formatted: Callable[[str, str], list[str]]
) -> None:
    produce(topic, [b"x"] * 5)
    tools.run(
        "kafka-consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute"
    )

    [line] = formatted("Offsets", group)

    assert f'"topic":"{topic}"' in line
    assert '"partition":0' in line
    assert '"offset":5' in line


def test_group_metadata_is_readable_by_kafkas_formatter(
    topic: str, group: str, member: Any, formatted: Callable[[str, str], list[str]]
) -> None:
    member(group, topic)

    lines = formatted("GroupMetadata", group)

    assert lines
    assert '"protocolType":"consumer"' in lines[-1]
    assert '"clientId":"member"' in lines[-1]
