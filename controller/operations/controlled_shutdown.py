"""ControlledShutdown: leadership moves away from a broker that is about to stop, and it leaves the ISRs; the writes,
and their execution by the controller.

*Source*: kafka 3.9.1 `KafkaController.doControlledShutdown`.
"""

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import (
    CommitsAlone,
    leader_for_shutdown,
    marked_if_alone,
    replicas_of,
    without_replica,
)
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.requests import UNKNOWN_BROKER_EPOCH
from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, TopicPartition
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

logger = logging.getLogger(__name__)

TIMEOUT_MS = 10_000
"""The time that a broker that stops waits until the controller, itself if the store is gone, processes its request;
then it stops without.
"""


PATIENCE_MS = 500
"""The time that the response waits for other brokers to learn the new leaders. A client that a stopping broker
disconnects asks another broker for the leader, and should not be sent back.
"""


class Relief(NamedTuple):
    """The plan for a broker that stops: `followed` are partitions that it stops following next, `remaining` those that
    it still leads because no other broker may. It may retry, or stop anyway.
    """

    plan: Plan
    followed: tuple[TopicPartition, ...]
    remaining: tuple[TopicPartition, ...]


def plan_relief(cluster: ClusterState, broker_id: int, controller_epoch: int, commits_alone: CommitsAlone) -> Relief:
    """Move a broker's leadership to others. Partitions of which it has the only replica do not change: they are offline
    while it is. Nor do those without a leader: the first ISR member to return may lead.
    """
    stopping = cluster.shutting_down | {broker_id}
    cluster = cluster._replace(shutting_down=stopping)
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    followed: list[TopicPartition] = []
    remaining: list[TopicPartition] = []
    for topic, partition in cluster.partitions():
        old = topic.partitions.get(partition)
        replicas, live = replicas_of(cluster, topic.name, partition)
        if old is None or broker_id not in replicas or len(replicas) == 1:
            continue
        if old.leader != broker_id:
            followed += [(topic.name, partition)] if old.leader != NO_LEADER else []
            continue
        state = leader_for_shutdown(replicas, old, live, stopping, controller_epoch)
        if state is None:
            remaining.append((topic.name, partition))
        else:
            state = marked_if_alone(topic.name, state, commits_alone)
            writes.append((state_update(topic.name, partition, old, state),))
            states[topic.name, partition] = state
    return Relief(Plan(tuple(writes), cluster.with_states(states), tuple(states)), tuple(followed), tuple(remaining))


def plan_departure(
    cluster: ClusterState,
    broker_id: int,
    followed: Iterable[TopicPartition],
    controller_epoch: int,
    commits_alone: CommitsAlone,
) -> Plan:
    """Remove a broker that stops from the ISRs of partitions that it follows."""
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    for name, partition in followed:
        old = cluster.topics[name].partitions[partition]
        state = without_replica(old, broker_id, controller_epoch)
        if state is not None:
            state = marked_if_alone(name, state, commits_alone)
            writes.append((state_update(name, partition, old, state),))
            states[name, partition] = state
    return Plan(tuple(writes), cluster.with_states(states), tuple(states))


async def relieve(context: ControllerContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Move leadership away from a broker that is about to stop; responds with the partitions that it still leads, once
    that is written and all brokers know it or had some time to. Called by the task that serves the broker, executed in
    the controller's task.
    """
    asked = AdminRequest[ControlledShutdownResponse](
        context.brokers.timers,
        TIMEOUT_MS,
        lambda decided: decided or ControlledShutdownResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
    )
    try:
        return await context.ask(lambda: _relieve(context, request, asked), asked)
    except ApiError as error:
        return ControlledShutdownResponse(error_code=error.error)


async def _relieve(
    context: ControllerContext, request: ControlledShutdownRequest, asked: AdminRequest[ControlledShutdownResponse]
) -> None:
    broker = context.cluster.brokers.get(request.broker_id)
    if broker is None:
        return asked.finish(ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE))
    if request.broker_epoch not in (UNKNOWN_BROKER_EPOCH, broker.epoch):
        return asked.finish(ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    relief = plan_relief(context.cluster, request.broker_id, context.election.epoch, context.commits_alone)
    logger.info(
        "broker %d stops: %d partition(s) have other leaders now, %d have none",
        request.broker_id,
        len(relief.plan.told),
        len(relief.remaining),
    )
    # Clients wait for the partitions that it leads; those that it follows continue without it.
    await _decide(context, request.broker_id, relief.plan, relief.plan.told)
    departure = plan_departure(
        context.cluster, request.broker_id, relief.followed, context.election.epoch, context.commits_alone
    )
    await _decide(context, request.broker_id, departure, relief.followed)
    remaining = [RemainingPartition(topic_name=name, partition_index=index) for name, index in relief.remaining]
    response = ControlledShutdownResponse(remaining_partitions=remaining)
    asked.decide(response)
    context.brokers.when_answered(context.brokers.met, lambda: asked.finish(response))
    context.brokers.timers.call_later(PATIENCE_MS, lambda: asked.finish(response))
    return None


async def _decide(context: ControllerContext, broker_id: int, plan: Plan, stopped: Collection[TopicPartition]) -> None:
    """Write and announce a plan, and make a broker stop hosting partitions, including those that it led: as a follower
    it would catch up, and its leaders would add it to the ISR.
    """
    await context.election.write(plan.writes)
    context.adopt(plan)
    await tell(context, plan, stopping=broker_id)
    context.brokers.stop_replicas(context.cluster, broker_id, stopped)
