"""The encoding of requests between brokers about transactions: WriteTxnMarkers, which coordinators send to the leaders
of partitions, and AddPartitionsToTxn, which leaders send to coordinators.

Imported only by the senders to other brokers: a broker that is alone does not need it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.broker.coordinators.transactions.markers import TransactionMarker
from barnabas.broker.coordinators.transactions.state import TopicPartition
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

WRITE_TXN_MARKERS_VERSION: Final = 2
"""The version with the transaction's own version, by which the partition's leader checks the epoch (KIP-1228)."""

ADD_PARTITIONS_TO_TXN_VERSION: Final = 5
"""The highest version: with several transactions, and TRANSACTION_ABORTABLE."""

ProducerPartition = tuple[int, TopicPartition]
"""A producer id and a partition: the key of a result in WriteTxnMarkers."""


def write_txn_markers(markers: Iterable[tuple[TransactionMarker, TopicPartition]]) -> WriteTxnMarkersRequest:
    """A request for markers, each producer's with all its partitions in one entry."""
    entries: dict[TransactionMarker, WritableTxnMarker] = {}
    topics: dict[tuple[TransactionMarker, str], WritableTxnMarkerTopic] = {}
    for marker, (name, index) in markers:
        entry = entries.get(marker)
        if entry is None:
            entry = entries[marker] = WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        topic = topics.get((marker, name))
        if topic is None:
            topic = topics[marker, name] = WritableTxnMarkerTopic(name=name)
            entry.topics.append(topic)
        topic.partition_indexes.append(index)
    return WriteTxnMarkersRequest(markers=list(entries.values()))


def marker_errors(response: WriteTxnMarkersResponse) -> dict[ProducerPartition, ErrorCode]:
    """The result of each marker."""
    return {
        (result.producer_id, (topic.name, partition.partition_index)): ErrorCode.of(partition.error_code)
        for result in response.markers
        for topic in result.topics
        for partition in topic.partitions
    }


def add_partitions_to_txn(events: Iterable[AddPartitions | VerifyPartitions]) -> AddPartitionsToTxnRequest:
    """A request of several transactions, each with a transactional id of its own."""
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=event.transactional_id,
                producer_id=event.producer_id,
                producer_epoch=event.producer_epoch,
                verify_only=isinstance(event, VerifyPartitions),
                topics=_topics(event.partitions),
            )
            for event in events
        ]
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for name, index in sorted(partitions):
        topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
    return list(topics.values())


def partitions_errors(response: AddPartitionsToTxnResponse) -> dict[str, dict[TopicPartition, ErrorCode]]:
    """The coordinator's errors by transactional id and partition."""
    return {
        result.transactional_id: {
            (topic.name, partition.partition_index): ErrorCode.of(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }


def partitions_reply(
    event: AddPartitions | VerifyPartitions, errors: Mapping[TopicPartition, ErrorCode]
) -> PartitionsReply:
    """The coordinator's reply to an event. NETWORK_EXCEPTION if the response lacks a partition. If the coordinator
    refused the whole request because of some partitions, the others get their error: producers would not retry a
    partition that was merely not attempted (OPERATION_NOT_ATTEMPTED).
    """
    if not event.partitions <= errors.keys():
        return PartitionsReply(ErrorCode.NETWORK_EXCEPTION)
    told = set(errors.values()) - {ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE}
    refusals = told - {ErrorCode.OPERATION_NOT_ATTEMPTED} or told
    unverified = frozenset(key for key, error in errors.items() if error is ErrorCode.TRANSACTION_ABORTABLE)
    return PartitionsReply(min(refusals, default=ErrorCode.NONE), unverified)
