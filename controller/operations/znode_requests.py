"""Requests of old tools in znodes: elections of preferred leaders (/admin/preferred_replica_election), after which the
znode is deleted, and reassignments (`reassignment_znode`).

*Source*: kafka 3.9.1 `KafkaController.PreferredReplicaElectionHandler`, `removePartitionsFromPreferredReplicaElection`.
"""

import logging

from barnabas.controller import znodes
from barnabas.controller.admin_request import ElectionType
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import Delete
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.elect_leaders import decide
from barnabas.controller.operations.reassignment import follow_znode

logger = logging.getLogger(__name__)


async def follow_requests(context: ControllerContext) -> None:
    """Execute the requests in znodes. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    await follow_znode(context)
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
