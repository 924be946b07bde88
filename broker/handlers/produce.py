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
Deviations: a full disk is named in the partition's error message (8+); Kafka sends no message with KAFKA_STORAGE_ERROR.
Versions: 0-2 are advertised only for clients that infer codecs from them (KAFKA-18659); 5 log start offset; 7 zstd; 8
record errors (KIP-467); 9 flexible; 10 current leader (KIP-951); 11 TRANSACTION_ABORTABLE; 12 transaction version 2; 13
topic ids (KIP-516).
"""

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.current_leader import CurrentLeader
from barnabas.broker.api.registry import Handler
from barnabas.broker.cluster.metadata import INTERNAL_TOPICS
from barnabas.broker.network.outcome import CloseConnection
from barnabas.broker.replication.delayed_reply import once_committed
from barnabas.storage.errors import DiskFull
from barnabas.storage.validation import ExpensiveBatch, RecordErrors, parse_produced_batch
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from barnabas.wire.names import TopicId
from barnabas.wire.record_batch import MAGIC, TRANSACTIONAL_MASK, CorruptBatch, parse_header

if TYPE_CHECKING:
    from barnabas.broker.coordinators.transactions.verification import Verified
    from barnabas.broker.replication.replica_manager import Validated

PRODUCE = 0
ACKS_ALL = -1

ELEMENTS_AT_ONCE = 1_000
"""A request with fewer topics, partitions and tagged fields does not count as large, whatever its size in bytes."""

APPENDS_AT_ONCE = 1_000
"""The number of batches of one request that are appended without giving other requests a turn, in 10 ms: more than
clients send."""

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
}
"""Errors without a log start offset, though some come from the log: Kafka's `ReplicaManager.appendRecordsToLeader`."""

BATCH_LENGTH_POSITION = 8
BATCH_LENGTH_MIN = 14
"""The length of a record of format 0; anything shorter cannot be a batch."""
MAGIC_POSITION = 16
ATTRIBUTES_POSITION = 22
"""The low byte of a record batch's attributes."""

_CURRENT_LEADER = CurrentLeader(LeaderIdAndEpoch, NodeEndpoint)

_Pending = list[tuple[PartitionProduceResponse, "asyncio.Future[None]"]]
_Step = tuple[TopicProduceResponse, TopicProduceData, PartitionProduceData]


