"""Retries replicas that brokers refused."""

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.deletion import delete_queued
from barnabas.controller.operations.elections import bring_online
from barnabas.controller.state import TopicPartition


async def retry_refused(context: ControllerContext) -> None:
    """Ask each broker again to open the replicas that it could not open, by sending it their partitions' current state,
    in which it does not lead them; it is elected for those that it opens. Pending deletions are retried. In the
    controller's task.

    Raises: Deposed, CoordinationError.

    *Source*: as `KafkaController.onBrokerLogDirFailure` finds out which replicas are offline.
    """
    refusals = context.refusals
    for broker_id, refused in context.cluster.offline_replicas.items():
        partitions = sorted(partition for partition in refused if partition[0] not in context.cluster.deleting)
        if not partitions or broker_id not in context.cluster.brokers:
            continue
        new = refusals.never_served.get(broker_id, frozenset())
        await context.brokers.assign_roles(context.cluster, broker_id, partitions, new)
    if context.cluster.deleting:
        await delete_queued(context, sorted(context.cluster.deleting))
    context.end_retries()
    refusals.finish_served(context.cluster)


async def bring_opened_online(context: ControllerContext, broker_id: int, opened: list[TopicPartition]) -> None:
    """A broker has opened replicas after all: it may lead them. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    context.refusals.served(broker_id, opened)
    if opened:
        context.cluster = context.cluster.without_offline_replicas(broker_id, opened)
        context.end_retries()
        await bring_online(context, opened, [], requests.INCREMENTAL)
