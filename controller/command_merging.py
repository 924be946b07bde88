"""Merges the pending commands of a broker into few commands that leave it in the same state.

Otherwise the queue of a broker that is registered but does not respond would grow without bound. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from barnabas.controller.channel import Command
from barnabas.controller.requests import FULL
from barnabas.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrTopicState
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataTopicState

Partition = tuple[str, bytes, int]
"""Name and id of a topic, and partition index: a topic that was deleted and created again has another id."""

Replica = tuple[str, int]
"""Name of a topic, and partition index: a broker has one log of it."""


def merged(commands: Sequence[Command]) -> list[Command]:
    """Merge the commands of one controller to one registration of a broker into at most four, in this order: metadata,
    deletions, roles, replicas to stop and keep. The last state of each partition counts.

    Metadata comes first, since a follower has to know the address of its leader; a log is deleted before one of the
    same name is created. Replicas to keep are part of the roles before they are stopped: a broker sets aside logs that
    its first full command does not name.
    """
    roles: dict[Replica, tuple[bytes, Any]] = {}
    new: dict[Replica, bytes] = {}
    deletions: dict[Replica, StopReplicaPartitionState] = {}
    stops: dict[Replica, StopReplicaPartitionState] = {}
    metadata: dict[Partition, Any] = {}
    for command in commands:
        if isinstance(command, StopReplicaRequest):
            _add_stops(roles, deletions, stops, command)
        elif isinstance(command, LeaderAndIsrRequest):
            _add_roles(roles, new, stops, command)
        else:
            _add_metadata(metadata, command)
    of_metadata = [command for command in commands if isinstance(command, UpdateMetadataRequest)]
    of_stops = [command for command in commands if isinstance(command, StopReplicaRequest)]
    of_roles = [command for command in commands if isinstance(command, LeaderAndIsrRequest)]
    return [
        *([_metadata(of_metadata, metadata)] if of_metadata else []),
        *([_stops(of_stops[-1], deletions)] if deletions else []),
        *([_roles(of_roles, roles)] if of_roles else []),
        *([_stops(of_stops[-1], stops)] if stops else []),
    ]


def _add_metadata(metadata: dict[Partition, Any], command: UpdateMetadataRequest) -> None:
    if command.type == FULL:
        metadata.clear()
    for topic in command.topic_states:
        for state in topic.partition_states:
            key = (topic.topic_name, bytes(topic.topic_id), state.partition_index)
            metadata.pop(key, None)  # a topic that is created again comes after the deleted one
            metadata[key] = state


def _add_roles(
    roles: dict[Replica, tuple[bytes, Any]],
    new: dict[Replica, bytes],
    stops: dict[Replica, StopReplicaPartitionState],
    command: LeaderAndIsrRequest,
) -> None:
    """The broker creates a log for a new partition, unless an earlier command said so."""
    if command.type == FULL:
        roles.clear()
    for topic in command.topic_states:
        topic_id = bytes(topic.topic_id)
        for state in topic.partition_states:
            key = (topic.topic_name, state.partition_index)
            if state.is_new:
                new[key] = topic_id
            elif new.get(key) == topic_id:
                fields = {name: getattr(state, name) for name in state.__slots__}
                state = type(state)(**{**fields, "is_new": True})
            roles[key] = topic_id, state
            stops.pop(key, None)


def _add_stops(
    roles: dict[Replica, tuple[bytes, Any]],
    deletions: dict[Replica, StopReplicaPartitionState],
    stops: dict[Replica, StopReplicaPartitionState],
    command: StopReplicaRequest,
) -> None:
    """A deletion replaces earlier roles and stops of the replica; a later stop does not replace a deletion."""
    for topic in command.topic_states:
        for state in topic.partition_states:
            key = (topic.topic_name, state.partition_index)
            if state.delete_partition:
                roles.pop(key, None)
                stops.pop(key, None)
                deletions[key] = state
            elif key in roles or key not in deletions:
                stops[key] = state


def _metadata(commands: Sequence[UpdateMetadataRequest], states: dict[Partition, Any]) -> UpdateMetadataRequest:
    """A topic that the last full command names without partitions, because it cannot be read, stays so unless it was
    read since.
    """
    last = commands[-1]
    full = next((command for command in reversed(commands) if command.type == FULL), None)
    read = {name for name, _, _ in states}
    left_out = [
        topic
        for topic in (() if full is None else full.topic_states)
        if not topic.partition_states and topic.topic_name not in read
    ]
    return UpdateMetadataRequest(
        controller_id=last.controller_id,
        controller_epoch=last.controller_epoch,
        broker_epoch=last.broker_epoch,
        type=_type(commands),
        topic_states=[
            *(
                UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=told)
                for (name, topic_id), told in _by_topic(states)
            ),
            *left_out,
        ],
        live_brokers=last.live_brokers,
    )


def _stops(last: StopReplicaRequest, states: dict[Replica, StopReplicaPartitionState]) -> StopReplicaRequest:
    topics: dict[str, StopReplicaTopicState] = {}
    for (name, _), state in states.items():
        topics.setdefault(name, StopReplicaTopicState(topic_name=name)).partition_states.append(state)
    return StopReplicaRequest(
        controller_id=last.controller_id,
        controller_epoch=last.controller_epoch,
        broker_epoch=last.broker_epoch,
        topic_states=list(topics.values()),
    )


def _roles(commands: Sequence[LeaderAndIsrRequest], states: dict[Replica, tuple[bytes, Any]]) -> LeaderAndIsrRequest:
    last = commands[-1]
    leaders = {broker.broker_id: broker for command in commands for broker in command.live_leaders}
    by_topic = _by_topic({(name, topic_id, index): state for (name, index), (topic_id, state) in states.items()})
    return LeaderAndIsrRequest(
        controller_id=last.controller_id,
        controller_epoch=last.controller_epoch,
        broker_epoch=last.broker_epoch,
        type=_type(commands),
        topic_states=[
            LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=told)
            for (name, topic_id), told in by_topic
        ],
        live_leaders=list(leaders.values()),
    )


def _type(commands: Sequence[LeaderAndIsrRequest | UpdateMetadataRequest]) -> int:
    """The type of a merged command: full if any of them is, since a full command followed by changes describes the full
    state.
    """
    return max(command.type for command in commands)


def _by_topic(states: dict[Partition, Any]) -> Iterable[tuple[tuple[str, bytes], list[Any]]]:
    topics: dict[tuple[str, bytes], list[Any]] = {}
    for (name, topic_id, _), state in states.items():
        topics.setdefault((name, topic_id), []).append(state)
    return topics.items()
