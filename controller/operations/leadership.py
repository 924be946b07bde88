"""The leader of a partition: pure functions of its assignment, its ISR and the replicas that are online.

Each returns the new state without writing it: `partition_epoch` is that of the znode after a successful conditional
write. Acknowledged records are safe as long as the leader comes from the ISR and the ISR never becomes empty; only an
unclean election, if a topic allows it, breaks that.

*Source*: kafka 3.9.1 `Election.scala` and `PartitionLeaderElectionAlgorithms` in `PartitionStateMachine.scala`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from barnabas.controller.state import (
    NO_LEADER,
    NOBODY,
    ClusterState,
    LogEnd,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
)

CommitsAlone = Callable[[str, int], bool]
"""Whether a broker commits when it leads a partition of a topic and is alone in its ISR: its `min.insync.replicas` is
one.
"""


def marked_if_alone(topic: str, state: PartitionState, commits_alone: CommitsAlone) -> PartitionState:
    """The decided state, marked if its leader is alone in the ISR and may commit alone: then no other replica will have
    all committed records, and the last replica to leave does not count as complete, whatever `min.insync.replicas` will
    be later.

    Call it for each state before it is written, so that every state with a lone leader is considered.
    """
    if state.isr == (state.leader,) and state.last_to_leave != NOBODY and commits_alone(topic, state.leader):
        return state.with_nobody_left_last()
    return state


def first_leader(assignment: Sequence[int], live: Collection[int], controller_epoch: int) -> PartitionState | None:
    """The state of a new partition: the first live replica leads at epoch 0, all live ones are in sync. None if none is
    live.
    """
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
    """The election after the loss of the leader: the first assigned replica that is live and in sync.

    With `unclean`, if no in-sync replica is live: the live replica that left the ISR last, which lacks least, or else
    the first live one (Kafka's choice in any case). It becomes the whole ISR, and the partition is marked as
    recovering. None if no replica may lead.
    """
    leader = next((replica for replica in assignment if replica in live and replica in state.isr), None)
    if leader is not None:
        isr = tuple(replica for replica in state.isr if replica in live)
        return _elected(state, leader, isr, controller_epoch, state.recovery_state)
    candidates = [replica for replica in (*reversed(state.left_isr), *assignment) if replica in assignment]
    leader = next((replica for replica in candidates if replica in live), None) if unclean else None
    if leader is None:
        return None
    # The replica that was in sync last is absent, or has lost its log: of the remaining ones, it is no better than
    # another.
    gone = state.without_left((leader,))._replace(isr=(leader,))
    return _elected(gone, leader, (leader,), controller_epoch, RecoveryState.RECOVERING)


def leader_for_lost(
    assignment: Sequence[int],
    state: PartitionState,
    log_ends: Mapping[int, LogEnd],
    live: Collection[int],
    controller_epoch: int,
    *,
    unclean: bool,
) -> PartitionState | None:
    """The election for a lost state, by the reports of replicas while there is no leader. The first assigned replica
    with the furthest log end leads, and all with that log end are in sync.

    All replicas must have reported, with certainty: an absent one may have led in a later epoch, alone in the ISR. With
    `unclean` the live ones suffice, and only the leader is in sync, and marked as recovering. None if no replica may
    lead.

    *Source*: none in Kafka, which restarts at epoch 0 with all live replicas in sync. The order of logs is that of
    Raft's elections.
    """
    told = [replica for replica in assignment if replica in log_ends and replica in live]
    if not told:
        return None
    furthest = max(log_ends[replica][:2] for replica in told)
    in_sync = tuple(replica for replica in told if log_ends[replica][:2] == furthest)
    is_alone = len(assignment) == 1  # no other replica has records that it may have lost
    if len(told) == len(assignment) and (is_alone or all(log_ends[replica].is_certain for replica in told)):
        return _elected(state, in_sync[0], in_sync, controller_epoch, RecoveryState.RECOVERED)
    if not unclean or len(told) < sum(replica in live for replica in assignment):
        return None
    return _elected(state, in_sync[0], in_sync[:1], controller_epoch, RecoveryState.RECOVERING)


def without_replica(state: PartitionState, replica: int, controller_epoch: int) -> PartitionState | None:
    """The state after a replica went offline: it leaves the ISR, unless it is its last member, and stops leading. None
    if nothing changes.

    *Source*: `ReplicaStateMachine.removeReplicasFromIsr`.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    isr = state.isr if state.isr == (replica,) else tuple(member for member in state.isr if member != replica)
    leader = NO_LEADER if replica == state.leader else state.leader
    return _elected(state, leader, isr, controller_epoch, state.recovery_state)


def led_by_last_to_leave(
    state: PartitionState, doubted: Collection[int], controller_epoch: int
) -> PartitionState | None:
    """The state of a partition whose whole ISR is `doubted`, as its members may lack committed records: the last
    replica to leave the ISR becomes its only member, and leads when it returns. None if that one is doubted, too, or
    unknown.

    If `min.insync.replicas` is two or more, nothing is committed without that replica once it has left; if it was one
    while a leader was alone, NOBODY is recorded as the last to leave (`marked_if_alone`).

    *Source*: KIP-966, whose eligible leader replicas are those that left an ISR that became too small.
    """
    last = state.last_to_leave
    if last == NOBODY or last in doubted:
        return None
    return _elected(state, NO_LEADER, (last,), controller_epoch, state.recovery_state)


def leaderless(state: PartitionState, controller_epoch: int) -> PartitionState | None:
    """The state after the leader has gone and no other replica may lead: without a leader, and with the same ISR, as
    each member has all acknowledged records: the first one to return may lead. None if there was no leader.

    Kafka removes the leader from an ISR that has other members, which may be gone, too: then it waits for those.
    """
    if state.leader == NO_LEADER:
        return None
    return _elected(state, NO_LEADER, state.isr, controller_epoch, state.recovery_state)


def leader_after_loss(
    assignment: Sequence[int],
    state: PartitionState,
    lost: Collection[int],
    live: Collection[int],
    controller_epoch: int,
    *,
    unclean: bool,
) -> PartitionState | None:
    """The state after replicas were `lost`: they leave the ISR, and a live member leads if the leader was one of them.
    None if nothing changes.

    *Source*: `KafkaController.onReplicasBecomeOffline`, which writes an election and each loss one by one.
    """
    if state.leader in lost:
        elected = leader_for_offline(assignment, state, live, controller_epoch, unclean=unclean)
        return elected or leaderless(state, controller_epoch)
    if state.leader == NO_LEADER or not set(lost).intersection(state.isr):
        return None
    isr = tuple(member for member in state.isr if member not in lost)
    return _elected(state, state.leader, isr, controller_epoch, state.recovery_state)


def preferred_leader(
    assignment: Sequence[int], state: PartitionState, live: Collection[int], controller_epoch: int
) -> PartitionState | None:
    """The state with the first assigned replica as the leader. None if it leads already, or may not: it has to be live
    and in sync.

    *Source*: `preferredReplicaPartitionLeaderElection`.
    """
    preferred = assignment[0]
    if preferred == state.leader or preferred not in live or preferred not in state.isr:
        return None
    return _elected(state, preferred, state.isr, controller_epoch, state.recovery_state)


def state_among(
    replicas: Sequence[int], state: PartitionState, live: Collection[int], controller_epoch: int
) -> PartitionState:
    """The state when only these replicas count, of which one is in the ISR: the leader stays if it is a live one of
    them, else the first that is `live` and in sync leads, or none. The leader epoch is raised in any case. The other
    replicas lose their logs: one that is added again does not count as formerly in sync.

    *Source*: `reassignPartitionLeaderElection`, `KafkaController.moveReassignedPartitionLeaderIfRequired`.
    """
    isr = tuple(member for member in state.isr if member in replicas)
    leader = state.leader
    if leader not in isr or leader not in live:
        leader = next((replica for replica in replicas if replica in live and replica in isr), NO_LEADER)
    elected = _elected(state, leader, isr, controller_epoch, state.recovery_state)
    return elected.without_left(set(elected.left_isr).difference(replicas))


def leader_for_shutdown(
    assignment: Sequence[int],
    state: PartitionState,
    live: Collection[int],
    shutting_down: Collection[int],
    controller_epoch: int,
) -> PartitionState | None:
    """The state before the leader stops: the first assigned replica that is `live`, in sync and not stopping leads, and
    stopping brokers leave the ISR. None if no other replica may lead.

    *Source*: `controlledShutdownPartitionLeaderElection`.
    """
    leader = next((r for r in assignment if r in live and r in state.isr and r not in shutting_down), None)
    if leader is None:
        return None
    isr = tuple(member for member in state.isr if member not in shutting_down)
    return _elected(state, leader, isr, controller_epoch, state.recovery_state)


def first_states(
    cluster: ClusterState, name: str, assignments: Mapping[int, ReplicaAssignment], controller_epoch: int
) -> dict[int, PartitionState]:
    """The states of a topic's new partitions that have a live replica."""
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
    return state.with_isr(isr)._replace(
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        controller_epoch=controller_epoch,
        partition_epoch=state.partition_epoch + 1,
        recovery_state=recovery_state,
    )
