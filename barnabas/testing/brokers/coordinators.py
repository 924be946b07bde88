"""Coordinators that are ready at a client's first request. A broker creates their topic then, and responds that the
client should retry (COORDINATOR_NOT_AVAILABLE), which librdkafka does a second later; a broker of a test responds when
the topic exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.handlers import find_coordinator
from barnabas.testing.contents.settled import runtime
from barnabas.testing.waiting.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from barnabas.broker.api.context import RequestContext
    from barnabas.broker.server import Broker as Server
    from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

PATIENCE_S: Final = TIMEOUT_S / 15
"""2 s of real time by default. A topic that does not exist by then will not exist soon: the disk is full, say."""

_TOPICS: Final = {
    find_coordinator.GROUP: GROUP_METADATA_TOPIC,
    find_coordinator.TRANSACTION: TRANSACTION_STATE_TOPIC,
}


def attach(server: Server, live_servers: Callable[[], Sequence[Server]], patience_s: float = PATIENCE_S) -> None:
    """Make FindCoordinator at a broker wait for the coordinators of all running brokers, for at most `patience_s`.
    Before the broker starts.
    """

    def servers() -> list[Server]:
        return [server, *(other for other in live_servers() if other.node_id != server.node_id)]

    def handle(
        request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        topic = _TOPICS.get(request.key_type)
        if topic is None or not _is_coming(servers(), topic):
            return find_coordinator.handle(request, context)
        return wait(topic, request, context)

    async def wait(topic: str, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        if topic not in server.metadata:
            context.services.auto_topics.create([topic])
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await _loaded(servers(), topic)
        response = find_coordinator.handle(request, context)
        return await response if isinstance(response, Awaitable) else response

    handler = replace(find_coordinator.HANDLER, handle=handle)
    server.handlers_instead[handler.key] = handler


def _is_coming(servers: Sequence[Server], topic: str) -> bool:
    """Whether the topic is about to be created for the first of these brokers, which received the request, or is being
    loaded.
    """
    asked = servers[0]
    if topic not in asked.metadata:
        return not asked.internal_topics.waits_for_brokers(topic)
    return any(runtime(server, topic).running() for server in servers) and not _is_loaded(servers, topic)


async def _loaded(servers: Sequence[Server], topic: str) -> None:
    """Wait until the first of these brokers knows the coordinators of a topic, and these have loaded it."""
    told = asyncio.Event()
    for server in servers:
        server.metadata.listeners[told.set] = None
    try:
        while not _is_loaded(servers, topic):
            told.clear()
            hearing = asyncio.create_task(told.wait())
            loading = [task for server in servers for task in runtime(server, topic).running()]
            try:
                await asyncio.wait([hearing, *loading], return_when=asyncio.FIRST_COMPLETED)
            finally:
                hearing.cancel()
    finally:
        for server in servers:
            server.metadata.listeners.pop(told.set, None)


def _is_loaded(servers: Sequence[Server], topic: str) -> bool:
    by_id = {server.node_id: server for server in servers}
    found = servers[0].metadata.topic(topic)

    def is_served(partition: int, leader: int) -> bool:
        if leader not in by_id:  # it has no leader yet; or the leader has died, and clients should learn that
            return leader >= 0
        return runtime(by_id[leader], topic).runner_at(partition) is not None

    return found is not None and all(is_served(index, state.leader) for index, state in found.partitions.items())
