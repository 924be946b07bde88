"""aiokafka's transactional producer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import pytest

from tools.waiting import PATIENCE_S, until_answer


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, PATIENCE_S)

    return asyncio.run(bounded())


async def values_of(cluster: Any, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """The first `count` values, and whatever comes within a moment after."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level=isolation,
        auto_offset_reset="earliest",
        group_id=None,
    )
    await consumer.start()
    try:
        values: list[bytes] = []
        while len(values) < count:
            values.append((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value)
        for more in (await consumer.getmany(timeout_ms=300)).values():
            values += [record.value for record in more]
        return values
    finally:
        await consumer.stop()


def test_committed_and_aborted(cluster: Any, topic: str, transactional_id: str) -> None:
    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=transactional_id
        )
        await producer.start()
        try:
            for number in range(4):
                await producer.begin_transaction()
                for each in range(5):
                    await producer.send_and_wait(topic, f"{number}-{each}".encode())
                if number == 1:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        finally:
            await producer.stop()
        committed = [f"{number}-{each}".encode() for number in (0, 2, 3) for each in range(5)]
        assert await values_of(cluster, topic, 15) == committed
        assert len(await values_of(cluster, topic, 20, "read_uncommitted")) == 20

    run(work())


def test_offsets_are_part_of_the_transaction(
    cluster: Any, make_topic: Callable[..., str], transactional_id: str, group: str
) -> None:
    async def work() -> None:
        source, target = make_topic(), make_topic()
        partition = aiokafka.TopicPartition(source, 0)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id=transactional_id
        )
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id=group, enable_auto_commit=False
        )
        consumer.assign([partition])
        await producer.start()
        await consumer.start()
        try:
            for offset, is_commit in ((3, True), (8, False), (5, True)):
                await producer.begin_transaction()
                await producer.send_and_wait(target, str(offset).encode())
                await producer.send_offsets_to_transaction({partition: offset}, group)
                if is_commit:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

            async def is_committed() -> bool:
                return bool(await consumer.committed(partition) == 5)

            await until_answer(is_committed)
            assert await values_of(cluster, target, 2) == [b"3", b"5"]
        finally:
            await consumer.stop()
            await producer.stop()

    run(work())


def test_a_newer_producer_fences_the_older(cluster: Any, topic: str, transactional_id: str) -> None:
    async def work() -> None:
        older, newer = (
            aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=transactional_id)
            for _ in range(2)
        )
        await older.start()
        await older.begin_transaction()
        await older.send_and_wait(topic, b"lost")
        await newer.start()
        try:
            with pytest.raises(aiokafka.errors.ProducerFenced):
                await older.commit_transaction()
            async with newer.transaction():
                await newer.send_and_wait(topic, b"kept")
            assert await values_of(cluster, topic, 1) == [b"kept"]
        finally:
            await newer.stop()
            await older.stop()

    run(work())
