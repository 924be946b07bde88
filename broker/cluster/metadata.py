"""What this broker knows about the cluster: live brokers, topics, leaders. Fed only by UpdateMetadata requests of the
controller (Kafka's ZkMetadataCache), read by Metadata, DescribeCluster, FindCoordinator and by every handler that needs
to know whether a topic exists."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.broker.configuration.listeners import Endpoint
from barnabas.controller.operations.topics import check_topic_name
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from barnabas.wire.messages.update_metadata import (
        UpdateMetadataBroker,
        UpdateMetadataPartitionState,
        UpdateMetadataRequest,
        UpdateMetadataTopicState,
    )

LEADER_DURING_DELETE = -2
NO_LEADER = -1

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})


def is_valid_topic_name(name: str) -> bool:
    """Whether a topic may have this name."""
    try:
        check_topic_name(name)
    except ApiError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A live broker: its advertised address per listener name."""

    broker_id: int
    endpoints: dict[str, Endpoint]
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Leader and replicas of a partition; `leader` is NO_LEADER while there is none."""

    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    offline_replicas: list[int]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by index."""

    name: str
    topic_id: TopicId
    partitions: dict[int, PartitionMetadata]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def partition_count(self) -> int:
        """How many partitions there are, also when one of them could not be read from the store."""
        return max(self.partitions) + 1


class MetadataCache:
    """The cluster as the controller last told it; owned by the event loop. `listeners` are called after every
    update."""

    def __init__(self) -> None:
        self.controller_id = NO_LEADER
        self._brokers: dict[int, BrokerMetadata] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._names_by_id: dict[TopicId, str] = {}
        self.listeners: set[Callable[[], None]] = set()

    # --- reading ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._names_by_id.get(topic_id)

    def topic_id(self, name: str) -> TopicId:
        """The topic's id, or the zero id where there is no such topic."""
        topic = self._topics.get(name)
        return ZERO_TOPIC_ID if topic is None else topic.topic_id

    def topics(self) -> Iterator[TopicMetadata]:
        return iter(list(self._topics.values()))

    def __contains__(self, topic_name: object) -> bool:
        return topic_name in self._topics

    def has_partition(self, topic_name: str, partition: int) -> bool:
        topic = self._topics.get(topic_name)
        return topic is not None and partition in topic.partitions

    def partition(self, topic_name: str, partition: int) -> PartitionMetadata | None:
        topic = self._topics.get(topic_name)
        return None if topic is None else topic.partitions.get(partition)

    def brokers(self) -> Iterable[BrokerMetadata]:
        return self._brokers.values()

    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    def endpoint(self, broker_id: int, listener_name: str) -> Endpoint | None:
        """Where clients of `listener_name` reach the broker; None when it is not alive or has no such listener."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener_name)

    # --- writing ----------------------------------------------------------------------------------

    async def update(self, request: "UpdateMetadataRequest") -> list[TopicMetadata]:
        """Apply the controller's word; returns the topics that are gone with it.

        The event loop has turns while it is read. It is applied as a whole, so that nobody sees a part of a topic; the
        controller sends one after the other, so that nothing changes between the two.
        """
        turns = Turns()
        told = [await self._told(state, turns) for state in request.topic_states]
        self.controller_id = request.controller_id
        self._brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        removed = []
        for topic in told:
            known = self._topics.get(topic.name)
            if known is not None and (not topic.partitions or known.topic_id != topic.topic_id):
                self._names_by_id.pop(known.topic_id, None)
                del self._topics[known.name]
                removed.append(known)
            if topic.partitions:
                self._topics[topic.name] = topic
                self._names_by_id[topic.topic_id] = topic.name
        for listener in list(self.listeners):
            listener()
        return removed

    async def _told(self, state: "UpdateMetadataTopicState", turns: Turns) -> TopicMetadata:
        """A topic as it is told, with what was known of its other partitions; without any it is gone."""
        known = self._topics.get(state.topic_name)
        # New, or deleted and created again: nothing of an old incarnation holds.
        is_same = known is not None and known.topic_id == state.topic_id
        partitions = dict(known.partitions) if known is not None and is_same else {}
        for partition_state in state.partition_states:
            if partition_state.leader == LEADER_DURING_DELETE:
                partitions.pop(partition_state.partition_index, None)
            else:
                partitions[partition_state.partition_index] = _partition(partition_state)
            await turns.after_one()
        return TopicMetadata(state.topic_name, TopicId(bytes(state.topic_id)), partitions)


def _broker(state: "UpdateMetadataBroker") -> BrokerMetadata:
    endpoints = {endpoint.listener: Endpoint(endpoint.host, endpoint.port) for endpoint in state.endpoints}
    return BrokerMetadata(state.id, endpoints, state.rack)


def _partition(state: "UpdateMetadataPartitionState") -> PartitionMetadata:
    return PartitionMetadata(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        replicas=list(state.replicas),
        offline_replicas=list(state.offline_replicas),
        partition_epoch=state.zk_version,
    )
