"""Verifies, before the first batch of a transaction is appended to a partition, that the partition is part of the
transaction (KIP-890).

Clients of transaction version 2 do not add partitions beforehand: their batches do. Older ones do, and the coordinator
is asked whether they have; otherwise a batch that was delayed for long could open a transaction that no one ends.
Source: Kafka's ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from enum import Enum
from typing import Final, Protocol

from barnabas.broker.configuration.live_config import LiveConfig
from barnabas.broker.coordinators.transactions.events import AddPartitions, PartitionsReply, VerifyPartitions
from barnabas.broker.coordinators.transactions.service import TransactionService
from barnabas.broker.coordinators.transactions.state import TopicPartition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.clock import Clock
from barnabas.storage.producer_state import Verification
from barnabas.timers import Timers, pause
from barnabas.wire.errors import ApiError, ErrorCode

CLIENT_VERSION_2: Final = 2

BACKOFF_MIN_MS: Final = 10
"""The minimum pause between two attempts, whatever the value of `add.partitions.to.txn.retry.backoff.ms`: every waiting
producer retries.
"""

_TRANSIENT: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Operation(Enum):
    """The request to the coordinator, which depends on the client's version, as do the errors that the client
    understands."""

    VERIFY = 0
    """Verify; the client does not know TRANSACTION_ABORTABLE."""
    VERIFY_OR_ABORT = 1
    """Verify; the client aborts after TRANSACTION_ABORTABLE."""
    ADD = 2
    """Add the partition to the transaction."""

    @staticmethod
    def of_produce(version: int) -> "Operation":
        return Operation.ADD if version >= 12 else Operation.VERIFY_OR_ABORT if version == 11 else Operation.VERIFY

    @staticmethod
    def of_offset_commit(version: int) -> "Operation":
        return Operation.ADD if version >= 5 else Operation.VERIFY_OR_ABORT if version == 4 else Operation.VERIFY


class Verified:
    """The outcome for the partitions of one request of one producer."""

    __slots__ = ("_errors", "_operation", "_producer_epoch", "_producer_id", "_verifications")

    def __init__(self, producer_id: int, producer_epoch: int, operation: Operation) -> None:
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._operation = operation
        self._errors: dict[TopicPartition, ApiError] = {}
        self._verifications: dict[TopicPartition, Verification | None] = {}

    def note(self, topic_partition: TopicPartition, outcome: "Verification | ApiError | None") -> None:
        if isinstance(outcome, ApiError):
            self._errors[topic_partition] = outcome
        else:
            self._verifications[topic_partition] = outcome

    def check(self, topic_partition: TopicPartition, replicas: ReplicaManager) -> None:
        """Check immediately before the append. Raises ApiError: the error of the verification; INVALID_TXN_STATE if a
        marker was written after the coordinator's response.
        """
        error = self._errors.get(topic_partition)
        if error is not None:
            raise error
        if topic_partition not in self._verifications:
            return
        producers = replicas.partition_or_error(*topic_partition).log.producer_state
        if not producers.is_verified(self._producer_id, self._producer_epoch, self._verifications[topic_partition]):
            raise ApiError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an open transaction")

    def check_produce(self, topic_partition: TopicPartition, replicas: ReplicaManager) -> None:
        """`check`, with errors that producers understand: after NOT_ENOUGH_REPLICAS they retry without looking for a
        new leader.
        """
        try:
            self.check(topic_partition, replicas)
        except ApiError as error:
            is_concurrent = error.error is ErrorCode.CONCURRENT_TRANSACTIONS
            if error.error in _TRANSIENT or (is_concurrent and self._operation is not Operation.ADD):
                message = f"cannot verify that the partition is part of the transaction: {error.error.name}"
                raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, message) from error
            raise


class Elsewhere(Protocol):
    """The connection to coordinators in other brokers (`coordinator_sender.py`)."""

    def ask(self, event: AddPartitions | VerifyPartitions) -> "asyncio.Future[PartitionsReply]":
        """Send an event to the coordinator of its transactional id. Errors: ApiError."""
        ...


class TransactionVerification:
    """Verifies the partitions of produced batches and committed offsets with the coordinator; owned by the event loop.

    If this broker is not the coordinator, `elsewhere` is asked; None if there are no other brokers.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        transactions: TransactionService,
        config: LiveConfig,
        clock: Clock,
        timers: Timers,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._replicas = replicas
        self._transactions = transactions
        self._config = config
        self._clock = clock
        self._timers = timers
        self._elsewhere = elsewhere

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Mapping[TopicPartition, int],
        operation: Operation,
    ) -> "Verified | Awaitable[Verified]":
        """Verify partitions (given with the first sequence to be written to each), or add them.

        Errors, per partition in the outcome: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE or TRANSACTION_ABORTABLE (not
        part of the transaction), INVALID_PRODUCER_ID_MAPPING, CONCURRENT_TRANSACTIONS, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        verified = Verified(producer_id, producer_epoch, operation)
        if operation is not Operation.ADD and not self._config.transaction_partition_verification_enable:
            return verified
        asked: set[TopicPartition] = set()
        now_ms = self._clock.now_ms()
        for topic_partition, sequence in partitions.items():
            try:
                partition = self._replicas.partition_or_error(*topic_partition)
                partition.state.check_leader()
                verification = partition.log.producer_state.begin_verification(
                    producer_id, producer_epoch, sequence, now_ms, bumps_epoch=operation is Operation.ADD
                )
            except ApiError as error:
                verified.note(topic_partition, error)
                continue
            verified.note(topic_partition, verification)
            if verification is not None:
                asked.add(topic_partition)
        if not asked:
            return verified
        event: AddPartitions | VerifyPartitions
        named = (transactional_id, 0, producer_id, producer_epoch, frozenset(asked))
        event = AddPartitions(*named, CLIENT_VERSION_2) if operation is Operation.ADD else VerifyPartitions(*named)
        reply = self._ask(event)
        if isinstance(reply, asyncio.Future) or _is_tried_again(reply, operation):
            return self._verify_later(verified, event, reply, operation)
        return _noted(verified, event, reply, operation)

    def _ask(self, event: AddPartitions | VerifyPartitions) -> "PartitionsReply | asyncio.Future[PartitionsReply]":
        try:
            return self._transactions.ask(event)  # type: ignore[return-value]
        except ApiError as error:
            if error.error is not ErrorCode.NOT_COORDINATOR or self._elsewhere is None:
                return PartitionsReply(error.error)
        try:
            return self._elsewhere.ask(event)
        except ApiError as error:
            return PartitionsReply(error.error)

    async def _verify_later(
        self,
        verified: Verified,
        event: AddPartitions | VerifyPartitions,
        reply: "PartitionsReply | asyncio.Future[PartitionsReply]",
        operation: Operation,
    ) -> Verified:
        """Wait for the coordinator. While the coordinator still ends the previous transaction, an implicit add is
        repeated here, which is cheaper than a retry of the client with its batch.
        """
        config, clock = self._config, self._clock
        backoff_ms = max(config.add_partitions_to_txn_retry_backoff_ms, BACKOFF_MIN_MS)
        give_up_ms = clock.monotonic_ms() + min(
            config.add_partitions_to_txn_retry_backoff_max_ms, config.request_timeout_ms
        )
        while True:
            answer = await _answer(reply)
            if not _is_tried_again(answer, operation) or clock.monotonic_ms() >= give_up_ms:
                return _noted(verified, event, answer, operation)
            await pause(self._timers, backoff_ms)
            reply = self._ask(event)


async def _answer(reply: "PartitionsReply | asyncio.Future[PartitionsReply]") -> PartitionsReply:
    if not isinstance(reply, asyncio.Future):
        return reply
    try:
        return await reply
    except ApiError as error:
        return PartitionsReply(error.error)


def _is_tried_again(reply: PartitionsReply, operation: Operation) -> bool:
    return operation is Operation.ADD and reply.error is ErrorCode.CONCURRENT_TRANSACTIONS


def _noted(
    verified: Verified, event: AddPartitions | VerifyPartitions, reply: PartitionsReply, operation: Operation
) -> Verified:
    for topic_partition in event.partitions:
        error = reply.error_of(topic_partition)
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH  # the error that producers expect here
        elif error is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.VERIFY:
            error = ErrorCode.INVALID_TXN_STATE
        if error is not ErrorCode.NONE:
            verified.note(topic_partition, ApiError(error))
    return verified
