"""Requests of old tools in znodes: elections of preferred leaders (/admin/preferred_replica_election) and reassignments
(/admin/reassign_partitions). The controller executes them. It then deletes the first znode; from the second it removes
partitions that are done, or impossible, and deletes it when none is left.

*Source*: kafka 3.9.1 `KafkaController.PreferredReplicaElectionHandler`, `removePartitionsFromPreferredReplicaElection`,
`processZkPartitionReassignment`, `maybeRemoveFromZkReassignment`.
"""

import logging
from collections.abc import Collection, Mapping

from barnabas.controller import znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import Delete, SetData
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.elect_leaders import ElectionType, decide
from barnabas.controller.operations.plan import OperationGroup
from barnabas.controller.operations.reassignment import begin, check_reassignment
from barnabas.controller.state import ReplicaAssignment, TopicPartition
from barnabas.wire.errors import ApiError

logger = logging.getLogger(__name__)

Targets = Mapping[TopicPartition, tuple[int, ...]]


async def follow_requests(context: ControllerContext) -> None:
    """Execute the requests in znodes. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    await follow_reassignments(context)
    (elections,) = await context.store.get_many([znodes.PREFERRED_REPLICA_ELECTION])
    if elections is not None:
        await _elect(context, elections[0], elections[1].version)


async def _elect(context: ControllerContext, payload: bytes, version: int) -> None:
    try:
        partitions = znodes.decode_preferred_replica_election(payload)
    except znodes.DamagedZnode as error:
        logger.error("no leaders are elected: %s", error)
        partitions = []
    plan, results = await decide(context, partitions, ElectionType.PREFERRED)
    for (name, index), refusal in results.items():
        if refusal is not None:
            logger.info("no leader is elected for %s-%d: %s", name, index, refusal)
    # A concurrent change of the znode has another version, which refuses all the writes: the next event executes it.
    await context.election.write([*plan.writes, (Delete(znodes.PREFERRED_REPLICA_ELECTION, version),)])
    context.adopt(plan)
    await tell(context, plan)


async def follow_reassignments(context: ControllerContext) -> None:
    """Begin those reassignments in the znode that are not under way, and remove from it those that are done, or
    impossible. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    asked = await _asked(context)
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
    await context.election.write(_rewritten(targets, left, version))
    if wanted:
        await begin(context, wanted)
        await follow_reassignments(context)  # some of them may be done


async def forget_reassignments(context: ControllerContext, partitions: Collection[TopicPartition]) -> None:
    """Remove these partitions from the znode, as an admin client has a different request: the latest counts.

    Raises: Deposed, CoordinationError.
    """
    asked = await _asked(context)
    if asked is not None:
        targets, version = asked
        left = {partition: target for partition, target in targets.items() if partition not in partitions}
        await context.election.write(_rewritten(targets, left, version))


async def _asked(context: ControllerContext) -> tuple[Targets, int] | None:
    """The content of the znode, and its version; None if it does not exist."""
    (found,) = await context.store.get_many([znodes.REASSIGN_PARTITIONS])
    if found is None:
        return None
    payload, stat = found
    try:
        return znodes.decode_reassign_partitions(payload), stat.version
    except znodes.DamagedZnode as error:
        logger.error("nothing is reassigned: %s", error)
        return {}, stat.version


def _rewritten(targets: Targets, left: Targets, version: int) -> list[OperationGroup]:
    """The write that leaves the remaining partitions in the znode."""
    if not left:
        return [(Delete(znodes.REASSIGN_PARTITIONS, version),)]
    if len(left) == len(targets):
        return []
    return [(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassign_partitions(left), version),)]
