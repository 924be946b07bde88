"""Brokers that register, die, and return: the partitions of lost brokers get new leaders, and new or returning brokers
are informed.

*Source*: kafka 3.9.1 `KafkaController.processBrokerChange`, `onBrokerStartup`, `onBrokerFailure`.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell, tell_who_lives
from barnabas.controller.operations.deletion import delete_queued
from barnabas.controller.operations.elections import elect
from barnabas.controller.operations.leadership import (
    CommitsAlone,
    leader_after_loss,
    led_by_last_to_leave,
    marked_if_alone,
    replicas_of,
    without_replica,
)
from barnabas.controller.operations.preferred_election import keep_balance
from barnabas.controller.operations.reassignment import advance
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import NO_LEADER, BrokerRegistration, ClusterState, PartitionState, TopicPartition

logger = logging.getLogger(__name__)


class BrokerDifference(NamedTuple):
    """The changes of a cluster's brokers since the last comparison, as broker ids in ascending order.

    `bounced` are those that died and registered again: their epoch differs. `changed` are still alive, with other
    details.
    """

    come: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    bounced: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()


def compare_brokers(
    known: Mapping[int, BrokerRegistration], found: Mapping[int, BrokerRegistration]
) -> BrokerDifference:
    """The difference between the `known` brokers and the `found` registrations.

    *Source*: kafka 3.9.1 `KafkaController.processBrokerChange`, `processBrokerModification`.
    """
    both = sorted(known.keys() & found.keys())
    return BrokerDifference(
        come=tuple(sorted(found.keys() - known.keys())),
        gone=tuple(sorted(known.keys() - found.keys())),
        bounced=tuple(broker_id for broker_id in both if found[broker_id].epoch != known[broker_id].epoch),
        changed=tuple(
            broker_id
            for broker_id in both
            if found[broker_id].epoch == known[broker_id].epoch and found[broker_id] != known[broker_id]
        ),
    )


def plan_broker_loss(
    cluster: ClusterState,
    lost: Collection[int],
    controller_epoch: int,
    unclean: Callable[[str], bool],
    commits_alone: CommitsAlone,
) -> Plan:
    """The plan after brokers have died: live members of the ISRs become leaders of their partitions, and the dead ones
    leave the ISRs that keep a live member. All of it is one batch of writes. `unclean` says whether a topic allows a
    leader from outside the ISR.

    A broker that is back already counts as lost too; the caller adds it to the cluster again.

    *Source*: kafka 3.9.1 `KafkaController.onBrokerFailure`.
    """
    left = cluster.without_brokers(lost)
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for topic, partition in cluster.partitions():
        old = topic.partitions.get(partition)
        if old is None:
            continue
        replicas, live = replicas_of(left, topic.name, partition)
        state = leader_after_loss(replicas, old, lost, live, controller_epoch, unclean=unclean(topic.name))
        if state is not None:
            state = marked_if_alone(topic.name, state, commits_alone)
            writes.append((state_update(topic.name, partition, old, state),))
            states[topic.name, partition] = state
    return Plan(tuple(writes), left.with_states(states), tuple(states))


def plan_absences(
    cluster: ClusterState, partitions: Iterable[TopicPartition], controller_epoch: int, commits_alone: CommitsAlone
) -> Plan:
    """The plan for brokers that died while there was no controller: they leave the ISRs of these partitions, which have
    live leaders.
    """
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in partitions:
        old = cluster.topics[name].partitions[partition]
        absent = [member for member in old.isr if member not in cluster.brokers]
        replicas, live = replicas_of(cluster, name, partition)
        state = leader_after_loss(replicas, old, absent, live, controller_epoch, unclean=False) if absent else None
        if state is not None:
            state = marked_if_alone(name, state, commits_alone)
            writes.append((state_update(name, partition, old, state),))
            states[name, partition] = state
    return Plan(tuple(writes), cluster.with_states(states), tuple(states))


def lacking(
    brokers: Iterable[BrokerRegistration], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[int]]:
    """The brokers that may lack records of a partition, by partition."""
    doubted = [broker for broker in brokers if broker.may_lack_records or broker.damaged]
    found = {each: [b.broker_id for b in doubted if b.may_lack(each)] for each in partitions} if doubted else {}
    return {partition: broker_ids for partition, broker_ids in found.items() if broker_ids}


def plan_unproven(
    cluster: ClusterState,
    unproven: Mapping[TopicPartition, Collection[int]],
    controller_epoch: int,
    commits_alone: CommitsAlone,
) -> Plan:
    """The plan for brokers, here by partition, that may lack records that they had acknowledged: their machine crashed,
    or a log is damaged. They leave the ISRs that have another member, live or not, and fetch the records from its
    leader. If all members may lack records, the last replica to leave the ISR has all committed records, if commits
    needed two replicas, and is waited for; else one of the members remains, as no replica has more.

    The next write of the partition's state also drops them from the recorded replicas that left the ISR last.

    *Source*: none in Kafka with ZooKeeper; KIP-966 does as much for brokers that were not stopped.
    """
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    told: list[TopicPartition] = []
    for (name, partition), doubted in unproven.items():
        old = cluster.topics[name].partitions.get(partition)
        if old is None:
            continue
        state = _without_doubted(name, old, doubted, controller_epoch, commits_alone)
        states[name, partition] = state = marked_if_alone(name, state, commits_alone)
        if state.isr != old.isr:
            writes.append((state_update(name, partition, old, state),))
            told.append((name, partition))
    return Plan(tuple(writes), cluster.with_states(states), tuple(told))


def _without_doubted(
    topic: str, old: PartitionState, doubted: Collection[int], controller_epoch: int, commits_alone: CommitsAlone
) -> PartitionState:
    """The state after brokers came to be doubted. If no other replica is in sync, the last one to leave counts, unless
    the remaining one may have committed alone, according to the state's mark and the current settings.
    """
    state = old
    for broker_id in doubted:
        state = without_replica(state, broker_id, controller_epoch) or state
    if set(state.isr) <= set(doubted) and not any(commits_alone(topic, member) for member in state.isr):
        state = led_by_last_to_leave(state, doubted, controller_epoch) or state
    if state.isr == old.isr:
        state = old
    else:
        state = state._replace(leader_epoch=old.leader_epoch + 1, partition_epoch=old.partition_epoch + 1)
    return state.without_left(doubted)


def end_absences(context: ControllerContext) -> Sequence[OperationGroup]:
    """Remove brokers from ISRs that died while there was no controller; returns the writes. Controller's task."""
    led = context.machine.in_status(PartitionStatus.ONLINE)
    plan = plan_absences(context.cluster, led, context.election.epoch, context.commits_alone)
    context.adopt(plan)
    return plan.writes


