"""A follower's requests to its leader, and its processing of the responses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.broker.replication.fetcher import (
    FIRST_BACKOFF_MS,
    WORD_MS_MAX,
    Append,
    AskOffsets,
    Decision,
    Fetcher,
    FetchSettings,
    Following,
    Stage,
    StartAnew,
    Truncate,
    truncation_offset,
)
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.fetch import EpochEndOffset, FetchPartition, FetchRequest, FetchResponse
from barnabas.wire.names import TopicId
from tests.broker.replication.model_log import ModelLeader, ModelLog, carry_out, common_prefix

REPLICA_ID, BROKER_EPOCH = 2, 40
TOPIC_ID, OTHER_ID = TopicId(bytes(range(1, 17))), TopicId(bytes(range(2, 18)))
EPOCH = 5
NOW_MS = 1_000_000


class Pair:
    """A fetcher and its leader."""

    def __init__(self, **limits: int) -> None:
        self.fetcher = Fetcher(REPLICA_ID, lambda: BROKER_EPOCH, FetchSettings(**limits))
        self.leader = ModelLeader(EPOCH)
        self.now_ms = NOW_MS

    def follow(self, own: ModelLog, leaders: ModelLog, index: int = 0, epoch: int = EPOCH) -> Following:
        self.leader.logs[TOPIC_ID, index] = leaders
        return self.fetcher.follow("topic", TOPIC_ID, index, epoch, own)

    def ask(self) -> FetchRequest:
        request = self.fetcher.next_request(self.now_ms)
        assert request is not None
        return request

    def round(self) -> list[Decision]:
        """One request and its response; returns the decisions."""
        return self.fetcher.answered(self.leader.answer(self.ask()), self.now_ms)

    def run(self, rounds: int = 1) -> list[Decision]:
        """Rounds whose decisions are executed; returns the decisions."""
        done = []
        for _ in range(rounds):
            for decision in self.round():
                following: Decision | None = decision
                while following is not None:
                    done.append(following)
                    following = carry_out(self.fetcher, following, self.leader, self.now_ms)
        return done


def asked(request: FetchRequest) -> dict[int, FetchPartition]:
    return {found.partition: found for topic in request.topics for found in topic.partitions}


def forgotten(request: FetchRequest) -> list[tuple[bytes, int]]:
    return [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]


# --- asking


def test_the_first_fetch_names_position_epochs_and_limits() -> None:
    pair = Pair(wait_max_ms=100, min_bytes=2, max_bytes=3, response_max_bytes=4)
    pair.follow(ModelLog(1, 3, 3), ModelLog())
    request = pair.ask()
    state = request.replica_state
    assert (state.replica_id, state.replica_epoch) == (REPLICA_ID, BROKER_EPOCH)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (100, 2, 4)
    assert (request.session_id, request.session_epoch) == (0, 0)
    found = asked(request)[0]
    assert (found.fetch_offset, found.last_fetched_epoch, found.current_leader_epoch) == (3, 3, EPOCH)
    assert (found.log_start_offset, found.partition_max_bytes) == (0, 3)


def test_a_log_without_records_has_no_last_epoch() -> None:
    pair = Pair()
    pair.follow(ModelLog(start_offset=8), ModelLog())
    found = asked(pair.ask())[0]
    assert (found.fetch_offset, found.log_start_offset, found.last_fetched_epoch) == (8, 8, -1)


def test_nothing_followed_is_nothing_asked() -> None:
    pair = Pair()
    assert pair.fetcher.next_request(NOW_MS) is None
    assert pair.fetcher.pause_ms(NOW_MS) is None


def test_a_session_is_told_only_what_has_changed() -> None:
    pair = Pair()
    first, second = ModelLog(), ModelLog()
    pair.follow(first, ModelLog(1, 1, 1), 0)
    pair.follow(second, ModelLog(), 1)
    assert [type(found) for found in pair.run()] == [Append, Append]
    assert len(first.records) == 2
    request = pair.ask()
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert {index: found.fetch_offset for index, found in asked(request).items()} == {0: 2}
    (decision,) = pair.fetcher.answered(pair.leader.answer(request), NOW_MS)
    carry_out(pair.fetcher, decision, pair.leader)
    request = pair.ask()
    assert {index: found.fetch_offset for index, found in asked(request).items()} == {0: 3}
    assert pair.fetcher.answered(pair.leader.answer(request), NOW_MS) == []
    assert pair.ask().topics == []


def test_one_without_room_for_a_session_is_asked_all_each_time() -> None:
    pair = Pair()
    pair.leader.sessions = type(pair.leader.sessions)(0, lambda: 1)
    pair.follow(ModelLog(), ModelLog(1), 0)
    pair.follow(ModelLog(), ModelLog(), 1)
    pair.run(3)
    request = pair.ask()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert set(asked(request)) == {0, 1}


def test_partitions_that_are_no_longer_followed_are_forgotten() -> None:
    pair = Pair()
    pair.follow(ModelLog(), ModelLog(), 0)
    pair.follow(ModelLog(), ModelLog(), 1)
    pair.run()
    assert pair.fetcher.unfollow(TOPIC_ID, 1) is not None
    assert pair.fetcher.unfollow(TOPIC_ID, 1) is None
    request = pair.ask()
    assert (asked(request), forgotten(request)) == ({}, [(TOPIC_ID, 1)])
    pair.fetcher.answered(pair.leader.answer(request), NOW_MS)
    assert not forgotten(pair.ask())


def test_the_last_one_is_forgotten_with_its_session() -> None:
    pair = Pair()
    pair.follow(ModelLog(), ModelLog(), 0)
    pair.run()
    pair.fetcher.unfollow(TOPIC_ID, 0)
    pair.run()
    assert not len(pair.leader.sessions)
    assert pair.fetcher.next_request(NOW_MS) is None
    pair.follow(ModelLog(), ModelLog(1), 0)
    assert [type(found) for found in pair.run()] == [Append]


def test_a_topic_that_was_made_anew_is_another() -> None:
    pair = Pair()
    pair.follow(ModelLog(1), ModelLog(1), 0)
    pair.run()
    pair.fetcher.unfollow(TOPIC_ID, 0)
    pair.leader.logs[OTHER_ID, 0] = ModelLog(2)
    pair.fetcher.follow("topic", OTHER_ID, 0, EPOCH, ModelLog())
    request = pair.ask()
    assert [topic.topic_id for topic in request.topics] == [OTHER_ID]
    assert forgotten(request) == [(TOPIC_ID, 0)]


def test_a_log_that_starts_later_is_told() -> None:
    pair = Pair()
    own = ModelLog(1, 1)
    following = pair.follow(own, ModelLog(1, 1))
    pair.run()
    own.delete_before(1)
    pair.fetcher.changed(following)
    assert asked(pair.ask())[0].log_start_offset == 1


def test_in_the_same_epoch_a_word_changes_nothing() -> None:
    pair = Pair()
    own = ModelLog()
    following = pair.follow(own, ModelLog(1))
    assert pair.follow(own, ModelLog(1)) is following
    assert pair.follow(own, ModelLog(1), epoch=EPOCH + 1) is not following
    assert not pair.fetcher.is_current(following)


# --- what comes back


def test_records_then_the_high_watermark_and_the_start() -> None:
    pair = Pair()
    own, leaders = ModelLog(), ModelLog(1, 1, 4)
    leaders.high_watermark = 2
    leaders.log_start_offset = 0
    following = pair.follow(own, leaders)
    pair.run()
    assert (own.high_watermark, following.lag) == (2, 0)
    leaders.high_watermark = 3
    pair.run(2)
    assert own.records == leaders.records
    assert own.high_watermark == 3


def test_the_lag_counts_what_is_committed_and_missing() -> None:
    pair = Pair()
    leaders = ModelLog(1, 1, 1, 1, 1)
    leaders.high_watermark = 4
    following = pair.follow(ModelLog(), leaders)
    assert following.lag == -1
    pair.run()
    assert following.lag == 2
    pair.run()
    assert following.lag == 0


def test_lagging_partitions_are_known_without_a_full_scan() -> None:
    pair = Pair()
    leaders = ModelLog(1, 1, 1)
    leaders.high_watermark = 3
    first, second = pair.follow(ModelLog(), leaders, 0), pair.follow(ModelLog(), ModelLog(), 1)
    fetcher = pair.fetcher
    assert fetcher.fetching(caught_up=True) == fetcher.fetching(caught_up=False) == []
    pair.run()
    assert (fetcher.fetching(caught_up=True), fetcher.fetching(caught_up=False)) == ([second], [first])
    assert fetcher.max_lag == 1
    pair.run()
    assert fetcher.max_lag == 0
    assert (fetcher.fetching(caught_up=True), fetcher.fetching(caught_up=False)) == ([second, first], [])
    fetcher.held(second)
    assert fetcher.fetching(caught_up=True) == [first]
    fetcher.unfollow(TOPIC_ID, 0)
    assert fetcher.fetching(caught_up=True) == []


def test_the_partition_that_got_records_last_is_fetched_last() -> None:
    """The leader serves partitions in the order of the request. A throttle delays all of them at once, which ends the
    session; then one of them has records. All partitions have their turn."""
    pair = Pair()
    followed = [pair.follow(ModelLog(), ModelLog(1, 1, 1), index) for index in range(3)]
    for following in followed:
        pair.fetcher.lags(following)
    turns = []
    for _ in range(6):
        for following in pair.fetcher.fetching(caught_up=False):
            pair.fetcher.paused(following, pair.now_ms + 1)
        if (request := pair.fetcher.next_request(pair.now_ms)) is not None:
            assert len(forgotten(request)) == 3
            pair.fetcher.answered(FetchResponse(session_id=0), pair.now_ms)
        pair.now_ms += 1
        request = pair.ask()
        assert request.session_epoch == 0
        first, *others = asked(request)
        turns.append(first)
        pair.fetcher.answered(FetchResponse(session_id=7), pair.now_ms)
        for index in (first, *others):  # the answer has all of them, and records of the first
            pair.fetcher.appended(followed[index], 5, had_records=index == first)
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_partition_lags_until_a_response_says_otherwise() -> None:
    pair = Pair()
    first, second = pair.follow(ModelLog(), ModelLog(), 0), pair.follow(ModelLog(), ModelLog(), 1)
    fetcher = pair.fetcher
    fetcher.lags(first)
    assert fetcher.fetching(caught_up=False) == [first]
    assert fetcher.max_lag == 0, "nobody knows how much"
    pair.run()
    assert fetcher.fetching(caught_up=False) == []
    fetcher.lags(first)
    assert (fetcher.fetching(caught_up=True), fetcher.fetching(caught_up=False)) == ([first, second], [])


def test_a_late_answer_changes_nothing() -> None:
    """The controller changed the role, or the log changed, while the response was under way."""
    pair = Pair()
    own = ModelLog()
    pair.follow(own, ModelLog(1))
    response = pair.leader.answer(pair.ask())
    pair.follow(own, ModelLog(1), epoch=EPOCH + 1)
    assert pair.fetcher.answered(response, NOW_MS) == []
    pair.leader.epoch = EPOCH + 1
    response = pair.leader.answer(pair.ask())
    own.append(1)
    assert pair.fetcher.answered(response, NOW_MS) == []
    response = pair.leader.answer(pair.ask())
    pair.fetcher.unfollow(TOPIC_ID, 0)
    assert pair.fetcher.answered(response, NOW_MS) == []


def test_divergent_logs_are_truncated_by_epoch() -> None:
    """They are never truncated at the high watermark."""
    pair = Pair()
    own = ModelLog(1, 1, 2, 2)
    own.high_watermark = 0
    leaders = ModelLog(1, 1, 2, 5)
    pair.follow(own, leaders)
    (cut,) = pair.run()
    assert isinstance(cut, Truncate)
    assert cut.offset == 3
    pair.run()
    assert own.records == leaders.records


def test_epochs_that_the_other_does_not_know_are_asked_again() -> None:
    """KIP-279: the leader's last epoch is below the follower's, and the follower's log has another epoch in between."""
    pair = Pair()
    own, leaders = ModelLog(1, 1, 3, 3, 3), ModelLog(1, 1, 2, 2, 4)
    pair.follow(own, leaders)
    assert [found.offset for found in pair.run() if isinstance(found, Truncate)] == [2]
    pair.run(2)
    assert own.records == leaders.records


