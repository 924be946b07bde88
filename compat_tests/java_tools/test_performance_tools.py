"""kafka-producer-perf-test and kafka-consumer-perf-test as correctness tests: every record arrives, at each setting."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from compat_tests.java_tools.kafka_tools import PATIENCE_MS

RECORDS = 20_000


@pytest.fixture
def produce_records(tools: Any) -> Callable[..., None]:
    """Run kafka-producer-perf-test with properties of the producer, and check that it could send everything."""

    def produce(topic: str, count: int, size: int, properties: dict[str, str]) -> None:
        # Repeated options would replace each other: one option takes all properties.
        given = ["--command-property", *(f"{key}={value}" for key, value in properties.items())]
        sizes = ["--num-records", count, "--record-size", size, "--throughput", -1]
        done = tools.run("kafka-producer-perf-test", "--topic", topic, *sizes, *given)
        assert re.search(rf"^{count} records sent, ", done.out, re.MULTILINE), done.out + done.err

    return produce


@pytest.fixture
def consume_records(tools: Any) -> Callable[[str, int], int]:
    """Run kafka-consumer-perf-test; returns how many records it got."""

    def consume(topic: str, count: int) -> int:
        done = tools.run("kafka-consumer-perf-test", "--topic", topic, "--num-records", count, "--timeout", PATIENCE_MS)
        return int(done.lines[-1].split(",")[4])

    return consume


@pytest.mark.parametrize("idempotence", ["true", "false"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_arrives(
    tools: Any, make_topic: Any, produce_records: Any, consume_records: Any, codec: str, idempotence: str
) -> None:
    topic = make_topic(partitions=2)

    properties = {"compression.type": codec, "enable.idempotence": idempotence, "linger.ms": "5"}
    produce_records(topic, RECORDS, 100, properties)

    assert sum(tools.offsets(topic).values()) == RECORDS
    assert consume_records(topic, RECORDS) == RECORDS


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(tools: Any, topic: str, produce_records: Any, acks: str) -> None:
    produce_records(topic, RECORDS, 100, {"acks": acks, "enable.idempotence": "false"})

    assert tools.offsets(topic) == {0: RECORDS}


def test_large_batches_and_large_records(make_topic: Any, produce_records: Any, consume_records: Any) -> None:
    topic = make_topic(partitions=1, configs={"max.message.bytes": str(10 << 20)})

    produce_records(topic, 8, 4 << 20, {"max.request.size": str(10 << 20), "batch.size": str(1 << 20)})

    assert consume_records(topic, 8) == 8
