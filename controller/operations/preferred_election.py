"""Preferred leaders: each partition is led by the first replica of its assignment, so that leadership is balanced.

While a broker is absent, others lead its partitions. The controller periodically moves leadership back to preferred
replicas that are in sync again.

*Source*: kafka 4.3.0 `ReplicationControlManager.maybeBalancePartitionLeaders`; in 3.9.1
`KafkaController.checkAndTriggerAutoLeaderRebalance`, which tolerates some percent.
"""

import logging
from collections.abc import Iterable
from itertools import islice

from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import CommitsAlone, marked_if_alone, preferred_leader, replicas_of
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, TopicPartition
from barnabas.timers import ScheduledCall

logger = logging.getLogger(__name__)

ELECTIONS_MAX = 1_000
"""The number of partitions that change their leader at a time; the others follow soon (`MAX_ELECTIONS_PER_IMBALANCE`).
"""

FURTHER_ELECTIONS_DELAY_MS = 1_000


def preferred_elections(
    cluster: ClusterState, partitions: Iterable[TopicPartition], controller_epoch: int, commits_alone: CommitsAlone
) -> Iterable[tuple[TopicPartition, PartitionState]]:
    """The partitions whose first replica is live, in sync and not the leader, with the state in which it leads."""
    for name, partition in partitions:
        old = cluster.topics[name].partitions.get(partition)
        if old is None:
            continue
        replicas, live = replicas_of(cluster, name, partition)
        state = preferred_leader(replicas, old, live, controller_epoch)
        if state is not None:
            yield (name, partition), marked_if_alone(name, state, commits_alone)


def plan_preferred_elections(
    cluster: ClusterState,
    partitions: Iterable[TopicPartition],
    controller_epoch: int,
    elections_max: int,
    commits_alone: CommitsAlone,
) -> Plan:
    """Elect the first replica of up to `elections_max` of the partitions, if it may lead."""
    states = dict(islice(preferred_elections(cluster, partitions, controller_epoch, commits_alone), elections_max))
    writes: list[OperationGroup] = [
        (state_update(name, partition, cluster.topics[name].partitions[partition], state),)
        for (name, partition), state in states.items()
    ]
    return Plan(tuple(writes), cluster.with_states(states), tuple(states))


def keep_balance(context: ControllerContext) -> None:
    """Start the periodic check of preferred leaders: to be called when the cluster has several brokers."""
    if context.leader_balance is None:
        context.leader_balance = LeaderBalance(context)
    context.leader_balance.begin()


class LeaderBalance:
    """Checks every `leader.imbalance.check.interval.seconds` whether preferred leaders can lead again, while the
    cluster has several brokers; never if `auto.leader.rebalance.enable` is false.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._timer: ScheduledCall | None = None

    def begin(self) -> None:
        """Start the periodic checks."""
        settings = self._context.settings
        if self._timer is None and settings.auto_leader_rebalance_enable:
            self._schedule(settings.leader_imbalance_check_interval_ms)

    def stop(self) -> None:
        """Stop the checks until the next `begin`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, delay_ms: int) -> None:
        self._timer = self._context.timers.call_later(delay_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self._context.events.submit(self._balance)

    async def _balance(self) -> None:
        context = self._context
        if not context.brokers.others:
            return
        partitions = ((topic.name, partition) for topic, partition in context.cluster.partitions())
        plan = plan_preferred_elections(
            context.cluster, partitions, context.election.epoch, ELECTIONS_MAX, context.commits_alone
        )
        if plan.told:
            logger.info("%d partition(s) are led by their preferred leaders again", len(plan.told))
            await context.election.write(plan.writes)
            context.adopt(plan)
            await tell(context, plan)
        if len(plan.told) == ELECTIONS_MAX and self._timer is None:
            self._schedule(FURTHER_ELECTIONS_DELAY_MS)
        self.begin()