def test_an_epoch_in_which_nothing_was_written_is_dropped() -> None:
    """This broker led, and wrote nothing: its log is a prefix, but has an epoch that the leader does not know."""
    pair = Pair()
    own, leaders = ModelLog(1, 1), ModelLog(1, 1, 5)
    own.leader_epochs.assign(4, 2)
    pair.follow(own, leaders)
    assert [type(found) for found in pair.run(2)] == [Truncate, Append]
    assert own.records == leaders.records


def test_nothing_is_asked_while_a_log_is_cut() -> None:
    pair = Pair()
    following = pair.follow(ModelLog(1, 2), ModelLog(1, 3))
    pair.follow(ModelLog(), ModelLog(), 1)
    cut, _ = pair.round()
    request = pair.ask()
    assert following.stage is Stage.BUSY
    assert forgotten(request) == [(TOPIC_ID, 0)]
    pair.fetcher.answered(pair.leader.answer(request), NOW_MS)
    carry_out(pair.fetcher, cut, pair.leader)
    assert asked(pair.ask())[0].fetch_offset == 1


def test_a_cut_of_an_earlier_epoch_does_not_resume_the_later_one() -> None:
    pair = Pair()
    own = ModelLog(1, 2)
    pair.follow(own, ModelLog(1, 3))
    (cut,) = pair.round()
    later = pair.follow(own, ModelLog(1, 3), epoch=EPOCH + 1)
    pair.fetcher.refused(later, NOW_MS)
    pair.fetcher.resumed(cut.following)
    assert later.stage is Stage.DELAYED


