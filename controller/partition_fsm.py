"""The status of partitions and its transitions; an illegal transition raises and changes nothing.

*Source*: kafka 3.9.1 `PartitionStateMachine.scala`.
"""

from collections.abc import Collection, Mapping
from enum import Enum

from barnabas.controller.state import ClusterState, PartitionState, TopicPartition


class PartitionStatus(Enum):
    """The status of a partition between its creation and its deletion."""

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
    """The transition is not allowed from the partition's current status."""


class PartitionStateMachine:
    """The status of every partition that the controller knows; owned by the controller."""

    def __init__(self) -> None:
        self._statuses: dict[TopicPartition, PartitionStatus] = {}

    def status(self, partition: TopicPartition) -> PartitionStatus:
        """A partition's status; NON_EXISTENT for an unknown one."""
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
        """The partitions in one of these statuses."""
        return [partition for partition, status in self._statuses.items() if status in statuses]

    def load(self, cluster: ClusterState, *, outlived: Collection[TopicPartition]) -> None:
        """Replace everything by the statuses in a newly loaded cluster.

        A partition that is `outlived` is offline: its leader was the broker's former registration.
        """
        self._statuses = {
            (topic.name, partition): self._loaded(
                cluster, (topic.name, partition), topic.partitions.get(partition), outlived
            )
            for topic in cluster.topics.values()
            for partition in topic.assignments
        }

    def add(self, cluster: ClusterState, partitions: Collection[TopicPartition]) -> None:
        """Derive the statuses of partitions that others have added to the cluster."""
        for name, partition in partitions:
            state = cluster.topics[name].partitions.get(partition)
            self._statuses[name, partition] = self._loaded(cluster, (name, partition), state, ())

    def forget(self, topics: Collection[str]) -> None:
        """Remove the partitions of deleted topics."""
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
