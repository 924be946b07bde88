"""DescribeTransactions (key 65): state, producer and partitions of transactional ids (KIP-664).   Version 0.

Behaviour: each id succeeds or fails by itself. Partitions that have their transaction marker already are left out.
Errors per id: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST (empty), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION (a response of more than 32 MiB).
Authorization: Describe on TransactionalId: TRANSACTIONAL_ID_AUTHORIZATION_FAILED per id; Describe on Topic: topics are
left out.
"""

from collections.abc import Awaitable

from barnabas.broker.api.authorization import Decisions
from barnabas.broker.api.context import RequestContext
from barnabas.broker.api.registry import Handler
from barnabas.broker.api.reply_room import ReplyRoom, text_bytes
from barnabas.broker.coordinators.runtime import weight_of
from barnabas.broker.security.operations import Operation, ResourceType
from barnabas.turns import InPieces, Turns, in_turns
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

PARTITION_BYTES = 4
TOPIC_BYTES = 20
ID_BYTES = 60
"""The size of a partition, a topic and an id in a response, besides names."""


def handle(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse | Awaitable[DescribeTransactionsResponse]:
    return in_turns(_describe_all(request, context))


def _describe_all(
    request: DescribeTransactionsRequest, context: RequestContext
) -> InPieces[DescribeTransactionsResponse]:
    room: ReplyRoom[str, TransactionState] = ReplyRoom(_reply_bytes, context.services.reply_bytes_max)
    response, turns = DescribeTransactionsResponse(), Turns()
    may_describe = Decisions(context, Operation.DESCRIBE, ResourceType.TOPIC)
    for name in request.transactional_ids:
        response.transaction_states.append(_describe(name, may_describe, context, room))
        if turns.is_over(weight_of(name)):
            yield
    return response


def _describe(
    transactional_id: str, may_describe: Decisions, context: RequestContext, room: ReplyRoom[str, TransactionState]
) -> TransactionState:
    if not context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return TransactionState(transactional_id=transactional_id, error_code=error_code)
    try:
        known = room.again(transactional_id)
        if known is None:
            known = room.first(transactional_id, _transaction(transactional_id, may_describe, context))
        return known
    except Exception as found:  # noqa: BLE001 - one entry's error does not affect the others
        error = context.services.unforeseen.refusal(found, f"transactional id {transactional_id!r}")
        return TransactionState(transactional_id=transactional_id, error_code=error.error)


def _transaction(transactional_id: str, may_describe: Decisions, context: RequestContext) -> TransactionState:
    transaction = context.services.transactions.describe(transactional_id)
    topics: dict[str, TopicData] = {}
    for topic, index in sorted(transaction.partitions):
        if may_describe(topic):
            topics.setdefault(topic, TopicData(topic=topic)).partitions.append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=list(topics.values()),
    )


def _reply_bytes(answer: TransactionState) -> int:
    topics = sum(TOPIC_BYTES + len(data.topic) + PARTITION_BYTES * len(data.partitions) for data in answer.topics)
    return ID_BYTES + text_bytes(answer.transactional_id) + topics


HANDLER: Handler[DescribeTransactionsRequest, DescribeTransactionsResponse] = Handler(
    key=65, min_version=0, max_version=0, handle=handle, has_large_replies=True
)
