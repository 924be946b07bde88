"""Clients of a whole broker beyond their quotas: what they are told, how long they wait, and who is not affected."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.api.local import LocalClient
from barnabas.broker.http.figures import take_snapshot
from barnabas.broker.http.metrics_page import MetricsPage
from barnabas.broker.server import Broker
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from barnabas.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from barnabas.wire.messages.fetch import FetchResponse
from barnabas.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from barnabas.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.quotas.clients import (
    BATCH,
    FETCH_VERSION,
    TOPIC,
    configure,
    create,
    fetch_request,
    fetched_bytes,
    local_client,
    produce,
)
from tests.broker.running import ENVIRONMENT, running

pytestmark = pytest.mark.anyio


async def expand(client: LocalClient, count: int) -> CreatePartitionsResponse:
    topics = [CreatePartitionsTopic(name="a", count=count, assignments=None)]
    return await client.ask(CreatePartitionsRequest(topics=topics, timeout_ms=30_000), 3, CreatePartitionsResponse)


def is_muted(client: LocalClient) -> bool:
    return not client._is_within_quota.is_set()


async def pass_time(broker: Broker, duration_ms: int) -> None:
    broker.clock.advance(duration_ms)
    await broker.settle()


async def test_a_producer_beyond_its_quota_is_told_and_waits(tmp_path: Path) -> None:
    """The response comes at once, with the throttle time; the next request begins after it. Others do not wait."""
    async with running(tmp_path) as broker:
        client, other = local_client(broker, "app"), local_client(broker, "other")
        await create(client, (TOPIC, 1))
        await configure(broker, "clients", "app", producer_byte_rate="100")
        throttle_time_ms = await produce(client)
        assert 500 < throttle_time_ms < 2_000
        waiting = asyncio.create_task(produce(client))
        assert await produce(other) == 0
        await pass_time(broker, throttle_time_ms - 1)
        assert is_muted(client)
        assert not waiting.done()
        await pass_time(broker, 1)
        assert await waiting > 0
        quotas = broker.quotas
        assert quotas is not None
        assert quotas.produce.throttles.count == 2


async def test_quotas_of_users(tmp_path: Path) -> None:
    """A user's quota holds for all his clients together, and the default one for the anonymous user, too."""
    async with running(tmp_path) as broker:
        alice = [local_client(broker, client_id, "User:alice") for client_id in ("a", "b")]
        nobody = local_client(broker, "a")
        await create(nobody, (TOPIC, 1))
        await configure(broker, "users", "alice", producer_byte_rate="150")
        await configure(broker, "users", "<default>", producer_byte_rate="100000")
        assert await produce(alice[0]) == 0
        assert await produce(alice[1]) > 0
        assert await produce(nobody) == 0
        assert await produce(nobody, 1_000) > 0


async def test_a_removed_quota_throttles_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        await configure(broker, "clients", "<default>", producer_byte_rate="1")
        assert await produce(client) > 0
        await configure(broker, "clients", "<default>")
        assert await produce(local_client(broker, "app")) == 0


async def test_a_fetch_beyond_the_quota_is_empty(tmp_path: Path) -> None:
    """Its bytes do not count: the same records come once the time is over."""
    async with running(tmp_path) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        for _ in range(3):
            await produce(client)
        await configure(broker, "clients", "app", consumer_byte_rate="200")
        response = await client.ask(fetch_request(), FETCH_VERSION, FetchResponse)
        assert (response.throttle_time_ms, fetched_bytes(response)) == (0, len(BATCH))
        response = await client.ask(fetch_request(1), FETCH_VERSION, FetchResponse)
        assert response.responses == []
        assert response.throttle_time_ms > 0
        assert is_muted(client)
        await pass_time(broker, 11_000)
        response = await client.ask(fetch_request(1), FETCH_VERSION, FetchResponse)
        assert (response.throttle_time_ms, fetched_bytes(response)) == (0, len(BATCH))


async def test_a_fetch_session_goes_on_after_a_throttle(tmp_path: Path) -> None:
    """What an empty response did not tell is told by the next one; a throttled first one creates no session."""
    async with running(tmp_path) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        opened = await client.ask(fetch_request(session_epoch=0), FETCH_VERSION, FetchResponse)
        assert opened.session_id
        await produce(client)
        await configure(broker, "clients", "app", consumer_byte_rate="10")
        again = fetch_request(0, session_id=opened.session_id, session_epoch=1)
        response = await client.ask(again, FETCH_VERSION, FetchResponse)
        assert (response.error_code, response.session_id, response.responses) == (0, opened.session_id, [])
        await configure(broker, "clients", "app")
        await pass_time(broker, response.throttle_time_ms)
        again = fetch_request(0, session_id=opened.session_id, session_epoch=2)
        assert fetched_bytes(await client.ask(again, FETCH_VERSION, FetchResponse)) == len(BATCH)
        await configure(broker, "clients", "app", consumer_byte_rate="1")
        response = await client.ask(fetch_request(session_epoch=0), FETCH_VERSION, FetchResponse)
        assert (response.session_id, response.responses) == (0, [])
        assert len(broker.services.fetch_sessions) == 1


