"""Runs one shard of transactions: carries out what its machine decides.

One step without an await: decide, append the records, apply the changes. Replies leave, and markers are written, once
these records are committed. A log that refuses the records leaves the shard as it was.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from barnabas.broker.coordinators.runtime import CoordinatorLog
from barnabas.broker.coordinators.transactions.events import Event, Expire, MarkersWritten, Reply
from barnabas.broker.coordinators.transactions.machine import is_expired, is_timed_out
from barnabas.broker.coordinators.transactions.markers import SUPERSEDED, MarkerWriter, TransactionMarker
from barnabas.broker.coordinators.transactions.records import encode_record
from barnabas.broker.coordinators.transactions.retries import MARKERS_PER_TURN, Retries
from barnabas.broker.coordinators.transactions.settings import TransactionSettings
from barnabas.broker.coordinators.transactions.shard import Shard, records_of
from barnabas.broker.coordinators.transactions.state import Record, TopicPartition, Transaction
from barnabas.broker.timers import Timers
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.turns import Turns
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.records import Record as LogRecord
from barnabas.wire.records import build_batch

log = logging.getLogger(__name__)

_REPLY_ERRORS: Final = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""What clients are told of errors that they know from Produce only (TransactionStateManager.appendTransactionToLog)."""

ENDINGS_PER_TURN: Final = 8
"""So many transactions of before a start are ended before other work, and the other shards', gets its turn."""


class _Ending:
    """A prepared transaction whose markers are on their way: those to be written, those not yet committed, and those
    that are, which the shard has not been told of. Once something was refused `waits` tells that all that is left will
    be tried again later.
    """

    __slots__ = ("in_flight", "marker", "todo", "waits", "was_told", "written")

    def __init__(self, marker: TransactionMarker, partitions: Iterable[TopicPartition]) -> None:
        self.marker = marker
        self.todo = deque(sorted(partitions))
        self.in_flight = 0
        self.written: set[TopicPartition] = set()
        self.waits = False
        self.was_told = False


