"""Reassignments: partitions move to other brokers while they are in use.

The new replicas are added to the existing ones (`adding_replicas` of the topic's znode), and fetch. When all target
replicas are in sync, the others (`removing_replicas`) lose leadership, leave the ISR and are deleted. The znode
contains the whole state: another controller continues from there, and cancelling or replacing a reassignment is a
reassignment to other replicas.

*Source*: kafka 3.9.1 `KafkaController.onPartitionReassignment`, `processApiPartitionReassignment`; KIP-455, KIP-860.
Errors as kafka 4.3.0 `ReplicationControlManager.alterPartitionReassignments`.
"""

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.controller import requests, znodes
from barnabas.controller.admin_request import AdminRequest, PartitionResults
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import SetData
from barnabas.controller.operations import reassignment_znode
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.elections import bring_online
from barnabas.controller.operations.leadership import CommitsAlone, marked_if_alone, replicas_of, state_among
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, ReplicaAssignment, TopicPartition
from barnabas.turns import InPieces, Turns, all_in_turns
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)


class Transfer(NamedTuple):
    """A step of reassignments: the plan to write and announce first, the writes of topic znodes after brokers were
    informed, and the partitions that brokers lose, by broker id.
    """

    plan: Plan
    last_writes: tuple[OperationGroup, ...]
    lost: Mapping[int, tuple[TopicPartition, ...]]


def check_reassignment(
    cluster: ClusterState,
    partition: TopicPartition,
    target: Sequence[int] | None,
    *,
    allow_replication_factor_change: bool = True,
) -> ReplicaAssignment:
    """The assignment that moves a partition to the target, or back to its origin (None).

    Raises: ApiError UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR.
    """
    name, index = partition
    topic = cluster.topics.get(name)
    if topic is None or name in cluster.deleting:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    current = topic.assignments.get(index)
    if current is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if target is None:
        if not current.is_being_reassigned:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        target = current.origin_replicas
    else:
        _check_target(cluster, current, target)
        if not allow_replication_factor_change and len(target) != len(current.target_replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(current.target_replicas)} to {len(target)}",
            )
    wanted = current.reassigned_to(target)
    state = topic.partitions.get(index)
    if state is not None and not set(state.isr).intersection(wanted.replicas):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"None of the replicas {list(wanted.replicas)} has all records of {name}-{index}:"
            f" {list(state.isr)} are in sync, of which none would stay.",
        )
    return wanted


def _check_target(cluster: ClusterState, current: ReplicaAssignment, target: Sequence[int]) -> None:
    """Brokers that have a replica already may be absent; new ones must be registered."""
    absent = [replica for replica in target if replica not in cluster.brokers and replica not in current.replicas]
    if not target:
        problem = "includes an empty replica list"
    elif len(set(target)) < len(target):
        problem = "includes a broker more than once"
    elif absent or min(target) < 0:
        problem = f"includes broker {absent[0] if absent else min(target)}, but no such broker is registered"
    else:
        return
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {problem}.")


def plan_begin(
    cluster: ClusterState,
    wanted: Mapping[TopicPartition, ReplicaAssignment],
    controller_epoch: int,
    commits_alone: CommitsAlone,
) -> InPieces[Transfer]:
    """Phases U and A: partitions get these assignments, which are in the znodes before any broker is informed. Replicas
    that are no longer being added are deleted. All brokers are informed in a new leader epoch.

    The states are written first. They contain only replicas of both assignments, so that a controller which finds a
    part of the writes continues with the previous reassignment; Kafka's order would leave others in the ISR, or
    leading.
    """
    turns = Turns()
    changed: dict[TopicPartition, ReplicaAssignment] = {}
    for (name, index), assignment in wanted.items():
        if cluster.topics[name].assignments[index] != assignment:
            changed[name, index] = assignment
        if turns.is_over():
            yield
    after = cluster.with_assignments(changed)
    states, writes = yield from _states_among(cluster, after, changed, controller_epoch, commits_alone)
    plan = Plan((*writes, *_assignment_writes(after, changed)), after.with_states(states), tuple(states))
    return Transfer(plan, (), _lost(cluster, changed))