def test_beyond_the_leaders_end_the_log_is_cut() -> None:
    """An unclean election. The leader's epochs do not help, since this log has none."""
    pair = Pair()
    own, leaders = ModelLog(start_offset=9), ModelLog(5, 5)
    pair.follow(own, leaders)
    (ask,) = pair.round()
    assert isinstance(ask, AskOffsets)
    cut = carry_out(pair.fetcher, ask, pair.leader)
    assert isinstance(cut, Truncate)
    assert cut.offset == 2


def test_below_the_leaders_start_the_log_begins_anew() -> None:
    pair = Pair()
    own, leaders = ModelLog(1), ModelLog(1, 1, 1, 2, 2)
    leaders.high_watermark = 5
    leaders.delete_before(4)
    pair.follow(own, leaders)
    assert [type(found) for found in pair.run()] == [AskOffsets, StartAnew]
    pair.run()
    assert own.records == [(4, 2)]


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (-(2**63), 2**62), (9, 5), (-5, -1)])
def test_a_leaders_log_that_cannot_be_leaves_the_own_one_alone(start: int, end: int) -> None:
    """A log start offset below 0 made the follower create files of that name, many times a second."""
    pair = Pair()
    following = pair.follow(ModelLog(1, 1), ModelLog(1))
    pair.ask()
    following.stage = Stage.BUSY
    assert pair.fetcher.offsets_told(following, start, end, NOW_MS) is None
    assert following.stage is Stage.DELAYED


