"""Runs one shard of groups: carries out what its machine decides.

One step without an await: decide, append the records, apply the changes, set the timers. Replies leave once
everything appended so far is committed, so that nobody hears of a state that a fail-over could undo; only heartbeats,
which promise nothing, leave at once. A log that refuses the records leaves the shard as it was.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.broker.coordinators.groups.changes import GroupTombstone, OffsetTombstone, Record, Token
from barnabas.broker.coordinators.groups.classic.draft import printable
from barnabas.broker.coordinators.groups.events import (
    CommitOffsets,
    Effects,
    GroupEvent,
    Heartbeat,
    Loaded,
    OffsetEvent,
    Reply,
    Schedule,
    StoreRefused,
    SyncGroup,
    TimerFired,
    TimerKey,
)
from barnabas.broker.coordinators.groups.offsets import NO_PRODUCER_ID
from barnabas.broker.coordinators.groups.records import encode_record
from barnabas.broker.coordinators.groups.settings import GroupSettings
from barnabas.broker.coordinators.groups.shard import Shard, records_of
from barnabas.broker.coordinators.runtime import CoordinatorLog
from barnabas.broker.timers import TimerHandle, Timers
from barnabas.clock import Clock
from barnabas.set_aside import SetAside
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.record_batch import CompressionType
from barnabas.wire.records import ControlRecordType, EndTxnMarker, build_batch, build_end_txn_marker
from barnabas.wire.records import Record as LogRecord

log = logging.getLogger(__name__)

TOMBSTONE_BATCH_BYTES_MAX: Final = 512 * 1024
"""Tombstones need not be written together: so many bytes of them go into one batch."""

NO_PRODUCER_EPOCH: Final = -1

RETRY_DELAY_MS: Final = 1_000
"""What a timer asked for is tried again after this time when the log refused it."""

UNFORESEEN_RETRY_DELAY_MS: Final = 60_000
"""The same when it raised what nobody foresaw."""


_REPLY_ERRORS: Final = {
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What clients are told of errors that they know from Produce only (CoordinatorOperationExceptionHelper)."""


class _Ticket:
    """A request that is owed a reply. What comes before anybody waits for it, a reply or an error, is kept here."""

    __slots__ = ("error", "future", "reply")

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.error: ApiError | None = None
        self.future: asyncio.Future[Reply] | None = None


class _Alarm:
    """A running timer. One that is set again to a later time is left in place and looks at `due_ms` when it goes off:
    a heartbeat costs one store.
    """

    __slots__ = ("due_ms", "handle")

    def __init__(self, due_ms: int, handle: TimerHandle) -> None:
        self.due_ms = due_ms
        self.handle = handle