def doubt(context: ControllerContext, unproven: Mapping[TopicPartition, Collection[int]]) -> Sequence[OperationGroup]:
    """Remove brokers from ISRs that may lack records which they had acknowledged; returns the writes. In the
    controller's task.
    """
    plan = plan_unproven(context.cluster, unproven, context.election.epoch, context.commits_alone)
    context.cluster = plan.cluster
    leaderless = [(name, p) for name, p in plan.told if plan.cluster.topics[name].partitions[p].leader == NO_LEADER]
    context.machine.move(leaderless, PartitionStatus.OFFLINE)  # the others keep their status: to be elected, or led
    return plan.writes


def without_doubtful(cluster: ClusterState, back: Iterable[BrokerRegistration]) -> ClusterState:
    """The cluster after brokers returned that may lack records: they no longer count as the last to leave an ISR. The
    next write of the partition's state includes that.
    """
    left = [
        (topic.name, index)
        for topic, index in cluster.partitions()
        if index in topic.partitions and topic.partitions[index].left_isr
    ]
    states = {}
    for (name, index), doubted in lacking(back, left).items():
        state = cluster.topics[name].partitions[index]
        states[name, index] = state.without_left(doubted)
    return cluster.with_states(states)


async def govern(context: ControllerContext, found: Mapping[int, BrokerRegistration], registrations_zxid: int) -> None:
    """Make the cluster consist of the brokers `found`, which are registered as of a zxid. In the controller's task.

    One that bounced is first lost, and then new: it is informed of everything, as it knows nothing. The own broker only
    ever changes: a controller whose broker died is no controller.

    The writes for lost brokers have the former zxid: a broker that is back may lack records, and if the store fails
    before that is written, whoever takes over must find out (`loading.with_states`).

    Raises: Deposed, CoordinationError.
    """
    own = context.brokers.own_id
    context.cluster = context.cluster.with_brokers([found[own]])
    difference = compare_brokers(context.cluster.brokers, found)
    logger.info(
        "brokers registered: %s; gone: %s; registered again: %s",
        *(", ".join(map(str, ids)) or "none" for ids in (difference.come, difference.gone, difference.bounced)),
    )
    lost = (*difference.gone, *difference.bounced)
    if lost:
        await _lose(context, lost)
    context.election.registrations_zxid = registrations_zxid
    if difference.changed:
        context.cluster = context.cluster.with_brokers(found[broker_id] for broker_id in difference.changed)
    back = (*difference.come, *difference.bounced)
    if back:
        await _welcome(context, [found[broker_id] for broker_id in back])
    elif difference.changed:
        await tell_who_lives(context, context.brokers.met)
    if back:
        await advance(context)
    context.refusals.finish_served(context.cluster)


async def _lose(context: ControllerContext, lost: Collection[int]) -> None:
    context.brokers.part_from(lost)
    plan = plan_broker_loss(
        context.cluster, lost, context.election.epoch, context.unclean_election_is_allowed, context.commits_alone
    )
    await context.election.write(plan.writes)
    context.adopt(plan)
    for broker_id in lost:
        context.refusals.never_served.pop(broker_id, None)
        for log_ends in context.log_ends.values():
            log_ends.pop(broker_id, None)
        context.deletions.lost(broker_id, context.cluster.brokers)
    await tell(context, plan)


async def _welcome(context: ControllerContext, back: Collection[BrokerRegistration]) -> None:
    """Send new brokers the live brokers first, then their roles: a follower has to know its leader's address."""
    brokers = context.brokers
    existing = brokers.met
    ids = [broker.broker_id for broker in back]
    context.cluster = without_doubtful(context.cluster.with_brokers(back), back)
    brokers.meet(ids)
    keep_balance(context)
    waiting = context.machine.in_status(PartitionStatus.NEW, PartitionStatus.OFFLINE)
    doubted = lacking(back, waiting)
    unproven = plan_unproven(context.cluster, doubted, context.election.epoch, context.commits_alone)
    context.cluster = unproven.cluster
    plan = await elect(context, waiting, unproven.writes)
    plan = plan._replace(told=tuple(dict.fromkeys((*unproven.told, *plan.told))))
    await tell_who_lives(context, existing)
    everything = [(topic.name, partition) for topic, partition in context.cluster.partitions()]
    for broker_id in ids:
        await brokers.update_metadata(context.cluster, broker_id, everything, requests.FULL, context.unread_topics)
        if queued := context.deletions.held_by(broker_id):
            await delete_queued(context, queued)  # before its logs belong to no topic
        all_roles = context.type_of_roles(requests.FULL)
        await brokers.assign_roles(context.cluster, broker_id, everything, plan.new, all_roles)
    await tell(context, plan, to=existing)
