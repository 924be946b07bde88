"""Sessions of the brokers of a cluster with its metadata store, and whether an expiry has had its effect."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barnabas.broker.server import Broker as Server
    from barnabas.controller.coordination.embedded import EmbeddedSession, EmbeddedStore


class Sessions:
    """The store for one broker: `last` is its latest session there, `may_begin` whether it may begin another."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.last: EmbeddedSession | None = None
        self.may_begin = asyncio.Event()
        self.may_begin.set()

    async def session(self) -> EmbeddedSession:
        await self.may_begin.wait()
        self.last = await self._store.session()
        return self.last


def leads_nothing(servers: Sequence[Server], broker: int) -> bool:
    """Whether the controller, if it is another one of these brokers, has no leadership recorded for a broker; or there
    is no other broker.
    """
    if all(server.node_id == broker for server in servers):
        return True
    controller = next((server for server in servers if server.controller.is_active), None)
    return (
        controller is not None
        and controller.node_id != broker
        and not any(
            state.leader == broker
            for topic in controller.controller.context.cluster.topics.values()
            for state in topic.partitions.values()
        )
    )


def others_know(servers: Sequence[Server], broker: int) -> bool:
    """Whether each of the other brokers knows that a broker leads nothing."""
    return not any(
        state.leader == broker
        for server in servers
        if server.node_id != broker
        for topic in server.metadata.topics()
        for state in topic.partitions.values()
    )
