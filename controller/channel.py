"""Commands of the controller to the live brokers, and what their answers mean."""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

from barnabas.controller import requests
from barnabas.controller.controller_election import ControllerElection, Deposed
from barnabas.controller.registration import Registration
from barnabas.controller.state import ClusterState, TopicPartition
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

logger = logging.getLogger(__name__)


class BrokerChannel(Protocol):
    """How the controller reaches a broker; requests to one broker arrive in the order in which they are sent."""

    def reaches(self, broker_id: int) -> bool:
        """Whether requests can be sent to a broker. One that is not reached gets no partitions and is told nothing."""
        ...

    async def send(
        self, broker_id: int, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest, /
    ) -> Any:
        """Deliver and return the response message of the same API, after the broker has applied the request."""
        ...


class BrokerCommands:
    """What the controller says to brokers, in its own name and epoch.

    Called by the controller's task alone. Every method raises `Deposed` if a broker knows a newer controller, and
    whatever the channel raises.
    """

    def __init__(
        self,
        channel: BrokerChannel,
        registration: Registration,
        election: ControllerElection,
        inter_broker_listener: str | None,
    ) -> None:
        self._channel = channel
        self._registration = registration
        self._election = election
        self._inter_broker_listener = inter_broker_listener

    def reaches(self, broker_id: int) -> bool:
        """Whether this controller can say anything to a broker."""
        return self._channel.reaches(broker_id)

    @property
    def _sender(self) -> requests.Sender:
        return requests.Sender(self._registration.broker.broker_id, self._election.epoch, self._inter_broker_listener)

    async def assign_roles(
        self,
        cluster: ClusterState,
        broker_id: int,
        partitions: Iterable[TopicPartition],
        new: Collection[TopicPartition],
        request_type: int,
    ) -> list[TopicPartition]:
        """Have one broker lead and follow its share of the partitions; returns those whose log it could not open, for
        now or for good.
        """
        message = requests.leader_and_isr(self._sender, cluster, broker_id, partitions, new, request_type)
        if message is None:
            return []
        response: LeaderAndIsrResponse = await self._channel.send(broker_id, message)
        if self._check(broker_id, response.error_code) is not ErrorCode.NONE:
            return [(t.topic_name, state.partition_index) for t in message.topic_states for state in t.partition_states]
        names = {topic.topic_id: topic.topic_name for topic in message.topic_states}
        failed = []
        for topic_id, refusal in [(t.topic_id, error) for t in response.topics for error in t.partition_errors]:
            error = ErrorCode.of(refusal.error_code)
            if error is ErrorCode.NONE:
                continue
            name = names.get(topic_id)
            partition = (name or "?", refusal.partition_index)
            if cluster.is_online(broker_id, partition):  # else this was told before
                logger.error("broker %d refused its role in %s-%d: %s", broker_id, *partition, error.name)
            if error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID) and name is not None:
                failed.append(partition)
        return failed

    async def update_metadata(
        self,
        cluster: ClusterState,
        partitions: Sequence[TopicPartition],
        request_type: int = requests.INCREMENTAL,
    ) -> None:
        """Let every broker know who is alive and how the partitions stand."""
        for broker_id in cluster.brokers:
            message = requests.update_metadata(self._sender, cluster, broker_id, partitions, request_type)
            response: UpdateMetadataResponse = await self._channel.send(broker_id, message)
            self._check(broker_id, response.error_code)

    async def delete_replicas(self, cluster: ClusterState, names: Collection[str]) -> dict[str, ApiError]:
        """Have all brokers delete their replicas of the topics; returns what keeps a topic from going, by name."""
        obstacles: dict[str, ApiError] = {}
        for name in names:
            holders = {replica for a in cluster.topics[name].assignments.values() for replica in a.replicas}
            absent = sorted(holders - set(cluster.brokers))
            if absent:
                obstacles[name] = ApiError(
                    ErrorCode.REQUEST_TIMED_OUT, f"The deletion waits for broker {absent[0]}, which holds a replica."
                )
        free = [name for name in names if name not in obstacles]
        for broker_id in cluster.brokers:
            message = requests.stop_replicas_for_deletion(self._sender, cluster, broker_id, free)
            if message is None:
                continue
            response: StopReplicaResponse = await self._channel.send(broker_id, message)
            error = self._check(broker_id, response.error_code)
            failed: dict[str, ErrorCode] = {}
            if error is not ErrorCode.NONE:
                failed = dict.fromkeys((topic.topic_name for topic in message.topic_states), error)
            failed |= {e.topic_name: ErrorCode.of(e.error_code) for e in response.partition_errors if e.error_code}
            for name, code in failed.items():
                logger.error("broker %d could not delete its replicas of topic %s: %s", broker_id, name, code.name)
                obstacles[name] = ApiError(code, "A replica could not be deleted; the topic stays queued for deletion.")
        return obstacles

    def _check(self, broker_id: int, error_code: int) -> ErrorCode:
        """The error of a command as a whole."""
        error = ErrorCode.of(error_code)
        if error is ErrorCode.STALE_CONTROLLER_EPOCH:
            raise Deposed(f"broker {broker_id} knows a newer controller")
        if error is not ErrorCode.NONE:
            logger.error("broker %d refused a command of the controller: %s", broker_id, error.name)
        return error
