"""What the leader of a partition knows of its followers, and decides by it: how far the partition is committed, who
joins and who leaves the in-sync replicas (ISR). No I/O, no clock, no futures.

A follower tells how far it is by what it fetches next: everything below its fetch offset is in its log. The leader
proposes another ISR to the controller (AlterPartition, KIP-497), one proposal at a time, and goes by the larger of both
until the controller has answered: a member that is to join counts at once for what is committed, one that is to leave
counts until it has left. So whoever the controller may elect next has everything that was ever committed.

Source: kafka.cluster.Partition (maybeIncrementLeaderHW, needsExpandIsr, needsShrinkIsr, submitAlterPartition), Replica.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.wire.errors import ErrorCode

UNKNOWN_OFFSET: Final = -1
UNKNOWN_BROKER_EPOCH: Final = -1
NEVER_MS: Final = -(1 << 64)
"""An instant that lies back longer than any `replica.lag.time.max.ms`."""

FINAL_REFUSALS: Final = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED))
"""Answers to AlterPartition after which the proposal is withdrawn: the controller has certainly not stored it."""

REST_MS: Final = 500
"""How long nobody joins after such a refusal: the follower fetches on, and each fetch would ask the same again."""

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
"""Answers after which the leader waits to be told of a state that it does not know yet. All others are asked again."""

AS_BEFORE: Final = frozenset(
    (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
)
"""Those of them after which the state may turn out to be the one that the leader knows: the controller had another
notion of the topic, as one has that finds its znode damaged. After the rest it is another one for sure, and what still
names the old one was on its way."""


@dataclass(slots=True)
class Heartbeat:
    """When a broker last fetched in a session of many partitions, and when before, and the registration that it has.
    Partitions of which it had everything, and which have not changed since, are not looked at, and share this."""

    fetched_ms: int
    before_ms: int = NEVER_MS
    broker_epoch: int = UNKNOWN_BROKER_EPOCH

    def beat(self, now_ms: int) -> None:
        """Note that the broker fetches now."""
        self.before_ms, self.fetched_ms = self.fetched_ms, now_ms


@dataclass(slots=True)
class Follower:
    """How far a follower is, as its fetches tell. Offsets are UNKNOWN_OFFSET before its first one in this epoch."""

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    caught_up_ms: int = NEVER_MS
    """When it last had everything that the leader had at that time."""
    fetched_ms: int = NEVER_MS
    end_offset_when_fetched: int = UNKNOWN_OFFSET
    """Where the leader's log ended at the follower's last fetch, at `fetched_ms`."""
    heartbeat: Heartbeat | None = None
    """Set when it had everything at its last fetch that told of this partition: it was so at each later one, too."""

    def fetched(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, own_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch of what begins at `fetch_offset`, when the leader's log ends at `own_end_offset`.

        One that never reaches the end, because more is appended meanwhile, has caught up too if it has reached what was
        the end at its fetch before (Replica.updateFetchStateOrThrow).
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
        """The broker's session is without this partition from now on: keep what its heartbeat told."""
        if self.heartbeat is not None:
            self.caught_up_ms = max(self.caught_up_ms, self.heartbeat.before_ms)
            self.broker_epoch = self.registration
            self.heartbeat = None

    @property
    def last_caught_up_ms(self) -> int:
        """When it last had everything, as far as its fetches have told."""
        return self.caught_up_ms if self.heartbeat is None else max(self.caught_up_ms, self.heartbeat.fetched_ms)

    @property
    def registration(self) -> int:
        """The broker epoch of its last fetch, which may not have looked at this partition."""
        return self.broker_epoch if self.heartbeat is None else max(self.broker_epoch, self.heartbeat.broker_epoch)

    def has_caught_up(self, own_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the follower counts as being in sync: it has everything, or had it within
        `replica.lag.time.max.ms`."""
        return self.log_end_offset == own_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max


class Proposal(NamedTuple):
    """An ISR that the controller is asked to store, for the state that the leader knows (AlterPartition)."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class Followers:
    """The other replicas of one partition that this broker leads, for one leader epoch.

    `isr` is what the controller has stored, as far as the leader knows, at `partition_epoch`. `is_eligible(id)` says
    whether a broker may join it: alive, not about to stop, and registered in the epoch that it fetches in (KIP-841).
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
        """`start_offset` is where this leader epoch begins; nobody joins the ISR before that."""
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
        """The controller says how the partition is, in the same leader epoch; whether that is news.

        What is no newer than the last answer to AlterPartition would undo it. What is known already is news after a
        refusal that left open what the state is: nothing was stored, and nobody asks for it any more.
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
        """Whether a fetch is of an earlier life of that follower than another fetch was: it tells what its log had."""
        follower = self._followers.get(replica_id)
        return follower is not None and UNKNOWN_BROKER_EPOCH < broker_epoch < follower.registration

    def follower(self, replica_id: int) -> Follower | None:
        """What is known of one; None if it is no replica of this partition."""
        return self._followers.get(replica_id)

    @property
    def proposal(self) -> Proposal | None:
        """What the controller is being asked."""
        return self._proposal

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The brokers that are in the ISR, or may be by now: by these is decided what is committed."""
        return self.isr if self._proposal is None else self.isr.union(self._proposal.isr)

    # --- what is committed ------------------------------------------------------------------------

    def has_enough_in_sync(self, min_insync_replicas: int) -> bool:
        """Whether the ISR has `min.insync.replicas` members, or all that there are."""
        return len(self.isr) >= min(min_insync_replicas, len(self._followers) + 1)

    def high_watermark(
        self, own_offset: int, own_end_offset: int, now_ms: int, *, min_insync_replicas: int, lag_ms_max: int
    ) -> int:
        """How far the partition is committed, UNKNOWN_OFFSET if that cannot be said now. It never goes back: the caller
        keeps the greatest. `own_offset` is up to where the leader counts its own log, which ends at `own_end_offset`.

        With fewer replicas in sync than `min.insync.replicas` nothing is committed (KIP-966). Who is not in the ISR but
        about to join is waited for, or it would never reach a high watermark that runs before it.
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
        """Whether nothing is committed that a replica lacks: it is in the ISR, or about to join it."""
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
        """The lowest log start offset of the live replicas: what DeleteRecords answers."""
        others = (one.log_start_offset for replica, one in self._followers.items() if is_alive(replica))
        return min((own_log_start_offset, *others))

    # --- who is in sync ---------------------------------------------------------------------------

    def expansion(self, replica_id: int, high_watermark: int, now_ms: int) -> Proposal | None:
        """The ISR with a follower that has fetched, if it belongs into it: it has everything that is committed, and
        everything from before this leader epoch, so that it cannot have anything else there."""
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
        """The ISR without those that have fallen behind for longer than `replica.lag.time.max.ms`, if there are any."""
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
        """The registrations in which the members of a proposed ISR fetch, for the controller to compare (KIP-903);
        UNKNOWN_BROKER_EPOCH for the leader itself, whose own the request tells, and for who has not fetched yet."""
        return {
            replica: UNKNOWN_BROKER_EPOCH if follower is None else follower.registration
            for replica in isr
            for follower in (self._followers.get(replica),)
        }

    # --- what the controller answers --------------------------------------------------------------

    def stored(self, proposal: Proposal, isr: Iterable[int], leader_epoch: int, partition_epoch: int) -> bool:
        """AlterPartition was answered with a state; whether that is news. What comes late, after the controller has
        told more in another way, is none."""
        if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        if proposal is not self._proposal and partition_epoch == self.partition_epoch:
            return False
        self._is_stored(isr, partition_epoch)
        return True

    def refused(self, proposal: Proposal, error: ErrorCode, now_ms: int) -> bool:
        """AlterPartition was refused; whether it is to be asked again. Until something certain is known the proposal
        stays: it may have been stored by a request whose answer was lost."""
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