def test_logs_do_not_part_before_0() -> None:
    pair = Pair()
    following = pair.follow(ModelLog(1, 1), ModelLog(2, 2, 2))
    answer = pair.leader.answer(pair.ask())
    answer.responses[0].partitions[0].diverging_epoch = EpochEndOffset(epoch=1, end_offset=-1)
    assert pair.fetcher.answered(answer, NOW_MS) == []
    assert following.stage is Stage.DELAYED


def test_a_leader_that_contradicts_itself_is_asked_again_later() -> None:
    pair = Pair()
    following = pair.follow(ModelLog(1), ModelLog(1))
    pair.leader.errors[following.id] = ErrorCode.OFFSET_OUT_OF_RANGE
    pair.run()
    assert following.stage is Stage.DELAYED
    assert pair.fetcher.pause_ms(NOW_MS) == FIRST_BACKOFF_MS


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_passing_error_is_retried_after_a_growing_delay(error: ErrorCode) -> None:
    pair = Pair(backoff_ms=50)
    own, leaders = ModelLog(), ModelLog(1)
    following = pair.follow(own, leaders)
    pair.leader.errors[following.id] = error
    for delay_ms in (FIRST_BACKOFF_MS, 40, 50, 50):
        assert pair.run() == []
        assert pair.fetcher.pause_ms(pair.now_ms) == delay_ms
        request = pair.ask()
        assert not asked(request)
        pair.fetcher.answered(pair.leader.answer(request), pair.now_ms)
        assert pair.fetcher.next_request(pair.now_ms) is None
        pair.now_ms += delay_ms
    pair.leader.errors.clear()
    pair.run()
    assert own.records == leaders.records
    pair.fetcher.refused(following, pair.now_ms)
    assert pair.fetcher.pause_ms(pair.now_ms) == FIRST_BACKOFF_MS


