"""The last replica to leave an ISR may lack committed records if `min.insync.replicas` lets, or did let, the remaining
leader commit alone.

A state that is decided while it does is marked (`leadership.marked_if_alone`). This module handles changes between two
decisions: settings whose changes reach the controller, and those that were changed while there was no controller.

*Source*: KIP-966, which forgets eligible leader replicas when the setting changes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from barnabas.controller import znodes
from barnabas.controller.context import MIN_INSYNC_REPLICAS, ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import marked_if_alone
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import NOBODY, ClusterState, PartitionState, TopicPartition

IsConcerned = Callable[[str, int, PartitionState], bool]
"""Whether a partition of a topic, in this state, is concerned."""


def plan_nobody_left_last(cluster: ClusterState, is_concerned: IsConcerned, controller_epoch: int) -> Plan:
    """Partitions that are concerned, have lost members of their ISR, and have not got them back, forget the last
    replica to leave.
    """
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for topic, partition in cluster.partitions():
        old = topic.partitions.get(partition)
        if old is None or old.last_to_leave == NOBODY or not is_concerned(topic.name, partition, old):
            continue
        states[topic.name, partition] = state = old.with_nobody_left_last()._replace(
            leader_epoch=old.leader_epoch + 1,
            partition_epoch=old.partition_epoch + 1,
            controller_epoch=controller_epoch,
        )
        writes.append((state_update(topic.name, partition, old, state),))
    return Plan(tuple(writes), cluster.with_states(states), tuple(states))


class LastToLeave:
    """Follows the settings of topics and of brokers. The work is done in the controller's task."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        context.configs.subscribe(self._config_changed)
        context.configs.subscribe_unseen(partial(self._config_changed, was_unseen=True))

    def _config_changed(self, entity_type: str, name: str, *, was_unseen: bool = False) -> None:
        """Settings were changed; with `was_unseen` an intermediate value may have let any leader commit alone."""
        context = self._context
        if entity_type == "topics" and name in context.cluster.topics:
            context.events.submit(lambda: self._forget(lambda topic, _partition, _state: topic == name))
        elif entity_type == "brokers":
            is_of_gone = was_unseen or MIN_INSYNC_REPLICAS in context.configs.overrides(entity_type, name)
            broker_id = znodes.broker_id_of(name)
            concerned = context.cluster.brokers if broker_id is None else [broker_id]
            alone = [each for each in concerned if was_unseen or context.commits_alone_by_default(each)]
            if alone or is_of_gone:
                context.events.submit(lambda: self._forget_of(alone, broker_id, is_of_gone=is_of_gone))

    async def _forget_of(self, alone: Collection[int], broker_id: int | None, *, is_of_gone: bool) -> None:
        """Forget the last to leave of partitions for which one of these brokers is alone in the ISR, in topics without
        their own setting: it commits alone. If it only did so before, states are marked already. A broker that is gone
        may have applied the setting before the controller did.
        """
        context = self._context

        def is_concerned(topic: str, _partition: int, state: PartitionState) -> bool:
            if len(state.isr) > 1 or MIN_INSYNC_REPLICAS in context.configs.overrides("topics", topic):
                return False
            member = state.isr[0]
            has_gone = member not in context.cluster.brokers
            return member in alone or (is_of_gone and has_gone and broker_id in (None, member))

        await self._forget(is_concerned)

    async def _forget(self, is_concerned: IsConcerned) -> None:
        context = self._context
        plan = plan_nobody_left_last(context.cluster, is_concerned, context.election.epoch)
        if plan.told:
            await context.election.write(plan.writes)
            context.adopt(plan)
            await tell(context, plan)


async def forget_missed(context: ControllerContext, written: Mapping[TopicPartition, int]) -> Sequence[OperationGroup]:
    """Forget the last to leave of those of these partitions, with the zxids at which their states were written, whose
    settings, or those of the only broker in sync, were written later: there may have been no controller then. Also if
    the state lacks a mark that it should have. Returns the writes. In the controller's task.

    Raises: CoordinationError.
    """
    cluster = context.cluster

    def entities(topic: str, state: PartitionState) -> list[tuple[str, str]]:
        return [("topics", topic), ("brokers", znodes.DEFAULT_ENTITY), *(("brokers", str(each)) for each in state.isr)]

    wanted = dict.fromkeys(
        entity for name, partition in written for entity in entities(name, cluster.topics[name].partitions[partition])
    )
    answers = await context.store.get_many([znodes.config_path(*entity) for entity in wanted])
    set_at = {entity: answer[1].mzxid for entity, answer in zip(wanted, answers, strict=True) if answer is not None}

    def is_concerned(topic: str, partition: int, state: PartitionState) -> bool:
        written_at = written.get((topic, partition))
        if written_at is None:
            return False
        if any(set_at.get(entity, -1) > written_at for entity in entities(topic, state)):
            return True
        is_led = state.leader in cluster.brokers
        return is_led and marked_if_alone(topic, state, context.commits_alone) is not state

    plan = plan_nobody_left_last(cluster, is_concerned, context.election.epoch)
    context.cluster = plan.cluster  # leaders are elected, and announced, afterwards
    return plan.writes
