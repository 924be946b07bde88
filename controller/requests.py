"""The controller's requests to brokers: LeaderAndIsr, UpdateMetadata and StopReplica built from the cluster's state.

Pure; requests that may contain all partitions are built in pieces (`barnabas/turns.py`). Messages have the fields of
Kafka 3.9.1's highest versions (7, 8 and 4).

*Source*: kafka 3.9.1 `ControllerChannelManager.scala` (`AbstractControllerBrokerRequestBatch`).
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from barnabas.controller.state import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    ReplicaAssignment,
    TopicPartition,
)
from barnabas.turns import InPieces, Turns
from barnabas.wire.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from barnabas.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from barnabas.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

UNKNOWN_BROKER_EPOCH: Final = -1
"""Accepted in any registration of the broker."""

VERSIONS: Final = {LeaderAndIsrRequest: 7, StopReplicaRequest: 4, UpdateMetadataRequest: 8}
"""The version of each command, the highest of Kafka 3.9: all brokers of a cluster support it."""

INCREMENTAL = 1
FULL = 2
"""`AbstractControlRequest.Type`: whether the request contains the complete state for the broker, or only changes."""


class Sender(NamedTuple):
    """The controller that sends a request, and the listener for connections between brokers (None: each broker's
    first).
    """

    controller_id: int
    controller_epoch: int
    inter_broker_listener: str | None = None


def leader_and_isr(
    sender: Sender,
    cluster: ClusterState,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    new: Collection[TopicPartition] = (),
    request_type: int = INCREMENTAL,
) -> InPieces[LeaderAndIsrRequest | None]:
    """Send one broker those of the partitions of which it has a replica; None if it has none and the request is
    incremental.
    """
    topics: dict[str, LeaderAndIsrTopicState] = {}
    leaders: set[int] = set()
    turns = Turns()
    for name, partition in partitions:
        if turns.is_over():
            yield
        topic = cluster.topics[name]
        state = topic.partitions.get(partition)
        assignment = topic.assignments[partition]
        if state is None or broker_id not in assignment.replicas:
            continue
        leaders.add(state.leader)
        told = topics.setdefault(name, LeaderAndIsrTopicState(topic_name=name, topic_id=topic.topic_id))
        told.partition_states.append(
            LeaderAndIsrPartitionState(
                partition_index=partition,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=state.partition_epoch,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding_replicas),
                removing_replicas=list(assignment.removing_replicas),
                is_new=(name, partition) in new or _is_to_begin(broker_id, state, assignment),
                leader_recovery_state=state.recovery_state.value,
            )
        )
    if not topics and request_type == INCREMENTAL:
        return None
    return LeaderAndIsrRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=_broker_epoch(sender, cluster, broker_id),
        type=request_type,
        topic_states=list(topics.values()),
        live_leaders=[
            _live_leader(sender, broker)
            for broker in cluster.brokers.values()
            if broker.broker_id in leaders and broker.endpoints  # an unreadable registration has none
        ],
    )


def _is_to_begin(broker_id: int, state: PartitionState, assignment: ReplicaAssignment) -> bool:
    """Whether a broker that a partition moves to may create a log. One that is in sync has had its log already: if that
    is gone, it must not count as if it had all records. (Kafka sets "new" until the move is complete.)
    """
    return broker_id in assignment.adding_replicas and broker_id != state.leader and broker_id not in state.isr


def update_metadata(
    sender: Sender,
    cluster: ClusterState,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    request_type: int = INCREMENTAL,
    left_out: Iterable[str] = (),
) -> InPieces[UpdateMetadataRequest]:
    """Send one broker the live brokers and the partition states; partitions of topics being deleted have leader -2.

    Topics that are `left_out` of a full request, as their znodes cannot be read, are included without partitions:
    brokers must not treat them as deleted.
    """
    topics: dict[str, UpdateMetadataTopicState] = {}
    turns = Turns()
    for name, partition in partitions:
        if turns.is_over():
            yield
        topic = cluster.topics[name]
        state = topic.partitions.get(partition)
        if state is None:
            continue
        replicas = topic.assignments[partition].replicas
        told = topics.setdefault(name, UpdateMetadataTopicState(topic_name=name, topic_id=topic.topic_id))
        told.partition_states.append(
            _partition_metadata(
                partition,
                state,
                replicas,
                [replica for replica in replicas if not cluster.is_online(replica, (name, partition))],
                deleting=name in cluster.deleting,
            )
        )
    unread = sorted(left_out) if request_type == FULL else ()
    return UpdateMetadataRequest(
        controller_id=sender.controller_id,
        type=request_type,
        controller_epoch=sender.controller_epoch,
        broker_epoch=_broker_epoch(sender, cluster, broker_id),
        topic_states=[*topics.values(), *(UpdateMetadataTopicState(topic_name=name) for name in unread)],
        live_brokers=[_live_broker(broker) for broker in cluster.brokers.values()],
    )


def stop_replicas_for_deletion(
    sender: Sender, cluster: ClusterState, broker_id: int, names: Iterable[str]
) -> StopReplicaRequest | None:
    """Make one broker delete its replicas of topics that are being deleted; None if it has none."""
    topics = []
    for name in names:
        held = [p for p, assignment in cluster.topics[name].assignments.items() if broker_id in assignment.replicas]
        states = [
            StopReplicaPartitionState(partition_index=p, leader_epoch=EPOCH_DURING_DELETE, delete_partition=True)
            for p in held
        ]
        if states:
            topics.append(StopReplicaTopicState(topic_name=name, partition_states=states))
    if not topics:
        return None
    return StopReplicaRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=_broker_epoch(sender, cluster, broker_id),
        topic_states=topics,
    )


def stop_replicas(
    sender: Sender, cluster: ClusterState, broker_id: int, partitions: Iterable[TopicPartition], *, delete: bool = False
) -> StopReplicaRequest | None:
    """Make one broker stop hosting partitions, and keep or `delete` their logs; None if there are none."""
    topics: dict[str, StopReplicaTopicState] = {}
    for name, partition in partitions:
        epoch = cluster.topics[name].partitions[partition].leader_epoch
        told = topics.setdefault(name, StopReplicaTopicState(topic_name=name))
        told.partition_states.append(
            StopReplicaPartitionState(partition_index=partition, leader_epoch=epoch, delete_partition=delete)
        )
    if not topics:
        return None
    return StopReplicaRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=_broker_epoch(sender, cluster, broker_id),
        topic_states=list(topics.values()),
    )


def _broker_epoch(sender: Sender, cluster: ClusterState, broker_id: int) -> int:
    """The broker epoch of a command. The controller's own broker lives as long as the controller, and may register
    again while a command is pending.
    """
    return UNKNOWN_BROKER_EPOCH if broker_id == sender.controller_id else cluster.brokers[broker_id].epoch


def _partition_metadata(
    partition: int, state: PartitionState, replicas: Iterable[int], offline: list[int], *, deleting: bool
) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=partition,
        controller_epoch=state.controller_epoch,
        leader=LEADER_DURING_DELETE if deleting else state.leader,
        leader_epoch=0 if deleting else state.leader_epoch,
        isr=list(state.isr),
        zk_version=0 if deleting else state.partition_epoch,
        replicas=list(replicas),
        offline_replicas=offline,
    )


def _live_broker(broker: BrokerRegistration) -> UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataEndpoint(
            port=endpoint.port,
            host=endpoint.host,
            listener=endpoint.listener,
            security_protocol=endpoint.security_protocol.value,
        )
        for endpoint in broker.endpoints
    ]
    return UpdateMetadataBroker(id=broker.broker_id, endpoints=endpoints, rack=broker.rack)


def _live_leader(sender: Sender, broker: BrokerRegistration) -> LeaderAndIsrLiveLeader:
    endpoint = next((e for e in broker.endpoints if e.listener == sender.inter_broker_listener), broker.endpoints[0])
    return LeaderAndIsrLiveLeader(broker_id=broker.broker_id, host_name=endpoint.host, port=endpoint.port)
