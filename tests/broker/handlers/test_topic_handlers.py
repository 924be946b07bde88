"""CreateTopics, DeleteTopics and CreatePartitions with a real controller over an in-memory store."""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.configuration.config import load
from barnabas.broker.configuration.topics import TopicConfigs
from barnabas.broker.handlers import create_partitions, create_topics, delete_topics
from barnabas.broker.timers import Timers
from barnabas.clock import ManualClock
from barnabas.controller.configs import ConfigRepository
from barnabas.controller.controller import Controller, ControllerSettings
from barnabas.controller.coordination.embedded import EmbeddedStore
from barnabas.controller.state import BrokerRegistration, EndPoint
from barnabas.controller.topics import TopicDefaults
from barnabas.wire.codec import decode, encode
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataResponse
from tools.waiting import PATIENCE_S

ZERO_ID = bytes(16)


class Applied:
    """A broker that applies everything, once it is not held."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.released.set()

    def reaches(self, broker_id: int) -> bool:
        return True

    async def send(self, broker_id: int, request: Any) -> Any:
        assert broker_id == 1
        await self.released.wait()
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse()
        return StopReplicaResponse() if isinstance(request, StopReplicaRequest) else UpdateMetadataResponse()


class Server:
    """As much of a broker as the three handlers need; messages pass through the codec at their version."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        self.channel = Applied()
        self._ids = itertools.count(1)
        self.disk_space = SimpleNamespace(complaint=lambda: None)

    async def start(self) -> None:
        self.store = EmbeddedStore(":memory:", self.clock)
        await self.store.open()
        session = await self.store.session()
        self.timers = Timers(self.clock, asyncio.get_running_loop())
        self.configs = ConfigRepository(session, self.clock, self.timers)
        await self.configs.start()
        self.topic_configs = TopicConfigs(load(), self.configs)
        self.controller = Controller(
            session,
            BrokerRegistration(1, (EndPoint("PLAINTEXT", "localhost", 9092),)),
            self.channel,
            self.clock,
            self.settings,
            lambda size: next(self._ids).to_bytes(size, "little"),
            configs=self.configs,
            timers=self.timers,
        )
        await self.controller.start()

    async def stop(self) -> None:
        await self.configs.stop()
        await self.controller.stop()
        await self.store.close()
        self.timers.close()

    async def ask(self, handler: Any, request: Any, response_class: Any, version: int) -> Any:
        received = decode(type(request), version, encode(request, version))
        context = SimpleNamespace(services=self, api_version=version, authorizer=None, meter=None)
        response = await handler.HANDLER.handle(received, context)
        return decode(response_class, version, encode(response, version))

    async def create(self, *topics: CreatableTopic, version: int = 7, **fields: Any) -> list[Any]:
        request = CreateTopicsRequest(topics=list(topics), **fields)
        response = await self.ask(create_topics, request, CreateTopicsResponse, version)
        assert response.throttle_time_ms == 0
        return list(response.topics)

    async def delete(
        self, *topics: str | bytes | DeleteTopicState, version: int = 6, timeout_ms: int = 1000
    ) -> list[Any]:
        request = DeleteTopicsRequest(timeout_ms=timeout_ms)
        if version < 6:
            request.topic_names = [topic for topic in topics if isinstance(topic, str)]
        else:
            request.topics = [
                topic
                if isinstance(topic, DeleteTopicState)
                else DeleteTopicState(name=topic)
                if isinstance(topic, str)
                else DeleteTopicState(topic_id=topic)
                for topic in topics
            ]
        response = await self.ask(delete_topics, request, DeleteTopicsResponse, version)
        return list(response.responses)

    async def expand(self, *topics: CreatePartitionsTopic, version: int = 3, **fields: Any) -> list[Any]:
        request = CreatePartitionsRequest(topics=list(topics), **{"timeout_ms": 1000, **fields})
        response = await self.ask(create_partitions, request, CreatePartitionsResponse, version)
        return list(response.results)


