"""Produce (key 0): append record batches to partitions this broker leads.   Versions 3-13, advertised from 0.

Behaviour: every partition is appended before the function returns, so that pipelined requests of one producer keep
their order; acks=-1 then waits for the in-sync replicas, at most `timeout_ms`; acks=0 has no response, and closes the
connection when an append failed. A duplicate of one of a producer's last five batches gets the offsets of the original.
The first transactional batch of a partition is appended once the transaction coordinator has verified that the
partition is part of the transaction (before version 12) or has added it (KIP-890); the connection waits for that.
Errors of the request: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (transactional batches without a transactional id),
INVALID_PRODUCER_ID_MAPPING (of several producers).
Errors per partition: NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, CORRUPT_MESSAGE,
INVALID_RECORD, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE,
INVALID_TOPIC_EXCEPTION (internal topics), INVALID_REQUIRED_ACKS, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND,
REQUEST_TIMED_OUT, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE
(before version 11), TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS (version 12+), KAFKA_STORAGE_ERROR.
Authorization: Write on TransactionalId (with transactional batches): TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all
partitions; Write on Topic: TOPIC_AUTHORIZATION_FAILED per partition.
Deviations: a full disk is named in the partition's error message (8+); Kafka sends no message with KAFKA_STORAGE_ERROR.
Versions: 0-2 are advertised only for clients that infer codecs from them (KAFKA-18659); 5 log start offset; 7 zstd; 8
record errors (KIP-467); 9 flexible; 10 current leader (KIP-951); 11 TRANSACTION_ABORTABLE; 12 transaction version 2; 13
topic ids (KIP-516).
"""

from collections.abc import Awaitable, Callable
from functools import partial

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.current_leader import CurrentLeader
from barnabas.broker.api.registry import Handler
from barnabas.broker.coordinators.transactions.verification import Operation as TransactionOperation
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.replication.append_operation import MAGIC_POSITION, AppendOperation, Unverified
from barnabas.broker.replication.delayed_reply import once_committed
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.storage.errors import DiskFull
from barnabas.storage.validation import RecordErrors, parse_produced_batch
from barnabas.turns import in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from barnabas.wire.record_batch import MAGIC

PRODUCE = 0

ELEMENTS_AT_ONCE = 1_000
"""A request with fewer topics, partitions and tagged fields does not count as large, whatever its size in bytes."""

ADMIN_CLIENT_ID = "__admin_client"

_SAID_BEFORE_THE_LOG = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}
"""Errors without a log start offset, though some come from the log: Kafka's `ReplicaManager.appendRecordsToLeader`."""

BATCH_LENGTH_POSITION = 8
BATCH_LENGTH_MIN = 14
"""The length of a record of format 0; anything shorter cannot be a batch."""

_CURRENT_LEADER = CurrentLeader(LeaderIdAndEpoch, NodeEndpoint)


