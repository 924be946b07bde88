"""Incremental fetch sessions (KIP-227): the partitions of a fetcher, so that requests and responses carry only changes.
Pure.

A request names (session id, epoch). Epoch 0 requests a new session and epoch -1 none; both close the named session. Any
other epoch must be the session's next one. The response of an incremental fetch leaves out partitions that have nothing
new: no records, no error, and the same high watermark and log start offset as were sent last. Session id 0 in a
response means that no session was created, which a client must accept at any time.

Source: FetchSession, FetchSessionCacheShard, FetchContext, FetchManager of Apache Kafka.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from barnabas.broker.replication.attention import Attention
from barnabas.broker.replication.fetch_partition import FetchPartition, PartitionKey
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import PartitionData

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
EVICTION_MS_MIN = 120_000
PARTITIONS_MAX = 200_000
"""The limit of partitions in all sessions together: a session uses memory for each of its partitions, whether they
exist or not."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of one fetcher, in the order in which they are served next."""

    session_id: int
    uses_topic_ids: bool
    created_ms: int
    last_used_ms: int
    epoch: int = 1
    partitions: dict[PartitionKey, FetchPartition] = field(default_factory=dict)
    attention: Attention = field(default_factory=Attention)
    """Its awake and resting partitions."""
    places: int = 0
    """The last `FetchPartition.place` that was assigned."""

    def update(self, asked: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> bool:
        """Add the partitions that a request names and remove the forgotten ones; returns whether all may be kept."""
        attention, partitions = self.attention, self.partitions
        for partition in asked:
            known = partitions.get(partition.key)
            if known is None:
                if not partition.may_be_kept:
                    return False
                self.add(partition)
            else:
                known.ask_again(partition)
                attention.wake(known)
        for key in forgotten:
            left = partitions.pop(key, None)
            if left is not None:
                attention.forget(left)
        return True

    def add(self, partition: FetchPartition) -> None:
        """Add a partition that the session does not have."""
        partition.is_named = True
        partition.rests_at = None
        self.put_last(partition)
        self.attention.wake(partition)

    def put_last(self, partition: FetchPartition) -> None:
        """Serve a partition after all others next time."""
        self.partitions.pop(partition.key, None)
        self.partitions[partition.key] = partition
        self.places += 1
        partition.place = self.places


@dataclass(slots=True)
class FetchPlan:
    """The partitions to read for one request, and how to build its response.

    `sessions` made the plan. `session` is set for an incremental fetch, whose `partitions` are the awake ones;
    `wants_session` for a full fetch that may create a session.
    """

    sessions: "FetchSessions"
    error: ErrorCode
    partitions: Sequence[FetchPartition]
    session: FetchSession | None = None
    expected_epoch: int = 0
    wants_session: bool = False
    uses_topic_ids: bool = False
    attention: Attention | None = None
    """The attention of `session`."""


class FetchSessions:
    """The fetch sessions of a broker's consumers, or of its followers: at most `slots`
    (`max.incremental.fetch.session.cache.slots` for consumers), with at most `partitions_max` partitions. `new_id`
    returns a random integer in [1, 2^31 - 1].
    """

    def __init__(self, slots: int, new_id: Callable[[], int], partitions_max: int = PARTITIONS_MAX) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self, session_id: int) -> Sequence[FetchPartition]:
        """The partitions of a session; none if it does not exist."""
        session = self._sessions.get(session_id)
        return () if session is None else list(session.partitions.values())

    def plan(
        self,
        session_id: int,
        epoch: int,
        asked: Sequence[FetchPartition],
        forgotten: Iterable[PartitionKey],
        *,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchPlan:
        """Decide which partitions a request reads; errors: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(session_id)
            return FetchPlan(
                self, ErrorCode.NONE, asked, wants_session=epoch == INITIAL_EPOCH, uses_topic_ids=uses_topic_ids
            )
        session = self._sessions.get(session_id)
        if session is None:
            return FetchPlan(self, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())
        if session.epoch != epoch:
            return FetchPlan(self, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        if session.uses_topic_ids != uses_topic_ids:
            return FetchPlan(self, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ())
        self._drop(session)
        attention = session.attention
        if attention.heartbeat is not None:
            attention.heartbeat.beat(now_ms)
        may_be_kept = session.update(asked, forgotten)
        if not session.partitions:
            return FetchPlan(self, ErrorCode.NONE, asked)
        if not may_be_kept or self.partition_count + len(session.partitions) > self._partitions_max:
            attention.close()
            return FetchPlan(self, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ())  # the client begins a new session
        self._keep(session)
        session.last_used_ms = now_ms
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        return FetchPlan(
            self,
            ErrorCode.NONE,
            attention.awake(),
            session=session,
            expected_epoch=session.epoch,
            attention=attention,
        )

    def finish(
        self, plan: FetchPlan, results: Sequence[tuple[FetchPartition, PartitionData]], now_ms: int
    ) -> tuple[ErrorCode, int, Sequence[tuple[FetchPartition, PartitionData]]]:
        """The response's error, session id and partitions."""
        session = plan.session
        if session is not None:
            if session.epoch != plan.expected_epoch:  # another request of the session overtook this one
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ()
            return ErrorCode.NONE, session.session_id, self._changed(session, results)
        if not plan.wants_session or plan.error != ErrorCode.NONE:
            return plan.error, INVALID_SESSION_ID, results
        return ErrorCode.NONE, self._create(plan, results, now_ms), results

    def postpone(self, plan: FetchPlan) -> tuple[ErrorCode, int]:
        """The error and session id of a response that is empty because its client is throttled: what it does not tell
        counts as not told, and no session is created (`getThrottledResponse` of Kafka's FetchContexts)."""
        session = plan.session
        if session is None:
            return plan.error, INVALID_SESSION_ID
        is_overtaken = session.epoch != plan.expected_epoch
        return ErrorCode.INVALID_FETCH_SESSION_EPOCH if is_overtaken else ErrorCode.NONE, session.session_id

    @staticmethod
    def _changed(
        session: FetchSession, results: Sequence[tuple[FetchPartition, PartitionData]]
    ) -> Sequence[tuple[FetchPartition, PartitionData]]:
        changed = []
        for partition, data in results:
            if partition.must_tell(data):
                changed.append((partition, data))
                if data.records and partition.key in session.partitions:
                    session.put_last(partition)
        return changed

    def _create(self, plan: FetchPlan, results: Sequence[tuple[FetchPartition, PartitionData]], now_ms: int) -> int:
        if not all(partition.may_be_kept for partition, _ in results):
            return INVALID_SESSION_ID
        if len(self._sessions) >= self._slots and not self._evict(len(results), now_ms):
            return INVALID_SESSION_ID
        while self.partition_count + len(results) > self._partitions_max:
            if not self._evict(len(results), now_ms):
                return INVALID_SESSION_ID
        session_id = self._new_id()
        while session_id in self._sessions or session_id == INVALID_SESSION_ID:
            session_id = self._new_id()
        session = FetchSession(session_id, plan.uses_topic_ids, created_ms=now_ms, last_used_ms=now_ms)
        for partition, data in results:
            partition.must_tell(data)
            session.add(partition)
        self._keep(session)
        return session_id

    def _keep(self, session: FetchSession) -> None:
        self._sessions[session.session_id] = session
        self.partition_count += len(session.partitions)

    def _drop(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self.partition_count -= len(session.partitions)

    def _end(self, session_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._drop(session)
            session.attention.close()

    def _evict(self, size: int, now_ms: int) -> bool:
        """Evict the least recently used session if it is stale, else an old one that is smaller than the new one;
        returns whether one was evicted."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms <= EVICTION_MS_MIN:
            old_enough = [
                session for session in self._sessions.values() if now_ms - session.created_ms > EVICTION_MS_MIN
            ]
            oldest = min(old_enough, key=lambda session: len(session.partitions), default=None)
            if oldest is None or len(oldest.partitions) >= size:
                return False
        self._end(oldest.session_id)
        return True
