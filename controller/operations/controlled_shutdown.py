"""ControlledShutdown: a broker that is about to stop is relieved of what it leads, and leaves the ISRs; what that
writes, and its way through the controller.

*Source*: kafka 3.9.1 `KafkaController.doControlledShutdown`.
"""

import logging
from typing import NamedTuple

from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.leadership import leader_for_shutdown, replicas_of, without_replica
from barnabas.controller.operations.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, TopicPartition
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

logger = logging.getLogger(__name__)

UNKNOWN_BROKER_EPOCH = -1

TIMEOUT_MS = 10_000
"""How long a broker that stops waits for the controller to get to its request, which is itself if the store is gone:
then it stops without."""


PATIENCE_MS = 500
"""How long the answer waits for others to hear who leads now. A client that is sent away by a broker that stops asks
another one whom to turn to, and should not be sent back."""


class Relief(NamedTuple):
    """What relieves a broker that stops: `followed` are partitions it is to follow no more, `remaining` those that it
    still leads because nobody else may. It may ask again, or stop anyway.
    """

    plan: Plan
    followed: tuple[TopicPartition, ...]
    remaining: tuple[TopicPartition, ...]


def plan_relief(cluster: ClusterState, broker_id: int, controller_epoch: int) -> Relief:
    """Give what a broker leads to others, and take it out of the ISRs of what it follows. Partitions of which it has
    the only replica stay as they are: they are gone while it is.
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
        if old.leader == broker_id:
            state = leader_for_shutdown(replicas, old, live, stopping, controller_epoch)
            if state is None:
                remaining.append((topic.name, partition))
        elif old.leader != NO_LEADER:
            followed.append((topic.name, partition))
            state = without_replica(old, broker_id, controller_epoch)
        else:
            state = None  # whoever of the ISR comes back first may lead
        if state is not None:
            writes.append((state_update(topic.name, partition, old, state),))
            states[topic.name, partition] = state
    return Relief(Plan(tuple(writes), cluster.with_states(states), tuple(states)), tuple(followed), tuple(remaining))


async def relieve(context: ControllerContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Relieve a broker that is about to stop; answers when that is written, and all have heard of it or had some time
    to, with what it still leads. Called by the task that serves the broker, done in the controller's.
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
    relief = plan_relief(context.cluster, request.broker_id, context.election.epoch)
    await context.election.write(relief.plan.writes)
    context.adopt(relief.plan)
    logger.info(
        "broker %d stops: %d partition(s) are led by others now, %d by nobody else",
        request.broker_id,
        len(relief.plan.told) - len(relief.followed),
        len(relief.remaining),
    )
    await tell(context, relief.plan)
    # Also what it has led: as a follower it would catch up, and its leaders ask for it to be in sync.
    left = list(dict.fromkeys((*relief.followed, *relief.plan.told)))
    if request.broker_id == context.brokers.own_id:
        await context.brokers.stop_replicas(context.cluster, left)
    else:
        context.brokers.post_stop(context.cluster, request.broker_id, left)
    remaining = [RemainingPartition(topic_name=name, partition_index=index) for name, index in relief.remaining]
    response = ControlledShutdownResponse(remaining_partitions=remaining)
    asked.decide(response)
    context.brokers.when_told(lambda: asked.finish(response))
    context.brokers.timers.call_later(PATIENCE_MS, lambda: asked.finish(response))
    return None
