"""What other brokers have answered to the controller, some time after it told them something.

*Source*: kafka 3.9.1 `KafkaController.processLeaderAndIsrResponseReceived`,
`processTopicDeletionStopReplicaResponseReceived`.
"""

from barnabas.controller.broker_queue import Answer
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import take_offline, tell
from barnabas.controller.operations.deletion import note_deleted
from barnabas.controller.operations.retries import bring_opened_online
from barnabas.controller.state import EPOCH_DURING_DELETE
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from barnabas.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse


async def take_answer(context: ControllerContext, answer: Answer) -> None:
    """Go by an answer, unless it is to a former controller's command or of a broker's former life: such a one was lost,
    and was told everything again. In the controller's task.

    Raises: Deposed, CoordinationError.
    """
    broker = context.cluster.brokers.get(answer.broker_id)
    command, response = answer.command, answer.response
    if broker is None or (command.broker_epoch, command.controller_epoch) != (broker.epoch, context.election.epoch):
        return
    if response.error_code == ErrorCode.STALE_BROKER_EPOCH:
        return  # it is being registered anew: that is heard of
    if isinstance(command, LeaderAndIsrRequest):
        await _take_roles(context, answer.broker_id, command, response)
    elif isinstance(command, StopReplicaRequest):
        await _take_deletions(context, answer.broker_id, command, response)
    else:
        context.brokers.check_metadata(answer.broker_id, response)


async def _take_roles(
    context: ControllerContext, broker_id: int, command: LeaderAndIsrRequest, response: LeaderAndIsrResponse
) -> None:
    """What a broker could not open is offline, and led by others; what it has opened after all it may lead."""
    asked = {
        (topic.topic_name, state.partition_index): state.is_new
        for topic in command.topic_states
        if topic.topic_name in context.cluster.topics and topic.topic_name not in context.cluster.deleting
        for state in topic.partition_states
    }
    refused = context.brokers.refused_roles(context.cluster, broker_id, command, response)
    failed = [partition for partition in refused if partition in asked]
    if failed:
        context.refusals.note(broker_id, (partition for partition in failed if asked[partition]))
    offline = context.cluster.offline_replicas.get(broker_id, frozenset())
    newly_failed = [partition for partition in failed if partition not in offline]
    if newly_failed:
        await tell(context, await take_offline(context, broker_id, newly_failed))
    opened = [partition for partition in asked if partition in offline and partition not in failed]
    await bring_opened_online(context, broker_id, opened)
    context.refusals.finish_served(context.cluster)


async def _take_deletions(
    context: ControllerContext, broker_id: int, command: StopReplicaRequest, response: StopReplicaResponse
) -> None:
    failed = context.brokers.refused_deletions(broker_id, command, response)
    asked = [
        topic.topic_name
        for topic in command.topic_states
        if any(state.leader_epoch == EPOCH_DURING_DELETE for state in topic.partition_states)
    ]
    await note_deleted(context, broker_id, asked, {name: code for name, code in failed.items() if name in asked})
