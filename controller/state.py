"""The controller's view of the cluster: immutable values, replaced as a whole by each decision."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

NO_LEADER = -1
"""The leader of a partition none of whose eligible replicas is online."""

LEADER_DURING_DELETE = -2
"""The leader that brokers receive for the partitions of a topic that is being deleted
(`LeaderAndIsr.LEADER_DURING_DELETE`).
"""

NO_ZNODE = -1
"""The partition epoch of a state without a znode."""

NOBODY = -1
"""In place of the replica that left an ISR last."""

EPOCH_DURING_DELETE = -2
"""The leader epoch in StopReplica that overrides every other: the topic is deleted
(`LeaderAndIsr.EPOCH_DURING_DELETE`).
"""


class SecurityProtocol(Enum):
    """The protocol of a listener; the value is Kafka's id on the wire."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


class RecoveryState(Enum):
    """Whether a partition's leader may lack acknowledged records after an unclean election (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class EndPoint(NamedTuple):
    """One advertised address of a broker."""

    listener: str
    host: str
    port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def connection_string(self) -> str:
        """Kafka's text form, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class SupportedFeature(NamedTuple):
    """The levels of a feature that a broker supports (KIP-584)."""

    name: str
    min_version: int
    max_version: int


class BrokerRegistration(NamedTuple):
    """A broker's registration data; `epoch` is the czxid of its registration, -1 before it has one.

    A broker that `may_lack_records` was not stopped before its machine crashed: records that it had acknowledged may
    not have reached its disk. `damaged` are the partitions whose logs it has, and cannot open. `min_insync_replicas` is
    the value in its configuration file; a broker that does not report it (one of Kafka, say) may have left it at one.
    `secret_digest` is the digest of the secret that it presents to other brokers (`broker/security/broker_secrets.py`);
    "" if it has none.
    """

    broker_id: int
    endpoints: tuple[EndPoint, ...]
    rack: str | None = None
    epoch: int = -1
    features: tuple[SupportedFeature, ...] = ()
    may_lack_records: bool = False
    damaged: "frozenset[TopicPartition]" = frozenset()
    min_insync_replicas: int = 1
    secret_digest: str = ""

    def may_lack(self, partition: "TopicPartition") -> bool:
        """Whether the broker may lack records of a partition that it acknowledged."""
        return self.may_lack_records or partition in self.damaged


class Registrations(NamedTuple):
    """The live brokers. `zxid` is that of the last change among them; every broker that reads these registrations reads
    the same zxid.
    """

    brokers: tuple[BrokerRegistration, ...]
    zxid: int


