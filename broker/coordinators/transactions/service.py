"""The transaction coordinator of this broker: requests of handlers, and background work.

Transactions live in `__transaction_state`; `runtime` has its shards. Source: Kafka's TransactionCoordinator and
TransactionStateManager.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple

from barnabas.broker.coordinators.log import CoordinatorLog
from barnabas.broker.coordinators.runner import answered
from barnabas.broker.coordinators.runtime import CoordinatorDefinition, CoordinatorRuntime
from barnabas.broker.coordinators.transactions.endings import Endings, TransactionRunner
from barnabas.broker.coordinators.transactions.events import (
    AddPartitions,
    Expire,
    InitProducerId,
    NeedsProducerId,
    PartitionsReply,
    ProducerReply,
    Reply,
    Request,
    TimeOut,
)
from barnabas.broker.coordinators.transactions.markers import MarkerWriter
from barnabas.broker.coordinators.transactions.records import encode_record
from barnabas.broker.coordinators.transactions.retries import RETRY_DELAY_MS, Retries
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.shard import TransactionShard
from barnabas.broker.coordinators.transactions.state import PARTITION_BYTES, Transaction, TransactionState, id_bytes
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

IDS_PER_TURN: Final = 256
"""The number of transactional ids after which background work lets requests run."""

ABORTS_PER_TURN: Final = 32
"""The number of aborted ones, each of which costs more."""


class ListedTransactions(NamedTuple):
    """The result of ListTransactions; `unknown_states` are filters that name no state."""

    transactions: list[Transaction]
    unknown_states: list[str]


class TransactionService:
    """Transactions, for handlers; owned by the event loop.

    `runtime` holds the shards of `__transaction_state`. `next_producer_id` returns a new producer id, or raises
    ApiError. A request that matches all transactional ids with an expression holds the lock `comparing`, so that only
    one such request at a time uses the event loop.
    """

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        markers: MarkerWriter,
        timers: Timers,
        clock: Clock,
        settings: TransactionSettings,
        partition_count: int,
        next_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._clock = clock
        self._next_producer_id = next_producer_id
        self.comparing = asyncio.Lock()
        self.set_aside_aborting = SetAside[str]("aborting the transaction", clock, first_delay_ms=10_000)
        self.set_aside_ending = SetAside[str]("ending the transaction", clock, first_delay_ms=RETRY_DELAY_MS)
        self.set_aside_expiring = SetAside[str]("expiring transactional ids", clock)
        endings = Endings(markers, Retries(timers), lambda work: self.runtime.spawn(work), self.set_aside_ending)
        definition = CoordinatorDefinition(
            "transactional ids",
            TransactionRunner,
            TransactionShard,
            lambda record: encode_record(record, self.runtime.settings.log_value_version),
            settings.held_bytes_max,
            self.set_aside_ending,
            follow_up=endings.begin,
            on_new_epoch=endings.on_new_epoch,
        )
        self.runtime = CoordinatorRuntime(definition, coordinator_log, partition_count, timers, clock, settings)

    @property
    def set_asides(self) -> tuple[SetAside[str], ...]:
        """The members that are set aside, by activity."""
        return (self.runtime.set_aside, self.set_aside_aborting, self.set_aside_ending, self.set_aside_expiring)

    @property
    def settings(self) -> TransactionSettings:
        """Replaced as a whole when the finalised level of `transaction.version` changes."""
        settings: TransactionSettings = self.runtime.settings
        return settings

    @settings.setter
    def settings(self, settings: TransactionSettings) -> None:
        self.runtime.settings = settings

    async def start(self) -> None:
        """Start to serve requests, and continue to end prepared transactions: call it once the metadata of all
        partitions is known, since a marker for an unknown partition counts as written.
        """
        self.runtime.start()

    async def stop(self) -> None:
        """Unload every shard; returns when no thread reads the log any more."""
        await self.runtime.stop()

    # Requests

    def ask(self, event: Request) -> "Reply | asyncio.Future[Reply]":
        """Pass an event to its shard; returns the reply, or a future if it has to wait.

        Errors: ApiError, raised or in the future: INVALID_REQUEST (empty id), INVALID_TRANSACTION_TIMEOUT,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (not started, or the log takes or
        replicates no records), UNKNOWN_SERVER_ERROR (too large to be stored).
        """
        if not event.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if isinstance(event, InitProducerId) and not (0 < event.timeout_ms <= self.settings.transaction_max_timeout_ms):
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        runner = self.runtime.runner(event.transactional_id)
        if isinstance(event, (InitProducerId, AddPartitions)):
            self._check_memory(runner, event)
        return runner.ask(event)

    def _check_memory(self, runner: TransactionRunner, event: InitProducerId | AddPartitions) -> None:
        """Refuse a new id, or more partitions of a transaction, if there is no room."""
        known = runner.shard.transactions.get(event.transactional_id)
        added = 0 if known is not None else id_bytes(event.transactional_id)
        if isinstance(event, AddPartitions):
            added += PARTITION_BYTES * len(event.partitions - (frozenset() if known is None else known.partitions))
        settings = self.settings
        bytes_max = settings.held_bytes_max if known is None else settings.held_bytes_of_known_ids_max
        self.runtime.memory.check(added, bytes_max, "they take too much memory")

    async def producer(self, event: Request) -> ProducerReply:
        """Decide an InitProducerId, EndTransaction or TimeOut, with a new producer id if it needs one.

        Errors: as `ask`, and those of `next_producer_id`.
        """
        while True:
            reply: Reply = await answered(self.ask(event))
            if not isinstance(reply, NeedsProducerId):
                assert isinstance(reply, ProducerReply), reply
                return reply
            fresh_producer_id = await self._next_producer_id()
            event = event._replace(fresh_producer_id=fresh_producer_id)  # type: ignore[call-arg]

    async def partitions(self, event: Request) -> PartitionsReply:
        """Decide an AddPartitions or VerifyPartitions. Errors: as `ask`."""
        reply: Reply = await answered(self.ask(event))
        assert isinstance(reply, PartitionsReply), reply
        return reply

    def describe(self, transactional_id: str) -> Transaction:
        """The transaction of a transactional id. Errors: ApiError as `ask`, TRANSACTIONAL_ID_NOT_FOUND."""
        self.runtime.check_active()
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        transaction = self.runtime.runner(transactional_id).shard.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction

    def list_transactions(
        self, producer_ids: Collection[int], states: Collection[str], duration_ms: int
    ) -> ListedTransactions:
        """The transactions that this broker coordinates; empty filters match everything, `duration_ms` (-1 for none)
        transactions that have been open for longer.

        Errors: ApiError COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS while any shard loads.
        """
        runners = self.runtime.all_runners()
        names = {state.value for state in TransactionState}
        now_ms = self._clock.now_ms()
        found = [
            transaction
            for runner in runners
            for transaction in runner.shard.transactions.values()
            if (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.value in states)
            and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
        ]
        return ListedTransactions(found, [state for state in states if state not in names])

    def producer_ids(self) -> set[int]:
        """The ids of all transactional producers, including each one's previous and next id.

        Errors: ApiError COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS while any shard loads.
        """
        return {
            producer_id
            for runner in self.runtime.all_runners()
            for transaction in runner.shard.transactions.values()
            for producer_id in (
                transaction.producer_id,
                transaction.previous_producer_id,
                transaction.next_producer_id,
            )
        }

    # Background work

    async def abort_timed_out(self) -> None:
        """Abort transactions that have been open for longer than their timeout, with a new epoch."""
        for runner in self.runtime.runners():
            turns = Turns(ABORTS_PER_TURN)
            for transaction in runner.shard.timed_out(self._clock.now_ms()):
                if runner.is_closed:
                    break
                if self.set_aside_aborting.is_ready(transaction.transactional_id):
                    await self._abort(transaction)
                await turns.after_one()
            await asyncio.sleep(0)

    async def _abort(self, transaction: Transaction) -> None:
        try:
            await self.producer(
                TimeOut(transaction.transactional_id, 0, transaction.producer_id, transaction.producer_epoch)
            )
        except ApiError as error:
            log.warning("Transactional id %r: cannot abort it yet: %s", transaction.transactional_id, error)
        except Exception as error:  # noqa: BLE001 - the other transactions are aborted
            self.set_aside_aborting.put(transaction.transactional_id, error)
        else:
            self.set_aside_aborting.release(transaction.transactional_id)

    async def remove_expired(self) -> None:
        """Delete transactional ids that have not been used for `transactional.id.expiration.ms`."""
        for runner in self.runtime.runners():
            expired = runner.shard.expired(self._clock.now_ms(), self.settings)
            for start in range(0, len(expired), IDS_PER_TURN):
                if runner.is_closed:
                    break
                try:
                    runner.carry_out(Expire("", tuple(expired[start : start + IDS_PER_TURN])))
                except ApiError as error:
                    log.warning("Cannot expire transactional ids of partition %d: %s", runner.partition, error)
                    break
                except Exception as error:  # noqa: BLE001 - those of other partitions expire
                    self.set_aside_expiring.put(f"partition {runner.partition}", error)
                    break
                self.set_aside_expiring.release(f"partition {runner.partition}")
                await asyncio.sleep(0)
