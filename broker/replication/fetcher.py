"""The partitions that this broker follows at one leader: builds the next Fetch request, and decides what a response
means for each log. No I/O, no clock, no futures.

A follower fetches from its log end offset and sends the leader epoch of its last record. The leader returns batches, or
the point where the two logs diverge (`diverging_epoch`, KIP-595); then the follower truncates its log there, never at a
high watermark (KIP-101, KIP-279), and fetches again. All of a response is compared with the request and with the latest
state from the controller, so that a late response changes nothing.

`FetcherLane` carries out the decisions.

Source: kafka.server.AbstractFetcherThread, ReplicaFetcherThread, RemoteLeaderEndPoint; clients' FetchSessionHandler.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

from barnabas.backoff import Backoff
from barnabas.storage.leader_epochs import UNDEFINED_OFFSET, LeaderEpochs
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from barnabas.wire.names import TopicId

FETCH_VERSION: Final = 17
"""The highest version of Kafka 3.9."""

FIRST_BACKOFF_MS: Final = 20
"""The delay of a partition after its first error: most errors pass as soon as the leader has learned from the
controller, too, that it leads."""

WORD_MS_MAX: Final = 1_000
"""The time after FENCED_LEADER_EPOCH in which the controller's request with the newer leader epoch is expected; later
it comes unexpectedly."""

UNKNOWN: Final = -1

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

PartitionId: TypeAlias = tuple[TopicId, int]


class FollowedLog(Protocol):
    """The part of a follower's log that the fetcher reads (`storage.log.PartitionLog`)."""

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record to be appended."""
        ...

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The log's leader epochs."""
        ...

    def end_offset_for_epoch(self, epoch: int, /) -> tuple[int, int]:
        """The last known epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Sizes and times of fetches; each is named after its key, `replica.fetch...`, or `replica.socket.timeout.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1_048_576
    response_max_bytes: int = 10_485_760
    backoff_ms: int = 1_000
    socket_timeout_ms: int = 30_000


class Stage(Enum):
    """The state of a followed partition."""

    FETCHING = 1  # it is part of each request
    DELAYED = 2  # after an error or by a throttle, until its delay is over
    BUSY = 3  # a decision is being carried out, and nothing is fetched meanwhile
    WAITING = 4  # for the controller's next request: the leader knows of a newer epoch, or the log has failed


@dataclass(slots=True, eq=False)
class Following:
    """One followed partition, in one leader epoch: a new epoch is another `Following`.

    `lag` is the number of committed records that the log lacks, as of the last response; UNKNOWN before the first. A
    member of the ISR lacks none.
    """

    topic: str
    topic_id: TopicId
    index: int
    leader_epoch: int
    log: FollowedLog
    backoff: Backoff
    stage: Stage = Stage.FETCHING
    delayed_until_ms: int = 0
    lag: int = UNKNOWN
    trouble: str = ""
    """The error of the last responses, as long as none could be used: the same error is logged once."""
    id: PartitionId = field(init=False)
    """The key by which requests name it."""

    def __post_init__(self) -> None:
        self.id = self.topic_id, self.index

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def is_news(self, trouble: str) -> bool:
        """Note an error; returns whether it differs from the one before."""
        before, self.trouble = self.trouble, trouble
        return trouble != before

    def position(self) -> "Position":
        """The offsets and epochs to fetch the partition with now."""
        log = self.log
        return Position(log.log_end_offset, log.log_start_offset, self.leader_epoch, log.leader_epochs.latest_epoch)


class Position(NamedTuple):
    """The request for one partition: records from `fetch_offset` on, which follow `last_fetched_epoch`."""

    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


# --- decisions


class Append(NamedTuple):
    """The response continues the log: append its records, if there are any, then move the high watermark and the log
    start offset; then call `appended` or `refused`."""

    following: Following
    data: PartitionData


class Truncate(NamedTuple):
    """The logs diverge: remove all records that reach to `offset` or beyond; then call `resumed`."""

    following: Following
    offset: int


class StartAnew(NamedTuple):
    """The leader no longer has the records that follow this log: remove all records and continue at `offset`; then call
    `resumed`."""

    following: Following
    offset: int


class AskOffsets(NamedTuple):
    """The leader has nothing at this log's end: request its log start offset and log end offset; then call
    `offsets_told`."""

    following: Following


class Mistake(NamedTuple):
    """An unexpected exception at one partition: call `refused`. The other partitions are processed all the same."""

    following: Following
    error: Exception


Decision: TypeAlias = Append | Truncate | StartAnew | AskOffsets | Mistake


def truncation_offset(log: FollowedLog, leader_epoch: int, leader_end_offset: int) -> int:
    """The offset at which to truncate a log that diverges from the leader's. `leader_epoch` is the leader's last epoch
    not above this log's; it ended at `leader_end_offset`.

    If this log does not know that epoch, its own end of the last epoch before it counts, too, and the leader is asked
    again (KIP-279). Source: AbstractFetcherThread.getOffsetTruncationState.
    """
    _, end_offset = log.end_offset_for_epoch(leader_epoch)
    known = log.log_end_offset if end_offset == UNDEFINED_OFFSET else end_offset
    return min(known, leader_end_offset, log.log_end_offset)


class Fetcher:
    """The partitions followed at one leader over one connection; one request is in flight at a time.

    In turn: `next_request`, then `answered` or `failed`. The decisions of `answered` are carried out, and reported
    back, in any order and at any time.

    Args:
        replica_id: this broker's id.
        broker_epoch: returns the epoch of its current registration (KIP-903).
        settings: sizes and times of fetches.
    """

    def __init__(self, replica_id: int, broker_epoch: Callable[[], int], settings: FetchSettings) -> None:
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._followed: dict[PartitionId, Following] = {}
        self._session = _Session()
        self._changed: dict[PartitionId, None] = {}
        """The partitions whose position may have changed, so that the cost of a request depends on the number of
        changes."""
        self._delayed: dict[PartitionId, bool] = {}
        """The delayed partitions, and whether a throttle delays them."""
        self._busy: dict[PartitionId, None] = {}
        self._fenced: dict[PartitionId, int] = {}
        """The partitions of which the leader knows a newer epoch, and until when the controller's request with that
        epoch is expected here."""
        self._by_lag: tuple[dict[PartitionId, None], dict[PartitionId, None]] = {}, {}
        """The partitions that lacked no committed records as of their last response, and those that did, or are said to
        (`lags`). A partition that received records moves to the end and is fetched last, so that all have their turn
        where there is too little for all, as with a throttle."""
        self._backoff = Backoff(FIRST_BACKOFF_MS, max(FIRST_BACKOFF_MS, settings.backoff_ms))
        self._paused_until_ms = 0
        self.is_waiting = False
        """Whether a request is in flight."""

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, partition: PartitionId) -> bool:
        return partition in self._followed

    def following(self, topic_id: TopicId, index: int) -> Following | None:
        """The state of a followed partition; None if it is not followed here."""
        return self._followed.get((topic_id, index))

    # --- requests of the controller -------------------------------------------------------------------

    def follow(self, topic: str, topic_id: TopicId, index: int, leader_epoch: int, log: FollowedLog) -> Following:
        """Follow a partition from its log end offset on. In an epoch that is known already nothing changes, unless the
        partition is WAITING (`given_up`)."""
        known = self._followed.get((topic_id, index))
        if (
            known is not None
            and known.leader_epoch == leader_epoch
            and known.log is log
            and known.stage is not Stage.WAITING
        ):
            return known
        longest_ms = max(FIRST_BACKOFF_MS, self._settings.backoff_ms)
        following = Following(topic, topic_id, index, leader_epoch, log, Backoff(FIRST_BACKOFF_MS, longest_ms))
        self._forget(following.id)
        self._followed[following.id] = following
        return following

    def unfollow(self, topic_id: TopicId, index: int) -> Following | None:
        """Stop following a partition; returns its former state."""
        self._forget((topic_id, index))
        return self._followed.pop((topic_id, index), None)

    def lags(self, following: Following) -> None:
        """Count a partition without a response yet among those that lack records: it is not in the ISR."""
        if self.is_current(following) and following.lag != 0:
            self._by_lag[1][following.id] = None

    def _forget(self, partition: PartitionId) -> None:
        for found in (self._delayed, self._busy, self._fenced, *self._by_lag):
            found.pop(partition, None)
        self._changed[partition] = None

    def fetching(self, *, caught_up: bool) -> list[Following]:
        """The partitions in stage FETCHING that lacked no committed records as of their last response; or those that
        did, or are said to."""
        partitions = self._by_lag[not caught_up]
        if not partitions:
            return []
        found = (self._followed[partition] for partition in partitions)
        return [following for following in found if following.stage is Stage.FETCHING]

    @property
    def max_lag(self) -> int:
        """The largest lag of a partition, in committed records that its log lacks, as of its last response."""
        return max(0, max((self._followed[partition].lag for partition in self._by_lag[1]), default=0))

    @property
    def given_up_count(self) -> int:
        """The number of partitions that are not fetched until the controller names them again."""
        return sum(following.stage is Stage.WAITING for following in self._followed.values())

    def is_current(self, following: Following) -> bool:
        """Whether a partition is still followed, in the same epoch."""
        return self._followed.get(following.id) is following

    # --- requests to the leader -------------------------------------------------------------------

    def next_request(self, now_ms: int) -> FetchRequest | None:
        """The next Fetch request; None while there is nothing to fetch, see `pause_ms`. After None, call this again
        after `follow` or once the result of a decision is reported."""
        assert not self.is_waiting
        if now_ms < self._paused_until_ms:
            return None
        self.end_delays(now_ms)
        session, settings = self._session, self._settings
        if session.epoch == _INITIAL_EPOCH:
            session.asked.clear()
            self._changed = dict.fromkeys((*self._by_lag[1], *self._followed))
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._replica_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
        )
        if self._fenced:
            self._fenced = {found: until_ms for found, until_ms in self._fenced.items() if until_ms > now_ms}
        if self._delayed or self._busy or self._fenced:
            request.max_wait_ms = min(request.max_wait_ms, self._soonest_ms(now_ms))
        self._add_changes(request)
        if not session.asked and not request.forgotten_topics_data:
            return None
        self.is_waiting = True
        return request

    def _add_changes(self, request: FetchRequest) -> None:
        """Add to a request the changes that its session does not have yet."""
        asked = self._session.asked
        topics: dict[TopicId, FetchTopic] = {}
        forgotten: dict[TopicId, ForgottenTopic] = {}
        for topic_id, index in self._changed:
            following = self._followed.get((topic_id, index))
            if following is None or following.stage is not Stage.FETCHING:
                if asked.pop((topic_id, index), None) is not None:
                    forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
                continue
            position = following.position()
            if asked.get((topic_id, index)) != position:
                asked[topic_id, index] = position
                topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(
                    FetchPartition(
                        partition=index,
                        current_leader_epoch=position.leader_epoch,
                        fetch_offset=position.fetch_offset,
                        last_fetched_epoch=position.last_fetched_epoch,
                        log_start_offset=position.log_start_offset,
                        partition_max_bytes=self._settings.max_bytes,
                    )
                )
        self._changed.clear()
        request.topics = list(topics.values())
        request.forgotten_topics_data = list(forgotten.values())

    def _soonest_ms(self, now_ms: int) -> int:
        """The time after which a partition may have to be fetched that is not part of this request. It cannot be
        fetched before the leader has responded, and it may be in the ISR, so that acknowledgements wait for it."""
        if self._busy or self._fenced:
            return FIRST_BACKOFF_MS
        until_ms = min(self._followed[found].delayed_until_ms for found in self._delayed)
        return max(FIRST_BACKOFF_MS, until_ms - now_ms)

    def pause_ms(self, now_ms: int) -> int | None:
        """The time to wait after `next_request` returned None, if nothing changes: 0 or more, None for an unlimited
        time."""
        until = [self._followed[found].delayed_until_ms for found in self._delayed]
        if not until and now_ms >= self._paused_until_ms:
            return None
        return max(0, self._paused_until_ms - now_ms, min(until, default=now_ms) - now_ms)

    def end_delays(self, now_ms: int, *, bytes_may_pass: bool = False) -> None:
        """Include the partitions whose delay is over in the next request. With `bytes_may_pass` all partitions that a
        throttle delays are included at once: otherwise the one with the longest delay would have no turn meanwhile."""
        over = [
            self._followed[found]
            for found, is_throttled in self._delayed.items()
            if (bytes_may_pass and is_throttled) or self._followed[found].delayed_until_ms <= now_ms
        ]
        for following in over:
            self._resume(following)

    # --- responses of the leader ------------------------------------------------------------------

    def failed(self, now_ms: int) -> None:
        """No response came: the connection could not be made, broke, or timed out. The leader's state of the session is
        unknown, so that all partitions are requested anew, after an exponential backoff."""
        self.is_waiting = False
        self._session.close()
        self._paused_until_ms = now_ms + self._backoff.next_ms()

    def answered(self, response: FetchResponse, now_ms: int) -> list[Decision]:
        """The decisions that follow from a response, by partition."""
        self.is_waiting = False
        if response.error_code:
            is_known = response.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
            if is_known and self._session.epoch != _INITIAL_EPOCH:
                self._session.forget(response.error_code)  # all partitions are requested anew at once
            else:
                self.failed(now_ms)
            return []
        self._backoff.reset()
        asked = self._session.asked
        decisions = []
        for topic in response.responses:
            for data in topic.partitions:
                following = self._followed.get((TopicId(topic.topic_id), data.partition_index))
                if following is None or following.stage is not Stage.FETCHING:
                    continue
                position = asked.get(following.id)
                if (
                    position is not None
                    and position.fetch_offset == following.log.log_end_offset
                    and position.leader_epoch == following.leader_epoch
                ):
                    try:
                        decision = self._decide(following, data, now_ms)
                    except Exception as error:  # noqa: BLE001 - it is reported where the decision is carried out
                        decision = Mistake(following, error)
                    if decision is not None:
                        decisions.append(decision)
        self._session.go_on(response.session_id)
        return decisions

    def _decide(self, following: Following, data: PartitionData, now_ms: int) -> Decision | None:
        error = data.error_code
        if error == ErrorCode.NONE:
            diverging = data.diverging_epoch
            if diverging.epoch < 0:
                return Append(following, data)
            if diverging.end_offset < 0:
                self.refused(following, now_ms)  # no log ends there
                return None
            self._hold(following, Stage.BUSY)
            return Truncate(following, truncation_offset(following.log, diverging.epoch, diverging.end_offset))
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._hold(following, Stage.BUSY)
            return AskOffsets(following)
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self.fenced(following, now_ms)
            return None
        # The broker does not know yet that it leads, or leads no longer; or it has a problem that may pass.
        self.refused(following, now_ms)
        return None

    # --- results of decisions ---------------------------------------------------------------------
    #
    # These methods do nothing if the partition is no longer followed, or is followed in another epoch. Callers check
    # `is_current` before they touch a log, for the same reason.

    def appended(self, following: Following, high_watermark: int, *, had_records: bool) -> None:
        """The records of a response are in the log. `high_watermark` is the leader's."""
        if self.is_current(following):
            following.lag = max(0, high_watermark - following.log.log_end_offset)
            lacks = following.lag > 0
            self._by_lag[not lacks].pop(following.id, None)
            if had_records:
                self._by_lag[lacks].pop(following.id, None)
            self._by_lag[lacks][following.id] = None
            self._resume(following)
            following.backoff.reset()
            following.trouble = ""

    def held(self, following: Following) -> None:
        """The records of a response are in the log, but have to be flushed before the next fetch: fetch no further
        until `resumed` is called."""
        if self.is_current(following):
            self._hold(following, Stage.BUSY)

    def resumed(self, following: Following) -> None:
        """The log was truncated, or has changed otherwise: continue from its present end."""
        if self.is_current(following):
            self._resume(following)

    def changed(self, following: Following) -> None:
        """The log start offset has moved without the leader; the next request tells the leader."""
        if self.is_current(following):
            self._changed[following.id] = None

    def offsets_told(
        self, following: Following, leader_start_offset: int, leader_end_offset: int, now_ms: int
    ) -> Decision | None:
        """Decide about a log whose end the leader does not have, when the leader's log reaches from
        `leader_start_offset` to `leader_end_offset`.

        Beyond the leader's end: an unclean election has lost the records there. Below its start: the following records
        have been deleted. In between: the problem has passed. No log starts or ends below 0, or ends before it starts.
        Source: AbstractFetcherThread.fetchOffsetAndTruncate.
        """
        if not self.is_current(following):
            return None
        end_offset = following.log.log_end_offset
        if not 0 <= leader_start_offset <= leader_end_offset:
            self.refused(following, now_ms)
            return None
        if leader_end_offset < end_offset:
            return Truncate(following, leader_end_offset)
        if leader_start_offset > end_offset:
            return StartAnew(following, leader_start_offset)
        self.refused(following, now_ms)
        return None

    def refused(self, following: Following, now_ms: int) -> None:
        """An error occurred that may pass, here or at the leader: fetch again after an exponential backoff."""
        if self.is_current(following):
            self._delay(following, now_ms + following.backoff.next_ms())

    def paused(self, following: Following, until_ms: int) -> None:
        """Delay a throttled partition until `until_ms`, or until `end_delays` is called with `bytes_may_pass`."""
        if self.is_current(following):
            self._delay(following, until_ms, is_throttled=True)

    def fenced(self, following: Following, now_ms: int) -> None:
        """The leader knows of a newer epoch: do not fetch until the controller sends it to this broker, too."""
        if self.is_current(following):
            self._hold(following, Stage.WAITING)
            self._fenced[following.id] = now_ms + min(WORD_MS_MAX, self._settings.backoff_ms)

    def given_up(self, following: Following) -> None:
        """Do not fetch a partition until the controller names it again."""
        if self.is_current(following):
            self._hold(following, Stage.WAITING)

    def _delay(self, following: Following, until_ms: int, *, is_throttled: bool = False) -> None:
        following.delayed_until_ms = until_ms
        self._hold(following, Stage.DELAYED)
        self._delayed[following.id] = is_throttled

    def _hold(self, following: Following, stage: Stage) -> None:
        following.stage = stage
        self._delayed.pop(following.id, None)
        if stage is Stage.BUSY:
            self._busy[following.id] = None
        else:
            self._busy.pop(following.id, None)
        self._changed[following.id] = None

    def _resume(self, following: Following) -> None:
        self._hold(following, Stage.FETCHING)


@dataclass(slots=True)
class _Session:
    """The leader's fetch session (KIP-227): with an epoch beyond the first, a request names only changes, and a
    response contains only news."""

    id: int = _NO_SESSION
    epoch: int = _INITIAL_EPOCH
    asked: dict[PartitionId, Position] = field(default_factory=dict)

    def go_on(self, told_id: int) -> None:
        """A request was answered. Without an id the leader has no room for a session, or the session became empty."""
        if told_id == _NO_SESSION:
            self.id, self.epoch = _NO_SESSION, _INITIAL_EPOCH
        else:
            self.id, self.epoch = told_id, 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def close(self) -> None:
        """Begin a new session in place of this one, if the leader still has it."""
        self.epoch = _INITIAL_EPOCH

    def forget(self, error: int) -> None:
        """Begin a new session in place of this one, which the leader has refused."""
        self.close()
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = _NO_SESSION
