"""Asking brokers again for what they refused."""

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.deletion import delete_queued
from barnabas.controller.operations.elections import bring_online


async def retry_refused(context: ControllerContext) -> None:
    """Of a partition that a broker refused it is told the state of now, in which it does not lead it; where that works
    it is elected. Deletions that wait for a replica go on. In the controller's task.

    Raises: Deposed, CoordinationError.

    *Source*: as `KafkaController.onBrokerLogDirFailure` finds out which replicas are offline.
    """
    refusals = context.refusals
    refusals.retry_begins()
    for broker_id, refused in context.cluster.offline_replicas.items():
        partitions = sorted(partition for partition in refused if partition[0] not in context.cluster.deleting)
        if not partitions or broker_id not in context.cluster.brokers:
            continue
        failed = await context.brokers.assign_roles(
            context.cluster, broker_id, partitions, refusals.never_served, requests.INCREMENTAL
        )
        opened = [partition for partition in partitions if partition not in failed]
        if failed:
            refusals.retry_later()
        refusals.never_served = refusals.never_served.difference(opened)
        if opened:
            context.cluster = context.cluster.without_offline_replicas(broker_id, opened)
            await bring_online(context, opened, [], requests.INCREMENTAL)
    if context.cluster.deleting:
        await delete_queued(context, sorted(context.cluster.deleting))
    refusals.retry_ends()
    refusals.finish_served(context.cluster)
