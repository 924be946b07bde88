"""Telling brokers what was decided, and what becomes of replicas that a live broker cannot serve."""

from collections.abc import Callable, Collection

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.leadership import leader_after_loss, replicas_of
from barnabas.controller.operations.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, TopicPartition


def plan_offline_replicas(
    cluster: ClusterState,
    broker_id: int,
    partitions: Collection[TopicPartition],
    controller_epoch: int,
    unclean: Callable[[str], bool],
) -> Plan:
    """Take a live broker's failed replicas out of ISRs and leadership; others lead where they may."""
    failed = cluster.with_offline_replicas(broker_id, partitions)
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in partitions:
        old = cluster.topics[name].partitions[partition]
        replicas, live = replicas_of(failed, name, partition)
        state = leader_after_loss(replicas, old, {broker_id}, live, controller_epoch, unclean=unclean(name))
        if state is not None:
            writes.append((state_update(name, partition, old, state),))
            states[name, partition] = state
    return Plan(tuple(writes), failed.with_states(states), tuple(states))


async def tell(
    context: ControllerContext,
    plan: Plan,
    request_type: int = requests.INCREMENTAL,
    *,
    others: Collection[int] | None = None,
    stopping: int | None = None,
) -> None:
    """Have every broker take its roles in the partitions told, but for one that is `stopping`, then let all know: the
    own one, and these `others` or all. In the controller's task, after the plan was written. On return the own broker
    has applied it.

    Replicas whose log does not open go offline, until it does.

    Raises: Deposed, CoordinationError.
    """
    brokers = context.brokers
    await _tell_others(context, plan, brokers.others if others is None else others, request_type, stopping)
    told = () if stopping == brokers.own_id else _held_online(context.cluster, brokers.own_id, plan.told)
    failed = await brokers.assign_roles(context.cluster, told, plan.new, context.type_of_roles(request_type))
    if failed:
        context.refusals.note(brokers.own_id, plan.new.intersection(failed))
        offline = await take_offline(context, brokers.own_id, failed)
        await _tell_others(context, offline, brokers.others)
    await brokers.update_metadata(context.cluster, plan.told, request_type, context.unread_topics)


async def _tell_others(
    context: ControllerContext,
    plan: Plan,
    broker_ids: Collection[int],
    request_type: int = requests.INCREMENTAL,
    stopping: int | None = None,
) -> None:
    for broker_id in broker_ids:
        told = () if broker_id == stopping else _held_online(context.cluster, broker_id, plan.told)
        await context.brokers.post_roles(
            context.cluster, broker_id, told, plan.new, context.type_of_roles(request_type)
        )
        await context.brokers.post_metadata(context.cluster, broker_id, plan.told, request_type, context.unread_topics)


async def tell_who_lives(context: ControllerContext, broker_ids: Collection[int]) -> None:
    """Let the own broker, and then these others, know which brokers there are."""
    await context.brokers.update_metadata(context.cluster, ())
    for broker_id in broker_ids:
        await context.brokers.post_metadata(context.cluster, broker_id, ())


async def tell_states(context: ControllerContext, partitions: Collection[TopicPartition]) -> None:
    """Let all brokers know how partitions stand, of which none gets another role."""
    for broker_id in context.brokers.others:
        await context.brokers.post_metadata(context.cluster, broker_id, partitions)
    await context.brokers.update_metadata(context.cluster, partitions)


async def take_offline(context: ControllerContext, broker_id: int, failed: Collection[TopicPartition]) -> Plan:
    """Note which replicas a live broker could not open, and have others lead; returns what is to be told of it.

    Raises: Deposed, CoordinationError.
    """
    offline = plan_offline_replicas(
        context.cluster, broker_id, failed, context.election.epoch, context.unclean_election_is_allowed
    )
    await context.election.write(offline.writes)
    context.adopt(offline)
    return offline


def _held_online(
    cluster: ClusterState, broker_id: int, partitions: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    """The partitions whose replica a broker has not reported as failed: for those it is asked by itself."""
    refused = cluster.offline_replicas.get(broker_id)
    return [partition for partition in partitions if partition not in refused] if refused else partitions
