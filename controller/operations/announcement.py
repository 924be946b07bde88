"""Informs brokers of decisions, and handles replicas that a live broker cannot serve."""

from collections.abc import Callable, Collection

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.leadership import (
    CommitsAlone,
    leader_after_loss,
    marked_if_alone,
    replicas_of,
)
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, TopicPartition


def plan_offline_replicas(
    cluster: ClusterState,
    broker_id: int,
    partitions: Collection[TopicPartition],
    controller_epoch: int,
    unclean: Callable[[str], bool],
    commits_alone: CommitsAlone,
) -> Plan:
    """Remove a live broker's failed replicas from ISRs and leadership; other replicas lead if possible."""
    failed = cluster.with_offline_replicas(broker_id, partitions)
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in partitions:
        old = cluster.topics[name].partitions[partition]
        replicas, live = replicas_of(failed, name, partition)
        state = leader_after_loss(replicas, old, {broker_id}, live, controller_epoch, unclean=unclean(name))
        if state is not None:
            state = marked_if_alone(name, state, commits_alone)
            writes.append((state_update(name, partition, old, state),))
            states[name, partition] = state
    return Plan(tuple(writes), failed.with_states(states), tuple(states))


async def tell(
    context: ControllerContext,
    plan: Plan,
    request_type: int = requests.INCREMENTAL,
    *,
    to: Collection[int] | None = None,
    stopping: int | None = None,
) -> None:
    """Send these brokers, or all, their roles in the plan's partitions, except one that is `stopping`, and the
    partition states. In the controller's task, after the plan was written. The responses are events (`answers.py`).
    """
    brokers, cluster = context.brokers, context.cluster
    type_of_roles = context.type_of_roles(request_type)
    for broker_id in brokers.met if to is None else to:
        told = () if broker_id == stopping else _held_online(cluster, broker_id, plan.told)
        await brokers.assign_roles(cluster, broker_id, told, plan.new, type_of_roles)
        await brokers.update_metadata(cluster, broker_id, plan.told, request_type, context.unread_topics)


async def tell_who_lives(context: ControllerContext, broker_ids: Collection[int]) -> None:
    """Send brokers the list of live brokers."""
    await tell_states(context, (), broker_ids)


async def tell_states(
    context: ControllerContext, partitions: Collection[TopicPartition], to: Collection[int] | None = None
) -> None:
    """Send these brokers, or all, partition states that do not change their roles."""
    for broker_id in context.brokers.met if to is None else to:
        await context.brokers.update_metadata(context.cluster, broker_id, partitions)


async def take_offline(context: ControllerContext, broker_id: int, failed: Collection[TopicPartition]) -> Plan:
    """Record the replicas that a live broker could not open, and elect other leaders; returns the plan to announce.

    Raises: Deposed, CoordinationError.
    """
    offline = plan_offline_replicas(
        context.cluster,
        broker_id,
        failed,
        context.election.epoch,
        context.unclean_election_is_allowed,
        context.commits_alone,
    )
    await context.election.write(offline.writes)
    context.adopt(offline)
    return offline


def _held_online(
    cluster: ClusterState, broker_id: int, partitions: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    """The partitions whose replica a broker has not reported as failed: failed ones are retried separately."""
    refused = cluster.offline_replicas.get(broker_id)
    return [partition for partition in partitions if partition not in refused] if refused else partitions
