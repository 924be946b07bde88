"""FastStream applications, over aiokafka (`faststream.kafka`) and over librdkafka (`faststream.confluent`)."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from tools.waiting import PATIENCE_S

pytestmark = [
    # faststream.confluent polls librdkafka from threads of an executor that it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:faststream.*"),
]


class Order(BaseModel):
    """A JSON message, which FastStream checks by its type."""

    item: str
    count: int


class Application:
    """A FastStream broker (its word for a client) and the topics and group of one test."""

    def __init__(self, broker: Any, topics: list[str]) -> None:
        self.broker = broker
        self.topics = topics
        self.group = f"faststream-{secrets.token_hex(6)}"

    def subscriber(self, topic: str, **arguments: Any) -> Any:
        return self.broker.subscriber(topic, group_id=self.group, auto_offset_reset="earliest", **arguments)

    @asynccontextmanager
    async def running(self) -> Any:
        await self.broker.start()
        try:
            yield self.broker
        finally:
            await self.broker.stop()


Scenario = Callable[[Application], Coroutine[Any, Any, None]]


@pytest.fixture(params=["kafka", "confluent"])
def run(request: pytest.FixtureRequest, cluster: Any, make_topic: Any) -> Callable[[Scenario], None]:
    """Run a coroutine function that is given an `Application` with two topics, once for each of the two brokers."""

    def broker() -> Any:
        if request.param == "kafka":
            from faststream.kafka import KafkaBroker

            return KafkaBroker(cluster.bootstrap_servers, logger=None)
        from faststream.confluent import KafkaBroker as ConfluentBroker

        return ConfluentBroker(cluster.bootstrap_servers, logger=None)

    async def main(scenario: Scenario, topics: list[str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario(Application(broker(), topics))

    return lambda scenario: asyncio.run(main(scenario, [make_topic(partitions=2), make_topic()]))


def test_typed_messages_reach_a_subscriber(run: Callable[[Scenario], None]) -> None:
    async def scenario(application: Application) -> None:
        received: asyncio.Queue[Order] = asyncio.Queue()

        @application.subscriber(application.topics[0])
        async def handle(order: Order) -> None:
            await received.put(order)

        async with application.running() as broker:
            for count in range(20):
                await broker.publish(Order(item="tea", count=count), application.topics[0])
            orders = [await received.get() for _ in range(20)]

        assert sorted(order.count for order in orders) == list(range(20))

    run(scenario)


def test_a_pipeline_from_topic_to_topic(run: Callable[[Scenario], None]) -> None:
    async def scenario(application: Application) -> None:
        source, sink = application.topics
        received: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        @application.subscriber(source)
        @application.broker.publisher(sink)
        async def double(count: int) -> str:
            return f"twice {count} is {2 * count}"

        @application.subscriber(sink)
        async def collect(text: str) -> None:
            await received.put((text, None))

        async with application.running() as broker:
            for count in range(5):
                await broker.publish(count, source)
            texts = sorted([(await received.get())[0] for _ in range(5)])

        assert texts == [f"twice {count} is {2 * count}" for count in range(5)]

    run(scenario)


def test_keys_and_headers(run: Callable[[Scenario], None]) -> None:
    async def scenario(application: Application) -> None:
        received: asyncio.Queue[Any] = asyncio.Queue()
        annotation: Any = _message_type(application.broker)

        async def handle(body: str, message: Any) -> None:
            raw = message.raw_message
            key = raw.key() if callable(raw.key) else raw.key
            await received.put((body, key, message.headers.get("colour")))

        handle.__annotations__["message"] = annotation
        application.subscriber(application.topics[1])(handle)

        async with application.running() as broker:
            await broker.publish("hello", application.topics[1], key=b"k", headers={"colour": "green"})
            assert await received.get() == ("hello", b"k", "green")

    run(scenario)


def _message_type(broker: Any) -> Any:
    """The annotation by which FastStream hands over the whole message."""
    if "confluent" in type(broker).__module__:
        from faststream.confluent.annotations import KafkaMessage as Confluent

        return Confluent
    from faststream.kafka.annotations import KafkaMessage

    return KafkaMessage


def test_batches(run: Callable[[Scenario], None]) -> None:
    async def scenario(application: Application) -> None:
        received: asyncio.Queue[list[str]] = asyncio.Queue()

        @application.subscriber(application.topics[1], batch=True)
        async def handle(batch: list[str]) -> None:
            await received.put(batch)

        async with application.running() as broker:
            await broker.publish_batch(*[f"value {number}" for number in range(100)], topic=application.topics[1])
            values: list[str] = []
            while len(values) < 100:
                values += await received.get()

        assert values == [f"value {number}" for number in range(100)]

    run(scenario)


def test_a_group_goes_on_where_it_stopped(run: Callable[[Scenario], None], cluster: Any) -> None:
    async def scenario(application: Application) -> None:
        topic = application.topics[1]
        for values in (["a", "b"], ["c"]):
            broker = type(application.broker)(cluster.bootstrap_servers, logger=None)
            received: asyncio.Queue[str] = asyncio.Queue()
            subscribe = broker.subscriber(topic, group_id=application.group, auto_offset_reset="earliest")
            subscribe(_bound(received))
            await broker.start()
            for value in values:
                await broker.publish(value, topic)
            assert [await received.get() for _ in values] == values
            await broker.stop()
            assert received.empty()

    run(scenario)


def _bound(received: "asyncio.Queue[str]") -> Callable[[str], Coroutine[Any, Any, None]]:
    async def handle(value: str) -> None:
        await received.put(value)

    return handle
