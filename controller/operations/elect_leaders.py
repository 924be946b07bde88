"""ElectLeaders: elections of preferred leaders, or unclean elections, for an admin client.

*Source*: kafka 4.3.0 `ReplicationControlManager.electLeaders`; 3.9.1 `KafkaController.processReplicaLeaderElection`
(KIP-183, KIP-460).
"""

import logging
from collections.abc import Collection
from types import MappingProxyType

from barnabas.controller.admin_request import AdminRequest, ElectionType, PartitionResults
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.elections import LogEnds
from barnabas.controller.operations.leadership import (
    leader_for_lost,
    leader_for_offline,
    marked_if_alone,
    preferred_leader,
    replicas_of,
)
from barnabas.controller.plan import Plan, parent_paths, state_writes, without_znode
from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, TopicPartition
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)


def elected(
    cluster: ClusterState,
    partition: TopicPartition,
    election_type: ElectionType,
    controller_epoch: int,
    log_ends: LogEnds = MappingProxyType({}),
) -> PartitionState:
    """The state of a partition with the requested leader. A partition whose state is lost has to wait until the live
    replicas have reported their logs.

    Raises: ApiError UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    name, index = partition
    topic = cluster.topics.get(name)
    if topic is None or name in cluster.deleting:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if index not in topic.assignments:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    state = topic.partitions.get(index)
    replicas, live = replicas_of(cluster, name, index)
    if election_type is ElectionType.PREFERRED:
        if state is not None and state.leader == replicas[0]:
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
        new = None if state is None else preferred_leader(replicas, state, live, controller_epoch)
        if new is None:
            raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        return new
    if state is not None and state.leader != NO_LEADER:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED)
    if state is None:
        new = None
    elif state.is_lost:
        ends = log_ends.get(partition, {})
        new = leader_for_lost(replicas, state, ends, live, controller_epoch, unclean=True)
    else:
        new = leader_for_offline(replicas, state, live, controller_epoch, unclean=True)
    if new is None:
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return new


async def elect_leaders(
    context: ControllerContext,
    partitions: Collection[TopicPartition] | None,
    election_type: ElectionType,
    timeout_ms: int,
) -> PartitionResults:
    """Elect leaders of these partitions, or of all (None; then partitions that need no election are left out); responds
    when the own broker knows the leaders, or after `timeout_ms`. Called by the task that serves a client, executed in
    the controller's task.

    Raises: ApiError, as `ControllerContext.ask`; REQUEST_TIMED_OUT if all partitions are meant, and there was no
    decision in time.
    """
    request = AdminRequest[PartitionResults | None](
        context.timers, timeout_ms, lambda decided: _timed_out(partitions, decided)
    )

    async def elect() -> None:
        asked = partitions
        if asked is None:
            asked = [(topic.name, partition) for topic, partition in context.cluster.partitions()]
        plan, results = await decide(context, asked, election_type)
        if partitions is None:
            results = {
                each: error
                for each, error in results.items()
                if error is None or error.error is not ErrorCode.ELECTION_NOT_NEEDED
            }
        await context.election.write(plan.writes)
        context.adopt(plan)
        request.decide(results)
        await tell(context, plan)
        context.when_own_told(lambda: request.finish(results), request)

    results = await context.ask(elect, request)
    if results is None:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "The controller did not process the election in time. Retry it.")
    return results


async def decide(
    context: ControllerContext, partitions: Collection[TopicPartition], election_type: ElectionType
) -> tuple[Plan, PartitionResults]:
    """The plan of the possible elections, and the results once it is written. In the controller's task."""
    cluster, epoch = context.cluster, context.election.epoch
    states: dict[TopicPartition, PartitionState] = {}
    results: PartitionResults = {}
    turns = Turns()  # only the controller's task, which runs this, changes the cluster
    for partition in dict.fromkeys(partitions):
        await turns.after_one()
        try:
            new = elected(cluster, partition, election_type, epoch, context.log_ends)
        except ApiError as error:
            results[partition] = error
            continue
        results[partition] = None
        states[partition] = marked_if_alone(partition[0], new, context.commits_alone)
    existing = await context.election.existing(parent_paths(without_znode(cluster, states)))
    writes = tuple(state_writes(cluster, states, existing))
    if states:
        logger.info("%d partition(s) have another leader, as requested (%s)", len(states), election_type.name.lower())
    return Plan(writes, cluster.with_states(states), tuple(states)), results


def _timed_out(
    partitions: Collection[TopicPartition] | None, decided: PartitionResults | None
) -> PartitionResults | None:
    """The response after a timeout; None if the partitions are not known yet."""
    if partitions is None and decided is None:
        return None
    results = dict.fromkeys(partitions or ()) if decided is None else decided
    return {each: error or ApiError(ErrorCode.REQUEST_TIMED_OUT) for each, error in results.items()}
