"""Telling brokers what was decided, and what becomes of replicas that a live broker cannot serve."""

from collections.abc import Collection

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.leadership import without_replica
from barnabas.controller.operations.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, TopicPartition


def plan_offline_replicas(
    cluster: ClusterState, broker_id: int, partitions: Collection[TopicPartition], controller_epoch: int
) -> Plan:
    """Take a live broker's failed replicas out of ISRs and leadership."""
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in partitions:
        old = cluster.topics[name].partitions[partition]
        state = without_replica(old, broker_id, controller_epoch)
        if state is not None:
            writes.append((state_update(name, partition, old, state),))
            states[name, partition] = state
    failed = cluster.with_states(states).with_offline_replicas(broker_id, partitions)
    return Plan(tuple(writes), failed, tuple(states))


async def tell(context: ControllerContext, plan: Plan, request_type: int = requests.INCREMENTAL) -> None:
    """Have every broker take its roles in the partitions told, then let all know. In the controller's task, after the
    plan was written.

    Replicas whose log does not open go offline, until it does.

    Raises: Deposed, CoordinationError.
    """
    for broker_id in list(context.cluster.brokers):
        failed = await context.brokers.assign_roles(context.cluster, broker_id, plan.told, plan.new, request_type)
        if failed:
            context.refusals.retry_later()
            context.refusals.never_served |= plan.new.intersection(failed)
            offline = plan_offline_replicas(context.cluster, broker_id, failed, context.election.epoch)
            await context.election.write(offline.writes)
            context.adopt(offline)
    await context.brokers.update_metadata(context.cluster, plan.told, request_type)
