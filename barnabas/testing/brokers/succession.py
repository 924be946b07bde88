"""Successive brokers on the same event loop, ports and connections: a broker of a test gets another state within a few
milliseconds. Nothing else of the former one is kept, so the next one is as consistent as any new broker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from barnabas.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)

if TYPE_CHECKING:
    from barnabas.broker.server import Broker as Server
    from barnabas.testing.brokers.kept_network import KeptNetwork

ANSWERING_TURNS_MAX: Final = 20
"""The turns of the event loop in which waiting requests get a response; the remaining ones are cut off."""

TOPIC_IS_DELETED: Final = -2
"""The leader epoch that exceeds all others (KIP-516's `EpochDuringDelete`)."""


async def end(server: Server, network: KeptNetwork, *, is_clean: bool) -> None:
    """End a broker, like a crash unless `is_clean`, while its clients stay connected: waiting requests (long polls,
    joins of groups) get a response from partitions that are not led here any more, and from unloaded coordinators.
    Connections that are still in the middle of a request are closed.
    """
    network.keep()
    _keep_connections(server, network)
    if len(server.connections):
        await _answer_all(server, network)
    await (server.stop() if is_clean else server.crash())


async def _answer_all(server: Server, network: KeptNetwork) -> None:
    topics: dict[str, list[StopReplicaPartitionState]] = {}
    for partition in server.replicas.partitions():
        state = StopReplicaPartitionState(
            partition_index=partition.index, leader_epoch=TOPIC_IS_DELETED, delete_partition=False
        )
        topics.setdefault(partition.topic, []).append(state)
    await server.replicas.stop_replica(
        StopReplicaRequest(
            topic_states=[
                StopReplicaTopicState(topic_name=name, partition_states=states) for name, states in topics.items()
            ]
        )
    )
    for _ in range(ANSWERING_TURNS_MAX):
        _keep_connections(server, network)
        if not len(server.connections):
            return
        await asyncio.sleep(0)


def _keep_connections(server: Server, network: KeptNetwork) -> None:
    ports = server.socket_server.ports
    for connection in server.connections:
        transport = connection.hand_over()
        if transport is not None:
            network.wait_for_next(ports[connection.session.listener.name], transport)