def test_an_error_of_one_partition_delays_no_other() -> None:
    pair = Pair()
    bad, own = pair.follow(ModelLog(), ModelLog(), 0), ModelLog()
    pair.follow(own, ModelLog(1, 1, 1), 1)
    pair.leader.errors[bad.id] = ErrorCode.KAFKA_STORAGE_ERROR
    pair.run(2)
    assert len(own.records) == 3


def test_the_leaders_wait_ends_when_another_partition_is_due() -> None:
    """Acknowledgements may wait for a partition that the fetch does not contain yet, and no other fetch is sent
    meanwhile."""
    pair = Pair(backoff_ms=50)
    late = pair.follow(ModelLog(), ModelLog(1))
    pair.follow(ModelLog(), ModelLog(), 1)
    pair.leader.errors[late.id] = ErrorCode.UNKNOWN_LEADER_EPOCH
    for delay_ms in (FIRST_BACKOFF_MS, 40, 50):
        pair.run()
        request = pair.ask()
        assert request.max_wait_ms == delay_ms
        pair.fetcher.answered(pair.leader.answer(request), pair.now_ms)
        pair.now_ms += delay_ms
    pair.leader.errors.clear()
    pair.run()
    assert pair.ask().max_wait_ms == FetchSettings().wait_max_ms


def test_the_leaders_wait_is_short_while_an_answer_is_processed() -> None:
    pair = Pair()
    following = pair.follow(ModelLog(), ModelLog())
    pair.follow(ModelLog(), ModelLog(), 1)
    pair.run()
    pair.fetcher.held(following)
    request = pair.ask()
    assert request.max_wait_ms == FIRST_BACKOFF_MS
    pair.fetcher.answered(pair.leader.answer(request), pair.now_ms)
    pair.fetcher.resumed(following)
    assert pair.ask().max_wait_ms == FetchSettings().wait_max_ms


def test_the_leaders_wait_is_short_while_a_state_is_due() -> None:
    pair = Pair(backoff_ms=60_000)
    logs = [ModelLog(), ModelLog(1)]
    fenced = pair.follow(*logs)
    pair.follow(ModelLog(), ModelLog(), 1)
    pair.leader.errors[fenced.id] = ErrorCode.FENCED_LEADER_EPOCH
    pair.run()
    for _ in range(2):
        request = pair.ask()
        assert request.max_wait_ms == FIRST_BACKOFF_MS
        pair.fetcher.answered(pair.leader.answer(request), pair.now_ms)
    pair.now_ms += WORD_MS_MAX
    request = pair.ask()
    assert request.max_wait_ms == FetchSettings().wait_max_ms, "it does not come"
    pair.fetcher.answered(pair.leader.answer(request), pair.now_ms)
    pair.fetcher.fenced(fenced, pair.now_ms)
    pair.leader.errors.clear()
    pair.leader.epoch = EPOCH + 1
    pair.fetcher.unfollow(TOPIC_ID, 1)
    pair.follow(*logs, epoch=EPOCH + 1)
    assert pair.ask().max_wait_ms == FetchSettings().wait_max_ms, "it has come"


def test_a_fenced_follower_waits_for_the_controller() -> None:
    pair = Pair()
    own, leaders = ModelLog(), ModelLog(1)
    following = pair.follow(own, leaders)
    pair.leader.epoch = EPOCH + 1
    assert pair.run() == []
    assert following.stage is Stage.WAITING
    assert pair.fetcher.given_up_count == 1
    assert pair.fetcher.pause_ms(NOW_MS) is None
    pair.follow(own, leaders, epoch=EPOCH + 1)
    pair.run(2)
    assert own.records == leaders.records


def test_any_state_resumes_an_abandoned_partition() -> None:
    pair = Pair()
    own, leaders = ModelLog(), ModelLog(1)
    pair.fetcher.given_up(pair.follow(own, leaders))
    assert pair.fetcher.next_request(NOW_MS) is None
    pair.follow(own, leaders)
    pair.run()
    assert own.records == leaders.records


def test_the_fetch_offset_does_not_pass_the_flushed_offset() -> None:
    pair = Pair()
    following = pair.follow(ModelLog(), ModelLog(1, 1, 1))
    pair.run()
    pair.fetcher.held(following)
    request = pair.ask()
    assert not asked(request)
    pair.fetcher.answered(pair.leader.answer(request), NOW_MS)
    pair.fetcher.resumed(following)
    assert asked(pair.ask())[0].fetch_offset == 2