class Work:
    """Measures work: each step of a request takes as long as a test says."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self.step_s
        return self._now_s


async def ask_metadata(client: LocalClient) -> int:
    return (await client.ask(MetadataRequest(topics=[]), 9, MetadataResponse)).throttle_time_ms


async def ask_offsets(client: LocalClient) -> int:
    return (await client.ask(ListOffsetsRequest(replica_id=-1), 6, ListOffsetsResponse)).throttle_time_ms


async def ask_to_create(client: LocalClient) -> int:
    return (await create(client)).throttle_time_ms


async def ask_to_fetch(client: LocalClient) -> int:
    return (await client.ask(fetch_request(), FETCH_VERSION, FetchResponse)).throttle_time_ms


@pytest.mark.parametrize("ask", [ask_metadata, ask_offsets, ask_to_create, ask_to_fetch, produce])
async def test_the_time_of_requests(tmp_path: Path, ask: Callable[[LocalClient], object]) -> None:
    """A percentage of a processor's time, whatever the API and however it is answered; one throttle lasts a second at
    most."""
    async with running(tmp_path, replace(ENVIRONMENT, work_s=Work(0.001))) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        await configure(broker, "clients", "app", request_percentage="50")
        assert await ask(client) == 0
        await configure(broker, "clients", "app", request_percentage="0.00001")
        assert await ask(client) == 1_000
        assert is_muted(client)


async def test_the_longest_throttle_counts(tmp_path: Path) -> None:
    async with running(tmp_path, replace(ENVIRONMENT, work_s=Work(1))) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        await configure(broker, "clients", "app", request_percentage="0.01", producer_byte_rate="1")
        assert await produce(client) > 100_000
        await configure(broker, "clients", "app", request_percentage="0.01", producer_byte_rate="10000")
        assert await produce(local_client(broker, "app")) == 1_000


async def test_what_is_between_brokers_does_not_count(tmp_path: Path) -> None:
    async with running(tmp_path, replace(ENVIRONMENT, work_s=Work(1))) as broker:
        client = local_client(broker, "app")
        await configure(broker, "clients", "<default>", request_percentage="0.01")
        client.session.belongs_to_broker(2)
        assert await ask_metadata(client) == 0
        assert await ask_metadata(local_client(broker, "app")) == 1_000


@pytest.mark.parametrize("version", [5, 7])
async def test_topics_are_created_within_the_quota(tmp_path: Path, version: int) -> None:
    """An exhausted quota refuses requests of newer versions and throttles older ones. Invalid topics do not count."""
    async with running(tmp_path, controller_quota_window_num="1") as broker:
        client = local_client(broker, "app")
        await configure(broker, "users", "ANONYMOUS", controller_mutation_rate="2")
        await create(client, ("a", 3), ("in/valid", 100), version=version)
        response = await create(local_client(broker, "app"), ("b", 1), version=version)
        error = ErrorCode.NONE if version < 6 else ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert [topic.error_code for topic in response.topics] == [error]
        assert response.throttle_time_ms == (1_000 if version < 6 else 500)
        await pass_time(broker, response.throttle_time_ms)
        response = await create(client, ("c", 1), version=version)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.NONE]


async def test_partitions_are_created_and_deleted_within_the_quota(tmp_path: Path) -> None:
    async with running(tmp_path, controller_quota_window_num="1") as broker:
        client = local_client(broker, "app")
        await create(client, ("a", 1))
        await configure(broker, "users", "<default>", controller_mutation_rate="2")
        response = await expand(client, 4)
        assert [each.error_code for each in response.results] == [ErrorCode.NONE]
        other = local_client(broker, "other")
        response = await expand(other, 5)
        assert [each.error_code for each in response.results] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert response.throttle_time_ms == 500
        third = local_client(broker, "third")
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=30_000)
        deleted = await third.ask(deletion, 6, DeleteTopicsResponse)
        assert [each.error_code for each in deleted.responses] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        await pass_time(broker, 500)
        deleted = await third.ask(deletion, 6, DeleteTopicsResponse)
        assert [each.error_code for each in deleted.responses] == [ErrorCode.NONE]


async def test_quotas_hold_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create(local_client(broker, "app"), (TOPIC, 1))
        await configure(broker, "users", "ANONYMOUS/clients/app", producer_byte_rate="1")
    async with running(tmp_path) as broker:
        assert await produce(local_client(broker, "app")) > 0
        assert await produce(local_client(broker, "other")) == 0


async def test_credentials_of_users_are_no_quotas(tmp_path: Path) -> None:
    """Nothing of this room is made before there is a quota."""
    async with running(tmp_path) as broker:
        await broker.configs.change("users", "alice", lambda _: {"SCRAM-SHA-256": "secret"})
        assert broker.quotas is None
        await configure(broker, "clients", "app", producer_byte_rate="1")
        assert broker.quotas is not None


async def test_the_page_of_metrics_has_throttles(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = local_client(broker, "app")
        await create(client, (TOPIC, 1))
        page = MetricsPage()
        assert 'quota="' not in page.render(take_snapshot(broker.metric_sources()), "")[0].decode()
        await configure(broker, "clients", "app", producer_byte_rate="100")
        throttle_time_ms = await produce(client)
        text = page.render(take_snapshot(broker.metric_sources()), "")[0].decode()
        assert 'barnabas_quota_throttles_total{quota="produce"} 1.0' in text
        assert f'barnabas_quota_throttle_seconds_total{{quota="produce"}} {throttle_time_ms / 1000}' in text
        assert 'barnabas_quota_clients{quota="produce"} 1.0' in text
        assert 'barnabas_quota_throttles_total{quota="connection"} 0.0' in text