def handle(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    appends = _Appends(request, context)
    if _has_transactional_records(request):
        return in_turns(_append_transaction(appends, request, context))
    return appends.begin()


class _Appends:
    """The appends of one request, in the request's order. `verified` is set for a transactional producer."""

    def __init__(self, request: ProduceRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self.verified: Verified | None = None
        self._response = ProduceResponse()
        self._pending: _Pending = []
        self._steps = self._all_steps()

    def _all_steps(self) -> Iterator[_Step]:
        for topic_data in self._request.topic_data:
            topic = TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id)
            if topic_data.partition_data:
                self._response.responses.append(topic)
            for data in topic_data.partition_data:
                yield topic, topic_data, data

    def begin(self) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
        """Append all batches; returns the response as a handler does."""
        for number, step in enumerate(self._steps):
            if number >= APPENDS_AT_ONCE:
                return self._finish_later(step)
            try:
                self._append(step)
            except ExpensiveBatch:
                return self._finish_later(step)
        return self.answer()

    async def begin_when_verified(self, verified: "Awaitable[Verified]") -> ProduceResponse | None:
        """Append once the coordinator has responded; the connection serves no other request meanwhile."""
        self.verified = await verified
        answer = self.begin()
        return await answer if isinstance(answer, Awaitable) else answer

    def refuse(self, error: ErrorCode) -> InPieces[ProduceResponse | None]:
        """Append nothing, and set the error for every partition."""
        turns = Turns()
        for topic, topic_data, data in self._steps:
            topic.partition_responses.append(self._refusal(topic_data.name, data, ApiError(error)))
            if turns.is_over():
                _keep_all_records(self._request)
                yield
        return self.answer()

    def answer(self) -> ProduceResponse | Awaitable[ProduceResponse] | None:
        """The response; a future while commits are pending, None with acks=0."""
        if self._request.acks == 0:
            _close_on_error(self._response)
            return None
        if self._pending:
            timers = self._context.services.timers
            return once_committed(self._response, self._pending, self._fail, timers, self._request.timeout_ms)
        return self._response

    def _fail(self, reply: PartitionProduceResponse, error: ErrorCode) -> None:
        """Set the error of a batch that was appended and is not committed."""
        reply.error_code = error
        reply.base_offset = reply.log_append_time_ms = reply.log_start_offset = -1
        self._count(error)

    def _count(self, error: ErrorCode) -> None:
        self._context.services.metrics.count_error(PRODUCE, error)

    def _finish_later(self, next_step: _Step) -> Awaitable[ProduceResponse | None]:
        """Append the rest in a coroutine: from a batch on whose records have to be opened in a thread, or after many,
        with turns for other requests in between. The connection serves no other request meanwhile, so that the order is
        kept."""
        rest = [next_step, *self._steps]
        for _, _, data in rest:
            _keep_records(data)
        return self._finish(rest)

    async def _finish(self, rest: Iterable[_Step]) -> ProduceResponse | None:
        context = self._context
        turns = Turns()
        for step in rest:
            await turns.after_one()
            topic, topic_data, data = step
            validated: Validated | None = None
            while True:
                try:
                    self._append(step, validated)
                    break
                except ExpensiveBatch:  # the first time, or because the topic has changed since
                    name = _topic_name(topic_data, context)
                try:
                    validated = await context.services.replicas.validate(
                        name, data.index, data.records, self._request.acks, context.api_version
                    )
                except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
                    topic.partition_responses.append(self._refusal(name, data, error))
                    break
        answer = self.answer()
        return await answer if isinstance(answer, Awaitable) else answer

    def _append(self, step: _Step, validated: "Validated | None" = None) -> None:
        """Append one partition's batch and add its response, and the pending commit. Raises ExpensiveBatch."""
        topic, topic_data, data = step
        context, acks, name = self._context, self._request.acks, topic_data.name
        try:
            name = _topic_name(topic_data, context)
            if acks not in (-1, 0, 1):
                raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
            if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to the internal topic {name}")
            if self.verified is not None and (refusal := self._unverified(self.verified, name, data)):
                topic.partition_responses.append(refusal)
                return
            partition, info = context.services.replicas.append(
                name, data.index, data.records, acks, context.api_version, validated=validated
            )
        except ExpensiveBatch:
            raise
        except Exception as error:  # noqa: BLE001 - one entry's error does not affect the others
            topic.partition_responses.append(self._refusal(name, data, error))
            return
        reply = PartitionProduceResponse(
            index=data.index,
            base_offset=info.base_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=info.log_start_offset,
        )
        topic.partition_responses.append(reply)
        # otherwise `when_acknowledgeable` would return None
        if info.flush_required or partition.log.high_watermark <= info.last_offset:
            acknowledgeable = context.services.replicas.when_acknowledgeable(partition, info, acks)
            if acknowledgeable is not None:
                self._pending.append((reply, acknowledgeable))

    def _unverified(
        self, verified: "Verified", topic: str, data: PartitionProduceData
    ) -> PartitionProduceResponse | None:
        """The response for a transactional batch that the transaction coordinator has not verified; None if it has."""
        try:
            verified.check_produce((topic, data.index), self._context.services.replicas)
        except ApiError as error:
            self._count(error.error)
            explained = error.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_ENOUGH_REPLICAS)
            return PartitionProduceResponse(
                index=data.index,
                error_code=error.error,
                base_offset=-1,
                log_append_time_ms=-1,
                log_start_offset=-1,
                error_message=(error.message or error.error.message) if explained else None,
            )
        return None

    def _refusal(self, topic: str, data: PartitionProduceData, found: Exception) -> PartitionProduceResponse:
        error = self._context.services.unforeseen.refusal(found, topic, data.index)
        self._count(error.error)
        fault = _fault(data.records, self._context.api_version)
        reply = PartitionProduceResponse(
            index=data.index,
            error_code=error.error,
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=self._log_start_offset(topic, data, error.error) if fault is None else -1,
        )
        if error.error is ErrorCode.CORRUPT_MESSAGE and _has_impossible_size_or_magic(data.records):
            reply.error_message = error.message  # the only error of the log with a message in Kafka
        if isinstance(error, DiskFull):
            node_id = self._context.services.node_id
            reply.error_message = f"The disk of {topic}-{data.index} at broker {node_id} is full."
        if isinstance(error, RecordErrors):
            reply.error_message = error.message
            reply.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in error.record_errors
            ]
        if error.error == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._context.api_version >= 10:
            _CURRENT_LEADER.tell(reply, self._response.node_endpoints, topic, data.index, self._context)
        return reply

    def _log_start_offset(self, topic: str, data: PartitionProduceData, error: ErrorCode) -> int:
        """The log start offset if it was the log that checked the batch and refused it, as in Kafka; else -1."""
        if error in _SAID_BEFORE_THE_LOG or data.records is None:
            return -1
        partition = self._context.services.replicas.partition(topic, data.index)
        return -1 if partition is None else partition.log.log_start_offset


