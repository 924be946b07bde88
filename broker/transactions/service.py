"""The transaction coordinator of this broker: which shard serves a transactional id, and how shards come and go.

A partition of `__transaction_state` that this broker leads is a shard: loaded from its log in a thread, then run by a
TransactionRunner. Requests for a shard that is not here, or not loaded yet, fail at once: clients ask again. Source:
Kafka's TransactionCoordinator and TransactionStateManager.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinator.runner import CoordinatorLog
from barnabas.broker.coordinator.service import LOAD_RETRY_DELAY_MS, abs_java_hash
from barnabas.broker.timers import TimerHandle, Timers
from barnabas.broker.transactions.events import (
    Event,
    InitProducerId,
    NeedsProducerId,
    PartitionsReply,
    ProducerReply,
    Reply,
    TimeOut,
)
from barnabas.broker.transactions.markers import MarkerWriter
from barnabas.broker.transactions.runner import TransactionRunner
from barnabas.broker.transactions.settings import TransactionSettings
from barnabas.broker.transactions.shard import Shard
from barnabas.broker.transactions.state import Transaction, TransactionState
from barnabas.clock import Clock
from barnabas.wire.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

IDS_PER_TURN: Final = 256
"""Background work gives way to requests after so many transactional ids."""


class ListedTransactions(NamedTuple):
    """Answers ListTransactions; `unknown_states` are filters that name no state."""

    transactions: list[Transaction]
    unknown_states: list[str]


class _Loading:
    """A shard on its way in."""

    __slots__ = ("is_cancelled", "retry")

    def __init__(self) -> None:
        self.is_cancelled = False
        self.retry: TimerHandle | None = None


class TransactionService:
    """Transactions, for handlers; owned by the event loop.

    `partition_count` is the number of partitions of `__transaction_state`; it may be set until the first id is served.
    `next_producer_id` gives a fresh producer id, or raises ApiError.
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
        self.partition_count = partition_count
        self.settings = settings
        self._log = coordinator_log
        self._markers = markers
        self._timers = timers
        self._clock = clock
        self._next_producer_id = next_producer_id
        self._shards: dict[int, TransactionRunner | _Loading] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_active = False

    async def start(self) -> None:
        """Serve requests, and go on with what was prepared: call it when all partitions of the broker have been heard
        of, since a marker for a partition that nobody knows counts as written.
        """
        self._is_active = True
        for runner in self._runners():
            runner.start()

    async def stop(self) -> None:
        """Let go of every shard; returns when no thread reads the log any more."""
        self._is_active = False
        for partition in list(self._shards):
            self.on_resigned(partition)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # Shards

    def partition_for(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that holds the transactional id."""
        return abs_java_hash(transactional_id) % self.partition_count

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition from `leader_epoch` on: load it. A shard that is here already goes on under
        the new epoch: nobody else wrote to it.
        """
        shard = self._shards.get(partition)
        if isinstance(shard, TransactionRunner):
            shard.leader_epoch = leader_epoch
            return
        if shard is not None:
            self.on_resigned(partition)
        self._load(partition, leader_epoch, _Loading())

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition, or none does: forget it."""
        shard = self._shards.pop(partition, None)
        if isinstance(shard, TransactionRunner):
            shard.close(ApiError(ErrorCode.NOT_COORDINATOR))
        elif shard is not None:
            shard.is_cancelled = True
            if shard.retry is not None:
                shard.retry.cancel()

    def _on_lost(self, partition: int) -> None:
        """The log failed in a way that leaves open what it holds: start over from what it does hold."""
        runner = self._shards.get(partition)
        self.on_resigned(partition)
        if isinstance(runner, TransactionRunner):
            loading = self._shards[partition] = _Loading()
            self._load_later(partition, runner.leader_epoch, loading)

    def _load_later(self, partition: int, leader_epoch: int, loading: _Loading) -> None:
        loading.retry = self._timers.call_later(
            LOAD_RETRY_DELAY_MS, lambda: self._load(partition, leader_epoch, loading)
        )

    def _load(self, partition: int, leader_epoch: int, loading: _Loading) -> None:
        self._shards[partition] = loading
        self._spawn(self._load_shard(partition, leader_epoch, loading))

    async def _load_shard(self, partition: int, leader_epoch: int, loading: _Loading) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            shard = await asyncio.to_thread(_read_shard, self._log, partition, loading)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this log, the others must load
            log.error("Could not load transactions of partition %d: %s: %s", partition, type(error).__name__, error)
            if not loading.is_cancelled:
                self._load_later(partition, leader_epoch, loading)
            return
        if loading.is_cancelled:
            return
        for reason, count in shard.skipped.items():
            log.warning("Transactions of partition %d: %d records left out, %s", partition, count, reason)
        log.log(
            logging.INFO if shard.transactions else logging.DEBUG,
            "Loaded %d transactional ids of partition %d in %d ms",
            len(shard.transactions),
            partition,
            self._clock.monotonic_ms() - started_ms,
        )
        runner = self._shards[partition] = TransactionRunner(
            partition,
            leader_epoch,
            shard,
            self._log,
            self._markers,
            self._timers,
            self._clock,
            self.settings,
            self._on_lost,
        )
        if self._is_active:
            runner.start()

    def _runner(self, transactional_id: str) -> TransactionRunner:
        if not self._is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards.get(self.partition_for(transactional_id))
        if isinstance(shard, TransactionRunner):
            return shard
        raise ApiError(ErrorCode.NOT_COORDINATOR if shard is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def _runners(self) -> list[TransactionRunner]:
        return [shard for shard in self._shards.values() if isinstance(shard, TransactionRunner)]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Background work of the transaction coordinator failed", exc_info=error)

    # Requests

    def ask(self, event: Event) -> "Reply | asyncio.Future[Reply]":
        """Have an event decided: the reply, or a future while it must wait.

        Errors: ApiError, raised or in the future: INVALID_REQUEST (empty id), INVALID_TRANSACTION_TIMEOUT,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE (not started, or the log takes or
        replicates no records), UNKNOWN_SERVER_ERROR (too large to be stored).
        """
        if not event.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if isinstance(event, InitProducerId) and not (0 < event.timeout_ms <= self.settings.transaction_max_timeout_ms):
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return self._runner(event.transactional_id).ask(event)

    async def producer(self, event: Event) -> ProducerReply:
        """Have an InitProducerId, EndTransaction or TimeOut decided, with a fresh producer id where it takes one.
        Errors: as `ask`, and those of `next_producer_id`.
        """
        while True:
            reply = self.ask(event)
            if isinstance(reply, asyncio.Future):
                reply = await reply
            if not isinstance(reply, NeedsProducerId):
                assert isinstance(reply, ProducerReply), reply
                return reply
            fresh_producer_id = await self._next_producer_id()
            event = event._replace(fresh_producer_id=fresh_producer_id)  # type: ignore[call-arg]

    async def partitions(self, event: Event) -> PartitionsReply:
        """Have an AddPartitions or VerifyPartitions decided. Errors: as `ask`."""
        reply = self.ask(event)
        if isinstance(reply, asyncio.Future):
            reply = await reply
        assert isinstance(reply, PartitionsReply), reply
        return reply

    def describe(self, transactional_id: str) -> Transaction:
        """All about a transactional id. Errors: ApiError as `ask`, TRANSACTIONAL_ID_NOT_FOUND."""
        if not self._is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        transaction = self._runner(transactional_id).shard.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return transaction

    def list_transactions(
        self, producer_ids: Collection[int], states: Collection[str], duration_ms: int
    ) -> ListedTransactions:
        """The transactions that this broker coordinates; empty filters let everything through, `duration_ms` (-1 for
        none) what has been open for longer.

        Errors: ApiError COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS while any shard loads.
        """
        runners = self._runners()
        if not self._is_active:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if len(runners) < len(self._shards):
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
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

    # Background work

    async def abort_timed_out(self) -> None:
        """Abort transactions that have been open for longer than their timeout, under a new epoch."""
        for runner in self._runners():
            for transaction in runner.timed_out():
                await self._abort(transaction)
            await asyncio.sleep(0)

    async def _abort(self, transaction: Transaction) -> None:
        try:
            await self.producer(TimeOut(transaction.transactional_id, 0, transaction.producer_id))
        except ApiError as error:
            log.warning("Transactional id %r: cannot abort it yet: %s", transaction.transactional_id, error)

    async def remove_expired(self) -> None:
        """Forget transactional ids that nobody used for `transactional.id.expiration.ms`."""
        for runner in self._runners():
            expired = runner.expired()
            for start in range(0, len(expired), IDS_PER_TURN):
                if runner.is_closed:
                    break
                try:
                    runner.expire(expired[start : start + IDS_PER_TURN])
                except ApiError as error:
                    log.warning("Cannot expire transactional ids of partition %d: %s", runner.partition, error)
                    break
                await asyncio.sleep(0)


def _read_shard(coordinator_log: CoordinatorLog, partition: int, loading: _Loading) -> Shard:
    """Build the shard from its log. Runs in a thread; touches nothing else but the cancellation flag."""
    shard = Shard()
    for chunk in coordinator_log.read_all(partition):
        if loading.is_cancelled:
            break
        shard.load(chunk)
    return shard
