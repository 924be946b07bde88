"""This broker's metadata of the cluster: live brokers, topics, leaders. Updated only by UpdateMetadata requests of the
controller (Kafka's ZkMetadataCache), and by LeaderAndIsr requests that come before those; read by Metadata,
DescribeCluster, FindCoordinator and by every handler that needs to know whether a topic exists."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from barnabas.broker.configuration.listeners import Endpoint
from barnabas.clock import Clock, SystemClock
from barnabas.controller.requests import FULL
from barnabas.set_aside import SetAside
from barnabas.turns import Turns
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest
    from barnabas.wire.messages.update_metadata import (
        UpdateMetadataBroker,
        UpdateMetadataPartitionState,
        UpdateMetadataRequest,
        UpdateMetadataTopicState,
    )

LEADER_DURING_DELETE = -2
NO_LEADER = -1
UNKNOWN_CONTROLLER_EPOCH = -1

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    """A live broker, with its advertised address per listener name."""

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

    def lacks(self, broker_id: int) -> bool:
        """Whether a broker has a replica that is not in sync with the leader; False without a leader."""
        return self.leader >= 0 and broker_id in self.replicas and broker_id not in self.isr

    def unavailable_replicas(self, reachable: frozenset[int]) -> list[int]:
        """The offline replicas for clients: those that the controller reports, and those of brokers that are not
        `reachable`, alive and on the client's listener (KRaftMetadataCache.getOfflineReplicas).
        """
        offline = self.offline_replicas
        if not offline and reachable.issuperset(self.replicas):
            return []  # the usual case, for each partition of each response
        return [replica for replica in self.replicas if replica not in reachable or replica in offline]


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
        """The number of partitions, also when one of them could not be read from the metadata store."""
        return max(self.partitions) + 1


class MetadataCache:
    """The cluster's metadata as of the controller's last request to broker `node_id`; owned by the event loop.
    `listeners` are called after every update; an exception of one affects neither the others nor the controller's
    request."""

    def __init__(self, node_id: int = NO_LEADER, clock: Clock | None = None) -> None:
        self._node_id = node_id
        self.controller_id = NO_LEADER
        self.is_complete = False
        """Whether the present controller has sent all topics: then a topic that is missing here does not exist, unless
        it could not be read (`is_gone`). (The former controller may have created topics that this broker never
        received.)"""
        self._complete_epoch = UNKNOWN_CONTROLLER_EPOCH
        self._unread: set[str] = set()
        """Topics that the controller has named, but could not read: only their existence is known."""
        self._brokers: dict[int, BrokerMetadata] = {}
        self.brokers_changes = 0
        """The number of changes of the live brokers, their addresses or racks."""
        self._reachable: dict[str, frozenset[int]] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._names_by_id: dict[TopicId, str] = {}
        self.listeners: dict[Callable[[], None], None] = {}
        self.set_aside = SetAside[Callable[[], None]](
            "hearing of the cluster",
            clock or SystemClock(),
            first_delay_ms=0,
            name=lambda listener: listener.__qualname__,
        )

    # --- reading ----------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._names_by_id.get(topic_id)

    def topic_id(self, name: str) -> TopicId:
        """The topic's id, or the zero id if there is no such topic."""
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

    def is_gone(self, topic_name: str) -> bool:
        """Whether a topic or partition that is missing here does not exist."""
        return self.is_complete and topic_name not in self._unread

    def leaderless_count(self) -> int:
        """The number of partitions without a leader, and without a replica that could be elected."""
        return sum(
            partition.leader == NO_LEADER for topic in self._topics.values() for partition in topic.partitions.values()
        )

    def out_of_sync(self, broker_id: int) -> Iterator[tuple[str, int]]:
        """The partitions with a leader whose replica on a broker is not in sync."""
        return (
            (topic.name, index)
            for topic in self._topics.values()
            for index, partition in topic.partitions.items()
            if partition.lacks(broker_id)
        )

    def is_out_of_sync(self, broker_id: int, topic_name: str, index: int) -> bool:
        """Whether that partition is one of those."""
        partition = self.partition(topic_name, index)
        return partition is not None and partition.lacks(broker_id)

    def brokers(self) -> Iterable[BrokerMetadata]:
        return self._brokers.values()

    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker was registered at the controller's last request."""
        return broker_id in self._brokers

    def endpoint(self, broker_id: int, listener_name: str) -> Endpoint | None:
        """The broker's address for clients of `listener_name`; None when it is not alive or has no such listener."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener_name)

    def rack(self, broker_id: int, listener_name: str) -> str | None:
        """The rack of a broker that clients of `listener_name` can reach; None if they cannot, or it has none."""
        broker = self._brokers.get(broker_id)
        return None if broker is None or listener_name not in broker.endpoints else broker.rack

    def reachable(self, listener_name: str) -> frozenset[int]:
        """The live brokers with such a listener."""
        found = self._reachable.get(listener_name)
        if found is None:
            brokers = self._brokers.values()
            found = frozenset(broker.broker_id for broker in brokers if listener_name in broker.endpoints)
            self._reachable[listener_name] = found
        return found

    # --- writing ----------------------------------------------------------------------------------

    async def update(self, request: "UpdateMetadataRequest") -> list[TopicMetadata]:
        """Apply an UpdateMetadata request; returns the deleted topics.

        A topic that is missing in a full request was deleted while this broker was down (as in Kafka's ZkMetadataCache,
        with KRaft controllers); a topic without partitions in it could not be read by the controller, and only its
        existence is known. The deletion of a topic that this broker hosts would have waited for this broker: if such a
        topic is missing, the metadata store was damaged, and the topic stays. None of these are returned, as the data
        of returned topics is removed.

        The event loop has turns while the request is read. It is applied as a whole, so that no reader sees a part of a
        topic; the controller sends one request after the other, so that nothing changes in between.
        """
        turns = Turns()
        unread = {
            state.topic_name for state in request.topic_states if request.type == FULL and not state.partition_states
        }
        told = [await self._told(state, turns) for state in request.topic_states if state.topic_name not in unread]
        self.controller_id = request.controller_id
        if request.type == FULL:
            self.is_complete = True
            self._complete_epoch = request.controller_epoch
            self._unread = unread
        else:
            self._hear_from(request)
            self._unread.difference_update(topic.name for topic in told)
        brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        if brokers != self._brokers:
            self._brokers = brokers
            self._reachable = {}
            self.brokers_changes += 1
        removed = []
        if request.type == FULL:
            for name in self._topics.keys() - {topic.name for topic in told}:
                if not self._is_hosted(self._topics[name]):
                    self._forget(self._topics[name])
        for topic in told:
            known = self._topics.get(topic.name)
            if known is not None and (not topic.partitions or known.topic_id != topic.topic_id):
                self._forget(known)
                removed.append(known)
            if topic.partitions:
                self._topics[topic.name] = topic
                self._names_by_id[topic.topic_id] = topic.name
        for listener in self.set_aside.ready(self.listeners):
            with self.set_aside.attempt(listener):
                listener()
        return removed

    async def note_roles(self, request: "LeaderAndIsrRequest") -> None:
        """Apply the leaders of the partitions whose roles the controller sends to this broker. The UpdateMetadata
        request follows a little later; until then clients that a former leader refuses would be sent back to it, and
        some of them (librdkafka) wait a second before they ask again.
        """
        self._hear_from(request)
        turns = Turns()
        for topic in request.topic_states:
            known = self._topics.get(topic.topic_name)
            if known is None or known.topic_id != topic.topic_id:
                continue
            for told in topic.partition_states:
                partition = known.partitions.get(told.partition_index)
                if partition is not None and partition.partition_epoch < told.partition_epoch:
                    known.partitions[told.partition_index] = replace(
                        partition,
                        leader=told.leader,
                        leader_epoch=told.leader_epoch,
                        isr=list(told.isr),
                        partition_epoch=told.partition_epoch,
                    )
                await turns.after_one()

    def _hear_from(self, request: "LeaderAndIsrRequest | UpdateMetadataRequest") -> None:
        """A new controller sends roles, and live brokers, before it sends all topics."""
        if request.controller_epoch > self._complete_epoch:
            self.is_complete = False

    def _is_hosted(self, topic: TopicMetadata) -> bool:
        return any(self._node_id in partition.replicas for partition in topic.partitions.values())

    def _forget(self, topic: TopicMetadata) -> None:
        self._names_by_id.pop(topic.topic_id, None)
        del self._topics[topic.name]

    async def _told(self, state: "UpdateMetadataTopicState", turns: Turns) -> TopicMetadata:
        """A topic as in the request, with the known state of its other partitions; without partitions it
        was deleted."""
        known = self._topics.get(state.topic_name)
        # New, or deleted and created again: state of an old incarnation is dropped.
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
