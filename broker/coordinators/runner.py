"""The shell around a shard: carries out the decisions of its machine. The same for all coordinators.

One step without an await: decide, append the records, apply the changes, set the timers. Once the records are
committed, replies are sent and the follow-up begins. If the log refuses the records, the shard stays as it was.

Source: Kafka's CoordinatorRuntime (CoordinatorContext, CoordinatorWriteEvent).
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Container, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from barnabas.broker.coordinators.alarms import AlarmKey, Alarms
from barnabas.broker.coordinators.effects import NO_PRODUCER_ID, Effects, Schedule, Token, printable
from barnabas.broker.coordinators.log import CoordinatorLog
from barnabas.broker.coordinators.shard import EventType, ReplyType, Shard
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.timers import Timers
from barnabas.turns import Turns
from barnabas.wire.control_records import ControlRecordType, EndTxnMarker, build_end_txn_marker
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import CompressionType
from barnabas.wire.records import Record, build_batch

log = logging.getLogger(__name__)

TOMBSTONE_BATCH_BYTES_MAX: Final = 512 * 1024
"""The size of a batch of tombstones, which need not be written together."""

TIMER_RETRY_DELAY_MS: Final = 1_000
"""The delay of the next attempt after the log refused the records of a timer's event."""

STARTS_PER_TURN: Final = 8
"""The number of events of a starting shard that are carried out before other work, including the other shards', has its
turn.
"""

NOBODY: Final[Token] = 0
"""The token of the coordinator's own events."""

