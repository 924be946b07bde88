"""Producing with aiokafka."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_level_stores_what_was_sent(run: Any, topic: str, acks: Any) -> None:
    async def scenario(clients: Any) -> None:
        values = [b"value-%d" % number for number in range(100)]
        await clients.produce(topic, values, acks=acks)
        reader = await clients.reader(TopicPartition(topic, 0))
        assert [record.value for record in await clients.take(reader, 100)] == values

    run(scenario)


def test_metadata_of_sent_records(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        sent = await clients.produce(topic, [b"x"] * 30)
        assert [metadata.offset for metadata in sent] == list(range(30))
        assert {metadata.timestamp_type for metadata in sent} == {0}
        assert {metadata.log_start_offset for metadata in sent} == {0}

    run(scenario)


def test_an_idempotent_producer_keeps_the_order(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        values = [b"%d" % number for number in range(300)]
        await clients.produce(topic, values, enable_idempotence=True, max_batch_size=200)
        reader = await clients.reader(TopicPartition(topic, 0))
        assert [record.value for record in await clients.take(reader, 300)] == values

    run(scenario)


def test_keys_values_headers_and_timestamps_come_back_as_sent(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        producer = await clients.producer()
        headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("ünicode", b"\x00\xff")]
        await producer.send_and_wait(
            topic, b"value", key=b"key", partition=0, timestamp_ms=1_700_000_000_123, headers=headers
        )
        await producer.send_and_wait(topic, b"no key", partition=0)
        await producer.send_and_wait(topic, None, key=b"tombstone", partition=0)
        await producer.send_and_wait(topic, b"", key=b"", partition=0)
        reader = await clients.reader(TopicPartition(topic, 0))
        records = await clients.take(reader, 4)
        assert [(record.key, record.value) for record in records] == [
            (b"key", b"value"),
            (None, b"no key"),
            (b"tombstone", None),
            (b"", b""),
        ]
        assert records[0].headers == tuple(headers)
        assert (records[0].timestamp, records[0].timestamp_type) == (1_700_000_000_123, 0)
        assert records[1].headers == ()

    run(scenario)


def test_keys_choose_the_partition(run: Any, make_topic: Any) -> None:
    topic = make_topic(partitions=4)

    async def scenario(clients: Any) -> None:
        producer = await clients.producer()
        sent = await asyncio.gather(*[producer.send_and_wait(topic, b"x", key=b"key-%d" % (n % 8)) for n in range(40)])
        partition_of = {n % 8: metadata.partition for n, metadata in enumerate(sent)}
        assert all(metadata.partition == partition_of[n % 8] for n, metadata in enumerate(sent))
        reader = await clients.reader(*[TopicPartition(topic, partition) for partition in range(4)])
        assert len(await clients.take(reader, 40)) == 40

    run(scenario)


def test_a_too_large_batch_is_refused_and_the_producer_goes_on(run: Any, make_topic: Any) -> None:
    topic = make_topic(configs={"max.message.bytes": "2000"})

    async def scenario(clients: Any) -> None:
        producer = await clients.producer()
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, b"x" * 4000, partition=0)
        assert (await producer.send_and_wait(topic, b"x" * 500, partition=0)).offset == 0

    run(scenario)


def test_log_append_time_is_reported_and_stored(run: Any, make_topic: Any) -> None:
    topic = make_topic(configs={"message.timestamp.type": "LogAppendTime"})

    async def scenario(clients: Any) -> None:
        producer = await clients.producer(compression_type="gzip")
        sent = await producer.send_and_wait(topic, b"x", partition=0, timestamp_ms=1000)
        assert sent.timestamp_type == 1
        assert sent.timestamp > 1_700_000_000_000
        reader = await clients.reader(TopicPartition(topic, 0))
        (record,) = await clients.take(reader, 1)
        assert (record.timestamp, record.timestamp_type) == (sent.timestamp, 1)

    run(scenario)


def test_an_unknown_topic_is_created_by_producing(run: Any, group: str) -> None:
    async def scenario(clients: Any) -> None:
        topic = f"auto-{group}"
        producer = await clients.producer()
        sent = await producer.send_and_wait(topic, b"first")
        reader = await clients.reader(TopicPartition(topic, sent.partition))
        assert [record.value for record in await clients.take(reader, 1)] == [b"first"]

    run(scenario)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_topics_codec_wins_over_the_producers(run: Any, make_topic: Any, codec: str) -> None:
    topic = make_topic(configs={"compression.type": codec})

    async def scenario(clients: Any) -> None:
        values = [b"value-%d" % number * 20 for number in range(50)]
        await clients.produce(topic, values)
        await clients.produce(topic, values, compression_type="gzip")
        reader = await clients.reader(TopicPartition(topic, 0))
        assert [record.value for record in await clients.take(reader, 100)] == values * 2

    run(scenario)
