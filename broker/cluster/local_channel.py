"""The controller's way to this very broker: the inter-broker requests of Kafka 3.9, handed over without a socket."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from barnabas.broker.cluster.metadata import MetadataCache, TopicMetadata
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

Request = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Response = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse


class HostedReplicas(Protocol):
    """Who leads and follows partitions (`replication/replica_manager.py`)."""

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse: ...

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse: ...


class LocalChannel:
    """A BrokerChannel (controller/channel.py) that knows one broker: the one it lives in.

    `on_update` is told which topics were removed, after each UpdateMetadata and before that is answered.
    """

    def __init__(
        self,
        node_id: int,
        replicas: HostedReplicas,
        metadata: MetadataCache,
        on_update: Callable[[Sequence[TopicMetadata]], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._metadata = metadata
        self._on_update = on_update

    def reaches(self, broker_id: int) -> bool:
        return broker_id == self._node_id

    async def send(self, broker_id: int, request: Request) -> Response:
        assert broker_id == self._node_id, f"broker {broker_id} is not this one"
        if isinstance(request, LeaderAndIsrRequest):
            return await self._replicas.leader_and_isr(request)
        if isinstance(request, StopReplicaRequest):
            return await self._replicas.stop_replica(request)
        await self._on_update(await self._metadata.update(request))
        return UpdateMetadataResponse()
