"""TxnOffsetCommit (key 28): store a group's committed offsets, as part of a transaction.   Versions 0-5.

Behaviour: the offsets are pending until the transaction marker: meanwhile OffsetFetch returns the older ones, or
refuses if stable ones are required. Each partition succeeds or fails by itself; partitions that do not exist are
refused. A member must be of the current generation if the producer sends one (version 3+, KIP-447). The group's
partition of `__consumer_offsets` must be part of the transaction; from version 5 on it is added (KIP-890).
Errors per partition: UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, and the same for all others:
INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID, INVALID_PRODUCER_EPOCH,
INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE (before version 4), TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS (COORDINATOR_NOT_AVAILABLE before version 2), COORDINATOR_NOT_AVAILABLE,
UNKNOWN_SERVER_ERROR (too large to be stored).
Authorization: Write on TransactionalId: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all partitions; Read on Group:
GROUP_AUTHORIZATION_FAILED for all partitions; Read on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
Versions: 2 leader epoch; 3 flexible, member, generation, instance; 4 TRANSACTION_ABORTABLE; 5 transaction version 2.
"""

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import GROUP_METADATA_TOPIC
from barnabas.broker.coordinators.groups.events import CommitOffsets, OffsetsReply, PartitionCommit
from barnabas.broker.coordinators.transactions.verification import Operation as TransactionOperation
from barnabas.broker.coordinators.transactions.verification import Verified
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from barnabas.wire.names import ZERO_TOPIC_ID

NO_SEQUENCE = -1

_GROUP_ERRORS = {
    # As the group coordinator maps errors of the log for its clients (CoordinatorOperationExceptionHelper).
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

_Commits = tuple[str, bytes, tuple[PartitionCommit, ...]]


async def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
    """The coordinator's verification, which may take long, comes first, then everything else in one step: a topic that
    is deleted in between would keep an offset, and consumers of the next topic of its name would start there."""
    if not context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return _refused(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.authorize(Operation.READ, ResourceType.GROUP, request.group_id):
        return _refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    may_read = Decisions(context, Operation.READ, ResourceType.TOPIC)
    response = TxnOffsetCommitResponse()
    refusal = await _refusal(request, context) if _names_known_partition(request, may_read, context) else None
    commits: list[_Commits] = []
    # The results that the coordinators decide, in the order of the event.
    undecided: list[TxnOffsetCommitResponsePartition] = []
    for topic in request.topics:
        answers = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answers)
        stored = []
        for partition in topic.partitions:
            answer = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index)
            answers.partitions.append(answer)
            if not may_read(topic.name):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            if not context.services.metadata.has_partition(topic.name, partition.partition_index):
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            undecided.append(answer)
            stored.append(
                PartitionCommit(
                    partition.partition_index,
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                )
            )
        if stored:
            commits.append((topic.name, ZERO_TOPIC_ID, tuple(stored)))
    if commits:
        reply = refusal or await _commit(request, tuple(commits), context)
        errors = [error for _, partitions in reply.topics for _, error in partitions]
        if reply.error is not ErrorCode.NONE:
            errors = [_spelled(reply.error, context)] * len(undecided)
        for answer, error in zip(undecided, errors, strict=True):
            answer.error_code = error
    return response


def _refused(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """The response to a request that the client may not send."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _spelled(error: ErrorCode, context: RequestContext) -> ErrorCode:
    error = _GROUP_ERRORS.get(error, error)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < 2:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # Java producers before 2.0 fail at the other (KAFKA-7296)
    return error


def _names_known_partition(request: TxnOffsetCommitRequest, may_read: Decisions, context: RequestContext) -> bool:
    """Whether there is an offset to be stored."""
    metadata = context.services.metadata
    return any(
        metadata.has_partition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
        if may_read(topic.name)
    )


async def _refusal(request: TxnOffsetCommitRequest, context: RequestContext) -> OffsetsReply | None:
    """The error if the group's partition takes no offsets of this producer: it has to be part of the transaction."""
    services = context.services
    if not request.group_id:
        return OffsetsReply(ErrorCode.INVALID_GROUP_ID)
    partition = (GROUP_METADATA_TOPIC, services.groups.runtime.partition_for(request.group_id))
    try:
        verified = services.transaction_verification.verify(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            {partition: NO_SEQUENCE},
            TransactionOperation.of_offset_commit(context.api_version),
        )
        if not isinstance(verified, Verified):
            verified = await verified
        verified.check(partition, services.replicas)
    except ApiError as error:
        return OffsetsReply(error.error)
    return None


async def _commit(
    request: TxnOffsetCommitRequest, topics: tuple[_Commits, ...], context: RequestContext
) -> OffsetsReply:
    event = CommitOffsets(
        group_id=request.group_id,
        token=0,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        retention_ms=-1,
        topics=topics,
        unknown_group_error=ErrorCode.ILLEGAL_GENERATION,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    try:
        return await context.services.groups.answer(event)
    except ApiError as error:
        return OffsetsReply(error.error)


HANDLER: Handler[TxnOffsetCommitRequest, TxnOffsetCommitResponse] = Handler(
    key=28, min_version=0, max_version=5, handle=handle
)
