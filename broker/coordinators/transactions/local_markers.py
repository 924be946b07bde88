"""Transaction markers in the partitions that this broker leads."""

import asyncio

from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.broker.coordinators.groups.service import GroupService
from barnabas.broker.coordinators.transactions.markers import TransactionMarker
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.clock import Clock
from barnabas.storage.validation import AppendOrigin
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker

ACKS_ALL = -1


class LocalMarkers:
    """A MarkerWriter; one control batch, and one offset, per marker.

    Markers for `__consumer_offsets` go through the group coordinator, whose pending offsets take effect with them.
    """

    def __init__(self, replicas: ReplicaManager, groups: GroupService, clock: Clock) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock

    def write(self, topic: str, partition: int, marker: TransactionMarker) -> "asyncio.Future[None] | None":
        """See MarkerWriter. Errors: ApiError, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS,
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        control_type = ControlRecordType.COMMIT if marker.is_commit else ControlRecordType.ABORT
        end_marker = EndTxnMarker(control_type, marker.coordinator_epoch)
        producer = (marker.producer_id, marker.producer_epoch)
        self._replicas.partition_or_error(topic, partition).state.check_leader()
        if topic == GROUP_METADATA_TOPIC:
            return self._groups.end_transaction(partition, end_marker, *producer, marker.transaction_version)
        batch = build_end_txn_marker(
            end_marker,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        hosted, info = self._replicas.append(
            topic,
            partition,
            batch,
            ACKS_ALL,
            0,
            AppendOrigin.COORDINATOR,
            transaction_version=marker.transaction_version,
        )
        return self._replicas.when_acknowledgeable(hosted, info, ACKS_ALL)
