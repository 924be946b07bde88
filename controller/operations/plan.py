"""What a decision of the controller writes and leads to: pure functions from the cluster's state to a `Plan`.

A plan's writes come in groups. A group is never split between two transactions; large plans take several, in order, and
every plan is such that stopping between two groups leaves a store from which the next controller carries on: partitions
without a state are elected, topics in the deletion queue are deleted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import Check, Create, Delete, Operation, SetData
from barnabas.controller.operations import elections as election
from barnabas.controller.operations.topics import Creation
from barnabas.controller.state import (
    ClusterState,
    PartitionState,
    ReplicaAssignment,
    TopicPartition,
    TopicState,
)

TRANSACTION_BYTES_MAX = 512 * 1024
"""Size at which writes continue in another transaction: half of what ZooKeeper takes in one message
(`jute.maxbuffer`)."""

_OPERATION_OVERHEAD_BYTES = 64

OperationGroup = tuple[Operation, ...]


class Plan(NamedTuple):
    """A decision: `writes` to make it durable, the `cluster` as it is then, and the partitions whose `told` states
    brokers must learn.

    `new` are those among `told` that never had a leader before.
    """

    writes: tuple[OperationGroup, ...]
    cluster: ClusterState
    told: tuple[TopicPartition, ...] = ()
    new: frozenset[TopicPartition] = frozenset()


def transactions(groups: Iterable[OperationGroup], fence: Check) -> list[list[Operation]]:
    """Pack groups into as few transactions as their size allows, each opened by the check that its author is still the
    controller."""
    packed: list[list[Operation]] = []
    room = 0
    for group in filter(None, groups):
        size = sum(map(_size, group))
        if not packed or size > room:
            packed.append([fence])
            room = TRANSACTION_BYTES_MAX
        packed[-1].extend(group)
        room -= size
    return packed


def plan_creations(
    cluster: ClusterState, creations: Sequence[Creation], existing: Collection[str], controller_epoch: int
) -> Plan:
    """Create topics: config, assignment, then the states of their partitions. `existing` are config znodes left by
    somebody else."""
    writes: list[OperationGroup] = []
    topics: list[TopicState] = []
    for creation in creations:
        topic = creation.topic
        config_path = znodes.config_path("topics", topic.name)
        config = znodes.encode_config(creation.configs)
        writes.append(
            (
                SetData(config_path, config) if config_path in existing else Create(config_path, config),
                Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.assignments)),
                Create(znodes.partitions_path(topic.name)),
            )
        )
        states = _first_states(cluster, topic.name, topic.assignments, controller_epoch)
        writes += [_state_creation(topic.name, partition, state, ()) for partition, state in states.items()]
        topics.append(topic.with_partitions(states))
    told = tuple((topic.name, partition) for topic in topics for partition in topic.partitions)
    return Plan(tuple(writes), cluster.with_topics(topics), told, frozenset(told))


def plan_expansions(
    cluster: ClusterState,
    added: Mapping[str, Mapping[int, ReplicaAssignment]],
    existing: Collection[str],
    controller_epoch: int,
) -> Plan:
    """Add partitions to topics. `existing` are those found among their `parent_paths`."""
    writes: list[OperationGroup] = []
    topics: list[TopicState] = []
    told: list[TopicPartition] = []
    for name, new_assignments in added.items():
        topic = cluster.topics[name]
        assignments = {**topic.assignments, **new_assignments}
        writes.append(
            (
                SetData(znodes.topic_path(name), znodes.encode_topic(topic.topic_id, assignments)),
                *_missing(existing, znodes.partitions_path(name)),
            )
        )
        states = _first_states(cluster, name, new_assignments, controller_epoch)
        writes += [_state_creation(name, partition, state, existing) for partition, state in states.items()]
        topics.append(topic._replace(assignments=assignments).with_partitions(states))
        told += [(name, partition) for partition in states]
    return Plan(tuple(writes), cluster.with_topics(topics), tuple(told), frozenset(told))


def parent_paths(partitions: Iterable[TopicPartition]) -> list[str]:
    """The znodes above the states of these partitions, which may or may not exist already."""
    paths: dict[str, None] = {}
    for name, partition in partitions:
        paths[znodes.partitions_path(name)] = None
        paths[znodes.partition_path(name, partition)] = None
    return list(paths)


def plan_elections(
    cluster: ClusterState,
    new: Collection[TopicPartition],
    offline: Collection[TopicPartition],
    existing: Collection[str],
    controller_epoch: int,
    unclean: Callable[[str], bool],
) -> Plan:
    """Give new and offline partitions a leader; an offline one that gets none is recorded as leaderless.

    `existing` are those found among the `parent_paths` of new partitions; `unclean` tells whether a topic allows a
    leader from outside the ISR.
    """
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    parents_written: set[str] = set()
    for name, partition in new:
        state = election.first_leader(*_replicas(cluster, name, partition), controller_epoch)
        if state is None:
            continue
        parent = znodes.partitions_path(name)
        if parent not in parents_written:
            parents_written.add(parent)
            writes.append(_missing(existing, parent))
        writes.append(_state_creation(name, partition, state, existing))
        states[name, partition] = state
    for name, partition in offline:
        old = cluster.topics[name].partitions[partition]
        replicas, live = _replicas(cluster, name, partition)
        elected = election.leader_for_offline(replicas, old, live, controller_epoch, unclean=unclean(name))
        state = elected or election.without_replica(old, old.leader, controller_epoch)
        if state is not None:
            writes.append((_state_update(name, partition, old, state),))
            states[name, partition] = state
    return Plan(tuple(writes), _with_states(cluster, states), tuple(states), frozenset(new) & states.keys())


def plan_offline_replicas(
    cluster: ClusterState, broker_id: int, partitions: Collection[TopicPartition], controller_epoch: int
) -> Plan:
    """Take a live broker's failed replicas out of ISRs and leadership."""
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in partitions:
        old = cluster.topics[name].partitions[partition]
        state = election.without_replica(old, broker_id, controller_epoch)
        if state is not None:
            writes.append((_state_update(name, partition, old, state),))
            states[name, partition] = state
    failed = _with_states(cluster, states).with_offline_replicas(broker_id, partitions)
    return Plan(tuple(writes), failed, tuple(states))