def _has_impossible_size_or_magic(records: memoryview | bytearray | None) -> bool:
    """Whether Kafka would fail at the bytes while it looks for transactional batches."""
    if records is None or len(records) <= MAGIC_POSITION:
        return False
    length = int.from_bytes(records[BATCH_LENGTH_POSITION : BATCH_LENGTH_POSITION + 4], signed=True)
    return length < BATCH_LENGTH_MIN or records[MAGIC_POSITION] > MAGIC


def _fault(records: memoryview | bytearray | None, version: int) -> ErrorCode | None:
    """The error of bytes that are no valid batch, else None."""
    try:
        parse_produced_batch(records or b"", version)
    except ApiError as error:
        return error.error
    return None


def _keep_records(data: PartitionProduceData) -> None:
    """Copy records that are a view of the receive buffer, which does not outlive the handler's call."""
    if isinstance(data.records, memoryview):
        data.records = bytearray(data.records)


def _keep_all_records(request: ProduceRequest) -> None:
    for topic_data in request.topic_data:
        for data in topic_data.partition_data:
            _keep_records(data)


def _append_transaction(
    appends: _Appends, request: ProduceRequest, context: RequestContext
) -> InPieces[ProduceResponse | None]:
    if request.transactional_id is None:
        return (yield from appends.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    producers, partitions = yield from _transactional_batches(request, context)
    if len(producers) > 1:
        return (yield from appends.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    if not producers:
        return appends.begin()
    from barnabas.broker.coordinators.transactions.verification import Operation

    verified = context.services.transaction_verification.verify(
        request.transactional_id, *producers.pop(), partitions, Operation.of_produce(context.api_version)
    )
    if isinstance(verified, Awaitable):
        _keep_all_records(request)
        return appends.begin_when_verified(verified)
    appends.verified = verified
    return appends.begin()


def _transactional_batches(
    request: ProduceRequest, context: RequestContext
) -> Generator[None, None, tuple[set[tuple[int, int]], dict[tuple[str, int], int]]]:
    """Producer ids with their epochs, and the first sequence per partition, of the transactional batches, without those
    that the log will refuse anyway.
    """
    producers: set[tuple[int, int]] = set()
    partitions: dict[tuple[str, int], int] = {}
    turns = Turns()
    for topic_data in request.topic_data:
        for data in topic_data.partition_data:
            if turns.is_over():
                _keep_all_records(request)
                yield
            try:
                name = _topic_name(topic_data, context)
                header = parse_header(data.records or b"")
            except (ApiError, CorruptBatch):
                continue
            if header.is_transactional and header.producer_id >= 0:
                producers.add((header.producer_id, header.producer_epoch))
                partitions[name, data.index] = header.base_sequence
    return producers, partitions


def _has_transactional_records(request: ProduceRequest) -> bool:
    """Whether a batch has the transactional attribute; records too short for it are refused by the log."""
    for topic_data in request.topic_data:
        for data in topic_data.partition_data:
            records = data.records
            if (
                records is not None
                and len(records) > ATTRIBUTES_POSITION
                and records[ATTRIBUTES_POSITION] & TRANSACTIONAL_MASK
                and records[MAGIC_POSITION] == MAGIC
            ):
                return True
    return False


def _topic_name(topic_data: TopicProduceData, context: RequestContext) -> str:
    if context.api_version < 13:
        return topic_data.name
    name = context.services.metadata.topic_name(TopicId(topic_data.topic_id))
    if name is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    return name


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
    advertised_min=0,
    elements_at_once=ELEMENTS_AT_ONCE,
    counts_errors=True,
)
