"""Elects leaders for partitions that lack one.

*Source*: kafka 3.9.1 `PartitionStateMachine.triggerOnlinePartitionStateChange`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from barnabas.controller import requests
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import (
    CommitsAlone,
    first_leader,
    leader_for_lost,
    leader_for_offline,
    leaderless,
    marked_if_alone,
    replicas_of,
)
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.plan import OperationGroup, Plan, parent_paths, state_writes, without_znode
from barnabas.controller.state import ClusterState, LogEnd, PartitionState, TopicPartition

LogEnds = Mapping[TopicPartition, Mapping[int, LogEnd]]
"""The reports of replicas, by partition whose state is lost."""


def plan_elections(
    cluster: ClusterState,
    new: Collection[TopicPartition],
    offline: Collection[TopicPartition],
    existing: Collection[str],
    controller_epoch: int,
    unclean: Callable[[str], bool],
    commits_alone: CommitsAlone,
    log_ends: LogEnds = MappingProxyType({}),
) -> Plan:
    """Elect leaders for new and offline partitions; an offline one that gets none is recorded as leaderless, unless its
    state is lost.

    `existing` are the existing ones of the `parent_paths` of partitions without a znode; `unclean` says whether a topic
    allows a leader from outside the ISR.
    """
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in new:
        state = first_leader(*replicas_of(cluster, name, partition), controller_epoch)
        if state is not None:
            states[name, partition] = state
    for name, partition in offline:
        old = cluster.topics[name].partitions[partition]
        replicas, live = replicas_of(cluster, name, partition)
        if old.is_lost:
            ends = log_ends.get((name, partition), {})
            state = leader_for_lost(replicas, old, ends, live, controller_epoch, unclean=unclean(name))
        else:
            elected = leader_for_offline(replicas, old, live, controller_epoch, unclean=unclean(name))
            state = elected or leaderless(old, controller_epoch)
        if state is not None:
            states[name, partition] = marked_if_alone(name, state, commits_alone)
    writes = tuple(state_writes(cluster, states, existing))
    return Plan(writes, cluster.with_states(states), tuple(states), frozenset(new) & states.keys())


async def elect(
    context: ControllerContext, partitions: Sequence[TopicPartition], repairs: Sequence[OperationGroup] = ()
) -> Plan:
    """Elect leaders for those of these partitions that lack one; `repairs` are written first. Informs no brokers yet.
    In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    new = [p for p in partitions if context.machine.status(p) is PartitionStatus.NEW]
    offline = [p for p in partitions if context.machine.status(p) is PartitionStatus.OFFLINE]
    existing = await context.election.existing(parent_paths(without_znode(context.cluster, [*new, *offline])))
    plan = plan_elections(
        context.cluster,
        new,
        offline,
        existing,
        context.election.epoch,
        context.unclean_election_is_allowed,
        context.commits_alone,
        context.log_ends,
    )
    await context.election.write([*repairs, *plan.writes])
    context.adopt(plan)
    return plan


async def bring_online(
    context: ControllerContext,
    partitions: Sequence[TopicPartition],
    repairs: Sequence[OperationGroup],
    request_type: int,
) -> None:
    """Elect leaders for those of these partitions that lack one, and inform every broker of all of them; `repairs` are
    written first. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    plan = await elect(context, partitions, repairs)
    await tell(context, plan._replace(told=tuple(partitions)), request_type)


class UncleanElections:
    """Elects leaders from outside the ISR when that becomes allowed: for one topic, or for all without their own
    setting. Its methods may be called by any code on the event loop; the work is done in the controller's task.

    *Source*: `KafkaController.enableDefaultUncleanLeaderElection`, `enableTopicUncleanLeaderElection`.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        context.configs.subscribe(self._config_changed)

    def allow(self, is_allowed: bool) -> None:
        """Set whether topics without their own setting may get a leader from outside the ISR; allowing it elects
        missing leaders.
        """
        context = self._context
        if is_allowed != context.settings.unclean_leader_election_enable:
            context.settings = context.settings._replace(unclean_leader_election_enable=is_allowed)
            context.events.submit(self._elect)

    def _config_changed(self, entity_type: str, name: str) -> None:
        context = self._context
        if entity_type == "topics" and name in context.cluster.topics and context.unclean_election_is_allowed(name):
            context.events.submit(self._elect)

    async def _elect(self) -> None:
        context = self._context
        offline = context.machine.in_status(PartitionStatus.OFFLINE)
        allowed = [partition for partition in offline if context.unclean_election_is_allowed(partition[0])]
        if allowed:
            await bring_online(context, allowed, [], requests.INCREMENTAL)
