"""The writes and results of a decision of the controller: the `Plan`, and the writes that several operations share.

Pure, as are the functions `plan_*` in the files of the operations, which compute plans from the cluster's state. A
plan's writes come in groups. A group is never split between two transactions; large plans take several, in order, and
after an interruption between two groups the next controller can continue from the store: partitions without a state get
a leader, topics in the deletion queue are deleted.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from barnabas.controller import znodes
from barnabas.controller.coordination.interface import Check, Create, Operation, SetData
from barnabas.controller.state import NO_ZNODE, ClusterState, PartitionState, TopicPartition

TRANSACTION_BYTES_MAX = 512 * 1024
"""The size at which writes continue in another transaction: half of ZooKeeper's maximum message (`jute.maxbuffer`)."""

_OPERATION_OVERHEAD_BYTES = 64

OperationGroup = tuple[Operation, ...]


class Plan(NamedTuple):
    """A decision: `writes` to make it durable, the resulting `cluster`, and the partitions whose states have to be
    `told` to brokers.

    `new` are those among `told` that never had a leader before.
    """

    writes: tuple[OperationGroup, ...]
    cluster: ClusterState
    told: tuple[TopicPartition, ...] = ()
    new: frozenset[TopicPartition] = frozenset()


def transactions(
    groups: Iterable[OperationGroup], fence: Check, bytes_max: int = TRANSACTION_BYTES_MAX
) -> Iterator[list[Operation]]:
    """Pack groups into as few transactions of at most `bytes_max` as possible, each beginning with the check that its
    author is still the controller. A larger group has a transaction of its own. Lazy: packing many blocks the event
    loop.
    """
    packed: list[Operation] = []
    room = 0
    for group in filter(None, groups):
        size = sum(map(_size, group))
        if packed and size > room:
            yield packed
            packed = []
        if not packed:
            packed.append(fence)
            room = bytes_max
        packed.extend(group)
        room -= size
    if packed:
        yield packed


def parent_paths(partitions: Iterable[TopicPartition]) -> list[str]:
    """The znodes above the states of these partitions, which may or may not exist."""
    paths: dict[str, None] = {}
    for name, partition in partitions:
        paths[znodes.partitions_path(name)] = None
        paths[znodes.partition_path(name, partition)] = None
    return list(paths)


def state_creations(states: Mapping[TopicPartition, PartitionState], existing: Collection[str]) -> list[OperationGroup]:
    """The writes of states that have no znode yet. `existing` are the existing ones of their `parent_paths`."""
    parents = dict.fromkeys(znodes.partitions_path(name) for name, _ in states)
    groups: list[OperationGroup] = [missing_znode(existing, parent) for parent in parents]
    return groups + [state_creation(*partition, state, existing) for partition, state in states.items()]


def state_writes(
    cluster: ClusterState, states: Mapping[TopicPartition, PartitionState], existing: Collection[str]
) -> list[OperationGroup]:
    """The writes of the next states of partitions: first in new znodes, then in existing ones. `existing` are the
    existing ones of the `parent_paths` of the partitions `without_znode`.
    """
    new = without_znode(cluster, states)
    updates: list[OperationGroup] = []
    for (name, index), state in states.items():
        old = cluster.topics[name].partitions.get(index)
        if old is not None and old.partition_epoch != NO_ZNODE:
            updates.append((state_update(name, index, old, state),))
    return [*state_creations({each: states[each] for each in new}, existing), *updates]


def without_znode(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of these partitions whose state has no znode: they never had one, or it is lost."""
    found = []
    for name, index in partitions:
        state = cluster.topics[name].partitions.get(index)
        if state is None or state.partition_epoch == NO_ZNODE:
            found.append((name, index))
    return found


def state_creation(name: str, partition: int, state: PartitionState, existing: Collection[str]) -> OperationGroup:
    """The writes of a partition's first state. `existing` says whether the znode above exists."""
    return (
        *missing_znode(existing, znodes.partition_path(name, partition)),
        Create(znodes.partition_state_path(name, partition), znodes.encode_partition_state(state)),
    )


def state_update(name: str, partition: int, old: PartitionState, new: PartitionState) -> Operation:
    """The write of a partition's next state, refused if another client has changed it."""
    path = znodes.partition_state_path(name, partition)
    return SetData(path, znodes.encode_partition_state(new), old.partition_epoch)


def missing_znode(existing: Collection[str], path: str) -> OperationGroup:
    """The creation of a znode without data, unless it exists."""
    return () if path in existing else (Create(path),)


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD_BYTES
