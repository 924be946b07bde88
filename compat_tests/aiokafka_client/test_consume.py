"""Consuming with aiokafka, without the help of a group."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

START_MS = 1_700_000_000_000
"""Timestamp of the record at offset 0; each later record is one second younger."""


async def fill(clients: Any, topic: str, count: int = 100, **settings: Any) -> TopicPartition:
    """Offsets 0..count-1 in few batches; each value is its offset."""
    producer = await clients.producer(linger_ms=20, **settings)
    futures = [
        await producer.send(topic, b"%d" % offset, partition=0, timestamp_ms=START_MS + 1000 * offset)
        for offset in range(count)
    ]
    await asyncio.gather(*futures)
    return TopicPartition(topic, 0)


def test_seek_lands_in_the_middle_of_a_batch(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = await fill(clients, topic)
        reader = await clients.reader(partition)
        reader.seek(partition, 57)
        assert [int(record.value) for record in await clients.take(reader, 3)] == [57, 58, 59]
        reader.seek(partition, 3)
        assert [record.offset for record in await clients.take(reader, 2)] == [3, 4]
        assert await reader.position(partition) == 5
        await reader.seek_to_end(partition)
        assert await reader.position(partition) == 100
        await reader.seek_to_beginning(partition)
        assert [record.offset for record in await clients.take(reader, 1)] == [0]
        assert reader.highwater(partition) == 100

    run(scenario)


def test_watermarks_and_times(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = await fill(clients, topic, compression_type="lz4")
        reader = await clients.reader(partition)
        assert await reader.beginning_offsets([partition]) == {partition: 0}
        assert await reader.end_offsets([partition]) == {partition: 100}
        for timestamp, offset in {
            START_MS - 5: 0,
            START_MS: 0,
            START_MS + 1: 1,
            START_MS + 41_000: 41,
            START_MS + 99_000: 99,
        }.items():
            found = (await reader.offsets_for_times({partition: timestamp}))[partition]
            assert (found.offset, found.timestamp) == (offset, START_MS + 1000 * offset)
        assert await reader.offsets_for_times({partition: START_MS + 99_001}) == {partition: None}

    run(scenario)


def test_pause_and_resume(run: Any, make_topic: Any) -> None:
    topic = make_topic(partitions=2)

    async def scenario(clients: Any) -> None:
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        reader = await clients.reader(*partitions)
        reader.pause(partitions[0])
        producer = await clients.producer()
        for partition in (0, 1):
            await producer.send_and_wait(topic, b"%d" % partition, partition=partition)
        assert [record.value for record in await clients.take(reader, 1)] == [b"1"]
        assert await reader.getmany(timeout_ms=500) == {}
        reader.resume(partitions[0])
        assert [record.value for record in await clients.take(reader, 1)] == [b"0"]

    run(scenario)


def test_an_offset_out_of_range_resets_or_fails(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        partition = await fill(clients, topic)
        resetting = await clients.reader(partition)
        resetting.seek(partition, 5000)
        assert [record.offset for record in await clients.take(resetting, 1)] == [0]
        failing = await clients.reader(partition, auto_offset_reset="none")
        failing.seek(partition, 5000)
        with pytest.raises(OffsetOutOfRangeError):
            await clients.take(failing, 1)

    run(scenario)


def test_a_waiting_consumer_gets_a_record_at_once(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        reader = await clients.reader(
            TopicPartition(topic, 0), fetch_max_wait_ms=3_600_000, request_timeout_ms=4_000_000
        )
        producer = await clients.producer()
        await producer.send_and_wait(topic, b"warm up", partition=0)
        await clients.take(reader, 1)
        assert await reader.getmany(timeout_ms=1000) == {}  # the next fetch is waiting at the broker now
        await producer.send_and_wait(topic, b"wake", partition=0)
        assert [record.value for record in await clients.take(reader, 1)] == [b"wake"]

    run(scenario)


def test_small_fetch_limits_still_make_progress(run: Any, topic: str) -> None:
    async def scenario(clients: Any) -> None:
        values = [bytes([number]) * 10_000 for number in range(20)]
        await clients.produce(topic, values)
        reader = await clients.reader(TopicPartition(topic, 0), fetch_max_bytes=1000, max_partition_fetch_bytes=1000)
        assert [record.value for record in await clients.take(reader, 20)] == values

    run(scenario)


def test_an_unknown_topic_is_created_by_subscribing(run: Any, group: str) -> None:
    async def scenario(clients: Any) -> None:
        topic = f"auto-{group}"
        consumer = await clients.consumer(topic, group_id=group, metadata_max_age_ms=500)
        await clients.produce(topic, [b"hello"])
        assert [record.value for record in await clients.take(consumer, 1)] == [b"hello"]

    run(scenario)