def is_complete(cluster: ClusterState, partition: TopicPartition) -> bool:
    """Whether a partition is being reassigned, and all target replicas are in sync."""
    name, index = partition
    topic = cluster.topics.get(name)
    if topic is None or name in cluster.deleting or index not in topic.assignments:
        return False
    assignment, state = topic.assignments[index], topic.partitions.get(index)
    if state is None or not assignment.is_being_reassigned:
        return False
    return set(assignment.target_replicas) <= set(state.isr)


def plan_completion(
    cluster: ClusterState, partitions: Iterable[TopicPartition], controller_epoch: int, commits_alone: CommitsAlone
) -> InPieces[Transfer]:
    """Phase B: those of the partitions whose target replicas are all in sync drop the others. The topics' znodes are
    written last: until then another controller would repeat all of it.
    """
    turns = Turns()
    changed: dict[TopicPartition, ReplicaAssignment] = {}
    for name, index in partitions:
        if is_complete(cluster, (name, index)):
            changed[name, index] = ReplicaAssignment(cluster.topics[name].assignments[index].target_replicas)
        if turns.is_over():
            yield
    after = cluster.with_assignments(changed)
    states, writes = yield from _states_among(cluster, after, changed, controller_epoch, commits_alone)
    plan = Plan(tuple(writes), after.with_states(states), tuple(states))
    return Transfer(plan, _assignment_writes(after, changed), _lost(cluster, changed))


def _states_among(
    cluster: ClusterState,
    after: ClusterState,
    changed: Iterable[TopicPartition],
    controller_epoch: int,
    commits_alone: CommitsAlone,
) -> Generator[None, None, tuple[dict[TopicPartition, PartitionState], list[OperationGroup]]]:
    """The states of partitions when only the replicas that they have `after` count, and their writes."""
    states: dict[TopicPartition, PartitionState] = {}
    writes: list[OperationGroup] = []
    turns = Turns()
    for name, index in changed:
        if turns.is_over():
            yield
        old = cluster.topics[name].partitions.get(index)
        if old is None:
            continue
        replicas, live = replicas_of(after, name, index)
        new = marked_if_alone(name, state_among(replicas, old, live, controller_epoch), commits_alone)
        states[name, index] = new
        writes.append((state_update(name, index, old, new),))
    return states, writes


def _assignment_writes(after: ClusterState, changed: Iterable[TopicPartition]) -> tuple[OperationGroup, ...]:
    topics = (after.topics[name] for name in dict.fromkeys(name for name, _ in changed))
    return tuple(
        (SetData(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.assignments)),)
        for topic in topics
    )


def _lost(
    cluster: ClusterState, changed: Mapping[TopicPartition, ReplicaAssignment]
) -> dict[int, tuple[TopicPartition, ...]]:
    lost: dict[int, list[TopicPartition]] = {}
    for (name, index), assignment in changed.items():
        for replica in cluster.topics[name].assignments[index].replicas:
            if replica not in assignment.replicas:
                lost.setdefault(replica, []).append((name, index))
    return {replica: tuple(partitions) for replica, partitions in lost.items()}


async def alter_reassignments(
    context: ControllerContext,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    timeout_ms: int,
    *,
    allow_replication_factor_change: bool,
) -> PartitionResults:
    """Begin, replace or (None) cancel reassignments; responds when that is written. Called by the task that serves a
    client, executed in the controller's task.

    Raises: ApiError, as `ControllerContext.ask`.
    """
    request = AdminRequest[PartitionResults](
        context.timers, timeout_ms, lambda _: {each: ApiError(ErrorCode.REQUEST_TIMED_OUT) for each in wanted}
    )

    async def alter() -> None:
        results: PartitionResults = {}
        assignments: dict[TopicPartition, ReplicaAssignment] = {}
        turns = Turns()  # only the controller's task, which runs this, changes the cluster
        for partition, target in wanted.items():
            await turns.after_one()
            try:
                assignments[partition] = check_reassignment(
                    context.cluster,
                    partition,
                    target,
                    allow_replication_factor_change=allow_replication_factor_change,
                )
                results[partition] = None
            except ApiError as error:
                results[partition] = error.with_traceback(None)  # a traceback would keep all locals alive
        if assignments:
            await reassignment_znode.forget(context, assignments)
            await begin(context, assignments, request, results)
        request.finish(results)

    return await context.ask(alter, request)


