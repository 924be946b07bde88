"""AddPartitionsToTxn (key 24): a producer will write to these partitions in its transaction.   Versions 0-5.

Behaviour: the response is sent once the coordinator's log has the change; it lists the partitions as the request does.
If one of them does not exist, the request fails for the whole transaction; then, and for a verification, the response
lists each partition once. Versions 4 and 5 are for brokers alone: several transactions at once, each added to or only
verified (KIP-890).
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, OPERATION_NOT_ATTEMPTED (for the others then), and the same for all:
INVALID_REQUEST (empty id), INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (INVALID_PRODUCER_EPOCH before version 2),
CONCURRENT_TRANSACTIONS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE. For a verification:
TRANSACTION_ABORTABLE for partitions that are not part of the transaction. Versions 4 and 5 from other clients:
CLUSTER_AUTHORIZATION_FAILED.
Versions: 2 PRODUCER_FENCED; 3 flexible; 4 several transactions; 5 TRANSACTION_ABORTABLE is understood.
"""

import asyncio
from collections.abc import Mapping

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
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
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add(transaction, context))
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


async def _add(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext
) -> list[AddPartitionsToTxnTopicResult]:
    partitions = dict.fromkeys((topic.name, index) for topic in transaction.topics for index in topic.partitions)
    metadata = context.services.metadata
    missing = {partition for partition in partitions if not metadata.has_partition(*partition)}
    if missing:
        unknown, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        return _each_once({partition: unknown if partition in missing else others for partition in partitions})
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
