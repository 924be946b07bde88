"""One partition hosted by this broker: who leads it, what is committed, and who waits for it to move (Kafka's
Partition)."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from barnabas.storage.log import LogAppendInfo, PartitionLog
from barnabas.wire.errors import ApiError, ErrorCode
from barnabas.wire.names import TopicId

if TYPE_CHECKING:
    from barnabas.wire.messages.leader_and_isr import LeaderAndIsrPartitionState

logger = logging.getLogger(__name__)

Listener = Callable[["Partition"], None]


class _CommitWaiter(NamedTuple):
    end_offset: int
    sequence: int
    """Tells waiters for the same offset apart."""
    future: asyncio.Future[None]
    is_patient: bool


class Partition:
    """State of one hosted partition; owned by the event loop.

    Whoever waits for readable data registers a listener, called after each change of the high watermark, of the last
    stable offset or of the leadership. Whoever waits for an offset to be committed asks `committed(offset)`.

    With `flush_before_ack` this broker counts itself among the in-sync replicas only up to what it has flushed: nothing
    is committed, acknowledged or shown to consumers before it is on the disk.
    """

    __slots__ = (
        "_commit_sequence",
        "_commit_waiters",
        "_listeners",
        "controller_epoch",
        "flush_before_ack",
        "index",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log",
        "node_id",
        "partition_epoch",
        "replicas",
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
        self.node_id = node_id
        self.flush_before_ack = flush_before_ack
        self.leader = -1
        self.leader_epoch = -1
        self.leader_epoch_start_offset = 0
        self.partition_epoch = -1
        self.controller_epoch = -1
        self.replicas: list[int] = []
        self.isr: list[int] = []
        self._listeners: dict[Listener, None] | None = None
        self._commit_waiters: list[_CommitWaiter] | None = None
        self._commit_sequence = itertools.count()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.leader == self.node_id

    # --- leadership -------------------------------------------------------------------------------

    def become_leader_or_follower(self, state: "LeaderAndIsrPartitionState") -> bool:
        """Take over the controller's word on this partition; returns whether this broker has become its leader in a new
        epoch. Raises StorageError if it cannot, with nothing changed."""
        elected = state.leader == self.node_id and state.leader_epoch > self.leader_epoch
        if elected:
            self.log.assign_leader_epoch(state.leader_epoch)
            self.leader_epoch_start_offset = self.log.log_end_offset
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.replicas = list(state.replicas)
        self.isr = list(state.isr)
        if self.is_leader:
            self._advance_high_watermark()
        self._fail_commit_waiters_unless_leader()
        self._notify()
        return elected

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Fence a request by the leader epoch that its client knows (KIP-320).

        Raises ApiError NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
        """
        if current_leader_epoch not in (-1, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader != self.node_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # --- writing ----------------------------------------------------------------------------------

    @property
    def min_in_sync_replicas(self) -> int:
        """The effective `min.insync.replicas`: never more than there are replicas."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))

    def check_enough_replicas(self) -> None:
        # The setting first: what is effective has to be known only in trouble.
        if len(self.isr) < self.log.config.min_insync_replicas and len(self.isr) < self.min_in_sync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self} has {len(self.isr)} in-sync replicas, min.insync.replicas wants {self.min_in_sync_replicas}",
            )

    def appended(self, info: LogAppendInfo) -> None:
        """The log took a batch: commit what this makes committable and wake who waits."""
        if not info.duplicate:
            self._advance_high_watermark()
            if self._listeners:
                self._notify()

    def flushed(self) -> None:
        """A flush is done, which makes more committable with `flush_before_ack`."""
        if self.is_leader:
            self._advance_high_watermark()
            self._notify()

    def _advance_high_watermark(self) -> None:
        """High watermark = smallest end offset of the in-sync replicas."""
        log = self.log
        end_offset = log.recovery_point if self.flush_before_ack else log.log_end_offset
        if len(self.isr) == 1 and self.isr[0] == self.node_id and log.high_watermark < end_offset:
            log.update_high_watermark(end_offset)
            if self._commit_waiters:
                self._release_commit_waiters()

    def flush_failed(self, error: ApiError) -> None:
        """Tell who waits for a commit; whoever is patient only if no later flush will do."""
        waiters, self._commit_waiters = self._commit_waiters or [], None
        for waiter in waiters:
            if waiter.is_patient and self.log.failure is None:
                self._add_commit_waiter(waiter)
            elif not waiter.future.done():
                waiter.future.set_exception(error)

    # --- waiting ----------------------------------------------------------------------------------

    def committed(self, end_offset: int, *, is_patient: bool = False) -> "asyncio.Future[None] | None":
        """None when everything below `end_offset` is committed, else a future; it fails with ApiError when leadership
        is lost first, or the log, or, unless `is_patient`, when a flush fails that will be repeated."""
        if self.log.high_watermark >= end_offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add_commit_waiter(_CommitWaiter(end_offset, next(self._commit_sequence), future, is_patient))
        return future

    def _add_commit_waiter(self, waiter: _CommitWaiter) -> None:
        if self._commit_waiters is None:
            self._commit_waiters = []
        heapq.heappush(self._commit_waiters, waiter)

    def _release_commit_waiters(self) -> None:
        waiters = self._commit_waiters
        while waiters and waiters[0].end_offset <= self.log.high_watermark:
            future = heapq.heappop(waiters).future
            if not future.done():
                future.set_result(None)

    def _fail_commit_waiters_unless_leader(self, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        if self.is_leader:
            return
        waiters, self._commit_waiters = self._commit_waiters or [], None
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(ApiError(error))

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

    def _notify(self) -> None:
        for listener in list(self._listeners or ()):
            listener(self)

    def progressed(self) -> None:
        """Something that readers wait for may have changed (log start offset, configuration, failure): let them look
        again."""
        self._notify()

    def stop(self, error: ErrorCode) -> None:
        """This broker no longer hosts the partition: whoever waits is told, with `error` if it was for a commit."""
        self.leader = -1
        self._fail_commit_waiters_unless_leader(error)
        self._notify()
