"""The znode in which old tools request reassignments (/admin/reassign_partitions). The controller removes from it the
partitions that are done, or impossible, and deletes it when none is left.

*Source*: kafka 3.9.1 `KafkaController.processZkPartitionReassignment`, `maybeRemoveFromZkReassignment`.
"""

import logging
from collections.abc import Collection, Mapping

from barnabas.controller import znodes
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import Delete, SetData
from barnabas.controller.plan import OperationGroup
from barnabas.controller.state import TopicPartition

logger = logging.getLogger(__name__)

Targets = Mapping[TopicPartition, tuple[int, ...]]


async def read(context: ControllerContext) -> tuple[Targets, int] | None:
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


def rewrite(targets: Targets, left: Targets, version: int) -> list[OperationGroup]:
    """The write that leaves the remaining partitions in the znode; without any, the znode is deleted."""
    if not left:
        return [(Delete(znodes.REASSIGN_PARTITIONS, version),)]
    if len(left) == len(targets):
        return []
    return [(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassign_partitions(left), version),)]


async def forget(context: ControllerContext, partitions: Collection[TopicPartition]) -> None:
    """Remove these partitions from the znode, as an admin client has a different request: the latest counts.

    Raises: Deposed, CoordinationError.
    """
    asked = await read(context)
    if asked is not None:
        targets, version = asked
        left = {partition: target for partition, target in targets.items() if partition not in partitions}
        await context.election.write(rewrite(targets, left, version))