_REPLY_ERRORS: Final = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""The errors for clients in place of errors that they know only from Produce (CoordinatorOperationExceptionHelper,
TransactionStateManager.appendTransactionToLog).
"""

Answer = TypeVar("Answer")
ShardType = TypeVar("ShardType", bound=Shard[Any, Any, Any])
LogRecord = tuple[bytes, bytes | None]
"""Key and value of a record; no value in a tombstone."""


class Coordinator(Protocol):
    """The part of the coordinator that a runner uses: CoordinatorRuntime."""

    log: CoordinatorLog
    timers: Timers
    clock: Clock
    settings: Any
    compression: CompressionType
    set_aside_events: SetAside[str]
    listeners: set[Callable[[], None]]
    encode_record: Callable[[Any], LogRecord]
    follow_up: Callable[[Any, str], None]

    def on_lost(self, partition: int) -> None: ...


async def answered(reply: "Answer | asyncio.Future[Answer]") -> Answer:
    """The reply of `ShardRunner.ask`, once it is there. Errors: those of the future."""
    return await reply if isinstance(reply, asyncio.Future) else reply


class _EveryKey(Container[str]):
    def __contains__(self, key: object) -> bool:
        return True


class ShardRunner(Generic[ShardType, EventType, ReplyType]):
    """The active shard of one partition; owned by the event loop. `leader_epoch()` returns the partition's current
    leader epoch."""

    def __init__(
        self, partition: int, leader_epoch: Callable[[], int], shard: ShardType, coordinator: Coordinator
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.is_closed = False
        self._coordinator = coordinator
        self._log = coordinator.log
        self._clock = coordinator.clock
        self.alarms = Alarms(coordinator.timers, coordinator.clock, self._go_off)
        self._tokens = itertools.count(NOBODY + 1)
        self._owed: dict[Token, asyncio.Future[ReplyType]] = {}
        self._committed_offset = 0
        self._uncommitted: dict[str, int] = {}
        """The end offset of a key's last records, while these are not committed."""
        self._in_doubt: Container[str] = self._uncommitted
        """The keys whose last records may still be lost: all keys while the loaded records are not committed."""
        self._doubt_what_was_loaded()

    async def start(self) -> None:
        """The shard is loaded, and requests are served: decide the initial events, which may be many."""
        turns = Turns(STARTS_PER_TURN)
        for event in self.shard.events_at_start():
            if self.is_closed:
                return
            with self._coordinator.set_aside_events.attempt(event[0]):
                self.tell(event)
            await turns.after_one()
        self._changed()

    def close(self, error: ApiError) -> None:
        """Stop: waiting requests fail with the error."""
        self.is_closed = True
        self.alarms.clear()
        self._fail(list(self._owed), error)

    def ask(self, event: EventType) -> "ReplyType | asyncio.Future[ReplyType]":
        """Decide an event whose sender waits for the reply; returns the reply, or a future if it has to wait.

        Errors: ApiError, raised or in the future: the log refused the records, or this broker lost the shard.
        """
        token = next(self._tokens)
        reply = self.carry_out(event._replace(token=token), token)  # type: ignore[attr-defined]
        return self._owe(token) if reply is None else reply

    def tell(self, event: EventType) -> None:
        """Decide an event without a reply. Errors: none; a refusal of the log is logged and ignored."""
        try:
            self.carry_out(event)
        except ApiError as error:
            log.warning("%s of %s: %s", type(event).__name__, printable(event[0]), error)

    def carry_out(self, event: EventType, asker: Token = NOBODY) -> ReplyType | None:
        """Decide an event; returns the asker's reply if it can be sent at once. Errors: as `ask`."""
        key = event[0]
        try:
            effects, has_records = self._step(key, event)
        except ApiError as error:
            self._refused(event, error)
            raise
        # Also results of loaded records: these may not be committed yet, and the next leader may lack them.
        if (has_records or effects.replies or effects.is_followed_up) and not effects.at_once:
            try:
                committed = self._committed()
            except ApiError as error:
                self._fail([token for token, _ in effects.replies], error)
                raise
            if committed is not None:
                self._finish_later(key, effects, committed)
                return None
        return self._finish(key, effects, asker)

    def once_committed(self, key: str, reply: ReplyType) -> "ReplyType | asyncio.Future[ReplyType]":
        """A reply about `key` that was read from the shard, returned once all records it may depend on are committed.
        Errors: as `ask`.
        """
        committed = self._committed()
        if committed is None:
            return reply
        token = next(self._tokens)
        self._finish_later(key, Effects(replies=[(token, reply)]), committed)
        return self._owe(token)

    def end_transaction(
        self, marker: EndTxnMarker, producer_id: int, producer_epoch: int, transaction_version: int
    ) -> "asyncio.Future[None] | None":
        """Write the marker of a transaction with records here, which thereby take effect or are dropped. None when it
        is committed, else a future.

        Errors: ApiError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or the log's error.
        """
        batch = build_end_txn_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=self._clock.now_ms()
        )
        try:
            end_offset = self._log.append(self.partition, batch, transaction_version)
        except ApiError as error:
            if error.error is ErrorCode.NOT_COORDINATOR:
                self._coordinator.on_lost(self.partition)
            raise
        self.shard.end_transaction(producer_id, end_offset, is_commit=marker.control_type is ControlRecordType.COMMIT)
        self._changed()
        return self._committed()

    # One step

    def _step(self, key: str, event: EventType) -> tuple[Effects[Any, ReplyType], bool]:
        """Decide, append, apply, set timers; returns the effects that remain to be done, and whether records were
        appended."""
        shard = self.shard
        effects = shard.decide(event, self._clock.now_ms(), self._coordinator.settings, self._in_doubt)
        records = []
        if effects.changes:
            records = shard.records_of(effects.changes)
            base_offset = self._append(records, effects.producer) if records else None
            shard.apply(key, effects.changes, base_offset, effects.producer[0])
        for timer in effects.timers:
            if isinstance(timer, Schedule):
                self.alarms.set((key, timer.key), timer.delay_ms)
            else:
                self.alarms.cancel((key, timer.key))
        for text, *arguments in effects.notes:
            log.info(text, *arguments)
        if effects.changes and self._coordinator.listeners:
            self._changed()
        return effects, bool(records)

    def _append(self, records: Sequence[Any], producer: tuple[int, int]) -> int:
        """Append records; returns the offset of the first."""
        now_ms, encode = self._clock.now_ms(), self._coordinator.encode_record
        encoded = [encode(record) for record in records]
        is_divisible = encoded[0][1] is None and all(value is None for _, value in encoded)
        end_offset = -1
        for part in _parts(encoded) if is_divisible else [encoded]:
            batch = build_batch(
                [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(part)],
                compression=self._coordinator.compression,
                producer_id=producer[0],
                producer_epoch=producer[1],
                transactional=producer[0] != NO_PRODUCER_ID,
            )
            try:
                end_offset = self._log.append(self.partition, batch)
            except ApiError as error:
                # If a part was written, the log and the shard differ: the shard has to be loaded again.
                code = _REPLY_ERRORS.get(error.error, error.error) if end_offset < 0 else ErrorCode.NOT_COORDINATOR
                raise ApiError(code, error.message) from error
        return end_offset - len(records)

    def _refused(self, event: EventType, error: ApiError) -> None:
        if error.error is ErrorCode.NOT_COORDINATOR:
            self._coordinator.on_lost(self.partition)
        elif (consequence := self.shard.after_refusal(event, error)) is not None:
            self.tell(consequence)

    def _changed(self) -> None:
        for listener in tuple(self._coordinator.listeners):
            listener()

    # Waits for commits

    def _committed(self) -> "asyncio.Future[None] | None":
        end_offset = self.shard.end_offset
        if self._committed_offset >= end_offset:
            return None
        future = self._log.committed(self.partition, end_offset)
        if future is None:
            self._committed_offset = end_offset
        return future

    def _doubt_what_was_loaded(self) -> None:
        """The log is loaded to its end, and the next leader may lack the part of it that is not committed."""
        try:
            committed = self._committed()
        except ApiError:  # the shard is lost already
            return
        if committed is not None:
            self._in_doubt = _EveryKey()
            committed.add_done_callback(self._trust_what_was_loaded)

    def _trust_what_was_loaded(self, committed: "asyncio.Future[None]") -> None:
        if not committed.cancelled() and committed.exception() is None:
            self._in_doubt = self._uncommitted

    def _finish(self, key: str, effects: Effects[Any, ReplyType], asker: Token = NOBODY) -> ReplyType | None:
        """Answer all but the asker, whose reply is returned, and begin the follow-up."""
        own = None
        for token, reply in effects.replies:
            if token == asker:
                own = reply
            elif (future := self._owed.pop(token, None)) is not None and not future.done():
                future.set_result(reply)
        if effects.is_followed_up:
            self._coordinator.follow_up(self, key)
        return own

    def _finish_later(self, key: str, effects: Effects[Any, ReplyType], committed: "asyncio.Future[None]") -> None:
        tokens = [token for token, _ in effects.replies]
        end_offset = self._uncommitted[key] = self.shard.end_offset
        timeout = None
        if tokens:
            timeout = self._coordinator.timers.call_later(
                self.shard.commit_timeout_ms(key, self._coordinator.settings),
                lambda: self._fail(tokens, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not replicated in time")),
            )

        def done(committed: "asyncio.Future[None]") -> None:
            if timeout is not None:
                timeout.cancel()
            if committed.cancelled() or (error := committed.exception()) is not None:
                self._fail(tokens, ApiError(ErrorCode.NOT_COORDINATOR, "" if committed.cancelled() else str(error)))
                return
            self._committed_offset = max(self._committed_offset, end_offset)
            if self._uncommitted.get(key) == end_offset:
                del self._uncommitted[key]
            if not self.is_closed:
                self._finish(key, effects)

        committed.add_done_callback(done)

    def _owe(self, token: Token) -> "asyncio.Future[ReplyType]":
        future: asyncio.Future[ReplyType] = asyncio.get_running_loop().create_future()
        self._owed[token] = future
        return future

    def _fail(self, tokens: Collection[Token], error: ApiError) -> None:
        for token in tokens:
            future = self._owed.pop(token, None)
            if future is not None and not future.done():
                future.set_exception(error)

    # Timers

    def _go_off(self, alarm: AlarmKey) -> None:
        key, timer_key = alarm
        set_aside = self._coordinator.set_aside_events
        event = self.shard.timer_fired(key, timer_key)
        try:
            self.carry_out(event)
        except ApiError as error:
            log.warning("%s of %s: %s", type(event).__name__, printable(key), error)
            if not self.is_closed:
                self.alarms.set(alarm, TIMER_RETRY_DELAY_MS)
        except Exception as error:  # noqa: BLE001 - it does not affect the other timers
            self.alarms.set(alarm, set_aside.put(key, error))
            return
        set_aside.release(key)


def _parts(encoded: list[LogRecord]) -> list[list[LogRecord]]:
    parts: list[list[LogRecord]] = [[]]
    size = 0
    for key, value in encoded:
        if parts[-1] and size + len(key) > TOMBSTONE_BATCH_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append((key, value))
        size += len(key)
    return parts
