"""Clients that come to a broker which has joined its cluster and has not been told of it yet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker import welcome
from barnabas.broker.configuration import config
from barnabas.broker.environment import Environment
from barnabas.broker.handlers import find_handler_in_cluster
from barnabas.broker.network.peer_connection import PeerConnection, PeerUnavailable
from barnabas.broker.server import Broker
from barnabas.clock import ManualClock
from barnabas.storage.os_files import UnsyncedFiles
from barnabas.wire.messages.api_versions import ApiVersionsRequest
from barnabas.wire.messages.metadata import MetadataRequest
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest
from tests.broker.whole.cluster import Cluster, cluster
from tools.waiting import until

pytestmark = pytest.mark.anyio

HELLO = ApiVersionsRequest(client_software_name="client", client_software_version="1")
LATE = 2


@asynccontextmanager
async def joining(tmp_path: Path, may_be_told: asyncio.Event) -> AsyncIterator[Cluster]:
    """A cluster whose second broker is registered, and hears nothing before it may be told."""
    async with cluster(tmp_path, 1) as brokers:
        update = find_handler_in_cluster(UpdateMetadataRequest.API_KEY)
        assert update is not None

        is_being_told = asyncio.Event()

        async def handle(request: Any, context: Any) -> Any:
            is_being_told.set()
            await may_be_told.wait()
            return await update.handle(request, context)  # type: ignore[misc]

        starting = asyncio.create_task(brokers.start(LATE, heard=False))  # until it is told, below
        await asyncio.sleep(0)  # it is made, and has begun to start
        brokers.brokers[LATE].handlers_instead[UpdateMetadataRequest.API_KEY] = replace(update, handle=handle)
        await until(lambda: LATE in brokers.brokers[1].metadata.broker_ids())
        await until(is_being_told.is_set)  # so that the controller has its connection
        assert not brokers.brokers[LATE].is_ready
        try:
            yield brokers
        finally:
            may_be_told.set()
            await starting


async def test_api_versions_waits_until_the_broker_knows_its_cluster(tmp_path: Path) -> None:
    """Producers of a partition that a killed broker led: they are told at once who leads it now."""
    may_be_told = asyncio.Event()
    async with joining(tmp_path, may_be_told) as brokers:
        before = len(brokers.brokers[LATE].connections)
        asking = asyncio.create_task(brokers.ask(LATE, HELLO, 3))
        await until(lambda: len(brokers.brokers[LATE].connections) > before)
        assert not asking.done()
        may_be_told.set()
        assert (await asking).api_keys
        known = await brokers.ask(LATE, MetadataRequest(topics=None), 9)
        assert sorted(broker.node_id for broker in known.brokers) == [1, LATE]


async def test_a_client_that_waited_too_long_is_sent_away(tmp_path: Path) -> None:
    clock = ManualClock()
    async with cluster(tmp_path, 1) as brokers:
        keys = {
            "node.id": str(LATE),
            "log.dirs": str(tmp_path / "late"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "advertised.listeners": "PLAINTEXT://127.0.0.1:1",  # where the controller does not reach it
        }
        environment = Environment(files=UnsyncedFiles(), metadata_store=brokers._store, clock=clock)
        broker = Broker(config.load(options=keys), environment)
        start = asyncio.create_task(broker.start())
        await until(lambda: LATE in brokers.brokers[1].metadata.broker_ids())
        address = ("127.0.0.1", broker.socket_server.ports["PLAINTEXT"])
        client = PeerConnection(environment.network, lambda: address, brokers.brokers[1].timers, "client", 30_000)
        asking = client.send(HELLO, 3)
        await until(lambda: len(broker.connections) > 0)

        def is_over() -> bool:
            clock.advance(welcome.WELCOME_MS_MAX)
            broker.timers.fire_due()
            return asking.done()

        await until(is_over)
        with pytest.raises(PeerUnavailable):
            await asking
        start.cancel()
        await asyncio.wait([start])