def plan_deletion_queue(cluster: ClusterState, names: Iterable[str]) -> Plan:
    """Queue topics for deletion: from here on they are gone for everybody but the controller."""
    queued = [name for name in names if name not in cluster.deleting]
    writes = tuple((Create(znodes.delete_topic_path(name)),) for name in queued)
    return Plan(writes, cluster.with_deleting(queued))


def plan_removal(cluster: ClusterState, name: str, existing: Sequence[str]) -> Plan:
    """Remove a topic whose replicas are gone. `existing` are its znodes, children before parents.

    The queue's entry goes together with the topic's own znode, in the last group: until then a restart deletes again
    what is left.
    """
    below = znodes.partitions_path(name) + "/"
    states = [(Delete(path),) for path in existing if path.startswith(below)]
    last = tuple(Delete(path) for path in existing if not path.startswith(below))
    return Plan((*states, last), cluster.without_topics([name]))


def _first_states(
    cluster: ClusterState, name: str, assignments: Mapping[int, ReplicaAssignment], controller_epoch: int
) -> dict[int, PartitionState]:
    states = {}
    for partition, assignment in assignments.items():
        live = [replica for replica in assignment.replicas if cluster.is_online(replica, (name, partition))]
        state = election.first_leader(assignment.replicas, live, controller_epoch)
        if state is not None:
            states[partition] = state
    return states


def _replicas(cluster: ClusterState, name: str, partition: int) -> tuple[tuple[int, ...], list[int]]:
    """A partition's assignment, and its online replicas."""
    replicas = cluster.topics[name].assignments[partition].replicas
    return replicas, [replica for replica in replicas if cluster.is_online(replica, (name, partition))]


def _with_states(cluster: ClusterState, states: Mapping[TopicPartition, PartitionState]) -> ClusterState:
    by_topic: dict[str, dict[int, PartitionState]] = {}
    for (name, partition), state in states.items():
        by_topic.setdefault(name, {})[partition] = state
    return cluster.with_topics(cluster.topics[name].with_partitions(changed) for name, changed in by_topic.items())


def restored_states(states: Mapping[TopicPartition, PartitionState], existing: Collection[str]) -> list[OperationGroup]:
    """Writes that create the state znodes of partitions anew. `existing` are those found among their `parent_paths`."""
    parents = dict.fromkeys(znodes.partitions_path(name) for name, _ in states)
    groups: list[OperationGroup] = [_missing(existing, parent) for parent in parents]
    return groups + [_state_creation(*partition, state, existing) for partition, state in states.items()]


def _state_creation(name: str, partition: int, state: PartitionState, existing: Collection[str]) -> OperationGroup:
    return (
        *_missing(existing, znodes.partition_path(name, partition)),
        Create(znodes.partition_state_path(name, partition), znodes.encode_partition_state(state)),
    )


def _state_update(name: str, partition: int, old: PartitionState, new: PartitionState) -> Operation:
    path = znodes.partition_state_path(name, partition)
    return SetData(path, znodes.encode_partition_state(new), old.partition_epoch)


def _missing(existing: Collection[str], path: str) -> OperationGroup:
    return () if path in existing else (Create(path),)


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD_BYTES
