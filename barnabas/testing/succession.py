"""One broker after the other on the same event loop, ports and connections: how a broker of a test gets another state
in a few milliseconds. Nothing else of the former one is taken over, so the next is as sound as any that starts."""

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
    from barnabas.testing.kept_network import KeptNetwork

ANSWERING_TURNS_MAX: Final = 20
"""Turns of the event loop in which whoever waits in a request is answered; who is not by then is cut off."""

TOPIC_IS_DELETED: Final = -2
"""The leader epoch that outdoes all others (KIP-516's `EpochDuringDelete`)."""


async def end(server: Server, network: KeptNetwork, *, is_clean: bool) -> None:
    """End a broker, as a crash would unless that is to be clean, while its clients stay connected: requests that wait
    (long polls, joins of groups) are answered, by partitions that are not led here any more, and coordinators that have
    left. Connections in the middle of a request for all that are cut."""
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
            network.wait_for_next(ports[connection.session.listener_name], transport)