class ReplicaAssignment(NamedTuple):
    """The brokers with replicas of a partition, the preferred leader first; the last two fields belong to a
    reassignment under way.
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment under way; without one, all."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        """The replicas before the reassignment under way, perhaps in another order; without one, all."""
        return tuple(replica for replica in self.replicas if replica not in self.adding_replicas)

    def reassigned_to(self, target: Sequence[int]) -> "ReplicaAssignment":
        """The assignment during a reassignment from the origin to other replicas: the target's come first.

        *Source*: kafka 3.9.1 `ReplicaAssignment.reassignTo` in `ControllerContext.scala`.
        """
        origin = self.origin_replicas
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(
            replicas,
            tuple(replica for replica in replicas if replica not in origin),
            tuple(replica for replica in replicas if replica not in target),
        )


class PartitionState(NamedTuple):
    """Leader and in-sync replicas of a partition; `partition_epoch` is the version of its znode.

    `left_isr` are replicas that left the ISR and did not rejoin, the last one to leave at the end: the one that lacks
    least. If that one may lack committed records by now, because a leader alone in the ISR could commit, or is no
    replica any more, NOBODY is at the end. (KIP-966 keeps the same for KRaft: eligible leader replicas, and the last
    known leader.)
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int
    recovery_state: RecoveryState = RecoveryState.RECOVERED
    left_isr: tuple[int, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the in-sync replicas are unknown: the znode of the state is gone, or cannot be read."""
        return not self.isr

    def with_isr(self, isr: tuple[int, ...]) -> "PartitionState":
        """The state with another ISR."""
        if isr == self.isr:
            return self
        left = (*self.left_isr, *(member for member in self.isr if member not in self.left_isr))
        return self._replace(isr=isr, left_isr=tuple(replica for replica in left if replica not in isr))

    def without_left(self, replicas: Container[int]) -> "PartitionState":
        """The state in which these replicas are not recorded as having left the ISR."""
        if not any(replica in replicas for replica in self.left_isr):
            return self
        known = tuple(replica for replica in self.left_isr if replica not in replicas and replica != NOBODY)
        needs_no_mark = not known or self.left_isr[-1] in known
        return self._replace(left_isr=known if needs_no_mark else (*known, NOBODY))

    def with_nobody_left_last(self) -> "PartitionState":
        """The state in which the last replica to leave the ISR is unknown."""
        return self._replace(left_isr=(*(replica for replica in self.left_isr if replica != NOBODY), NOBODY))

    @property
    def last_to_leave(self) -> int:
        """The replica that left the ISR last, and has all records committed before; NOBODY if unknown."""
        return self.left_isr[-1] if self.left_isr else NOBODY


class LogEnd(NamedTuple):
    """A replica's report for a partition whose state is lost, made while there is no leader: the last leader epoch in
    its log, and the log end offset. In this order, the log with the greatest end has everything that any of them
    committed. One that is not `is_certain` may have had more.
    """

    last_epoch: int
    end_offset: int
    is_certain: bool = True


class TopicState(NamedTuple):
    """A topic, its assignment, and the states of those of its partitions that ever had a leader."""

    name: str
    topic_id: bytes
    assignments: Mapping[int, ReplicaAssignment]
    partitions: Mapping[int, PartitionState] = MappingProxyType({})

    def with_partitions(self, partitions: Mapping[int, PartitionState]) -> "TopicState":
        """The topic with these partition states in place of the old ones."""
        return self._replace(partitions={**self.partitions, **partitions})


TopicPartition = tuple[str, int]


class ClusterState(NamedTuple):
    """The state that the controller decides on.

    `deleting` contains the topics in the deletion queue; they stay in `topics` until the last replica is deleted.
    `offline_replicas` are replicas that their live broker reported as failed, by broker id: for instance because of a
    broken log directory. `shutting_down` are live brokers that have requested a controlled shutdown.
    """

    brokers: Mapping[int, BrokerRegistration] = MappingProxyType({})
    topics: Mapping[str, TopicState] = MappingProxyType({})
    deleting: frozenset[str] = frozenset()
    offline_replicas: Mapping[int, frozenset[TopicPartition]] = MappingProxyType({})
    shutting_down: frozenset[int] = frozenset()

    def is_online(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether a broker is live, is not stopping, and has not reported its replica of the partition as failed."""
        return (
            broker_id in self.brokers
            and broker_id not in self.shutting_down
            and partition not in self.offline_replicas.get(broker_id, frozenset())
        )

    def partitions(self) -> Iterator[tuple[TopicState, int]]:
        """Every partition of every topic that is not being deleted."""
        for topic in self.topics.values():
            if topic.name not in self.deleting:
                for partition in topic.assignments:
                    yield topic, partition

    def with_topics(self, topics: Iterable[TopicState]) -> "ClusterState":
        """The cluster with these topics, added or in place of those of the same name."""
        return self._replace(topics={**self.topics, **{topic.name: topic for topic in topics}})

    def with_assignments(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> "ClusterState":
        """The cluster with these assignments in place of the old ones."""
        by_topic: dict[str, dict[int, ReplicaAssignment]] = {}
        for (name, partition), assignment in assignments.items():
            by_topic.setdefault(name, {})[partition] = assignment
        return self.with_topics(
            self.topics[name]._replace(assignments={**self.topics[name].assignments, **changed})
            for name, changed in by_topic.items()
        )

    def with_states(self, states: Mapping[TopicPartition, PartitionState]) -> "ClusterState":
        """The cluster with these partition states in place of the old ones."""
        by_topic: dict[str, dict[int, PartitionState]] = {}
        for (name, partition), state in states.items():
            by_topic.setdefault(name, {})[partition] = state
        return self.with_topics(self.topics[name].with_partitions(changed) for name, changed in by_topic.items())

    def with_deleting(self, names: Iterable[str]) -> "ClusterState":
        """The cluster with these topics added to the deletion queue."""
        return self._replace(deleting=self.deleting | frozenset(names))

    def without_topics(self, names: Iterable[str]) -> "ClusterState":
        """The cluster without these topics."""
        gone = frozenset(names)
        return self._replace(
            topics={name: topic for name, topic in self.topics.items() if name not in gone},
            deleting=self.deleting - gone,
            offline_replicas={
                broker: frozenset(p for p in partitions if p[0] not in gone)
                for broker, partitions in self.offline_replicas.items()
            },
        )

    def with_brokers(self, brokers: Iterable[BrokerRegistration]) -> "ClusterState":
        """The cluster with these brokers, added or in place of their former registrations."""
        return self._replace(brokers={**self.brokers, **{broker.broker_id: broker for broker in brokers}})

    def without_brokers(self, broker_ids: Collection[int]) -> "ClusterState":
        """The cluster without these brokers, and without their reports."""
        return self._replace(
            brokers={known: broker for known, broker in self.brokers.items() if known not in broker_ids},
            offline_replicas={known: each for known, each in self.offline_replicas.items() if known not in broker_ids},
            shutting_down=self.shutting_down.difference(broker_ids),
        )

    def still_stopping(self, brokers: Mapping[int, BrokerRegistration]) -> frozenset[int]:
        """The `brokers` that have requested a controlled shutdown in their current registration."""
        return frozenset(
            broker_id
            for broker_id in self.shutting_down & brokers.keys()
            if brokers[broker_id].epoch == self.brokers[broker_id].epoch
        )

    def with_offline_replicas(self, broker_id: int, partitions: Iterable[TopicPartition]) -> "ClusterState":
        """The cluster after a broker has reported its replicas of these partitions as failed."""
        known = self.offline_replicas.get(broker_id, frozenset())
        return self._replace(offline_replicas={**self.offline_replicas, broker_id: known | frozenset(partitions)})

    def without_offline_replicas(self, broker_id: int, partitions: Iterable[TopicPartition]) -> "ClusterState":
        """The cluster after a broker has opened its replicas of these partitions after all."""
        known = self.offline_replicas.get(broker_id, frozenset())
        return self._replace(offline_replicas={**self.offline_replicas, broker_id: known - frozenset(partitions)})
