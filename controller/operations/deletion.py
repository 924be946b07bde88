"""DeleteTopics, and the deletion queue: first a topic leaves the brokers' metadata, then its replicas are deleted, at
last its znodes.

Only the controller still sees a topic in the queue. The topic stays there until every replica is deleted, across
restarts of the controller; a failed deletion of a replica is retried.

*Source*: kafka 3.9.1 `TopicDeletionManager.scala`.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from barnabas.controller import znodes
from barnabas.controller.admin_request import AdminRequest, Results, timed_out
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import Create, Delete
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.plan import OperationGroup, Plan
from barnabas.controller.state import ClusterState
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)


def plan_deletion_queue(cluster: ClusterState, names: Iterable[str]) -> Plan:
    """Queue topics for deletion: from here on only the controller sees them."""
    queued = [name for name in names if name not in cluster.deleting]
    writes = tuple((Create(znodes.delete_topic_path(name)),) for name in queued)
    return Plan(writes, cluster.with_deleting(queued))


def plan_removal(cluster: ClusterState, name: str, existing: Sequence[str]) -> Plan:
    """Remove a topic whose replicas are deleted. `existing` are its znodes, children before parents.

    The queue's entry is deleted together with the topic's own znode, in the last group: until then a restart repeats
    the deletion of the rest.
    """
    below = znodes.partitions_path(name) + "/"
    states = [(Delete(path),) for path in existing if path.startswith(below)]
    last = tuple(Delete(path) for path in existing if not path.startswith(below))
    return Plan((*states, last), cluster.without_topics([name]))


class DeleteTopics:
    """`Controller.delete_topics`: called by the tasks that serve clients, executed in the controller's task."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def __call__(
        self, names: Sequence[str], timeout_ms: int = 30_000, *, topic_ids: Mapping[str, bytes] | None = None
    ) -> Results:
        """Delete topics, each separately; responds when the replicas of live brokers are deleted, or after
        `timeout_ms`, as `CreateTopics` does. If `topic_ids` contains a name, only the topic of that id is deleted.

        Raises: ApiError, as `ControllerContext.ask`.
        """
        request = AdminRequest[Results](self._context.timers, timeout_ms, lambda decided: timed_out(names, decided))
        return await self._context.ask(lambda: self._delete(names, topic_ids or {}, request), request)

    async def _delete(
        self, names: Sequence[str], topic_ids: Mapping[str, bytes], request: AdminRequest[Results]
    ) -> None:
        context = self._context
        results: Results = {}
        turns = Turns()  # only the controller's task, which runs this, changes the cluster
        for name in names:
            results[name] = self._obstacle(name, topic_ids.get(name))
            await turns.after_one()
        accepted = [name for name, obstacle in results.items() if obstacle is None]
        if not accepted:
            return request.finish(results)
        plan = plan_deletion_queue(context.cluster, accepted)
        await context.election.write(plan.writes)
        context.cluster = plan.cluster
        request.decide(dict(results))
        await delete_queued(context, accepted)
        under_way = [name for name in accepted if name in context.cluster.topics]

        def finish(settled: Results) -> None:
            context.when_own_told(lambda: request.finish(settled), request)

        context.deletions.finish_when_settled(results, under_way, request, finish)
        return context.deletions.settle_held_by_absent(under_way, context.cluster.brokers)

    def _obstacle(self, name: str, topic_id: bytes | None) -> ApiError | None:
        """The reason why a topic cannot be deleted, None if it can."""
        if not self._context.settings.delete_topic_enable:
            return ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
        topic = self._context.cluster.topics.get(name)
        if topic_id is not None and (topic is None or topic.topic_id != topic_id):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if topic is None:
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        return None


async def delete_queued(context: ControllerContext, names: Collection[str]) -> None:
    """Delete topics that are in the queue. In the controller's task.

    A topic is removed when every broker with a replica of it has confirmed the deletion (`note_deleted`). While a
    replica cannot be deleted, the topic stays in the queue; the deletion is retried after a while, when an absent
    broker returns, when a client requests it, and at the next take-over.

    Raises: Deposed, CoordinationError.
    """
    partitions = [(name, partition) for name in names for partition in context.cluster.topics[name].assignments]
    known = [
        partition for partition in partitions if context.machine.status(partition) is not PartitionStatus.NON_EXISTENT
    ]
    context.machine.move(known, PartitionStatus.OFFLINE)
    context.machine.move(known, PartitionStatus.NON_EXISTENT)
    brokers, deletions = context.brokers, context.deletions
    for name in names:
        assignments = context.cluster.topics[name].assignments.values()
        deletions.begin(name, (replica for assignment in assignments for replica in assignment.replicas))
    for broker_id in brokers.met:
        await brokers.update_metadata(context.cluster, broker_id, partitions)
        asked = deletions.to_ask(broker_id, names)
        deletions.asked(broker_id, asked)
        brokers.delete_topics(context.cluster, broker_id, asked)


async def note_deleted(
    context: ControllerContext, broker_id: int, asked: Collection[str], failed: Mapping[str, ErrorCode]
) -> None:
    """A broker has deleted its replicas of the topics in `asked`, except those that `failed`: topics without remaining
    replicas are removed. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    removed = [name for name in asked if name not in failed and context.deletions.confirmed(broker_id, name)]
    await _forget_moves(context, removed)
    cluster = context.cluster
    writes: list[OperationGroup] = []
    for name in removed:
        plan = plan_removal(cluster, name, await _znodes_of(context, name))
        cluster = plan.cluster
        writes += plan.writes
    await context.election.write(writes)
    context.cluster = cluster
    context.configs.forget("topics", removed)
    for name in removed:
        logger.info("deleted topic %s", name)
    context.deletions.ended(removed)
    context.deletions.settle_held_by_absent(asked, cluster.brokers)
    context.refusals.forget_topics(removed)
    for name, code in failed.items():
        obstacle = ApiError(code, "A replica could not be deleted; the topic stays queued for deletion.")
        context.deletions.failed(broker_id, name, obstacle)
    if failed:
        context.refusals.retry_later()
    context.end_retries()


async def _forget_moves(context: ControllerContext, names: Collection[str]) -> None:
    """Remove deleted topics from the requests of old tools: a later topic of such a name would be reassigned."""
    moving = [
        (name, index)
        for name in names
        for index, assignment in context.cluster.topics[name].assignments.items()
        if assignment.is_being_reassigned
    ]
    if moving:
        from barnabas.controller.operations import reassignment_znode

        await reassignment_znode.forget(context, moving)


async def _znodes_of(context: ControllerContext, name: str) -> list[str]:
    """A topic's existing znodes, children first; its entry in the deletion queue last."""
    parent = znodes.partitions_path(name)
    partitions = await context.election.children(parent)
    states = [path for p in partitions for path in (f"{parent}/{p}/state", f"{parent}/{p}")]
    rest = [parent, znodes.topic_path(name), znodes.config_path("topics", name), znodes.delete_topic_path(name)]
    existing = await context.election.existing([*states, *rest])
    return [path for path in (*states, *rest) if path in existing]


def drop_unwanted_deletions(context: ControllerContext) -> list[OperationGroup]:
    """Empty the deletion queue if delete.topic.enable is false, so that its topics stay; returns the writes. In the
    controller's task.
    """
    queued = sorted(context.cluster.deleting)
    if context.settings.delete_topic_enable or not queued:
        return []
    logger.warning("topic deletion is disabled: %s stay", ", ".join(queued))
    context.cluster = context.cluster._replace(deleting=frozenset())
    return [(Delete(znodes.delete_topic_path(name)),) for name in queued]