async def begin(
    context: ControllerContext,
    wanted: Mapping[TopicPartition, ReplicaAssignment],
    request: AdminRequest[PartitionResults] | None = None,
    results: PartitionResults | None = None,
) -> None:
    """Give partitions these assignments, and continue with those that are complete already. In the controller's task.
    The `request` is completed with the `results` when it is written.

    Raises: Deposed, CoordinationError.
    """
    turns = Turns()  # only the controller's task, which runs this, changes the cluster
    for (name, index), assignment in wanted.items():
        logger.info("%s-%d: reassigning to %s", name, index, list(assignment.target_replicas))
        await turns.after_one()
    transfer = await all_in_turns(plan_begin(context.cluster, wanted, context.election.epoch, context.commits_alone))
    await context.election.write(transfer.plan.writes)
    if request is not None and results is not None:
        request.finish(results)
    await _carry_out(context, transfer)
    never_led = [each for each in wanted if each[1] not in context.cluster.topics[each[0]].partitions]
    if never_led:
        await bring_online(context, never_led, [], requests.INCREMENTAL)
    await advance(context, wanted)


async def advance(context: ControllerContext, partitions: Collection[TopicPartition] | None = None) -> None:
    """Complete those reassignments, of these partitions or of all, whose target replicas are in sync. In the
    controller's task: to be called when ISRs have grown, and when brokers have registered.

    Raises: Deposed, CoordinationError.
    """
    if partitions is None:
        partitions = reassigned(context.cluster)
    transfer = await all_in_turns(
        plan_completion(context.cluster, partitions, context.election.epoch, context.commits_alone)
    )
    if not transfer.plan.told:
        return
    await context.election.write(transfer.plan.writes)
    await _carry_out(context, transfer)
    await context.election.write(transfer.last_writes)
    turns = Turns()
    for name, index in transfer.plan.told:
        logger.info("%s-%d: reassigned", name, index)
        await turns.after_one()
    await follow_znode(context)


async def follow_znode(context: ControllerContext) -> None:
    """Begin those reassignments requested in the znode that are not under way, and remove from it those that are done,
    or impossible. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    asked = await reassignment_znode.read(context)
    if asked is None:
        return
    targets, version = asked
    left: dict[TopicPartition, tuple[int, ...]] = {}
    wanted: dict[TopicPartition, ReplicaAssignment] = {}
    for (name, index), target in targets.items():
        try:
            assignment = check_reassignment(context.cluster, (name, index), target)
        except ApiError as error:
            logger.error("%s-%d is not reassigned: %s", name, index, error)
            continue
        if assignment != context.cluster.topics[name].assignments[index]:
            wanted[name, index] = assignment
        elif not assignment.is_being_reassigned:
            continue  # done
        left[name, index] = target
    await context.election.write(reassignment_znode.rewrite(targets, left, version))
    if wanted:
        await begin(context, wanted)
        await follow_znode(context)  # some of them may be done


def reassigned(cluster: ClusterState) -> list[TopicPartition]:
    """The partitions that are being reassigned."""
    return [
        (topic.name, index)
        for topic in cluster.topics.values()
        if topic.name not in cluster.deleting
        for index, assignment in topic.assignments.items()
        if assignment.adding_replicas or assignment.removing_replicas
    ]


async def _carry_out(context: ControllerContext, transfer: Transfer) -> None:
    """Inform all brokers of the written plan, and make brokers delete their removed replicas."""
    context.adopt(transfer.plan)
    for broker_id, partitions in transfer.lost.items():
        context.cluster = context.cluster.without_offline_replicas(broker_id, partitions)
        context.refusals.served(broker_id, partitions)
    await tell(context, transfer.plan)
    for broker_id, partitions in transfer.lost.items():
        led = [(name, index) for name, index in partitions if index in context.cluster.topics[name].partitions]
        context.brokers.stop_replicas(context.cluster, broker_id, led, delete=True)