def topic(name: str, count: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def codes(results: list[Any]) -> list[tuple[str | None, str]]:
    return [(result.name, ErrorCode.of(result.error_code).name) for result in results]


def with_server(
    test: Callable[..., Awaitable[None]] | None = None, *, settings: ControllerSettings | None = None
) -> Any:
    """Run a coroutine test with a started server."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def main() -> None:
                server = Server(settings or ControllerSettings())
                await server.start()
                try:
                    await asyncio.wait_for(test(server, **arguments), timeout=PATIENCE_S)
                finally:
                    server.channel.released.set()
                    await server.stop()

            asyncio.run(main())

        parameters = list(inspect.signature(test).parameters.values())[1:]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__ = test.__name__
        return run

    return decorated if test is None else decorated(test)


@pytest.mark.parametrize("version", range(2, 8))
@with_server
async def test_create_at_every_version(server: Server, version: int) -> None:
    (result,) = await server.create(topic("t", 2, 1, retention_ms="1000"), version=version)
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    created = server.controller.cluster.topics["t"]
    assert len(created.assignments) == 2
    assert server.configs.overrides("topics", "t") == {"retention.ms": "1000"}
    if version < 5:
        assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, [])
    else:
        assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (2, 1, 0)
        configs = {config.name: config for config in result.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
        assert list(configs) == sorted(configs)
    assert result.topic_id == (created.topic_id if version >= 7 else ZERO_ID)


@with_server(settings=ControllerSettings(TopicDefaults(3, 1)))
async def test_create_with_defaults_and_manual_assignment(server: Server) -> None:
    manual = topic("manual")
    manual.assignments = [
        CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
        CreatableReplicaAssignment(partition_index=0, broker_ids=[1]),
    ]
    results = await server.create(topic("defaults"), manual)
    assert [(r.num_partitions, r.replication_factor) for r in results] == [(3, 1), (2, 1)]


@with_server
async def test_create_good_and_bad_topics_together(server: Server) -> None:
    await server.create(topic("taken"))
    results = await server.create(
        topic("good"),
        topic("taken", retention_ms="nonsense"),
        topic("bad/name"),
        topic("twice"),
        topic("twice"),
        topic("none", 0),
        topic("copies", 1, 3),
        topic("value", retention_ms="nonsense"),
        topic("key", no_such_config="1"),
        topic("null", retention_ms=None),
        topic("long", max_message_bytes="9" * 32_000),
        topic("__cluster_metadata"),
    )
    assert codes(results) == [
        ("good", "NONE"),
        ("taken", "TOPIC_ALREADY_EXISTS"),
        ("bad/name", "INVALID_TOPIC_EXCEPTION"),
        ("none", "INVALID_PARTITIONS"),
        ("copies", "INVALID_REPLICATION_FACTOR"),
        ("value", "INVALID_CONFIG"),
        ("key", "INVALID_CONFIG"),
        ("null", "INVALID_CONFIG"),
        ("long", "INVALID_CONFIG"),
        ("__cluster_metadata", "INVALID_REQUEST"),
        ("twice", "INVALID_REQUEST"),
    ]
    for result in results[1:]:
        assert result.error_message
        assert (result.topic_id, result.num_partitions, result.replication_factor) == (ZERO_ID, -1, -1)
        assert result.configs == []
    assert set(server.controller.cluster.topics) == {"taken", "good"}


@with_server
async def test_create_validates_only(server: Server) -> None:
    results = await server.create(topic("t", 4), topic("bad", 0), validate_only=True)
    assert codes(results) == [("t", "NONE"), ("bad", "INVALID_PARTITIONS")]
    assert (results[0].num_partitions, results[0].replication_factor) == (4, 1)
    assert results[0].configs
    assert server.controller.cluster.topics == {}


@with_server
async def test_create_too_many_partitions(server: Server) -> None:
    results = await server.create(topic("a", 2**31 - 1), topic("b"))
    assert codes(results) == [("a", "POLICY_VIOLATION"), ("b", "POLICY_VIOLATION")]


@with_server
async def test_create_times_out(server: Server) -> None:
    server.channel.released.clear()
    waiting = asyncio.ensure_future(server.create(topic("t"), topic("bad", 0), timeout_ms=300))
    while "t" not in server.controller.cluster.topics:
        await server.configs.refresh("topics", [])  # any trip to the store: the creation's own come before it
    server.clock.advance(300)
    server.timers.fire_due()
    assert codes(await waiting) == [("t", "REQUEST_TIMED_OUT"), ("bad", "INVALID_PARTITIONS")]
    server.channel.released.set()
    assert codes(await server.create(topic("t"))) == [("t", "TOPIC_ALREADY_EXISTS")]


@pytest.mark.parametrize("version", range(1, 7))
@with_server
async def test_delete_at_every_version(server: Server, version: int) -> None:
    (created,) = await server.create(topic("t"))
    results = await server.delete("t", "unknown", version=version)
    assert codes(results) == [("t", "NONE"), ("unknown", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert (results[0].error_message, results[0].topic_id) == (None, created.topic_id if version >= 6 else ZERO_ID)
    assert bool(results[1].error_message) == (version >= 5)
    assert results[1].topic_id == ZERO_ID
    assert server.controller.cluster.topics == {}


@with_server
async def test_delete_by_id(server: Server) -> None:
    first, second = await server.create(topic("a"), topic("b"))
    unknown = bytes(15) + b"\xff"
    results = await server.delete(first.topic_id, unknown, "b")
    assert codes(results) == [("a", "NONE"), (None, "UNKNOWN_TOPIC_ID"), ("b", "NONE")]
    assert [result.topic_id for result in results] == [first.topic_id, unknown, second.topic_id]


@with_server
async def test_delete_refuses_what_is_ambiguous(server: Server) -> None:
    a, b, c = await server.create(topic("a"), topic("b"), topic("c"))
    results = await server.delete(
        "a",
        "a",
        b.topic_id,
        b.topic_id,
        "b",
        "c",
        c.topic_id,
        DeleteTopicState(name="a", topic_id=a.topic_id),
        DeleteTopicState(name=None),
    )
    assert codes(results) == [
        ("a", "INVALID_REQUEST"),
        (None, "INVALID_REQUEST"),
        ("b", "INVALID_REQUEST"),
        ("c", "INVALID_REQUEST"),
        ("a", "INVALID_REQUEST"),
        (None, "INVALID_REQUEST"),
    ]
    assert [result.topic_id for result in results] == [ZERO_ID, b.topic_id, b.topic_id, c.topic_id, a.topic_id, ZERO_ID]
    assert set(server.controller.cluster.topics) == {"a", "b", "c"}


@pytest.mark.parametrize(("version", "error"), [(2, "INVALID_REQUEST"), (3, "TOPIC_DELETION_DISABLED")])
@with_server(settings=ControllerSettings(delete_topic_enable=False))
async def test_delete_disabled(server: Server, version: int, error: str) -> None:
    await server.create(topic("t"))
    assert codes(await server.delete("t", "u", version=version)) == [("t", error), ("u", error)]
    assert set(server.controller.cluster.topics) == {"t"}


@with_server
async def test_delete_in_the_background(server: Server) -> None:
    (created,) = await server.create(topic("t"))
    (result,) = await server.delete("t", timeout_ms=0)
    assert codes([result]) == [("t", "REQUEST_TIMED_OUT")]
    assert result.topic_id == created.topic_id
    await server.delete("t")  # which may find that under way, and wait for its end
    assert codes(await server.delete("t")) == [("t", "UNKNOWN_TOPIC_OR_PARTITION")]


@pytest.mark.parametrize("version", range(4))
@with_server
async def test_expand_at_every_version(server: Server, version: int) -> None:
    await server.create(topic("t", 1), topic("m", 1))
    results = await server.expand(
        CreatePartitionsTopic(name="t", count=3, assignments=None),
        CreatePartitionsTopic(name="m", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])]),
        CreatePartitionsTopic(name="u", count=3, assignments=None),
        version=version,
    )
    assert sorted(codes(results)) == [("m", "NONE"), ("t", "NONE"), ("u", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert not any(result.error_message for result in results)  # Kafka does not explain an unknown topic
    assert {name: len(state.partitions) for name, state in server.controller.cluster.topics.items()} == {"t": 3, "m": 2}


@with_server
async def test_expand_good_and_bad_topics_together(server: Server) -> None:
    await server.create(*(topic(name, 2) for name in "abcd"))
    results = await server.expand(
        CreatePartitionsTopic(name="a", count=2, assignments=None),
        CreatePartitionsTopic(name="b", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[7])]),
        CreatePartitionsTopic(name="c", count=3, assignments=None),
        CreatePartitionsTopic(name="d", count=3, assignments=None),
        CreatePartitionsTopic(name="d", count=4, assignments=None),
    )
    assert dict(codes(results)) == {
        "a": "INVALID_PARTITIONS",
        "b": "INVALID_REPLICA_ASSIGNMENT",
        "c": "NONE",
        "d": "INVALID_REQUEST",
    }
    assert len(results) == 4
    (only,) = await server.expand(CreatePartitionsTopic(name="a", count=5, assignments=None), validate_only=True)
    assert only.error_code == 0
    assert len(server.controller.cluster.topics["a"].partitions) == 2


@with_server
async def test_a_broker_that_is_not_the_controller(server: Server) -> None:
    await server.create(topic("t"))
    await server.controller.stop()
    assert codes(await server.create(topic("a"), topic("b"))) == [("a", "NOT_CONTROLLER"), ("b", "NOT_CONTROLLER")]
    assert codes(await server.delete("t")) == [("t", "NOT_CONTROLLER")]
    unknown_here = bytes([1] * 16)
    [by_id] = await server.delete(unknown_here)
    assert (by_id.error_code, by_id.topic_id) == (ErrorCode.NOT_CONTROLLER, unknown_here)
    expanded = await server.expand(CreatePartitionsTopic(name="t", count=3, assignments=None))
    assert codes(expanded) == [("t", "NOT_CONTROLLER")]
