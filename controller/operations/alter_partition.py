"""AlterPartition: leaders request changes of their partitions' ISRs; the decision, and its execution by the controller.

*Source*: kafka 3.9.1 `KafkaController.tryProcessAlterPartition`; KIP-497, KIP-704, KIP-841, KIP-903.
"""

from typing import NamedTuple

from barnabas.controller.admin_request import AdminRequest
from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell_states
from barnabas.controller.operations.leadership import CommitsAlone, marked_if_alone
from barnabas.controller.plan import OperationGroup, Plan, state_update
from barnabas.controller.state import ClusterState, PartitionState, RecoveryState, TopicPartition
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

TIMEOUT_MS = 30_000
"""The time that a leader waits until the controller processes its request; then it retries."""


async def alter_partitions(context: ControllerContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """Change ISRs as leaders request; responds once that is written. Called by the task that serves the leader,
    executed in the controller's task.
    """
    asked = AdminRequest[AlterPartitionResponse](
        context.timers,
        TIMEOUT_MS,
        lambda decided: decided or AlterPartitionResponse(error_code=ErrorCode.REQUEST_TIMED_OUT),
    )
    try:
        return await context.ask(lambda: _alter(context, request, asked), asked)
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.error)


async def _alter(
    context: ControllerContext, request: AlterPartitionRequest, asked: AdminRequest[AlterPartitionResponse]
) -> None:
    plan, response = plan_alterations(context.cluster, request, context.election.epoch, context.commits_alone)
    await context.election.write(plan.writes)
    context.adopt(plan)
    asked.finish(response)
    if plan.told:
        await tell_states(context, plan.told)
    moving = [(name, p) for name, p in plan.told if context.cluster.topics[name].assignments[p].is_being_reassigned]
    if moving:
        from barnabas.controller.operations.reassignment import advance

        await advance(context, moving)


class Alteration(NamedTuple):
    """The outcome of an AlterPartition request: the plan of the granted changes, and the response after it."""

    plan: Plan
    response: AlterPartitionResponse


def plan_alterations(
    cluster: ClusterState, request: AlterPartitionRequest, controller_epoch: int, commits_alone: CommitsAlone
) -> Alteration:
    """Check a leader's request, each partition separately, and grant the valid changes.

    STALE_BROKER_EPOCH for the whole request if it is not from the broker's current registration.
    """
    sender = cluster.brokers.get(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        return Alteration(Plan((), cluster), AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    # A topic in deletion has no leader; the sender does not know that yet.
    names = {topic.topic_id: topic.name for topic in cluster.topics.values() if topic.name not in cluster.deleting}
    writes: list[OperationGroup] = []
    states: dict[TopicPartition, PartitionState] = {}
    response = AlterPartitionResponse()
    for asked in request.topics:
        topic_id = bytes(asked.topic_id)
        name = names.get(topic_id)
        answers = []
        for wanted in asked.partitions:
            if name is None:
                answers.append(_refusal(wanted, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            partition = (name, wanted.partition_index)
            # The state just granted, if a request names a partition twice.
            current = states.get(partition) or cluster.topics[name].partitions.get(wanted.partition_index)
            error = alteration_error(cluster, request.broker_id, partition, current, wanted)
            if error is not ErrorCode.NONE or current is None:
                answers.append(_refusal(wanted, error))
                continue
            state = _altered(current, wanted, controller_epoch)
            if state is not current:
                state = marked_if_alone(name, state, commits_alone)
                writes.append((state_update(*partition, current, state),))
                states[partition] = state
            answers.append(_grant(wanted, state))
        response.topics.append(ResponseTopicData(topic_id=topic_id, partitions=answers))
    return Alteration(Plan(tuple(writes), cluster.with_states(states), tuple(states)), response)


def alteration_error(
    cluster: ClusterState,
    broker_id: int,
    partition: TopicPartition,
    current: PartitionState | None,
    wanted: RequestPartitionData,
) -> ErrorCode:
    """The error of a leader's request for a partition state; NONE if it is valid, or already the current state. In
    Kafka's order, with two checks that only Kafka's KRaft controller has: the sender is the leader, and the ISR
    consists of replicas.
    """
    if current is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if wanted.partition_epoch > current.partition_epoch or wanted.leader_epoch > current.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows more: there must be a newer controller
    if wanted.leader_epoch < current.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != current.leader:
        return ErrorCode.INVALID_REQUEST
    if _has_it(current, wanted):
        return ErrorCode.NONE  # before the partition epoch is checked: a request may arrive twice
    if wanted.partition_epoch < current.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return _content_error(cluster, partition, current, wanted)


def _content_error(
    cluster: ClusterState, partition: TopicPartition, current: PartitionState, wanted: RequestPartitionData
) -> ErrorCode:
    isr = _isr(wanted)
    replicas = cluster.topics[partition[0]].assignments[partition[1]].replicas
    if current.leader not in isr or not set(isr) <= set(replicas) or len(set(isr)) < len(isr):
        return ErrorCode.INVALID_REQUEST
    if wanted.leader_recovery_state not in (state.value for state in RecoveryState):
        return ErrorCode.INVALID_REQUEST
    is_recovering = wanted.leader_recovery_state == RecoveryState.RECOVERING.value
    if is_recovering and (len(isr) > 1 or current.recovery_state is RecoveryState.RECOVERED):
        return ErrorCode.INVALID_REQUEST
    for member in wanted.new_isr_with_epochs:
        broker = cluster.brokers.get(member.broker_id)
        is_of_former_life = broker is not None and member.broker_epoch not in (-1, broker.epoch)
        if broker is None or is_of_former_life or member.broker_id in cluster.shutting_down:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _isr(wanted: RequestPartitionData) -> tuple[int, ...]:
    return tuple(member.broker_id for member in wanted.new_isr_with_epochs)


def _has_it(current: PartitionState, wanted: RequestPartitionData) -> bool:
    return _isr(wanted) == current.isr and wanted.leader_recovery_state == current.recovery_state.value


def _altered(current: PartitionState, wanted: RequestPartitionData, controller_epoch: int) -> PartitionState:
    """The state with the requested changes; the same object if there are none."""
    if _has_it(current, wanted):
        return current
    return current.with_isr(_isr(wanted))._replace(
        recovery_state=RecoveryState(wanted.leader_recovery_state),
        controller_epoch=controller_epoch,
        partition_epoch=current.partition_epoch + 1,
    )


def _refusal(wanted: RequestPartitionData, error: ErrorCode) -> ResponsePartitionData:
    return ResponsePartitionData(partition_index=wanted.partition_index, error_code=error)


def _grant(wanted: RequestPartitionData, state: PartitionState) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=wanted.partition_index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.recovery_state.value,
        partition_epoch=state.partition_epoch,
    )
