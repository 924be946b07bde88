"""One partition hosted by this broker: its log, its state, and the waits for a change of either (Kafka's Partition).

`isr.py` decides on leadership, `leadership.py` on the high watermark where there are followers, `commit_waiters.py` has
the waits for commits; `Partition` connects them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.broker.replication.isr import PartitionState, RoleChange
from barnabas.storage.log import PartitionLog
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.broker.replication.leadership import Leadership
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

UNKNOWN_OFFSET: Final = -1

Listener = Callable[["Partition"], None]

LeadFollowers = Callable[["Partition", "LeaderAndIsrPartitionState"], "Leadership"]
"""Creates the leader's side of a new leadership, where the partition has other replicas."""


class Partition:
    """One hosted partition; owned by the event loop.

    To wait for readable data, register a listener: it is called after each append and each change of the high
    watermark, of the last stable offset or of the leadership. To wait until an offset is committed, call
    `committed(offset)`.

    With `flush_before_ack` this broker's own log counts for the high watermark only up to the recovery point: nothing
    is committed, acknowledged or visible to consumers before it is on the disk.
    """

    __slots__ = (
        "_commit_waiters",
        "_listeners",
        "bytes_out",
        "flush_before_ack",
        "index",
        "leadership",
        "log",
        "records_read",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: TopicId,
        log: PartitionLog,
        node_id: int,
        *,
        flush_before_ack: bool = False,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.state = PartitionState(node_id)
        self.leadership: Leadership | None = None
        """Set while this broker leads and others follow."""
        self.flush_before_ack = flush_before_ack
        self.bytes_out = 0
        """The bytes that fetches have read, since this broker hosts it."""
        self.records_read = 0
        """The number of records that fetches have read, except those that are counted when they are sent
        (`PartitionLog.sent_records`)."""
        self._listeners: dict[Listener, None] | None = None
        self._commit_waiters: CommitWaiters | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- leadership -------------------------------------------------------------------------------

    def become_leader_or_follower(
        self, told: "LeaderAndIsrPartitionState", lead_followers: LeadFollowers
    ) -> RoleChange:
        """Apply the controller's request. Raises StorageError if this broker cannot, with nothing changed."""
        log = self.log
        if self.state.is_elected_by(told):
            log.leader_epochs.assign(told.leader_epoch, log.log_end_offset)
        change = self.state.become_leader_or_follower(told, log.log_end_offset)
        self._lead(told, change, lead_followers)
        self._fail_commit_waiters_unless_leader(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.in_sync_replicas_changed()
        return change

    def _lead(self, told: "LeaderAndIsrPartitionState", change: RoleChange, lead_followers: LeadFollowers) -> None:
        """Begin, continue, or end the leadership of a partition with followers."""
        has_followers = self.state.is_leader and not self.state.commits_alone
        if self.leadership is not None and (change is not RoleChange.NONE or not has_followers):
            self._end_leadership(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not has_followers:
            return
        if self.leadership is None:
            self.leadership = lead_followers(self, told)
        else:
            self.leadership.told(told)

    def _end_leadership(self, error: ErrorCode) -> None:
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            leadership.end(error)

    def stop(self, error: ErrorCode) -> RoleChange:
        """Stop hosting the partition: wake the listeners, and fail waits for commits with `error`."""
        change = self.state.resign()
        self._end_leadership(error)
        self._fail_commit_waiters_unless_leader(error)
        self.notify()
        return change

    # --- the high watermark -----------------------------------------------------------------------

    @property
    def own_offset(self) -> int:
        """The offset up to which this broker's own log counts, as one of the in-sync replicas."""
        return self.log.recovery_point if self.flush_before_ack else self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """The offset below which no live replica has records, as far as this leader knows."""
        return self.log.log_start_offset if self.leadership is None else self.leadership.low_watermark()

    def advance(self) -> None:
        """The log has grown, or more of it is flushed, or the ISR has changed: raise the high watermark accordingly and
        wake waiters and listeners."""
        log = self.log
        offset = log.recovery_point if self.flush_before_ack else log.log_end_offset
        if not self.state.commits_alone:  # a follower's high watermark comes from its leader
            offset = UNKNOWN_OFFSET if self.leadership is None else self.leadership.high_watermark(offset)
        if log.high_watermark < offset:
            log.update_high_watermark(offset)
            if self._commit_waiters is not None:
                self._commit_waiters.release(log.high_watermark)
        if self._listeners:
            self.notify()

    def commit(self, offset: int) -> None:
        """Followers have fetched more: commit everything below `offset`, which is beyond the high watermark, and wake
        waiters and listeners."""
        log = self.log
        log.update_high_watermark(offset)
        if self._commit_waiters is not None:
            self._commit_waiters.release(log.high_watermark)
        if self._listeners:
            self.notify()

    def committed(self, end_offset: int, *, outlasts_setbacks: bool = False) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future, see `CommitWaiters.add`. It fails with
        ApiError when the leadership or the log is lost first and, unless it `outlasts_setbacks`, when a flush fails
        that will be repeated or too few replicas are left in sync."""
        if self.log.high_watermark >= end_offset:
            return None
        if self._commit_waiters is None:
            self._commit_waiters = CommitWaiters()
        return self._commit_waiters.add(end_offset, outlasts_setbacks=outlasts_setbacks)

    def flush_failed(self, error: ApiError) -> None:
        """Fail waits for commits with `flush_before_ack`, because a flush failed. That is final if the log has failed,
        too; otherwise the flush will be repeated."""
        if self._commit_waiters is not None:
            if self.log.failure is None:
                self._commit_waiters.fail_producers(error)
            else:
                self._commit_waiters.fail(error)

    @property
    def has_too_few_in_sync(self) -> bool:
        """Whether others follow, but the ISR is smaller than `min.insync.replicas`."""
        leadership = self.leadership
        return leadership is not None and not leadership.followers.has_enough_in_sync(
            self.log.config.min_insync_replicas
        )

    @property
    def has_just_enough_in_sync(self) -> bool:
        """Whether others follow, and the ISR has exactly `min.insync.replicas` members."""
        state, leadership = self.state, self.leadership
        enough = min(self.log.config.min_insync_replicas, len(state.replicas))
        return leadership is not None and len(leadership.followers.isr) == enough

    def in_sync_replicas_changed(self) -> None:
        """The ISR or `min.insync.replicas` has changed. If too few replicas are in sync, the waits of producers fail,
        and producers send their batches again; a coordinator, whose state depends on its records, keeps waiting."""
        if self._commit_waiters is not None and self.has_too_few_in_sync:
            self._commit_waiters.fail_producers(ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        self.advance()

    def _fail_commit_waiters_unless_leader(self, error: ErrorCode) -> None:
        if self._commit_waiters is not None and not self.state.is_leader:
            self._commit_waiters.fail(ApiError(error))

    # --- waits for readable data ------------------------------------------------------------------

    def add_listener(self, listener: Listener) -> None:
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None

    def remove_listener(self, listener: Listener) -> None:
        if self._listeners is not None:
            self._listeners.pop(listener, None)

    @property
    def is_waited_for(self) -> bool:
        """Whether there are listeners, for tests."""
        return bool(self._listeners)

    def notify(self) -> None:
        """Wake the listeners: something that readers wait for may have changed (log start offset, configuration,
        failure)."""
        for listener in list(self._listeners or ()):
            listener(self)
