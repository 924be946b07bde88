"""One partition hosted by this broker: its log, its state, and who waits for either to move (Kafka's Partition).

`isr.py` decides who leads, `leadership.py` what is committed where there are followers, `commit_waiters.py` knows who
waits for a commit; here they are asked and told.
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
"""What this broker's side of a new leadership is made by, where the partition has other replicas."""


class Partition:
    """One hosted partition; owned by the event loop.

    Whoever waits for readable data registers a listener, called after each append and each change of the high
    watermark, of the last stable offset or of the leadership. Whoever waits for an offset to be committed asks
    `committed(offset)`.

    With `flush_before_ack` this broker counts itself among the in-sync replicas only up to what it has flushed: nothing
    is committed, acknowledged or shown to consumers before it is on the disk.
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
        """What fetches were given of it, since this broker hosts it."""
        self.records_read = 0
        """How many records fetches were given, but for those that are counted when they are sent
        (`PartitionLog.sent_records`)."""
        self._listeners: dict[Listener, None] | None = None
        self._commit_waiters: CommitWaiters | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- leadership -------------------------------------------------------------------------------

    def become_leader_or_follower(
        self, told: "LeaderAndIsrPartitionState", lead_followers: LeadFollowers
    ) -> RoleChange:
        """Go by what the controller told. Raises StorageError if this broker cannot, with nothing changed."""
        log = self.log
        if self.state.is_elected_by(told):
            log.assign_leader_epoch(told.leader_epoch)
        change = self.state.become_leader_or_follower(told, log.log_end_offset)
        self._lead(told, change, lead_followers)
        self._fail_commit_waiters_unless_leader(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.in_sync_replicas_changed()
        return change

    def _lead(self, told: "LeaderAndIsrPartitionState", change: RoleChange, lead_followers: LeadFollowers) -> None:
        """Begin, go on with, or end what a leader does for its followers."""
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
        """Tell whoever waits that this broker no longer hosts the partition, with `error` if it was for a commit."""
        change = self.state.resign()
        self._end_leadership(error)
        self._fail_commit_waiters_unless_leader(error)
        self.notify()
        return change

    # --- what is committed ------------------------------------------------------------------------

    @property
    def own_offset(self) -> int:
        """Up to where this broker counts its own log, as one of the in-sync replicas."""
        return self.log.recovery_point if self.flush_before_ack else self.log.log_end_offset

    @property
    def low_watermark(self) -> int:
        """The offset below which no live replica has records, as far as this broker, the leader, knows."""
        return self.log.log_start_offset if self.leadership is None else self.leadership.low_watermark()

    def advance(self) -> None:
        """The log has grown, or more of it is on the disk, or other replicas count: commit what this makes committable
        and wake who waits."""
        log = self.log
        offset = log.recovery_point if self.flush_before_ack else log.log_end_offset
        if not self.state.commits_alone:  # a follower's high watermark is what its leader tells
            offset = UNKNOWN_OFFSET if self.leadership is None else self.leadership.high_watermark(offset)
        if log.high_watermark < offset:
            log.update_high_watermark(offset)
            if self._commit_waiters is not None:
                self._commit_waiters.release(log.high_watermark)
        if self._listeners:
            self.notify()

    def commit(self, offset: int) -> None:
        """Followers have more than before: everything below `offset`, which is beyond the high watermark, is committed;
        wake who waits."""
        log = self.log
        log.update_high_watermark(offset)
        if self._commit_waiters is not None:
            self._commit_waiters.release(log.high_watermark)
        if self._listeners:
            self.notify()

    def committed(self, end_offset: int, *, outlasts_setbacks: bool = False) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future, see `CommitWaiters.add`; it fails with
        ApiError when leadership is lost first, or the log, or, unless it `outlasts_setbacks`, when a flush fails
        that will be repeated or too few replicas are left in sync."""
        if self.log.high_watermark >= end_offset:
            return None
        if self._commit_waiters is None:
            self._commit_waiters = CommitWaiters()
        return self._commit_waiters.add(end_offset, outlasts_setbacks=outlasts_setbacks)

    def flush_failed(self, error: ApiError) -> None:
        """Tell whoever waits, with `flush_before_ack`, for a flush that it failed. That is final if the log has failed
        with it; else it will be repeated."""
        if self._commit_waiters is not None:
            if self.log.failure is None:
                self._commit_waiters.fail_producers(error)
            else:
                self._commit_waiters.fail(error)

    @property
    def has_too_few_in_sync(self) -> bool:
        """Whether others follow, but fewer replicas are in sync than `min.insync.replicas`."""
        leadership = self.leadership
        return leadership is not None and not leadership.followers.has_enough_in_sync(
            self.log.config.min_insync_replicas
        )

    @property
    def has_just_enough_in_sync(self) -> bool:
        """Whether others follow, and as many replicas are in sync as `min.insync.replicas`, none more."""
        state, leadership = self.state, self.leadership
        enough = min(self.log.config.min_insync_replicas, len(state.replicas))
        return leadership is not None and len(leadership.followers.isr) == enough

    def in_sync_replicas_changed(self) -> None:
        """Others are in sync than before, or `min.insync.replicas` is another. If fewer are than that, producers that
        wait are told, and send their batches again; a coordinator, which has built on its records, waits on."""
        if self._commit_waiters is not None and self.has_too_few_in_sync:
            self._commit_waiters.fail_producers(ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        self.advance()

    def _fail_commit_waiters_unless_leader(self, error: ErrorCode) -> None:
        if self._commit_waiters is not None and not self.state.is_leader:
            self._commit_waiters.fail(ApiError(error))

    # --- who waits for readable data --------------------------------------------------------------

    def add_listener(self, listener: Listener) -> None:
        if self._listeners is None:
            self._listeners = {}
        self._listeners[listener] = None

    def remove_listener(self, listener: Listener) -> None:
        if self._listeners is not None:
            self._listeners.pop(listener, None)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody listens, for tests."""
        return bool(self._listeners)

    def notify(self) -> None:
        """Something that readers wait for may have changed (log start offset, configuration, failure): let them look
        again."""
        for listener in list(self._listeners or ()):
            listener(self)
