"""Each codec from each client to each client, through the broker as it is and through a recompressing topic."""

import asyncio
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tools.waiting import PATIENCE_S

CODECS = ["gzip", "snappy", "lz4", "zstd"]
Values = list[bytes]


def sample_values() -> Values:
    """Compressible text, incompressible noise, an empty value, and more than one of snappy's 32 KiB blocks."""
    noise = random.Random(7)
    return [b"the same words again %d " % number * 30 for number in range(60)] + [noise.randbytes(50_000), b""]


def write_with_aiokafka(bootstrap_servers: str, topic: str, values: Values, codec: str | None) -> None:
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, compression_type=codec, linger_ms=20)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send(topic, value, partition=0) for value in values])
        finally:
            await producer.stop()

    asyncio.run(main())


def write_with_confluent_kafka(bootstrap_servers: str, topic: str, values: Values, codec: str | None) -> None:
    from confluent_kafka import Producer

    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "compression.type": codec or "none", "linger.ms": 20})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * len(values)


def write_with_kafka_python(bootstrap_servers: str, topic: str, values: Values, codec: str | None) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, compression_type=codec, linger_ms=20)
    try:
        for future in [producer.send(topic, value, partition=0) for value in values]:
            future.get(timeout=PATIENCE_S)
    finally:
        producer.close(timeout=PATIENCE_S)


def read_with_aiokafka(bootstrap_servers: str, topic: str, count: int) -> Values:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> Values:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign([TopicPartition(topic, 0)])
            async with asyncio.timeout(PATIENCE_S):
                return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(main())


def read_with_confluent_kafka(bootstrap_servers: str, topic: str, count: int) -> Values:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused", "check.crcs": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = [consumer.poll(PATIENCE_S) for _ in range(count)]
        return [message.value() for message in messages]
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap_servers: str, topic: str, count: int) -> Values:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()


WRITERS: dict[str, Callable[[str, str, Values, str | None], None]] = {
    "aiokafka": write_with_aiokafka,
    "confluent-kafka": write_with_confluent_kafka,
    "kafka-python": write_with_kafka_python,
}
READERS: dict[str, Callable[[str, str, int], Values]] = {
    "aiokafka": read_with_aiokafka,
    "confluent-kafka": read_with_confluent_kafka,
    "kafka-python": read_with_kafka_python,
}


@pytest.fixture(autouse=True, scope="module")
def _import_kafka_python() -> None:
    with warnings.catch_warnings():
        # It reads its message definitions through functions of importlib.resources that Python 3.11 deprecates.
        warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
        import kafka  # noqa: F401


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_the_records_of_each_client(cluster: Any, topic: str, writer: str, codec: str) -> None:
    values = sample_values()
    WRITERS[writer](cluster.bootstrap_servers, topic, values, codec)
    for reader, read in READERS.items():
        assert read(cluster.bootstrap_servers, topic, len(values)) == values, reader


@pytest.mark.parametrize("topic_codec", [*CODECS, "uncompressed"])
@pytest.mark.parametrize("producer_codec", [None, *CODECS])
def test_the_broker_recompresses_for_the_topic(
    cluster: Any, make_topic: Any, topic_codec: str, producer_codec: str | None
) -> None:
    topic = make_topic(configs={"compression.type": topic_codec})
    values = sample_values()
    WRITERS["confluent-kafka"](cluster.bootstrap_servers, topic, values, producer_codec)
    assert READERS["confluent-kafka"](cluster.bootstrap_servers, topic, len(values)) == values


@pytest.mark.parametrize("topic_codec", CODECS)
def test_every_client_reads_what_the_broker_compressed(cluster: Any, make_topic: Any, topic_codec: str) -> None:
    topic = make_topic(configs={"compression.type": topic_codec})
    values = sample_values()
    for writer, codec in zip(WRITERS, ("gzip", "snappy", "lz4"), strict=True):
        WRITERS[writer](cluster.bootstrap_servers, topic, values, codec)
    for reader, read in READERS.items():
        assert read(cluster.bootstrap_servers, topic, 3 * len(values)) == values * 3, reader
