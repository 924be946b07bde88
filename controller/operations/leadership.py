"""Who leads a partition: pure functions of its assignment, its ISR and the replicas that are online.

Each returns the new state without writing it: `partition_epoch` is that of the znode after a successful conditional
write. Acknowledged records are safe as long as the leader comes from the ISR and the ISR never becomes empty; only an
unclean election, where a topic allows it, departs from that.

*Source*: kafka 3.9.1 `Election.scala` and `PartitionLeaderElectionAlgorithms` in `PartitionStateMachine.scala`.
"""

from collections.abc import Collection, Mapping, Sequence

from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, RecoveryState, ReplicaAssignment


def first_leader(assignment: Sequence[int], live: Collection[int], controller_epoch: int) -> PartitionState | None:
    """State of a new partition: the first live replica leads at epoch 0, all live ones are in sync. None if none is
    live."""
    isr = tuple(replica for replica in assignment if replica in live)
    if not isr:
        return None
    return PartitionState(leader=isr[0], leader_epoch=0, isr=isr, controller_epoch=controller_epoch, partition_epoch=0)


def leader_for_offline(
    assignment: Sequence[int],
    state: PartitionState,
    live: Collection[int],
    controller_epoch: int,
    *,
    unclean: bool,
) -> PartitionState | None:
    """Election after the loss of the leader: the first assigned replica that is live and in sync.

    With `unclean`, the first live one if no in-sync replica is live: it becomes the whole ISR, and the partition is
    marked as recovering. None if nobody may lead.
    """
    leader = next((replica for replica in assignment if replica in live and replica in state.isr), None)
    if leader is not None:
        isr = tuple(replica for replica in state.isr if replica in live)
        return _elected(state, leader, isr, controller_epoch, state.recovery_state)
    leader = next((replica for replica in assignment if replica in live), None) if unclean else None
    if leader is None:
        return None
    return _elected(state, leader, (leader,), controller_epoch, RecoveryState.RECOVERING)


def without_replica(state: PartitionState, replica: int, controller_epoch: int) -> PartitionState | None:
    """State after a replica went offline: it leaves the ISR, unless it is its last member, and leads no more. None if
    nothing changes.

    *Source*: `ReplicaStateMachine.removeReplicasFromIsr`.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    isr = state.isr if state.isr == (replica,) else tuple(member for member in state.isr if member != replica)
    leader = NO_LEADER if replica == state.leader else state.leader
    return _elected(state, leader, isr, controller_epoch, state.recovery_state)


def first_states(
    cluster: ClusterState, name: str, assignments: Mapping[int, ReplicaAssignment], controller_epoch: int
) -> dict[int, PartitionState]:
    """States of new partitions of a topic, of those that have a live replica."""
    states = {}
    for partition, assignment in assignments.items():
        live = [replica for replica in assignment.replicas if cluster.is_online(replica, (name, partition))]
        state = first_leader(assignment.replicas, live, controller_epoch)
        if state is not None:
            states[partition] = state
    return states


def replicas_of(cluster: ClusterState, name: str, partition: int) -> tuple[tuple[int, ...], list[int]]:
    """A partition's assignment, and its online replicas."""
    replicas = cluster.topics[name].assignments[partition].replicas
    return replicas, [replica for replica in replicas if cluster.is_online(replica, (name, partition))]


def _elected(
    state: PartitionState, leader: int, isr: tuple[int, ...], controller_epoch: int, recovery_state: RecoveryState
) -> PartitionState:
    assert isr, f"an election would empty the ISR of {state}"
    return state._replace(
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        isr=isr,
        controller_epoch=controller_epoch,
        partition_epoch=state.partition_epoch + 1,
        recovery_state=recovery_state,
    )
