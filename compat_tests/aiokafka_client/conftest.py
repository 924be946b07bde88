"""aiokafka clients of the cluster under test, inside an event loop of each test's own."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from tools.waiting import PATIENCE_S, until_answer


class Clients:
    """Makes clients and closes them, newest first, when the test's coroutine is over."""

    def __init__(self, bootstrap_servers: str, stack: AsyncExitStack) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._stack = stack

    async def producer(self, **settings: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers, **settings)
        await producer.start()
        self._stack.push_async_callback(producer.stop)
        return producer

    async def consumer(self, *topics: str, **settings: Any) -> AIOKafkaConsumer:
        """A started consumer that begins at the earliest offset and commits only on request."""
        base = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(*topics, bootstrap_servers=self._bootstrap_servers, **{**base, **settings})
        await consumer.start()
        self._stack.push_async_callback(consumer.stop)
        return consumer

    async def reader(self, *partitions: TopicPartition, **settings: Any) -> AIOKafkaConsumer:
        """A consumer without a group, assigned to the given partitions."""
        consumer = await self.consumer(**settings)
        consumer.assign(partitions)
        return consumer

    async def admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        await admin.start()
        self._stack.push_async_callback(admin.close)
        return admin

    async def take(self, consumer: AIOKafkaConsumer, count: int, timeout_s: float = PATIENCE_S) -> list[ConsumerRecord]:
        async with asyncio.timeout(timeout_s):
            return [await consumer.getone() for _ in range(count)]

    async def produce(self, topic: str, values: list[bytes | None], **settings: Any) -> list[Any]:
        """Send values to partition 0 and return their metadata in order."""
        producer = await self.producer(**settings)
        futures = [await producer.send(topic, value, partition=0) for value in values]
        return list(await asyncio.gather(*futures))

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async def is_so() -> bool:
            outcome = condition()
            return await outcome if isinstance(outcome, Awaitable) else outcome

        await until_answer(is_so)


@asynccontextmanager
async def _clients(bootstrap_servers: str) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(bootstrap_servers, stack)


@pytest.fixture
def run(cluster: Any) -> Callable[[Callable[[Clients], Coroutine[Any, Any, None]]], None]:
    """Run a coroutine function that is given `Clients`."""

    async def main(scenario: Callable[[Clients], Coroutine[Any, Any, None]]) -> None:
        async with _clients(cluster.bootstrap_servers) as clients:
            await scenario(clients)

    return lambda scenario: asyncio.run(main(scenario))


@pytest.fixture
def group() -> str:
    """A consumer group nobody used before."""
    return f"aiokafka-{secrets.token_hex(6)}"
