"""The controller's way to this very broker: the inter-broker requests of Kafka 3.9, handed over without a socket."""

from typing import TYPE_CHECKING

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from barnabas.broker.server import Broker

Request = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
Response = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse


class LocalChannel:
    """A BrokerChannel (controller/channel.py) that knows one broker: the one it lives in."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def reaches(self, broker_id: int) -> bool:
        return broker_id == self._broker.node_id

    async def send(self, broker_id: int, request: Request) -> Response:
        assert broker_id == self._broker.node_id, f"broker {broker_id} is not this one"
        if isinstance(request, LeaderAndIsrRequest):
            return await self._broker.replicas.leader_and_isr(request)
        if isinstance(request, StopReplicaRequest):
            return await self._broker.replicas.stop_replica(request)
        removed = await self._broker.metadata.update(request)
        for name, runtime in (
            (GROUP_METADATA_TOPIC, self._broker.groups.runtime),
            (TRANSACTION_STATE_TOPIC, self._broker.transactions.runtime),
        ):
            topic = self._broker.metadata.topic(name)
            if topic is not None:
                runtime.on_topic(topic.topic_id, topic.partition_count)
        if removed:
            await self._broker.groups.on_topics_deleted([topic.name for topic in removed])
        return UpdateMetadataResponse()
