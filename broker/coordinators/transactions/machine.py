"""Decides the effects of an event on a transactional id; reads only.

A transaction whose last record is not committed yet, or whose markers are being written, is *pending*: requests that
would change it fail with CONCURRENT_TRANSACTIONS, and clients retry. Source: Kafka's TransactionCoordinator,
TransactionMetadata.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from barnabas.broker.coordinators.transactions.events import (
    EPOCH_BUMP_VERSION,
    AddPartitions,
    Effects,
    EndTransaction,
    InitProducerId,
    Loaded,
    MarkersWritten,
    NeedsProducerId,
    PartitionsReply,
    ProducerReply,
    Reply,
    Request,
    TimeOut,
    VerifyPartitions,
)
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.state import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSITIONS,
    PartitionsEnded,
    Transaction,
    TransactionState,
)
from barnabas.wire.errors import ErrorCode

OneEvent = Request | Loaded | MarkersWritten


class ForbiddenTransition(Exception):
    """A bug: the coordinator itself requests a transition that its states do not allow. Nothing was decided."""


def decide(
    transaction: Transaction | None,
    event: OneEvent,
    now_ms: int,
    settings: TransactionSettings,
    *,
    is_uncommitted: bool,
) -> Effects:
    """The effects of an event (transaction None: the id is unknown). `now_ms` is wall-clock time; with `is_uncommitted`
    the transaction's last record may still be lost.
    """
    return _Decision(transaction, now_ms, settings, is_uncommitted).run(event)


class _Decision:
    """One decision; `known` is the present transaction."""

    __slots__ = ("known", "now_ms", "settings", "waits")

    def __init__(
        self, transaction: Transaction | None, now_ms: int, settings: TransactionSettings, is_uncommitted: bool
    ) -> None:
        self.known = transaction
        self.now_ms = now_ms
        self.settings = settings
        self.waits = is_uncommitted or (transaction is not None and transaction.state.is_prepared)

    def run(self, event: OneEvent) -> Effects:
        return _DECIDERS[type(event)](self, event)

    # Producers

    def init_producer_id(self, event: InitProducerId) -> Effects:
        known = self.known
        if known is None:
            if event.fresh_producer_id == NO_PRODUCER_ID:
                return _reply(event, NeedsProducerId())
            known = Transaction(event.transactional_id, event.fresh_producer_id, NO_PRODUCER_EPOCH, event.timeout_ms)
            return self._initialised(known, event, 0, NO_PRODUCER_EPOCH)
        if self.waits:
            return _refuse_producer(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        expected = event.expected
        if expected is not None and not (
            expected.producer_id == known.producer_id
            # A retry after the producer id was replaced, when the producer did not receive the response.
            or (expected.producer_id == known.previous_producer_id and expected.producer_epoch >= EPOCH_MAX - 1)
        ):
            return _refuse_producer(event, ErrorCode.PRODUCER_FENCED)
        if known.state is TransactionState.ONGOING:
            # No producer receives the new epoch: the client retries and gets the following one.
            return self._fence(event, ProducerReply(ErrorCode.CONCURRENT_TRANSACTIONS))
        is_current = expected is None or expected.producer_epoch == known.producer_epoch
        if known.is_epoch_exhausted and is_current:
            if event.fresh_producer_id == NO_PRODUCER_ID:
                return _reply(event, NeedsProducerId())
            last_epoch = NO_PRODUCER_EPOCH if expected is None else known.producer_epoch
            return self._initialised(known, event, 0, last_epoch, producer_id=event.fresh_producer_id)
        if is_current:
            last_epoch = NO_PRODUCER_EPOCH if expected is None else known.producer_epoch
            return self._initialised(known, event, known.producer_epoch + 1, last_epoch)
        if expected is not None and expected.producer_epoch == known.last_producer_epoch:
            # A retry: no other producer was initialised meanwhile, or the last epoch would be unknown.
            return self._initialised(known, event, known.producer_epoch, known.last_producer_epoch)
        return _refuse_producer(event, ErrorCode.PRODUCER_FENCED)

    def _initialised(
        self, known: Transaction, event: InitProducerId, epoch: int, last_epoch: int, producer_id: int | None = None
    ) -> Effects:
        record = self._transition(
            known,
            TransactionState.EMPTY,
            producer_id=known.producer_id if producer_id is None else producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=event.timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
        )
        return Effects(
            [record],
            [(event.token, ProducerReply(ErrorCode.NONE, record.producer_id, record.producer_epoch))],
            notes=[("Transactional id %r: producer id %d, epoch %d", *record[:3])],
        )

    def _fence(self, event: InitProducerId | TimeOut, reply: Reply) -> Effects:
        """Abort the open transaction with an epoch that its producer does not have."""
        known = self.known
        assert known is not None
        if self.settings.transaction_version >= EPOCH_BUMP_VERSION:
            return self._end_and_bump(event, False, lambda _: reply)
        record = self._transition(
            known,
            TransactionState.PREPARE_ABORT,
            producer_epoch=min(known.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=NO_PRODUCER_EPOCH,
            client_version=0,
        )
        return Effects([record], [(event.token, reply)], is_followed_up=True)

    # Partitions

    def add_partitions(self, event: AddPartitions) -> Effects:
        known = self.known
        if known is None:
            return _refuse_partitions(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        # Before all other checks: the producer may already use an id that takes effect only when the markers are
        # written.
        if self.waits:
            return _refuse_partitions(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        error = _producer_error(known, event)
        if error is not ErrorCode.NONE:
            return _refuse_partitions(event, error)
        is_ongoing = known.state is TransactionState.ONGOING
        if is_ongoing and event.partitions <= known.partitions:
            return _refuse_partitions(event, ErrorCode.NONE)
        record = self._transition(
            known,
            TransactionState.ONGOING,
            partitions=known.partitions | event.partitions,
            start_ms=known.start_ms if is_ongoing else self.now_ms,
            client_version=event.client_version,
        )
        return Effects([record], [(event.token, PartitionsReply(ErrorCode.NONE))])

    def verify_partitions(self, event: VerifyPartitions) -> Effects:
        known = self.known
        if known is None:
            return _refuse_partitions(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        error = _producer_error(known, event)
        if error is ErrorCode.NONE and self.waits:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE:
            return _refuse_partitions(event, error)
        return _reply(event, PartitionsReply(ErrorCode.NONE, event.partitions - known.partitions))

    # Ends

    def end_transaction(self, event: EndTransaction) -> Effects:
        if self.known is None:
            return _refuse_producer(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if event.client_version >= EPOCH_BUMP_VERSION:
            return self._end_version_2(self.known, event)
        return self._end_version_1(self.known, event)

    def _end_version_1(self, known: Transaction, event: EndTransaction) -> Effects:
        error = _producer_error(known, event)
        if error is not ErrorCode.NONE:
            return _refuse_producer(event, error)
        if self.waits:
            return _refuse_producer(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            record = self._transition(known, _prepared(event.is_commit), client_version=0)
            return Effects([record], [(event.token, ProducerReply(ErrorCode.NONE))], is_followed_up=True)
        if known.state is _completed(event.is_commit):
            return _reply(event, ProducerReply(ErrorCode.NONE))
        return self._invalid_state(known, event)

    def _end_version_2(self, known: Transaction, event: EndTransaction) -> Effects:
        """Every end bumps the epoch, so a retry is recognised by the epoch before the current one."""
        if self.waits:
            return _refuse_producer(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        is_overflow_retry = (
            known.previous_producer_id == event.producer_id
            and event.producer_epoch == EPOCH_MAX - 1
            and known.producer_epoch == 0
        )
        is_retry = is_overflow_retry or known.producer_epoch == event.producer_epoch + 1
        if event.producer_id != known.producer_id and not is_overflow_retry:
            return _refuse_producer(event, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_complete = known.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        if event.producer_epoch != known.producer_epoch and not (is_complete and is_retry):
            return _refuse_producer(event, ErrorCode.PRODUCER_FENCED)
        if is_complete and is_retry:
            if known.state is _completed(event.is_commit):
                return _reply(event, ProducerReply(ErrorCode.NONE, known.producer_id, known.producer_epoch))
            return self._invalid_state(known, event)
        if known.state is not TransactionState.ONGOING and event.is_commit:
            return self._invalid_state(known, event)
        # An abort without a transaction: the client does not know whether its last request began one.
        return self._end_and_bump(event, event.is_commit, lambda after: ProducerReply(ErrorCode.NONE, *after))

    def _end_and_bump(
        self,
        event: InitProducerId | EndTransaction | TimeOut,
        is_commit: bool,
        reply: Callable[[tuple[int, int]], Reply],
    ) -> Effects:
        """Prepare the end with the next epoch; `reply` gets the producer's id and epoch afterwards."""
        known = self.known
        assert known is not None
        next_producer_id = NO_PRODUCER_ID
        if known.is_epoch_exhausted:
            if event.fresh_producer_id == NO_PRODUCER_ID:
                return _reply(event, NeedsProducerId())
            next_producer_id = event.fresh_producer_id
        record = self._transition(
            known,
            _prepared(is_commit),
            producer_epoch=min(known.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=known.producer_epoch,
            next_producer_id=next_producer_id,
            start_ms=known.start_ms if known.state is TransactionState.ONGOING else self.now_ms,
            client_version=EPOCH_BUMP_VERSION,
        )
        return Effects([record], [(event.token, reply(_producer_after(record)))], is_followed_up=True)

    def _invalid_state(self, known: Transaction, event: EndTransaction) -> Effects:
        effects = _refuse_producer(event, ErrorCode.INVALID_TXN_STATE)
        outcome = "a commit" if event.is_commit else "an abort"
        effects.notes.append(
            ("Transactional id %r: %s in state %s", event.transactional_id, outcome, known.state.value)
        )
        return effects

    def time_out(self, event: TimeOut) -> Effects:
        """Between the search for timed-out transactions and this decision the producer may have ended its transaction
        and begun another: the epoch distinguishes those of version 2, the time all of them."""
        known = self.known
        if (
            known is None
            or self.waits
            or (known.producer_id, known.producer_epoch) != (event.producer_id, event.producer_epoch)
            or not is_timed_out(known, self.now_ms)
        ):
            return _refuse_producer(event, ErrorCode.CONCURRENT_TRANSACTIONS)
        effects = self._fence(event, ProducerReply(ErrorCode.NONE))
        if effects.changes:
            effects.notes.append(
                ("Transactional id %r: the transaction timed out and is aborted", event.transactional_id)
            )
        return effects

    def markers_written(self, event: MarkersWritten) -> Effects:
        known = self.known
        if known is None or not known.state.is_prepared:
            raise ForbiddenTransition(f"{event} for {known}")
        left = known.partitions - event.partitions
        if left:
            return Effects([PartitionsEnded(event.transactional_id, event.partitions)])
        producer_id, producer_epoch = _producer_after(known)
        record = self._transition(
            known,
            _completed(known.state.is_commit),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )
        return Effects([record])

    def loaded(self, event: Loaded) -> Effects:
        known = self.known
        if known is None or not known.state.is_prepared:
            return Effects()
        note = ("Transactional id %r: going on in state %s", event.transactional_id, known.state.value)
        return Effects(notes=[note], is_followed_up=True)

    def _transition(self, known: Transaction, state: TransactionState, **fields: Any) -> Transaction:
        if state not in TRANSITIONS[known.state]:
            raise ForbiddenTransition(f"{known} to {state}")
        return known._replace(state=state, previous_producer_id=known.producer_id, last_update_ms=self.now_ms, **fields)


def is_timed_out(transaction: Transaction, now_ms: int) -> bool:
    """Whether an open transaction has exceeded its timeout. The largest timeout means none (KIP-939)."""
    return (
        transaction.state is TransactionState.ONGOING
        and transaction.timeout_ms != 2**31 - 1
        and transaction.start_ms + transaction.timeout_ms < now_ms
    )


def is_expired(transaction: Transaction, now_ms: int, settings: TransactionSettings) -> bool:
    """Whether the transactional id has not been used for too long."""
    return (
        transaction.state.may_expire and transaction.last_update_ms <= now_ms - settings.transactional_id_expiration_ms
    )


def _producer_error(known: Transaction, event: AddPartitions | VerifyPartitions | EndTransaction) -> ErrorCode:
    if event.producer_id != known.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if event.producer_epoch != known.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _producer_after(prepared: Transaction) -> tuple[int, int]:
    """The producer's id and epoch once a prepared transaction is complete."""
    if prepared.client_version >= EPOCH_BUMP_VERSION and prepared.next_producer_id != NO_PRODUCER_ID:
        return prepared.next_producer_id, 0
    return prepared.producer_id, prepared.producer_epoch


def _prepared(is_commit: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT


def _completed(is_commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT


def _reply(event: Request, reply: Reply) -> Effects:
    """The effects of a decision that changes nothing but replies: all records that the reply may depend on are
    committed, or it would be an error."""
    return Effects(replies=[(event.token, reply)], at_once=True)


def _refuse_producer(event: Request, error: ErrorCode) -> Effects:
    return _reply(event, ProducerReply(error))


def _refuse_partitions(event: Request, error: ErrorCode) -> Effects:
    return _reply(event, PartitionsReply(error))


_DECIDERS: Final[Mapping[type, Callable[[_Decision, Any], Effects]]] = {
    InitProducerId: _Decision.init_producer_id,
    AddPartitions: _Decision.add_partitions,
    VerifyPartitions: _Decision.verify_partitions,
    EndTransaction: _Decision.end_transaction,
    TimeOut: _Decision.time_out,
    MarkersWritten: _Decision.markers_written,
    Loaded: _Decision.loaded,
}
