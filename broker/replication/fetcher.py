"""The partitions that this broker follows at one leader: what it asks the leader next, and what an answer means for
each of their logs. No I/O, no clock, no futures.

A follower asks for what follows its own log's end, and says which leader epoch wrote the last of it. The leader answers
with batches, or with the place where the two logs part (`diverging_epoch`, KIP-595): then the follower cuts its log
there, never at a high watermark (KIP-101, KIP-279), and asks again. Everything that an answer says is compared with
what was asked and with what the controller said last, so that a late answer changes nothing.

`FetcherManager` carries out what is decided here.

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
"""How long a partition waits after its first error: most pass as soon as the leader has been told, too, that it is."""

WORD_MS_MAX: Final = 1_000
"""How long the controller's word of a new leader epoch is expected when the leader knows of it; later it comes as a
surprise."""

UNKNOWN: Final = -1

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

PartitionId: TypeAlias = tuple[TopicId, int]


class FollowedLog(Protocol):
    """What the fetcher looks at in a follower's log (`storage.log.PartitionLog`)."""

    @property
    def log_start_offset(self) -> int:
        """The first offset of the log."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Where the log ends: the offset of what is appended next."""
        ...

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The log's leader epochs."""
        ...

    def end_offset_for_epoch(self, epoch: int, /) -> tuple[int, int]:
        """The last known epoch not above `epoch` and where it ended; (-1, -1) if that cannot be said."""
        ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How much is asked for and how long it may take; each is named after its key, `replica.fetch...`, or
    `replica.socket.timeout.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1_048_576
    response_max_bytes: int = 10_485_760
    backoff_ms: int = 1_000
    socket_timeout_ms: int = 30_000


class Stage(Enum):
    """What becomes of a followed partition next."""

    FETCHING = 1  # it is part of each request
    DELAYED = 2  # after an error, until its delay is over
    BUSY = 3  # something that was decided is being carried out, and nothing is asked meanwhile
    WAITING = 4  # for the controller's next word: the leader knows of a newer epoch, or the log has failed


@dataclass(slots=True, eq=False)
class Following:
    """One partition that is followed, in one leader epoch: a new epoch is another `Following`.

    `lag` is how many records of what is committed the log lacks, as of the last answer; UNKNOWN before the first. Who
    is in the ISR lacks none.
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
    """What was wrong with the last answers, as long as none could be used: the same is told once."""
    id: PartitionId = field(init=False)
    """How requests name it."""

    def __post_init__(self) -> None:
        self.id = self.topic_id, self.index

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def is_news(self, trouble: str) -> bool:
        """Note what is wrong; whether it is something else than before."""
        before, self.trouble = self.trouble, trouble
        return trouble != before

    def position(self) -> "Position":
        """What is to be asked for the partition now."""
        log = self.log
        return Position(log.log_end_offset, log.log_start_offset, self.leader_epoch, log.leader_epochs.latest_epoch)


class Position(NamedTuple):
    """What is asked for one partition: everything from `fetch_offset` on, which comes after `last_fetched_epoch`."""

    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


# --- what is decided


class Append(NamedTuple):
    """The answer continues the log: append its records, if there are any, then move the high watermark and the log's
    start; then tell `appended` or `refused`."""

    following: Following
    data: PartitionData


class Truncate(NamedTuple):
    """The logs part: remove everything that reaches to `offset` or beyond; then tell `resumed`."""

    following: Following
    offset: int


class StartAnew(NamedTuple):
    """The leader no longer has what follows this log: remove all of it and go on at `offset`; then tell `resumed`."""

    following: Following
    offset: int


class AskOffsets(NamedTuple):
    """The leader has nothing at this log's end: ask it where its log starts and ends; then tell `offsets_told`."""

    following: Following


class Mistake(NamedTuple):
    """An error that nobody foresaw at one partition: tell `refused`. The others get their answers all the same."""

    following: Following
    error: Exception


Decision: TypeAlias = Append | Truncate | StartAnew | AskOffsets | Mistake


def truncation_offset(log: FollowedLog, leader_epoch: int, leader_end_offset: int) -> int:
    """Where to cut a log that parted from the leader's, whose last epoch not above this log's is `leader_epoch` and
    ended at `leader_end_offset`.

    If this log does not know that epoch, its own end of the last one before it counts, too, and the leader is asked
    again (KIP-279). Source: AbstractFetcherThread.getOffsetTruncationState.
    """
    _, end_offset = log.end_offset_for_epoch(leader_epoch)
    known = log.log_end_offset if end_offset == UNDEFINED_OFFSET else end_offset
    return min(known, leader_end_offset, log.log_end_offset)


class Fetcher:
    """The partitions that are followed at one leader over one connection; one request is under way at a time.

    In turn: `next_request`, then `answered` or `failed`. What `answered` decided is carried out, and told, in any order
    and at any time.

    Args:
        replica_id: this broker's id.
        broker_epoch: the epoch of its registration, as it is now (KIP-903).
        settings: how much is asked for.
    """

    def __init__(self, replica_id: int, broker_epoch: Callable[[], int], settings: FetchSettings) -> None:
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._followed: dict[PartitionId, Following] = {}
        self._session = _Session()
        self._changed: dict[PartitionId, None] = {}
        """What may have to be asked otherwise than before, so that a request costs what has changed."""
        self._delayed: dict[PartitionId, bool] = {}
        """Those that are asked for later, and whether by a throttle."""
        self._busy: dict[PartitionId, None] = {}
        self._fenced: dict[PartitionId, int] = {}
        """Those of which the leader was told a newer epoch, as this broker will be in a moment, and until when that is
        expected."""
        self._by_lag: tuple[dict[PartitionId, None], dict[PartitionId, None]] = {}, {}
        """Who lacked nothing that is committed, and who did, as of their last answers, or is said to (`lags`). Who got
        records last comes last, and is asked for last: so all have their turn where there is too little for all, as
        with a throttle."""
        self._backoff = Backoff(FIRST_BACKOFF_MS, max(FIRST_BACKOFF_MS, settings.backoff_ms))
        self._paused_until_ms = 0
        self.is_waiting = False
        """Whether a request is under way."""

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, partition: PartitionId) -> bool:
        return partition in self._followed

    def following(self, topic_id: TopicId, index: int) -> Following | None:
        """How a partition is getting on; None if it is not followed here."""
        return self._followed.get((topic_id, index))

    # --- what the controller tells --------------------------------------------------------------------

    def follow(self, topic: str, topic_id: TopicId, index: int, leader_epoch: int, log: FollowedLog) -> Following:
        """Follow a partition from its log's end on. In an epoch that is known already nothing changes, unless
        nothing was asked for the partition any more (`given_up`)."""
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
        """Follow a partition no longer; what was followed."""
        self._forget((topic_id, index))
        return self._followed.pop((topic_id, index), None)

    def lags(self, following: Following) -> None:
        """Count a partition that has no answer yet among those that lack something: it is not in the ISR."""
        if self.is_current(following) and following.lag != 0:
            self._by_lag[1][following.id] = None

    def _forget(self, partition: PartitionId) -> None:
        for found in (self._delayed, self._busy, self._fenced, *self._by_lag):
            found.pop(partition, None)
        self._changed[partition] = None

    def fetching(self, *, caught_up: bool) -> list[Following]:
        """Those that are asked for with each request and lacked nothing that is committed, as of their last answers; or
        those that did, or are said to."""
        partitions = self._by_lag[not caught_up]
        if not partitions:
            return []
        found = (self._followed[partition] for partition in partitions)
        return [following for following in found if following.stage is Stage.FETCHING]

    @property
    def max_lag(self) -> int:
        """How many records of what is committed the log lacks that lacks most, as of the last answers."""
        return max(0, max((self._followed[partition].lag for partition in self._by_lag[1]), default=0))

    @property
    def given_up_count(self) -> int:
        """How many partitions are asked for no more until the controller tells of them again."""
        return sum(following.stage is Stage.WAITING for following in self._followed.values())

    def is_current(self, following: Following) -> bool:
        """Whether a partition is still followed, in the same epoch."""
        return self._followed.get(following.id) is following

    # --- asking -----------------------------------------------------------------------------------

    def next_request(self, now_ms: int) -> FetchRequest | None:
        """What to ask the leader; None while there is nothing to ask, see `pause_ms`. After None, `follow` and what is
        told of decisions make it worth asking again."""
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
        """Put into a request what its session does not know yet."""
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
        """How soon a partition may have to be asked for that is none of this request. Until the leader has answered it
        cannot be, and it may be in the ISR, so that acknowledgements wait for it."""
        if self._busy or self._fenced:
            return FIRST_BACKOFF_MS
        until_ms = min(self._followed[found].delayed_until_ms for found in self._delayed)
        return max(FIRST_BACKOFF_MS, until_ms - now_ms)

    def pause_ms(self, now_ms: int) -> int | None:
        """How long to wait after `next_request` was None, if nothing changes: 0 or more, None for as long as it
        takes."""
        until = [self._followed[found].delayed_until_ms for found in self._delayed]
        if not until and now_ms >= self._paused_until_ms:
            return None
        return max(0, self._paused_until_ms - now_ms, min(until, default=now_ms) - now_ms)

    def end_delays(self, now_ms: int, *, bytes_may_pass: bool = False) -> None:
        """Have partitions whose delay is over be part of the next request. Where `bytes_may_pass`, all that a throttle
        has held up are, at once: who was to wait longest would have no turn meanwhile."""
        over = [
            self._followed[found]
            for found, is_throttled in self._delayed.items()
            if (bytes_may_pass and is_throttled) or self._followed[found].delayed_until_ms <= now_ms
        ]
        for following in over:
            self._resume(following)

    # --- what comes back --------------------------------------------------------------------------

    def failed(self, now_ms: int) -> None:
        """No answer came: the connection could not be made, broke, or took too long. Nobody knows what the leader has
        of the session, so that everything is asked anew, after a while that grows."""
        self.is_waiting = False
        self._session.close()
        self._paused_until_ms = now_ms + self._backoff.next_ms()

    def answered(self, response: FetchResponse, now_ms: int) -> list[Decision]:
        """What is to be done for which partition, now that the leader has answered."""
        self.is_waiting = False
        if response.error_code:
            is_known = response.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
            if is_known and self._session.epoch != _INITIAL_EPOCH:
                self._session.forget(response.error_code)  # asked anew at once
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
                    except Exception as error:  # noqa: BLE001 - told where it is carried out
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
        # The leader has not been told yet that it leads, or leads no more; or something is wrong with it that may pass.
        self.refused(following, now_ms)
        return None

    # --- what came of a decision ------------------------------------------------------------------
    #
    # Nothing happens where the partition is not followed any more, or in another epoch: who asks `is_current` before
    # it touches a log does not do too much either.

    def appended(self, following: Following, high_watermark: int, *, had_records: bool) -> None:
        """What an answer held is in the log. `high_watermark` is the leader's."""
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
        """What an answer held is in the log, but may not be asked beyond before `resumed` is told: it has to reach the
        disk first."""
        if self.is_current(following):
            self._hold(following, Stage.BUSY)

    def resumed(self, following: Following) -> None:
        """The log was truncated, or has changed otherwise: go on from where it ends now."""
        if self.is_current(following):
            self._resume(following)

    def changed(self, following: Following) -> None:
        """The log's start has moved by itself, of which the next request tells the leader."""
        if self.is_current(following):
            self._changed[following.id] = None

    def offsets_told(
        self, following: Following, leader_start_offset: int, leader_end_offset: int, now_ms: int
    ) -> Decision | None:
        """What to do about a log whose end the leader does not have, when the leader's log reaches from
        `leader_start_offset` to `leader_end_offset`.

        Beyond the leader's end: an unclean election has lost what comes there. Below its start: what follows has been
        deleted. In between: it has passed. No log reaches from or to before 0, or ends before it starts. Source:
        AbstractFetcherThread.fetchOffsetAndTruncate.
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
        """Something went wrong that may pass, here or at the leader: ask again after a while that grows."""
        if self.is_current(following):
            self._delay(following, now_ms + following.backoff.next_ms())

    def paused(self, following: Following, until_ms: int) -> None:
        """Ask for a partition that is throttled no sooner than `until_ms`, or when `end_delays` hears that bytes may
        pass."""
        if self.is_current(following):
            self._delay(following, until_ms, is_throttled=True)

    def fenced(self, following: Following, now_ms: int) -> None:
        """The leader knows of a newer epoch: ask no more until the controller tells of it here, too."""
        if self.is_current(following):
            self._hold(following, Stage.WAITING)
            self._fenced[following.id] = now_ms + min(WORD_MS_MAX, self._settings.backoff_ms)

    def given_up(self, following: Following) -> None:
        """Ask for a partition no more until the controller tells of it again."""
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
    """The leader's memory of what it is asked (KIP-227): with an epoch beyond the first, a request names only what has
    changed, and an answer only what is new."""

    id: int = _NO_SESSION
    epoch: int = _INITIAL_EPOCH
    asked: dict[PartitionId, Position] = field(default_factory=dict)

    def go_on(self, told_id: int) -> None:
        """A request was answered. With no id the leader has no room for a session, or the session became empty."""
        if told_id == _NO_SESSION:
            self.id, self.epoch = _NO_SESSION, _INITIAL_EPOCH
        else:
            self.id, self.epoch = told_id, 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def close(self) -> None:
        """Begin a new session in the place of this one, if the leader still has it."""
        self.epoch = _INITIAL_EPOCH

    def forget(self, error: int) -> None:
        """Begin a new session in the place of this one, which the leader has refused."""
        self.close()
        if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.id = _NO_SESSION
