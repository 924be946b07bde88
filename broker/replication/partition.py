"""One partition hosted by this broker: its log, its state, and who waits for either to move (Kafka's Partition).

`isr.py` decides who leads and what is committed, `commit_waiters.py` knows who waits for a commit; here the one is
asked and the other told.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from barnabas.broker.replication.commit_waiters import CommitWaiters
from barnabas.broker.replication.isr import PartitionState, RoleChange
from barnabas.storage.log import PartitionLog
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

Listener = Callable[["Partition"], None]


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
        "flush_before_ack",
        "index",
        "log",
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
        self.flush_before_ack = flush_before_ack
        self._listeners: dict[Listener, None] | None = None
        self._commit_waiters: CommitWaiters | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- leadership -------------------------------------------------------------------------------

    def become_leader_or_follower(self, told: "LeaderAndIsrPartitionState") -> RoleChange:
        """Go by what the controller told. Raises StorageError if this broker cannot, with nothing changed."""
        log = self.log
        if self.state.is_elected_by(told):
            log.assign_leader_epoch(told.leader_epoch)
        change = self.state.become_leader_or_follower(told, log.log_end_offset)
        self._fail_commit_waiters_unless_leader(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.advance()
        return change

    def stop(self, error: ErrorCode) -> RoleChange:
        """This broker no longer hosts the partition: whoever waits is told, with `error` if it was for a commit."""
        change = self.state.resign()
        self._fail_commit_waiters_unless_leader(error)
        self.notify()
        return change

    # --- what is committed ------------------------------------------------------------------------

    def advance(self) -> None:
        """The log has grown, or more of it is on the disk, or other replicas count: commit what this makes committable
        and wake who waits."""
        log = self.log
        high_watermark = self.state.high_watermark(log.recovery_point if self.flush_before_ack else log.log_end_offset)
        if log.high_watermark < high_watermark:
            log.update_high_watermark(high_watermark)
            if self._commit_waiters is not None:
                self._commit_waiters.release(log.high_watermark)
        if self._listeners:
            self.notify()

    def committed(self, end_offset: int, *, outlasts_failed_flush: bool = False) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future, see `CommitWaiters.add`; it fails with
        ApiError when leadership is lost first, or the log, or, unless it `outlasts_failed_flush`, when a flush fails
        that will be repeated."""
        if self.log.high_watermark >= end_offset:
            return None
        if self._commit_waiters is None:
            self._commit_waiters = CommitWaiters()
        return self._commit_waiters.add(end_offset, outlasts_failed_flush=outlasts_failed_flush)

    def flush_failed(self, error: ApiError) -> None:
        """With `flush_before_ack`: a flush failed that commits wait for. That is final if the log has failed with it;
        else it will be repeated."""
        if self._commit_waiters is not None:
            if self.log.failure is None:
                self._commit_waiters.flush_failed(error)
            else:
                self._commit_waiters.fail(error)

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
