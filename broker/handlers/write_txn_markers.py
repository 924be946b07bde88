"""WriteTxnMarkers (key 27): end transactions in the partitions that this broker leads.   Versions 1-2.

Behaviour: sent by transaction coordinators, and by administrators to end a transaction that hangs. Every marker takes
one offset; it is written whether or not the producer has a transaction open there. The response is sent once all
markers are replicated.
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION (not led here), NOT_LEADER_OR_FOLLOWER (also while the group
coordinator loads), INVALID_PRODUCER_ID_MAPPING (a negative id), INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED,
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
Authorization: Alter on Cluster or ClusterAction on Cluster: CLUSTER_AUTHORIZATION_FAILED per partition.
Deviations: CLUSTER_AUTHORIZATION_FAILED also where, in a cluster, a sender that is no broker names an unknown producer
or an epoch that was not reached (docs/deviations/transactions.md).
Versions: 2 transaction version (KIP-1228).
"""

import asyncio

from barnabas.broker.api.authorization import may_on_cluster
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.transactions.markers import TransactionMarker
from barnabas.broker.replication.delayed_reply import once_committed
from barnabas.broker.security.operations import Operation
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_Errors = dict[tuple[str, int], ErrorCode]
_Results = dict[int, _Errors]
_Entry = tuple[_Errors, tuple[str, int]]
"""A partition, and the map that holds its error."""


async def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    is_stranger = context.is_stranger()  # if not, the limits of clients may no longer apply to the connection
    results: _Results = {}
    turns = Turns()
    may_write = may_on_cluster(context, Operation.ALTER) or may_on_cluster(context, Operation.CLUSTER_ACTION)
    pending: list[tuple[_Entry, asyncio.Future[None]]] = []
    for entry in request.markers:
        errors = results.setdefault(entry.producer_id, {})
        marker = TransactionMarker(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.transaction_result,
            entry.transaction_version,
        )
        for topic in entry.topics:
            for index in topic.partition_indexes:
                await turns.after_one()
                if not may_write:
                    errors[topic.name, index] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    continue
                errors[topic.name, index] = ErrorCode.NONE
                try:
                    committed = _write(topic.name, index, marker, context, is_stranger=is_stranger)
                except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                    errors[topic.name, index] = context.services.unforeseen.refusal(error, topic.name, index).error
                    continue
                if committed is not None:
                    pending.append(((errors, (topic.name, index)), committed))
    if pending:
        services = context.services
        await once_committed(results, pending, _fail, services.timers, services.config.request_timeout_ms)
    return _response(results)


def _write(
    topic: str, index: int, marker: TransactionMarker, context: RequestContext, *, is_stranger: bool
) -> "asyncio.Future[None] | None":
    if context.services.replicas.partition(topic, index) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if marker.producer_id < 0:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if marker.producer_epoch < 0:
        raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if is_stranger:
        _check_epochs_were_reached(topic, index, marker, context)
    return context.services.transaction_markers.write(topic, index, marker)


def _check_epochs_were_reached(topic: str, index: int, marker: TransactionMarker, context: RequestContext) -> None:
    """Check a marker whose sender is no broker: a greater epoch would fence the true coordinator or the producer for
    good. Administrators send the epochs that DescribeProducers returned, and coordinator epoch 0 where it returned -1,
    as a hanging transaction may be the producer's first (`TransactionsCommand.AbortTransactionCommand`).

    Raises: ApiError: NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, CLUSTER_AUTHORIZATION_FAILED.
    """
    partition = context.services.replicas.partition_or_error(topic, index)
    partition.state.check_leader()
    known = partition.log.producer_state.producers.get(marker.producer_id)
    if (
        known is None
        or marker.producer_epoch > known.epoch
        or marker.coordinator_epoch > max(known.coordinator_epoch, 0)
    ):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _fail(entry: _Entry, error: ErrorCode) -> None:
    errors, partition = entry
    errors[partition] = error


def _response(results: _Results) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, errors in results.items():
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for (topic, index), error in errors.items():
            topics.setdefault(topic, WritableTxnMarkerTopicResult(name=topic)).partitions.append(
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
            )
        response.markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values())))
    return response


HANDLER: Handler[WriteTxnMarkersRequest, WriteTxnMarkersResponse] = Handler(
    key=27, min_version=1, max_version=2, handle=handle
)
