"""A leader's knowledge of its followers, and the decisions that depend on it: the high watermark, and which followers
join and leave the ISR. No I/O, no clock, no futures.

A follower's fetch offset is its log end offset: its log has all records below. The leader proposes a new ISR to the
controller (AlterPartition, KIP-497), one proposal at a time, and uses the larger of both ISRs until the controller has
responded: a joining replica counts for the high watermark at once, a leaving one counts until it has left. So any
replica that the controller may elect next has every committed record.

Source: kafka.cluster.Partition (maybeIncrementLeaderHW, needsExpandIsr, needsShrinkIsr, submitAlterPartition), Replica.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.wire.errors import ErrorCode

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
NEVER_MS: Final = -(1 << 64)
"""A time further back than any `replica.lag.time.max.ms`."""

FINAL_REFUSALS: Final = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED))
"""Errors of AlterPartition after which the proposal is withdrawn: the controller has certainly not stored it."""

REST_MS: Final = 500
"""The time in which no follower is proposed after such an error: each fetch of the follower would repeat the same
proposal."""

SUPERSEDED: Final = frozenset(
    (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
"""Errors after which the leader waits for a newer state from the controller. After all others it asks again."""

AS_BEFORE: Final = frozenset(
    (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""The errors among them after which the state may turn out to be the one that the leader knows: the controller had
another view of the topic, for example because it found the topic's znode damaged. After the others the state has
certainly changed, and requests with the old state were already in flight."""


@dataclass(slots=True)
class Heartbeat:
    """The last two fetch times of a broker in a session of many partitions, and its registration. Partitions that it
    had fully fetched, and that have not changed since, are not looked at, and share this."""

    fetched_ms: int
    before_ms: int = NEVER_MS
    broker_epoch: int = UNKNOWN_BROKER_EPOCH

    def beat(self, now_ms: int) -> None:
        """Note that the broker fetches now."""
        self.before_ms, self.fetched_ms = self.fetched_ms, now_ms