# --- the session, the connection


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_lost_session_is_begun_anew_at_once(error: ErrorCode) -> None:
    pair = Pair()
    pair.follow(ModelLog(), ModelLog(1))
    pair.run()
    pair.ask()
    assert pair.fetcher.answered(FetchResponse(error_code=error), NOW_MS) == []
    request = pair.ask()
    old_id = 0 if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND else 7
    assert (request.session_id, request.session_epoch, set(asked(request))) == (old_id, 0, {0})


def test_a_leader_that_refuses_each_request_is_asked_with_pauses() -> None:
    pair = Pair(backoff_ms=30)
    pair.follow(ModelLog(), ModelLog(1))
    for delay_ms in (FIRST_BACKOFF_MS, 30, 30):
        pair.ask()
        pair.fetcher.answered(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), pair.now_ms)
        assert pair.fetcher.next_request(pair.now_ms) is None
        assert pair.fetcher.pause_ms(pair.now_ms) == delay_ms
        pair.now_ms += delay_ms


def test_after_a_break_everything_is_asked_anew_after_a_while() -> None:
    pair = Pair()
    own, leaders = ModelLog(), ModelLog(1, 1, 1)
    pair.follow(own, leaders)
    pair.run()
    pair.ask()
    pair.fetcher.failed(NOW_MS)
    assert pair.fetcher.next_request(NOW_MS) is None
    assert pair.fetcher.pause_ms(NOW_MS) == FIRST_BACKOFF_MS
    pair.now_ms += FIRST_BACKOFF_MS
    request = pair.ask()
    assert (request.session_id, request.session_epoch) == (7, 0), "the old one is closed"
    assert asked(request)[0].fetch_offset == 2
    pair.fetcher.failed(pair.now_ms)
    assert pair.fetcher.pause_ms(pair.now_ms) == 2 * FIRST_BACKOFF_MS
    pair.now_ms += 2 * FIRST_BACKOFF_MS
    pair.run()
    assert own.records == leaders.records
    pair.ask()
    pair.fetcher.failed(pair.now_ms)
    assert pair.fetcher.pause_ms(pair.now_ms) == FIRST_BACKOFF_MS


# --- whatever happened before


def test_the_truncation_offset_is_known_without_epochs() -> None:
    assert truncation_offset(ModelLog(start_offset=5), 3, 4) == 4
    assert truncation_offset(ModelLog(start_offset=5), 3, 9) == 5


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_follower_gets_its_leaders_log_with_common_records(data: st.DataObject) -> None:
    """Any replicas lead in turn, also after unclean elections. Others copy a part of the log through this machine. Then
    one replica follows another."""
    logs = [ModelLog() for _ in range(3)]
    for epoch in range(1, data.draw(st.integers(1, 7), "epochs") + 1):
        elected = data.draw(st.integers(0, 2), "leader")
        leaders = logs[elected]
        leaders.leader_epochs.assign(epoch, leaders.log_end_offset)
        leaders.append(*[epoch] * data.draw(st.integers(0, 3), "records"))
        for other in data.draw(st.sets(st.integers(0, 2)), "followers") - {elected}:
            copy(leaders, logs[other], epoch, data.draw(st.integers(1, 3), "rounds"))
    own, leaders = logs[0], logs[1]
    leaders.leader_epochs.assign(8, leaders.log_end_offset)
    leaders.append(*[8] * data.draw(st.integers(0, 2), "more"))
    copy(leaders, own, 8, 30)
    assert own.records == leaders.records


def copy(leaders: ModelLog, own: ModelLog, epoch: int, rounds: int) -> None:
    """Follow for some rounds."""
    fetcher, leader = Fetcher(REPLICA_ID, lambda: BROKER_EPOCH, FetchSettings()), ModelLeader(epoch)
    leader.logs[TOPIC_ID, 0] = leaders
    fetcher.follow("topic", TOPIC_ID, 0, epoch, own)
    for _ in range(rounds):
        request = fetcher.next_request(0)
        assert request is not None
        for decision in fetcher.answered(leader.answer(request), 0):
            common, before = common_prefix(own, leaders), own.log_end_offset
            assert carry_out(fetcher, decision, leader) is None
            assert own.log_end_offset >= common, "cut below what is common"
            assert common_prefix(own, leaders) >= common
            if isinstance(decision, Truncate):
                assert own.log_end_offset <= before
