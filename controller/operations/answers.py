"""Processes the responses of brokers to the controller's commands, some time after they were sent.

*Source*: kafka 3.9.1 `KafkaController.processLeaderAndIsrResponseReceived`,
`processTopicDeletionStopReplicaResponseReceived`.
"""

import logging

from barnabas.controller.broker_queue import Answer
from barnabas.controller.context import ControllerContext
from barnabas.controller.controller_election import Deposed
from barnabas.controller.operations.announcement import take_offline, tell
from barnabas.controller.operations.deletion import note_deleted
from barnabas.controller.operations.lost_states import take_log_ends
from barnabas.controller.operations.retries import bring_opened_online
from barnabas.controller.requests import UNKNOWN_BROKER_EPOCH
from barnabas.controller.state import EPOCH_DURING_DELETE, ClusterState, TopicPartition
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

logger = logging.getLogger(__name__)


async def take_answer(context: ControllerContext, answer: Answer) -> None:
    """Process a response, unless it is to a former controller's command or from a broker's former registration: such a
    broker was lost, and informed again. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    broker = context.cluster.brokers.get(answer.broker_id)
    command, response = answer.command, answer.response
    if broker is None or command.controller_epoch != context.election.epoch:
        return
    if command.broker_epoch not in (UNKNOWN_BROKER_EPOCH, broker.epoch):
        return
    if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
        return  # it is registering again, which is an event
    if isinstance(command, LeaderAndIsrRequest):
        await _take_roles(context, answer.broker_id, command, response)
    elif isinstance(command, StopReplicaRequest):
        await _take_deletions(context, answer.broker_id, command, response)
    else:
        _check(answer.broker_id, response.error_code)


async def _take_roles(
    context: ControllerContext, broker_id: int, command: LeaderAndIsrRequest, response: LeaderAndIsrResponse
) -> None:
    """Partitions that a broker could not open are offline there, and led by others; those that it has opened after all
    it may lead. A replica that was removed meanwhile is ignored: it would not be retried, its failure would stay
    recorded, and a later replica on this broker would never be announced.
    """
    asked = {
        (topic.topic_name, state.partition_index): state.is_new
        for topic in command.topic_states
        for state in topic.partition_states
        if _has_replica(context.cluster, broker_id, topic.topic_name, state.partition_index)
    }
    refused = refused_roles(context.cluster, broker_id, command, response)
    failed = [partition for partition in refused if partition in asked]
    if failed:
        context.refusals.note(broker_id, (partition for partition in failed if asked[partition]))
    offline = context.cluster.offline_replicas.get(broker_id, frozenset())
    newly_failed = [partition for partition in failed if partition not in offline]
    if newly_failed:
        plan = await take_offline(context, broker_id, newly_failed)
        context.refusals.await_leaders(plan.told)
        await tell(context, plan)
    opened = [partition for partition in asked if partition in offline and partition not in failed]
    await bring_opened_online(context, broker_id, opened)
    await take_log_ends(context, broker_id, command, response, newly_failed)
    context.refusals.confirm(broker_id, asked.keys() - failed, context.cluster)
    context.refusals.finish_served(context.cluster)


async def _take_deletions(
    context: ControllerContext, broker_id: int, command: StopReplicaRequest, response: StopReplicaResponse
) -> None:
    failed = refused_deletions(broker_id, command, response)
    asked = [
        topic.topic_name
        for topic in command.topic_states
        if any(state.leader_epoch == EPOCH_DURING_DELETE for state in topic.partition_states)
    ]
    await note_deleted(context, broker_id, asked, {name: code for name, code in failed.items() if name in asked})


def _has_replica(cluster: ClusterState, broker_id: int, name: str, index: int) -> bool:
    """Whether a broker has, or is to have, a replica of a partition that is not being deleted."""
    topic = None if name in cluster.deleting else cluster.topics.get(name)
    assignment = None if topic is None else topic.assignments.get(index)
    return assignment is not None and broker_id in assignment.replicas


def refused_roles(
    cluster: ClusterState, broker_id: int, command: LeaderAndIsrRequest, response: LeaderAndIsrResponse
) -> list[TopicPartition]:
    """The partitions whose log a broker could not open, temporarily or permanently.

    Raises: Deposed.
    """
    if _check(broker_id, response.error_code) is not ErrorCode.NONE:
        return [(t.topic_name, state.partition_index) for t in command.topic_states for state in t.partition_states]
    names = {topic.topic_id: topic.topic_name for topic in command.topic_states}
    failed = []
    for topic_id, refusal in [(t.topic_id, error) for t in response.topics for error in t.partition_errors]:
        error = ErrorCode.of(refusal.error_code)
        if error is ErrorCode.NONE or refusal.known_leader_epoch >= 0:  # it was asked for its log's end
            continue
        name = names.get(topic_id)
        partition = (name or "?", refusal.partition_index)
        if cluster.is_online(broker_id, partition):  # else this was processed before
            logger.error("broker %d refused its role in %s-%d: %s", broker_id, *partition, error.name)
        if error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INCONSISTENT_TOPIC_ID) and name is not None:
            failed.append(partition)
    return failed


def refused_deletions(
    broker_id: int, command: StopReplicaRequest, response: StopReplicaResponse
) -> dict[str, ErrorCode]:
    """The errors of the topics whose replicas a broker could not delete, by name.

    Raises: Deposed.
    """
    error = _check(broker_id, response.error_code)
    failed: dict[str, ErrorCode] = {}
    if error is not ErrorCode.NONE:
        failed = dict.fromkeys((topic.topic_name for topic in command.topic_states), error)
    failed |= {e.topic_name: ErrorCode.of(e.error_code) for e in response.partition_errors if e.error_code}
    for name, code in failed.items():
        logger.error("broker %d could not delete its replicas of topic %s: %s", broker_id, name, code.name)
    return failed


def _check(broker_id: int, error_code: int) -> ErrorCode:
    """The error of a command as a whole.

    Raises: Deposed.
    """
    error = ErrorCode.of(error_code)
    if error is ErrorCode.STALE_CONTROLLER_EPOCH:
        raise Deposed(f"broker {broker_id} knows a newer controller")
    if error is not ErrorCode.NONE:
        logger.error("broker %d refused a command of the controller: %s", broker_id, error.name)
    return error