def handle(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if context.authorizer is None:
        return handle_unasked(request, context)
    return handle_unasked(request, context, _authorized(context))


def handle_unasked(
    request: ProduceRequest,
    context: RequestContext,
    new_operation: Callable[..., AppendOperation] = AppendOperation,
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append all batches that the operation of `new_operation` does not refuse."""
    response = ProduceResponse()
    operation = new_operation(
        context.services.replicas,
        request,
        context.api_version,
        partial(_refusal, response, context),
        internal_topics_allowed=context.client_id == ADMIN_CLIENT_ID,
    )
    if operation.is_transactional:
        kind = TransactionOperation.of_produce(context.api_version)
        verify = partial(context.services.transaction_verification.verify, operation=kind)
        rest = in_turns(operation.begin_transaction(_transactional_id(request, context), verify))
    else:
        rest = operation.begin()
    if rest is not None:
        return _finish(rest, operation, response, request, context)
    return _answer(operation, response, request, context)


def _authorized(context: RequestContext) -> Callable[..., AppendOperation]:
    """Makes the operation that appends only to topics to which the client may write."""
    from barnabas.broker.replication.authorized import AuthorizedAppend

    return partial(AuthorizedAppend, may_write=Decisions(context, Operation.WRITE, ResourceType.TOPIC))


def _transactional_id(request: ProduceRequest, context: RequestContext) -> str | None:
    """The transactional id, if the client may use it: without one, transactional batches are refused. They count
    wherever they are in the request (CVE-2018-17196)."""
    name = request.transactional_id
    if name is None or context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return name
    return None


async def _finish(
    rest: Awaitable[None],
    operation: AppendOperation,
    response: ProduceResponse,
    request: ProduceRequest,
    context: RequestContext,
) -> ProduceResponse | None:
    await rest
    answer = _answer(operation, response, request, context)
    return await answer if isinstance(answer, Awaitable) else answer


def _answer(
    operation: AppendOperation, response: ProduceResponse, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    """The response; a future while commits are pending, None with acks=0."""
    response.responses = operation.topics
    if request.acks == 0:
        _close_on_error(response)
        return None
    if operation.commits:
        timers = context.services.timers
        return once_committed(response, operation.commits, partial(_fail, context), timers, request.timeout_ms)
    return response


def _fail(context: RequestContext, reply: PartitionProduceResponse, error: ErrorCode) -> None:
    """Set the error of a batch that was appended and is not committed."""
    reply.error_code = error
    reply.base_offset = reply.log_append_time_ms = reply.log_start_offset = -1
    context.services.metrics.count_error(PRODUCE, error)


def _refusal(
    response: ProduceResponse, context: RequestContext, topic: str, data: PartitionProduceData, found: Exception
) -> PartitionProduceResponse:
    """The result of a batch that is not appended."""
    error = context.services.unforeseen.refusal(found, topic, data.index)
    context.services.metrics.count_error(PRODUCE, error.error)
    reply = PartitionProduceResponse(
        index=data.index,
        error_code=error.error,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=_log_start_offset(topic, data, error, context),
        error_message=_message(topic, data, error, context),
    )
    if isinstance(error, RecordErrors):
        reply.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ]
    is_led_elsewhere = error.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and not isinstance(error, Unverified)
    if is_led_elsewhere and context.api_version >= 10:
        _CURRENT_LEADER.tell(reply, response.node_endpoints, topic, data.index, context)
    return reply


def _log_start_offset(topic: str, data: PartitionProduceData, error: ApiError, context: RequestContext) -> int:
    """The log start offset if it was the log that checked a valid batch and refused it, as in Kafka; else -1."""
    if error.error in _SAID_BEFORE_THE_LOG or isinstance(error, Unverified):
        return -1
    partition = context.services.replicas.partition(topic, data.index)
    if partition is None or data.records is None or not _is_valid(data.records, context.api_version):
        return -1
    return partition.log.log_start_offset


def _message(topic: str, data: PartitionProduceData, error: ApiError, context: RequestContext) -> str | None:
    """The message of an error that Kafka explains, and of a full disk."""
    if isinstance(error, DiskFull):
        return f"The disk of {topic}-{data.index} at broker {context.services.node_id} is full."
    if isinstance(error, Unverified):
        is_explained = error.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS)
    else:
        is_corrupt = error.error is ErrorCode.CORRUPT_MESSAGE and _has_impossible_size_or_magic(data.records)
        is_explained = is_corrupt or isinstance(error, RecordErrors)
    return error.message if is_explained else None


def _has_impossible_size_or_magic(records: memoryview | bytearray | None) -> bool:
    """Whether Kafka would fail at the bytes while it looks for transactional batches."""
    if records is None or len(records) <= MAGIC_POSITION:
        return False
    length = int.from_bytes(records[BATCH_LENGTH_POSITION : BATCH_LENGTH_POSITION + 4], signed=True)
    return length < BATCH_LENGTH_MIN or records[MAGIC_POSITION] > MAGIC


def _is_valid(records: memoryview | bytearray, version: int) -> bool:
    try:
        parse_produced_batch(records, version)
    except ApiError:
        return False
    return True


def _close_on_error(response: ProduceResponse) -> None:
    """With acks=0 closing the connection is the only way to report an error; the client then refreshes its metadata."""
    failed = [
        f"{topic.name}-{partition.index}: {ErrorCode(partition.error_code).name}"
        for topic in response.responses
        for partition in topic.partition_responses
        if partition.error_code
    ]
    if failed:
        raise CloseConnection("a Produce request with acks=0 failed: " + ", ".join(failed))


HANDLER: Handler[ProduceRequest, ProduceResponse] = Handler(
    key=PRODUCE,
    min_version=3,
    max_version=13,
    handle=handle,
    handle_unasked=handle_unasked,
    advertised_min=0,
    elements_at_once=ELEMENTS_AT_ONCE,
    counts_errors=True,
)