@dataclass(slots=True)
class Follower:
    """The position of a follower, by its fetches. Offsets are UNKNOWN_OFFSET before its first fetch in this epoch."""

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    caught_up_ms: int = NEVER_MS
    """The last time at which it had all records that the leader had then."""
    fetched_ms: int = NEVER_MS
    end_offset_when_fetched: int = UNKNOWN_OFFSET
    """The leader's log end offset at the follower's last fetch, at `fetched_ms`."""
    heartbeat: Heartbeat | None = None
    """Set if it had everything at its last fetch that looked at this partition: then it had everything at each later
    fetch, too."""

    def fetched(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, own_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch from `fetch_offset`, at which the leader's log end offset is `own_end_offset`.

        A follower that never reaches the end, because more is appended meanwhile, has caught up too if it has reached
        the end as of its previous fetch (Replica.updateFetchStateOrThrow).
        """
        if self.heartbeat is not None:
            self.fetched_ms = max(self.fetched_ms, self.heartbeat.before_ms)
            self.heartbeat = None
        if fetch_offset >= own_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.end_offset_when_fetched:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_start_offset = log_start_offset
        self.log_end_offset = fetch_offset
        self.broker_epoch = broker_epoch
        self.fetched_ms = now_ms
        self.end_offset_when_fetched = max(own_end_offset, self.end_offset_when_fetched)

    def forgotten(self) -> None:
        """The partition has left the broker's session: keep the state of its heartbeat."""
        if self.heartbeat is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.heartbeat.before_ms)
            self.broker_epoch = self.registration
            self.heartbeat = None

    @property
    def last_caught_up_ms(self) -> int:
        """The last time at which it had everything, by its fetches."""
        return self.caught_up_ms if self.heartbeat is None else max(self.caught_up_ms, self.heartbeat.fetched_ms)

    @property
    def registration(self) -> int:
        """The broker epoch of its last fetch, even if that did not look at this partition."""
        return self.broker_epoch if self.heartbeat is None else max(self.broker_epoch, self.heartbeat.broker_epoch)

    def has_caught_up(self, own_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the follower is caught up: it has everything, or had it within `replica.lag.time.max.ms`."""
        return self.log_end_offset == own_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max


class Proposal(NamedTuple):
    """An ISR that the controller is asked to store (AlterPartition), based on the state that the leader knows."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class Followers:
    """The other replicas of one partition that this broker leads, for one leader epoch.

    `isr` is the ISR that the controller has stored at `partition_epoch`, as far as the leader knows. `is_eligible(id)`
    returns whether a broker may join it: alive, not shutting down, and registered in the epoch in which it fetches
    (KIP-841).
    """

    def __init__(
        self,
        node_id: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        *,
        leader_epoch: int,
        partition_epoch: int,
        start_offset: int,
        now_ms: int,
        is_eligible: Callable[[int, int], bool],
    ) -> None:
        """`start_offset` is where this leader epoch begins; a follower may join the ISR only from there on."""
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.isr = frozenset(isr)
        self._start_offset = start_offset
        self._is_eligible = is_eligible
        self._followers = {
            replica: Follower(caught_up_ms=now_ms if replica in self.isr else NEVER_MS)
            for replica in replicas
            if replica != node_id
        }
        self._proposal: Proposal | None = None
        self._may_be_as_before = False
        self._rests_until_ms = NEVER_MS

    def told(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int) -> bool:
        """Apply a state that the controller has sent for the same leader epoch; returns whether it is new.

        A state not newer than the last AlterPartition response is ignored, since it would undo that. A known state
        counts as new after an error that left the state open (`AS_BEFORE`): the proposal was not stored, and is
        withdrawn.
        """
        if partition_epoch < self.partition_epoch:
            return False
        if partition_epoch == self.partition_epoch and not self._may_be_as_before:
            return False
        self._followers = {
            replica: self._followers.get(replica, Follower()) for replica in replicas if replica != self.node_id
        }
        self._is_stored(isr, partition_epoch)
        return True

    def is_outdated(self, replica_id: int, broker_epoch: int) -> bool:
        """Whether a fetch is from an earlier registration of the follower than another fetch was: its offset is
        outdated."""
        follower = self._followers.get(replica_id)
        return follower is not None and UNKNOWN_BROKER_EPOCH < broker_epoch < follower.registration

    def follower(self, replica_id: int) -> Follower | None:
        """The state of a follower; None if it is no replica of this partition."""
        return self._followers.get(replica_id)

    @property
    def proposal(self) -> Proposal | None:
        """The proposal that is at the controller."""
        return self._proposal

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that are in the ISR, or may be by now: they determine the high watermark."""
        return self.isr if self._proposal is None else self.isr.union(self._proposal.isr)

    # --- the high watermark -----------------------------------------------------------------------

    def has_enough_in_sync(self, min_insync_replicas: int) -> bool:
        """Whether the ISR has `min.insync.replicas` members, or all replicas."""
        return len(self.isr) >= min(min_insync_replicas, len(self._followers) + 1)

    def high_watermark(
        self, own_offset: int, own_end_offset: int, now_ms: int, *, min_insync_replicas: int, lag_ms_max: int
    ) -> int:
        """The high watermark, UNKNOWN_OFFSET if it cannot be computed now. The high watermark never goes back: the
        caller keeps the greatest value. The leader's own log counts up to `own_offset`; it ends at `own_end_offset`.

        With fewer replicas in sync than `min.insync.replicas` nothing is committed (KIP-966). A replica that is not in
        the ISR but about to join it counts, too; otherwise it might never reach a high watermark that advances ahead of
        it.
        """
        if not self.has_enough_in_sync(min_insync_replicas):
            return UNKNOWN_OFFSET
        members = self.maximal_isr
        lowest = own_offset
        for replica_id, follower in self._followers.items():
            if follower.log_end_offset < lowest and (
                replica_id in members
                or self._is_about_to_join(replica_id, follower, own_end_offset, now_ms, lag_ms_max)
            ):
                lowest = follower.log_end_offset
        return lowest

    def is_waited_for(self, replica_id: int, own_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the high watermark waits for a replica: it is in the ISR, or about to join it."""
        follower = self._followers.get(replica_id)
        return replica_id in self.maximal_isr or (
            follower is not None and self._is_about_to_join(replica_id, follower, own_end_offset, now_ms, lag_ms_max)
        )

    def _is_about_to_join(
        self, replica_id: int, follower: Follower, own_end_offset: int, now_ms: int, lag_ms_max: int
    ) -> bool:
        return follower.has_caught_up(own_end_offset, now_ms, lag_ms_max) and self._is_eligible(
            replica_id, follower.registration
        )

    def low_watermark(self, own_log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """The lowest log start offset of the live replicas, for the DeleteRecords response."""
        others = (one.log_start_offset for replica, one in self._followers.items() if is_alive(replica))
        return min((own_log_start_offset, *others))

    # --- the ISR ----------------------------------------------------------------------------------

    def expansion(self, replica_id: int, high_watermark: int, now_ms: int) -> Proposal | None:
        """Propose to add a follower that has fetched to the ISR, if it may join: it has all committed records, and all
        records before this leader epoch, so that its log cannot diverge there."""
        follower = self._followers.get(replica_id)
        if (
            follower is None
            or self._proposal is not None
            or now_ms < self._rests_until_ms
            or replica_id in self.isr
            or follower.log_end_offset < max(high_watermark, self._start_offset)
            or not self._is_eligible(replica_id, follower.registration)
        ):
            return None
        return self._propose(self.isr | {replica_id})

    def shrinking(self, own_end_offset: int, now_ms: int, lag_ms_max: int) -> Proposal | None:
        """Propose to remove the replicas from the ISR that have lagged for longer than `replica.lag.time.max.ms`; None
        if there are none."""
        if self._proposal is not None:
            return None
        slow = {
            replica
            for replica in self.isr
            if (follower := self._followers.get(replica))
            and not follower.has_caught_up(own_end_offset, now_ms, lag_ms_max)
        }
        return self._propose(self.isr - slow) if slow else None

    def _propose(self, isr: Iterable[int]) -> Proposal:
        self._proposal = Proposal(tuple(sorted(isr)), self.leader_epoch, self.partition_epoch)
        return self._proposal

    def broker_epochs(self, isr: Iterable[int]) -> Mapping[int, int]:
        """The broker epochs with which the members of a proposed ISR fetch, for the controller to compare (KIP-903);
        UNKNOWN_BROKER_EPOCH for the leader itself, whose own is in the request, and for a replica that has not fetched
        yet."""
        return {
            replica: UNKNOWN_BROKER_EPOCH if follower is None else follower.registration
            for replica in isr
            for follower in (self._followers.get(replica),)
        }

    # --- responses of the controller --------------------------------------------------------------

    def stored(self, proposal: Proposal, isr: Iterable[int], leader_epoch: int, partition_epoch: int) -> bool:
        """Apply the state in an AlterPartition response; returns whether it is new. A late response, after the
        controller has sent a newer state in another way, is not."""
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        if proposal is not self._proposal and partition_epoch == self.partition_epoch:
            return False
        self._is_stored(isr, partition_epoch)
        return True

    def refused(self, proposal: Proposal, error: ErrorCode, now_ms: int) -> bool:
        """AlterPartition failed; returns whether to ask again. Until the outcome is certain the proposal stays: an
        earlier request whose response was lost may have stored it."""
        if proposal is not self._proposal:
            return False
        if error in FINAL_REFUSALS:
            self._proposal = None
            self._rests_until_ms = now_ms + REST_MS
            return False
        self._may_be_as_before = error in AS_BEFORE
        return error not in SUPERSEDED

    def _is_stored(self, isr: Iterable[int], partition_epoch: int) -> None:
        self.isr = frozenset(isr)
        self.partition_epoch = partition_epoch
        self._proposal = None
        self._may_be_as_before = False