class TransactionRunner:
    """The active shard of one partition; owned by the event loop. `leader_epoch()` is that of the partition,
    `settings()` what holds at the time.
    """

    def __init__(
        self,
        partition: int,
        leader_epoch: Callable[[], int],
        shard: Shard,
        coordinator_log: CoordinatorLog,
        markers: MarkerWriter,
        retries: Retries,
        timers: Timers,
        clock: Clock,
        settings: Callable[[], TransactionSettings],
        on_lost: Callable[[int], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        set_aside: SetAside[str],
    ) -> None:
        self.partition = partition
        self._leader_epoch = leader_epoch
        self.shard = shard
        self._log = coordinator_log
        self._markers = markers
        self._retries = retries
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        self._spawn = spawn
        self._set_aside = set_aside
        self._uncommitted: dict[str, int] = {}
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._endings: dict[str, _Ending] = {}
        self.is_closed = False

    def start(self) -> None:
        """Complete what was prepared before the shard was loaded, in the background: it may be much."""
        prepared = [
            transaction.transactional_id
            for transaction in self.shard.transactions.values()
            if transaction.state.is_prepared
        ]
        if prepared:
            self._spawn(self._go_on(prepared))

    async def _go_on(self, transactional_ids: Sequence[str]) -> None:
        turns = Turns(ENDINGS_PER_TURN)
        for transactional_id in transactional_ids:
            transaction = self.shard.transactions.get(transactional_id)
            if self.is_closed:
                return
            if transaction is None or not transaction.state.is_prepared or transactional_id in self._endings:
                continue
            log.info("Transactional id %r: going on in state %s", transactional_id, transaction.state.value)
            self._end(transactional_id)
            await turns.after_one()

    def close(self, error: ApiError) -> None:
        """Stop: whoever waits gets the error."""
        self.is_closed = True
        self._endings.clear()
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(error)

    def ask(self, event: Event) -> "Reply | asyncio.Future[Reply]":
        """Have an event decided: the reply, or a future while its records are not committed.

        Errors: ApiError, raised or in the future: the log refused the records, or this broker lost the shard.
        """
        transactional_id = event.transactional_id
        effects = self.shard.decide(
            event, self._clock.now_ms(), self._settings(), is_uncommitted=transactional_id in self._uncommitted
        )
        reply = effects.reply
        committed = None
        if effects.changes:
            records = records_of(effects.changes)
            if records:
                end_offset = self._append(records)
                self.shard.apply(effects.changes)
                committed = self._commit(transactional_id, end_offset)
            else:
                self.shard.apply(effects.changes)
        for text, *arguments in effects.notes:
            log.info(text, *arguments)
        if committed is not None:
            return self._reply_later(transactional_id, reply, committed, sends_markers=effects.sends_markers)
        if effects.sends_markers:
            self._end(transactional_id)
        return reply

    def timed_out(self) -> list[Transaction]:
        """Open transactions that exceed their timeout."""
        now_ms = self._clock.now_ms()
        return [transaction for transaction in self.shard.transactions.values() if is_timed_out(transaction, now_ms)]

    def expired(self) -> list[str]:
        """Transactional ids that nobody used for too long."""
        now_ms = self._clock.now_ms()
        return [
            transaction.transactional_id
            for transaction in self.shard.transactions.values()
            if is_expired(transaction, now_ms, self._settings())
        ]

    def expire(self, transactional_ids: Iterable[str]) -> None:
        """Forget those that still are unused, with one batch of tombstones. Errors: ApiError."""
        now_ms = self._clock.now_ms()
        changes = [
            change
            for transactional_id in transactional_ids
            if transactional_id not in self._uncommitted
            for change in self.shard.decide(
                Expire(transactional_id, 0), now_ms, self._settings(), is_uncommitted=False
            ).changes
        ]
        if changes:
            self._append(records_of(changes))
            self.shard.apply(changes)
            log.info("%d transactional ids of partition %d have expired", len(changes), self.partition)

    # The log

    def _append(self, records: Sequence[Record]) -> int:
        now_ms = self._clock.now_ms()
        version = self._settings().log_value_version
        batch = build_batch(
            [LogRecord(offset, now_ms, *encode_record(record, version)) for offset, record in enumerate(records)]
        )
        try:
            return self._log.append(self.partition, batch)
        except ApiError as error:
            if error.error is ErrorCode.NOT_COORDINATOR:
                self._on_lost(self.partition)
            raise ApiError(_REPLY_ERRORS.get(error.error, error.error), error.message) from error

    def _commit(self, transactional_id: str, end_offset: int) -> "asyncio.Future[None] | None":
        committed = self._log.committed(self.partition, end_offset)
        if committed is not None:
            self._uncommitted[transactional_id] = end_offset
        return committed

    def _reply_later(
        self, transactional_id: str, reply: Reply, committed: "asyncio.Future[None]", *, sends_markers: bool
    ) -> "asyncio.Future[Reply]":
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._forget_waiting)
        end_offset = self._uncommitted[transactional_id]
        timeout = self._timers.call_later(
            self.shard.transactions[transactional_id].timeout_ms,
            lambda: _fail(future, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not replicated in time")),
        )

        def done(committed: "asyncio.Future[None]") -> None:
            timeout.cancel()
            if committed.cancelled() or (error := committed.exception()) is not None:
                _fail(future, ApiError(ErrorCode.NOT_COORDINATOR, "" if committed.cancelled() else str(error)))
                return
            if self._uncommitted.get(transactional_id) == end_offset:
                del self._uncommitted[transactional_id]
            if self.is_closed:
                return
            if not future.done():
                future.set_result(reply)
            if sends_markers:
                self._end(transactional_id)

        committed.add_done_callback(done)
        return future

    def _forget_waiting(self, future: "asyncio.Future[Reply]") -> None:
        self._waiting.discard(future)
        if not future.cancelled():
            future.exception()  # nobody has to wait for it

    # Markers

    def _end(self, transactional_id: str) -> None:
        """Write the markers of a prepared transaction, then the record that completes it."""
        transaction = self.shard.transactions[transactional_id]
        marker = TransactionMarker(
            transaction.producer_id,
            transaction.producer_epoch,
            self._leader_epoch(),
            transaction.state.is_commit,
            transaction.client_version,
        )
        ending = self._endings[transactional_id] = _Ending(marker, transaction.partitions)
        self._write_markers(transactional_id, ending)

    def _write_markers(self, transactional_id: str, ending: _Ending, at_most: int = MARKERS_PER_TURN) -> int:
        """Write some of the markers that are left; how many were tried."""
        if self.is_closed or self._endings.get(transactional_id) is not ending:
            return 0
        tried = min(at_most, len(ending.todo))
        is_refused = False
        for _ in range(tried):
            topic_partition = ending.todo.popleft()
            try:
                committed = self._markers.write(*topic_partition, ending.marker)
            except ApiError as error:
                if self._is_superseded(transactional_id, topic_partition, error):
                    return tried
                if _is_gone(error):
                    ending.written.add(topic_partition)
                else:
                    ending.todo.append(topic_partition)
                    is_refused = True
                continue
            except Exception as error:  # noqa: BLE001 - the other partitions, and transactions, get theirs
                self._set_aside.put(transactional_id, error)
                ending.todo.append(topic_partition)
                is_refused = True
                continue
            if committed is None:
                ending.written.add(topic_partition)
            else:
                ending.in_flight += 1
                self._wait_for_marker(transactional_id, ending, topic_partition, committed)
        if is_refused:
            self._retry(transactional_id, ending)
        elif ending.todo:
            self._spawn(self._write_more_markers(transactional_id, ending))
        self._record_written(transactional_id, ending)
        return tried

    async def _write_more_markers(self, transactional_id: str, ending: _Ending) -> None:
        if not ending.waits:
            self._write_markers(transactional_id, ending)

    def _wait_for_marker(
        self,
        transactional_id: str,
        ending: _Ending,
        topic_partition: TopicPartition,
        committed: "asyncio.Future[None]",
    ) -> None:
        def done(committed: "asyncio.Future[None]") -> None:
            ending.in_flight -= 1
            if self.is_closed or self._endings.get(transactional_id) is not ending:
                return
            error = ApiError(ErrorCode.REQUEST_TIMED_OUT) if committed.cancelled() else committed.exception()
            if error is None:
                ending.written.add(topic_partition)
                self._record_written(transactional_id, ending)
                return
            if isinstance(error, ApiError) and self._is_superseded(transactional_id, topic_partition, error):
                return
            ending.todo.append(topic_partition)
            self._retry(transactional_id, ending)

        committed.add_done_callback(done)

    def _is_superseded(self, transactional_id: str, topic_partition: TopicPartition, error: ApiError) -> bool:
        if error.error not in SUPERSEDED:
            return False
        log.warning("Transactional id %r: %s-%d takes no marker: %s", transactional_id, *topic_partition, error)
        self._endings.pop(transactional_id, None)
        return True

    def _retry(self, transactional_id: str, ending: _Ending) -> None:
        if not ending.waits:
            ending.waits = True
            self._retries.add(lambda at_most: self._try_again(transactional_id, ending, at_most))

    def _try_again(self, transactional_id: str, ending: _Ending, at_most: int) -> int:
        ending.waits = False
        return self._write_markers(transactional_id, ending, at_most)

    def _record_written(self, transactional_id: str, ending: _Ending) -> None:
        """Tell the shard which partitions have their markers; after the last one the transaction is complete."""
        is_last = not ending.todo and not ending.in_flight
        if not ending.written and not is_last:
            return
        try:
            self.ask(MarkersWritten(transactional_id, 0, frozenset(ending.written)))
        except Exception as error:  # noqa: BLE001 - the other transactions are completed
            if self.is_closed:
                return
            if not isinstance(error, ApiError):
                self._set_aside.put(transactional_id, error)
            elif not ending.was_told:
                ending.was_told = True
                log.warning("Transactional id %r: cannot complete it yet: %s", transactional_id, error)
            self._retry(transactional_id, ending)
            return
        ending.written.clear()
        if is_last:
            self._endings.pop(transactional_id, None)
            self._set_aside.release(transactional_id)


def _is_gone(error: ApiError) -> bool:
    return error.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _fail(future: "asyncio.Future[Reply]", error: ApiError) -> None:
    if not future.done():
        future.set_exception(error)
