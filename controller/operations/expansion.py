"""CreatePartitions: the writes, and their execution by the controller."""

import logging
from collections.abc import Collection, Mapping, Sequence

from barnabas.controller import znodes
from barnabas.controller.admin_request import AdminRequest, Results, timed_out
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import SetData
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import first_states
from barnabas.controller.operations.topic_checks import check_expansion, duplicates
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.plan import OperationGroup, Plan, missing_znode, parent_paths, state_creation
from barnabas.controller.state import ClusterState, ReplicaAssignment, TopicPartition, TopicState
from barnabas.controller.topics import NewPartitions
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)


def plan_expansions(
    cluster: ClusterState,
    added: Mapping[str, Mapping[int, ReplicaAssignment]],
    existing: Collection[str],
    controller_epoch: int,
) -> Plan:
    """Add partitions to topics. `existing` are the existing ones of their `parent_paths`."""
    writes: list[OperationGroup] = []
    topics: list[TopicState] = []
    told: list[TopicPartition] = []
    for name, new_assignments in added.items():
        topic = cluster.topics[name]
        assignments = {**topic.assignments, **new_assignments}
        writes.append(
            (
                SetData(znodes.topic_path(name), znodes.encode_topic(topic.topic_id, assignments)),
                *missing_znode(existing, znodes.partitions_path(name)),
            )
        )
        states = first_states(cluster, name, new_assignments, controller_epoch)
        writes += [state_creation(name, partition, state, existing) for partition, state in states.items()]
        topics.append(topic._replace(assignments=assignments).with_partitions(states))
        told += [(name, partition) for partition in states]
    return Plan(tuple(writes), cluster.with_topics(topics), tuple(told), frozenset(told))


class CreatePartitions:
    """`Controller.create_partitions`: called by the tasks that serve clients, executed in the controller's task."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def __call__(
        self, expansions: Sequence[NewPartitions], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> Results:
        """Add partitions to topics, each separately; responds when the brokers serve them, or after `timeout_ms`, as
        `CreateTopics` does.

        Raises: ApiError, as `ControllerContext.ask`.
        """
        names = [expansion.name for expansion in expansions]
        request = AdminRequest[Results](self._context.timers, timeout_ms, lambda decided: timed_out(names, decided))
        return await self._context.ask(lambda: self._expand(expansions, validate_only, request), request)

    async def _expand(
        self, expansions: Sequence[NewPartitions], validate_only: bool, request: AdminRequest[Results]
    ) -> None:
        context = self._context
        results: Results = {name: _named_twice() for name in duplicates(e.name for e in expansions)}
        added = await self._check(expansions, results)
        results |= dict.fromkeys(added)
        if validate_only or not added:
            return request.finish(results)
        new = [(name, partition) for name, assignments in added.items() for partition in assignments]
        existing = await context.election.existing(parent_paths(new))
        plan = plan_expansions(context.cluster, added, existing, context.election.epoch)
        await context.election.write(plan.writes)
        context.machine.move(new, PartitionStatus.NEW)
        context.adopt(plan)
        request.decide(results)
        logger.info("added %d partition(s) to %s", len(new), ", ".join(added))
        await tell(context, plan)
        return context.when_served(plan.told, request, results)

    async def _check(
        self, expansions: Sequence[NewPartitions], results: Results
    ) -> dict[str, dict[int, ReplicaAssignment]]:
        """The assignments to add, by topic; errors go into the results."""
        context = self._context
        added: dict[str, dict[int, ReplicaAssignment]] = {}
        turns = Turns()  # only the controller's task, which runs this, changes the cluster
        for expansion in expansions:
            await turns.after_one()
            if expansion.name in results:
                continue
            try:
                added[expansion.name] = check_expansion(
                    context.cluster, expansion, context.random_index, context.settings.partitions_max
                )
            except ApiError as error:
                results[expansion.name] = error
        return added


def _named_twice() -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, "The topic is named more than once in the request.")
