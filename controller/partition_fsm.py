"""The states of a partition and the moves between them; an illegal move raises and changes nothing.

*Source*: kafka 3.9.1 `PartitionStateMachine.scala`.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from barnabas.controller.state import ClusterState, PartitionState, TopicPartition


class PartitionStatus(Enum):
    """Where a partition is between its creation and its deletion."""

    NON_EXISTENT = "NonExistentPartition"
    """Never created, or deleted."""
    NEW = "NewPartition"
    """Created and assigned to brokers, never had a leader."""
    ONLINE = "OnlinePartition"
    """Has a leader whose replica is online."""
    OFFLINE = "OfflinePartition"
    """Had a leader, which is gone."""


VALID_PREVIOUS: Mapping[PartitionStatus, frozenset[PartitionStatus]] = {
    PartitionStatus.NON_EXISTENT: frozenset({PartitionStatus.OFFLINE}),
    PartitionStatus.NEW: frozenset({PartitionStatus.NON_EXISTENT}),
    PartitionStatus.ONLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
    PartitionStatus.OFFLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
}


class IllegalTransition(Exception):
    """A partition was to take a state that its present one does not lead to."""


class PartitionStateMachine:
    """The state of every partition the controller knows; owned by the controller."""

    def __init__(self) -> None:
        self._statuses: dict[TopicPartition, PartitionStatus] = {}

    def status(self, partition: TopicPartition) -> PartitionStatus:
        """A partition's state; NON_EXISTENT for one that is not known."""
        return self._statuses.get(partition, PartitionStatus.NON_EXISTENT)

    def move(self, partitions: Collection[TopicPartition], target: PartitionStatus) -> None:
        """Move all partitions or none.

        Raises: IllegalTransition.
        """
        for partition in partitions:
            current = self.status(partition)
            if current not in VALID_PREVIOUS[target]:
                raise IllegalTransition(f"partition {partition} cannot go from {current.value} to {target.value}")
        if target is PartitionStatus.NON_EXISTENT:
            for partition in partitions:
                self._statuses.pop(partition, None)
        else:
            self._statuses.update(dict.fromkeys(partitions, target))

    def in_status(self, *statuses: PartitionStatus) -> list[TopicPartition]:
        """The partitions in one of these states."""
        return [partition for partition, status in self._statuses.items() if status in statuses]

    def load(self, cluster: ClusterState, *, outlived: Collection[TopicPartition]) -> None:
        """Forget everything and derive the states from a cluster that was read anew.

        A partition that is `outlived` is offline: its leader was the broker's previous incarnation.
        """
        self._statuses = {
            (topic.name, partition): self._loaded(
                cluster, (topic.name, partition), topic.partitions.get(partition), outlived
            )
            for topic in cluster.topics.values()
            for partition in topic.assignments
        }

    def add(self, cluster: ClusterState, partitions: Collection[TopicPartition]) -> None:
        """Derive the states of partitions that somebody else has added to the cluster."""
        for name, partition in partitions:
            state = cluster.topics[name].partitions.get(partition)
            self._statuses[name, partition] = self._loaded(cluster, (name, partition), state, ())

    def forget(self, topics: Collection[str]) -> None:
        """Drop the partitions of topics that are not there any more."""
        self._statuses = {p: status for p, status in self._statuses.items() if p[0] not in topics}

    @staticmethod
    def _loaded(
        cluster: ClusterState,
        partition: TopicPartition,
        state: PartitionState | None,
        outlived: Collection[TopicPartition],
    ) -> PartitionStatus:
        if state is None:
            return PartitionStatus.NEW
        leads = cluster.is_online(state.leader, partition) and partition not in outlived
        return PartitionStatus.ONLINE if leads else PartitionStatus.OFFLINE
