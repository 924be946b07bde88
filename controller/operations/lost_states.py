"""Partitions whose state is lost, as its znode was deleted or damaged, and this controller never knew it.

The state says which replicas have all acknowledged records. A lost state is not guessed: the partition has no leader,
and each replica receives that in LeaderAndIsr, without an ISR. It then stops leading and following, and reports in its
response its leader epoch and log end. (The fields are ours, and tagged: Kafka's brokers do not report them.) When all
replicas have reported, the one with the furthest log end has everything that was ever committed, as each leader had all
records that were committed in earlier epochs (`leadership.leader_for_lost`). While one is absent, or may have lost
records, an administrator may elect the most complete of the others.

*Source*: none in Kafka, whose controller restarts such a partition at epoch 0, with all live replicas in sync.
"""

import logging
from collections.abc import Collection, Iterator

from barnabas.controller.context import ControllerContext
from barnabas.controller.operations.announcement import tell
from barnabas.controller.operations.elections import elect
from barnabas.controller.plan import Plan
from barnabas.controller.state import LogEnd, PartitionState, TopicPartition
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
)

logger = logging.getLogger(__name__)


async def take_log_ends(
    context: ControllerContext,
    broker_id: int,
    command: LeaderAndIsrRequest,
    response: LeaderAndIsrResponse,
    newly_failed: Collection[TopicPartition],
) -> None:
    """Record a broker's reports about partitions whose states are lost, and elect leaders when all replicas have
    reported. A broker with a later leader epoch than the command's has not obeyed: all are asked again, in a later one.
    `newly_failed` are partitions whose logs it cannot open, reported for the first time.

    Raises: Deposed, CoordinationError.
    """
    states: dict[TopicPartition, PartitionState] = {}
    raised: list[TopicPartition] = []
    for partition, answer in _answers(command, response):
        name, index = partition
        topic = None if name in context.cluster.deleting else context.cluster.topics.get(name)
        state = None if topic is None else topic.partitions.get(index)
        if state is None or not state.is_lost:
            continue
        epoch = max(state.leader_epoch, answer.known_leader_epoch, answer.last_epoch)
        if answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            epoch = max(epoch, answer.known_leader_epoch + 1)
        elif answer.error_code == ErrorCode.NONE:
            log_end = _log_end(context, broker_id, partition, answer)
            if context.log_ends.get(partition, {}).get(broker_id) == log_end:
                continue
            context.log_ends.setdefault(partition, {})[broker_id] = log_end
        elif partition not in newly_failed:
            continue
        states[partition] = state._replace(leader_epoch=epoch)
        if epoch > state.leader_epoch:
            raised.append(partition)
    context.cluster = context.cluster.with_states(states)
    told = [partition for partition in states if partition in context.log_ends]
    if told:
        plan = await elect(context, told)
        await tell(context, plan)
        _tell_what_became(context, told)
    waiting = tuple(each for each in raised if context.cluster.topics[each[0]].partitions[each[1]].is_lost)
    if waiting:
        await tell(context, Plan((), context.cluster, waiting))


def _log_end(
    context: ControllerContext, broker_id: int, partition: TopicPartition, answer: LeaderAndIsrPartitionError
) -> LogEnd:
    """A broker's report. One of a broker that may have lost records, when its machine crashed, counts as certain if the
    state was lost later: a controller that knew the state has handled that broker, before it sent it the ISR.
    """
    may_lack = context.cluster.brokers[broker_id].may_lack(partition) and not answer.knew_isr
    return LogEnd(answer.last_epoch, answer.log_end_offset, answer.log_end_offset >= 0 and not may_lack)


def _answers(
    command: LeaderAndIsrRequest, response: LeaderAndIsrResponse
) -> Iterator[tuple[TopicPartition, LeaderAndIsrPartitionError]]:
    """A broker's responses for partitions whose states are lost."""
    asked = {
        (topic.topic_id, state.partition_index): (topic.topic_name, state.partition_index)
        for topic in command.topic_states
        for state in topic.partition_states
        if not state.isr
    }
    if asked:
        for topic in response.topics:
            for answer in topic.partition_errors:
                partition = asked.get((topic.topic_id, answer.partition_index))
                if partition is not None:
                    yield partition, answer


def _tell_what_became(context: ControllerContext, partitions: list[TopicPartition]) -> None:
    """Log the new leaders of partitions, and, when all live replicas have reported, what the others wait for."""
    for name, index in partitions:
        topic = context.cluster.topics[name]
        state, replicas = topic.partitions[index], topic.assignments[index].replicas
        log_ends = context.log_ends[name, index]
        if not state.is_lost:
            del context.log_ends[name, index]
            logger.warning(
                "%s-%d, whose state was lost, is led by broker %d, whose log ends furthest, in epoch %d; in sync: %s",
                name,
                index,
                state.leader,
                state.leader_epoch,
                ", ".join(map(str, state.isr)),
            )
        elif all(each in log_ends for each in replicas if context.cluster.is_online(each, (name, index))):
            missed = [each for each in replicas if each not in log_ends or not log_ends[each].is_certain]
            logger.error(
                "%s-%d has no leader: its state is lost, and the logs of broker(s) %s are not known. Start them,"
                " or lose records that only they have: `barnabas topics elect %s:%d --unclean`",
                name,
                index,
                ", ".join(map(str, missed)),
                name,
                index,
            )
