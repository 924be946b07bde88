"""AddPartitionsToTxn (key 24): a producer will write to these partitions in its transaction.   Versions 0-5.

Behaviour: the response is sent once the coordinator's log has the change; it lists the partitions as the request does.
If one of them does not exist, the request fails for the whole transaction; then, and for a verification, the response
lists each partition once. Versions 4 and 5 are for brokers alone: several transactions at once, each added to or only
verified (KIP-890).
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED (for the others then), and the same for all:
INVALID_REQUEST (empty id), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version 2),
CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE. For a verification:
TRANSACTION_ABORTABLE for partitions that are not part of the transaction.
Authorization: Write on TransactionalId (before version 4): TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all partitions;
Write on Topic (before version 4): TOPIC_AUTHORIZATION_FAILED per partition, always for internal topics; ClusterAction
on Cluster (versions 4 and 5): CLUSTER_AUTHORIZATION_FAILED.
Versions: 2 PRODUCER_FENCED; 3 flexible; 4 several transactions; 5 TRANSACTION_ABORTABLE is understood.
"""

import asyncio
from collections.abc import Collection, Mapping

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)


async def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    if context.api_version < 4:
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add_of_client(transaction, context))
    if not context.comes_from_some_broker():
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    # All at once: a transaction whose coordinator's log is stuck does not delay the others.
    results = await asyncio.gather(*(_add(transaction, context) for transaction in request.transactions))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=result)
            for transaction, result in zip(request.transactions, results, strict=True)
        ]
    )


async def _add_of_client(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult]:
    if not context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id):
        return _in_order(transaction, PartitionsReply(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    may_write = Decisions(context, Operation.WRITE, ResourceType.TOPIC)
    names = dict.fromkeys(topic.name for topic in transaction.topics)
    refused = frozenset(name for name in names if name in INTERNAL_TOPICS or not may_write(name))
    return await _add(transaction, context, refused)


async def _add(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext, refused: Collection[str] = ()
) -> list[AddPartitionsToTxnTopicResult]:
    """Add or verify the partitions of a transaction; none of them if a topic is `refused` or a partition is missing."""
    partitions = dict.fromkeys((topic.name, index) for topic in transaction.topics for index in topic.partitions)
    metadata = context.services.metadata
    errors: dict[tuple[str, int], ErrorCode] = {}
    for partition in partitions:
        if partition[0] in refused:
            errors[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not metadata.has_partition(*partition):
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:
        return _each_once({each: errors.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions})
    named = (transaction.transactional_id, 0, transaction.producer_id, transaction.producer_epoch)
    try:
        reply = await context.services.transactions.partitions(
            VerifyPartitions(*named, frozenset(partitions))
            if transaction.verify_only
            else AddPartitions(*named, frozenset(partitions), client_version=2 if context.api_version >= 4 else 0)
        )
    except Exception as found:  # noqa: BLE001 - one entry's error does not affect the others
        what = f"transactional id {transaction.transactional_id!r}"
        reply = PartitionsReply(context.services.unforeseen.refusal(found, what).error)
    if reply.error is ErrorCode.PRODUCER_FENCED and context.api_version < 2:
        reply = PartitionsReply(ErrorCode.INVALID_PRODUCER_EPOCH)
    if transaction.verify_only:
        return _each_once({partition: reply.error_of(partition) for partition in partitions})
    return _in_order(transaction, reply)


def _in_order(
    transaction: AddPartitionsToTxnTransaction, reply: PartitionsReply
) -> list[AddPartitionsToTxnTopicResult]:
    """The results of a reply, in the order of the request."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=reply.error_of((topic.name, index))
                )
                for index in topic.partitions
            ],
        )
        for topic in transaction.topics
    ]


def _each_once(errors: Mapping[tuple[str, int], ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    """Each partition once, as in Kafka's responses to failed and verification requests, which come from a map."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (topic, index), error in errors.items():
        topics.setdefault(topic, AddPartitionsToTxnTopicResult(name=topic)).results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        )
    return list(topics.values())


HANDLER: Handler[AddPartitionsToTxnRequest, AddPartitionsToTxnResponse] = Handler(
    key=24, min_version=0, max_version=5, handle=handle
)
