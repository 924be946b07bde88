"""Where `min.insync.replicas` of a topic is changed, the replica that has left an ISR last is not known any more to
have what was committed: while one in-sync replica was enough, that one committed alone.

*Source*: KIP-966, which forgets eligible leader replicas then.
"""

from collections.abc import Collection

from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import NOBODY, ClusterState, PartitionState, TopicPartition


def plan_nobody_left_last(cluster: ClusterState, names: Collection[str], controller_epoch: int) -> Plan:
    """Partitions of these topics that have lost members of their ISR, and have not got them back, forget who was the
    last."""
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for topic, partition in cluster.partitions():
        old = topic.partitions.get(partition)
        if topic.name not in names or old is None or old.last_to_leave == NOBODY:
            continue
        states[topic.name, partition] = state = old._replace(
            left_isr=(*old.left_isr, NOBODY),
            leader_epoch=old.leader_epoch + 1,
            partition_epoch=old.partition_epoch + 1,
            controller_epoch=controller_epoch,
        )
        writes.append((state_update(topic.name, partition, old, state),))
    return Plan(tuple(writes), cluster.with_states(states), tuple(states))


class LastToLeave:
    """Follows the settings of topics, and the broker's own. Its methods may be called by anybody on the event loop, the
    work is done in the controller's task."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        context.configs.subscribe(self._config_changed)

    def set_default(self, count: int) -> None:
        """`min.insync.replicas` of topics without a setting of their own."""
        context = self._context
        if count != context.settings.min_insync_replicas:
            context.settings = context.settings._replace(min_insync_replicas=count)
            context.events.submit(lambda: self._forget(context.cluster.topics))

    def _config_changed(self, entity_type: str, name: str) -> None:
        if entity_type == "topics" and name in self._context.cluster.topics:
            self._context.events.submit(lambda: self._forget([name]))

    async def _forget(self, names: Collection[str]) -> None:
        context = self._context
        plan = plan_nobody_left_last(context.cluster, names, context.election.epoch)
        if plan.told:
            await context.election.write(plan.writes)
            context.adopt(plan)
            await tell(context, plan)
