"""CreateTopics: the writes, and their execution by the controller."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from barnabas.controller import znodes
from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.context import ControllerContext
from barnabas.controller.coordination.interface import Create, SetData
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import first_states
from barnabas.controller.operations.topic_checks import Creation, check_creations
from barnabas.controller.partition_fsm import PartitionStatus
from barnabas.controller.plan import OperationGroup, Plan, state_creation
from barnabas.controller.state import ClusterState, TopicPartition, TopicState
from barnabas.controller.topics import NewTopic, TopicOutcome
from barnabas.turns import ENTRIES_PER_TURN
from barnabas.wire.errors import ErrorCode

logger = logging.getLogger(__name__)


def plan_creations(
    cluster: ClusterState, creations: Sequence[Creation], existing: Collection[str], controller_epoch: int
) -> Plan:
    """Create topics: config, assignment, then the states of their partitions. `existing` are config znodes that already
    exist.
    """
    writes: list[OperationGroup] = []
    topics: list[TopicState] = []
    for creation in creations:
        topic = creation.topic
        config_path = znodes.config_path("topics", topic.name)
        config = znodes.encode_config(creation.configs)
        writes.append(
            (
                SetData(config_path, config) if config_path in existing else Create(config_path, config),
                Create(znodes.topic_path(topic.name), znodes.encode_topic(topic.topic_id, topic.assignments)),
                Create(znodes.partitions_path(topic.name)),
            )
        )
        states = first_states(cluster, topic.name, topic.assignments, controller_epoch)
        writes += [state_creation(topic.name, partition, state, ()) for partition, state in states.items()]
        topics.append(topic.with_partitions(states))
    told = tuple((topic.name, partition) for topic in topics for partition in topic.partitions)
    return Plan(tuple(writes), cluster.with_topics(topics), told, frozenset(told))


class CreateTopics:
    """`Controller.create_topics`: called by the tasks that serve clients, executed in the controller's task."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def __call__(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, timeout_ms: int = 30_000
    ) -> list[TopicOutcome]:
        """Create topics, each separately; responds when the brokers serve them.

        If that takes longer than `timeout_ms`, pending topics fail with REQUEST_TIMED_OUT and are created later; with
        zero or less the response comes at once, as old admin clients request. A name given twice has one outcome.

        Raises: ApiError, as `ControllerContext.ask`.
        """

        def timed_out(decided: list[TopicOutcome] | None) -> list[TopicOutcome]:
            outcomes = decided if decided is not None else [TopicOutcome(topic.name) for topic in topics]
            return [
                TopicOutcome.failed(outcome.name, ErrorCode.REQUEST_TIMED_OUT)
                if outcome.error is ErrorCode.NONE
                else outcome
                for outcome in outcomes
            ]

        request = AdminRequest(self._context.timers, timeout_ms, timed_out)
        return await self._context.ask(lambda: self._create(topics, validate_only, request), request)

    async def _create(
        self, topics: Sequence[NewTopic], validate_only: bool, request: AdminRequest[list[TopicOutcome]]
    ) -> None:
        context = self._context
        outcomes, creations = check_creations(
            context.cluster,
            topics,
            context.settings.topic_defaults,
            context.random_index,
            context.new_topic_id,
            context.settings.partitions_max,
        )
        if validate_only or not creations:
            return request.finish(outcomes)
        names = [creation.topic.name for creation in creations]
        existing = await context.election.existing(znodes.config_path("topics", name) for name in names)
        plan = await self._plan(creations, existing)
        await context.election.write(plan.writes)
        new = [(creation.topic.name, p) for creation in creations for p in creation.topic.assignments]
        context.machine.move(new, PartitionStatus.NEW)
        context.adopt(plan)
        request.decide(outcomes)
        for creation in creations:
            logger.info("created topic %s with %d partition(s)", creation.topic.name, len(creation.topic.assignments))
        await context.configs.refresh("topics", names)
        await tell(context, plan)
        return context.when_served(plan.told, request, outcomes)

    async def _plan(self, creations: Sequence[Creation], existing: Collection[str]) -> Plan:
        """One plan for all, computed in slices: only the controller's task, which runs this, changes the cluster."""
        writes: list[OperationGroup] = []
        told: list[TopicPartition] = []
        cluster, epoch = self._context.cluster, self._context.election.epoch
        for start in range(0, len(creations), ENTRIES_PER_TURN):
            part = plan_creations(cluster, creations[start : start + ENTRIES_PER_TURN], existing, epoch)
            writes += part.writes
            told += part.told
            cluster = part.cluster
            await asyncio.sleep(0)
        return Plan(tuple(writes), cluster, tuple(told), frozenset(told))