class GroupRunner:
    """The active shard of one partition; owned by the event loop."""

    def __init__(
        self,
        partition: int,
        shard: Shard,
        coordinator_log: CoordinatorLog,
        timers: Timers,
        clock: Clock,
        settings: GroupSettings,
        on_lost: Callable[[int], None],
        on_changed: Callable[[], None] = lambda: None,
        set_aside: SetAside[str] | None = None,
    ) -> None:
        self.partition = partition
        self.shard = shard
        self._log = coordinator_log
        self._timers = timers
        self._clock = clock
        self._settings = settings
        self._on_lost = on_lost
        self._on_changed = on_changed
        self._set_aside = SetAside[str]("timers of the group", clock) if set_aside is None else set_aside
        self._tokens = itertools.count(1)
        self._owed: dict[Token, _Ticket] = {}
        self._alarms: dict[tuple[str, TimerKey], _Alarm] = {}
        self._committed_offset = 0
        self.is_closed = False

    @property
    def held_bytes(self) -> int:
        """About how much memory the groups and the offsets take."""
        return self.shard.held_bytes

    @property
    def alarm_count(self) -> int:
        """Timers that are set."""
        return len(self._alarms)

    def start(self) -> None:
        """The shard is loaded: sessions of its members begin."""
        for group_id in [group.group_id for group in self.shard.groups.values() if group.members]:
            with self._set_aside.attempt(group_id):
                self.tell(Loaded(group_id))
        self._on_changed()

    def close(self, error: ApiError) -> None:
        """Stop: whoever waits gets the error."""
        self.is_closed = True
        for alarm in self._alarms.values():
            alarm.handle.cancel()
        self._alarms.clear()
        for token in list(self._owed):
            self._fail(token, error)

    def ask(self, event: GroupEvent | OffsetEvent) -> "Reply | asyncio.Future[Reply]":
        """Have an event decided whose sender waits for the answer: the reply, or a future while the answer must wait.

        Errors: ApiError, raised or in the future: the log refused the records, or this broker lost the shard.
        """
        token, ticket = self._issue_ticket()
        event = event._replace(token=token)  # type: ignore[call-arg]
        try:
            self._carry_out(event, self._decide(event))
        except ApiError as error:
            self._owed.pop(token, None)
            self._refused(event, error)
            raise
        return _result(ticket)

    def tell(self, event: GroupEvent | OffsetEvent) -> None:
        """Have an event decided that nobody waits for.

        Errors: none; what the log refuses is tried again when a timer asked for it.
        """
        try:
            self._carry_out(event, self._decide(event))
        except ApiError as error:
            log.warning("%s of group %s: %s", type(event).__name__, printable(event.group_id), error)
            self._refused(event, error)

    def once_committed(self, reply: Reply) -> "Reply | asyncio.Future[Reply]":
        """A reply that was read from the shard, given when all it may tell of is committed. Errors: as `ask`."""
        token, ticket = self._issue_ticket()
        self._release_when_committed([(token, reply)])
        return _result(ticket)

    def end_transaction(
        self, marker: EndTxnMarker, producer_id: int, producer_epoch: int, transaction_version: int
    ) -> "asyncio.Future[None] | None":
        """Write the marker of a transaction that committed offsets here: they count from now on, or never. None when it
        is committed, else a future.

        Errors: ApiError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or what the log refuses it with.
        """
        batch = build_end_txn_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=self._clock.now_ms()
        )
        try:
            end_offset = self._log.append(self.partition, batch, transaction_version)
        except ApiError as error:
            if error.error is ErrorCode.NOT_COORDINATOR:
                self._on_lost(self.partition)
            raise
        self.shard.end_transaction(producer_id, end_offset, is_commit=marker.control_type is ControlRecordType.COMMIT)
        self._on_changed()
        return self._committed()

    def _issue_ticket(self) -> tuple[Token, _Ticket]:
        token = next(self._tokens)
        ticket = self._owed[token] = _Ticket()
        return token, ticket

    def _committed(self) -> "asyncio.Future[None] | None":
        end_offset = self.shard.end_offset
        if self._committed_offset >= end_offset:
            return None
        future = self._log.committed(self.partition, end_offset)
        if future is None:
            self._committed_offset = end_offset
        return future

    def _decide(self, event: GroupEvent | OffsetEvent) -> Effects:
        return self.shard.decide(event, self._clock.now_ms(), self._settings)

    def _carry_out(self, event: GroupEvent | OffsetEvent, effects: Effects) -> None:
        group_id = event.group_id
        if effects.changes:
            records = records_of(effects.changes)
            producer = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            if isinstance(event, CommitOffsets):
                producer = (event.producer_id, event.producer_epoch)
            end_offset = self._append(records, *producer) if records else None
            self.shard.apply(group_id, effects.changes, end_offset, producer[0])
        for timer in effects.timers:
            if isinstance(timer, Schedule):
                self._set_alarm((group_id, timer.key), timer.delay_ms)
            else:
                self._clear_alarm((group_id, timer.key))
        for text, *arguments in effects.notes:
            log.info(text, *arguments)
        if isinstance(event, Heartbeat):
            self._release(effects.replies)
        elif effects.replies:
            self._release_when_committed(effects.replies)
        if effects.changes:
            self._on_changed()

    def _append(
        self, records: Sequence[Record], producer_id: int = NO_PRODUCER_ID, producer_epoch: int = NO_PRODUCER_EPOCH
    ) -> int:
        now_ms = self._clock.now_ms()
        encoded = [encode_record(record) for record in records]
        is_divisible = all(isinstance(record, (OffsetTombstone, GroupTombstone)) for record in records)
        end_offset = -1
        for part in _parts(encoded) if is_divisible else [encoded]:
            batch = build_batch(
                [LogRecord(offset, now_ms, key, value) for offset, (key, value) in enumerate(part)],
                compression=CompressionType(self._settings.offsets_topic_compression_codec),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id != NO_PRODUCER_ID,
            )
            try:
                end_offset = self._log.append(self.partition, batch)
            except ApiError as error:
                # With a part written the log and the shard differ: only loading it again helps.
                code = _REPLY_ERRORS.get(error.error, error.error) if end_offset < 0 else ErrorCode.NOT_COORDINATOR
                raise ApiError(code, error.message) from error
        return end_offset

    def _refused(self, event: GroupEvent | OffsetEvent, error: ApiError) -> None:
        if error.error is ErrorCode.NOT_COORDINATOR:
            self._on_lost(self.partition)
        elif isinstance(event, SyncGroup):
            self.tell(StoreRefused(event.group_id, error.error))
        elif isinstance(event, TimerFired):
            self._set_alarm((event.group_id, event.key), RETRY_DELAY_MS)

    # Replies

    def _release_when_committed(self, replies: list[tuple[Token, Reply]]) -> None:
        try:
            future = self._committed()
        except ApiError as error:
            self._fail_all(replies, error)
            return
        if future is None:
            self._release(replies)
            return
        end_offset = self.shard.end_offset
        timeout = self._timers.call_later(
            self._settings.offsets_commit_timeout_ms,
            lambda: self._fail_all(replies, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not replicated in time")),
        )

        def done(future: "asyncio.Future[None]") -> None:
            timeout.cancel()
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                self._fail_all(replies, ApiError(ErrorCode.NOT_COORDINATOR, str(error or "")))
            else:
                self._committed_offset = max(self._committed_offset, end_offset)
                self._release(replies)

        future.add_done_callback(done)

    def _release(self, replies: list[tuple[Token, Reply]]) -> None:
        for token, reply in replies:
            ticket = self._owed.pop(token, None)
            if ticket is None:
                continue
            if ticket.future is None:
                ticket.reply = reply
            elif not ticket.future.done():
                ticket.future.set_result(reply)

    def _fail_all(self, replies: list[tuple[Token, Reply]], error: ApiError) -> None:
        for token, _ in replies:
            self._fail(token, error)

    def _fail(self, token: Token, error: ApiError) -> None:
        ticket = self._owed.pop(token, None)
        if ticket is None:
            return
        if ticket.future is None:
            ticket.error = error
        elif not ticket.future.done():
            ticket.future.set_exception(error)

    # Timers

    def _set_alarm(self, key: tuple[str, TimerKey], delay_ms: int) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        alarm = self._alarms.get(key)
        if alarm is not None:
            alarm.due_ms = due_ms
            if alarm.handle.at_ms <= due_ms:
                return
            alarm.handle.cancel()
        handle = self._timers.call_at(due_ms, lambda: self._go_off(key))
        self._alarms[key] = _Alarm(due_ms, handle)

    def _clear_alarm(self, key: tuple[str, TimerKey]) -> None:
        alarm = self._alarms.pop(key, None)
        if alarm is not None:
            alarm.handle.cancel()

    def _go_off(self, key: tuple[str, TimerKey]) -> None:
        alarm = self._alarms[key]
        if alarm.due_ms > self._clock.monotonic_ms():
            alarm.handle = self._timers.call_at(alarm.due_ms, lambda: self._go_off(key))
            return
        del self._alarms[key]
        group_id, timer_key = key
        with self._set_aside.attempt(group_id):
            self.tell(TimerFired(group_id, timer_key))
            return
        self._set_alarm(key, UNFORESEEN_RETRY_DELAY_MS)


def _result(ticket: _Ticket) -> "Reply | asyncio.Future[Reply]":
    if ticket.error is not None:
        raise ticket.error
    if ticket.reply is not None:
        return ticket.reply
    ticket.future = asyncio.get_running_loop().create_future()
    return ticket.future


def _parts(encoded: list[tuple[bytes, bytes | None]]) -> list[list[tuple[bytes, bytes | None]]]:
    parts: list[list[tuple[bytes, bytes | None]]] = [[]]
    size = 0
    for key, value in encoded:
        if parts[-1] and size + len(key) > TOMBSTONE_BATCH_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append((key, value))
        size += len(key)
    return parts
