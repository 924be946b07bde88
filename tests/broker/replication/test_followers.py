"""A leader's decisions from the fetches of its followers: the high watermark, and the replicas that join and leave the
ISR."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.replication.followers import REST_MS, UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, Followers, Proposal
from barnabas.wire.errors import ErrorCode

LEADER, FIRST, SECOND = 1, 2, 3
LAG_MS = 30_000
START_MS = 1_000_000


def leader(
    isr: list[int], *, start_offset: int = 0, is_eligible: Callable[[int, int], bool] | None = None
) -> Followers:
    return Followers(
        LEADER,
        [LEADER, FIRST, SECOND],
        isr,
        leader_epoch=5,
        partition_epoch=9,
        start_offset=start_offset,
        now_ms=START_MS,
        is_eligible=is_eligible or (lambda _replica, _epoch: True),
    )


def fetch(followers: Followers, replica: int, offset: int, end: int, now_ms: int = START_MS, epoch: int = 70) -> None:
    follower = followers.follower(replica)
    assert follower is not None
    follower.fetched(offset, 0, epoch, end, now_ms)


def committed(followers: Followers, end: int, now_ms: int = START_MS, minimum: int = 1) -> int:
    return followers.high_watermark(end, end, now_ms, min_insync_replicas=minimum, lag_ms_max=LAG_MS)


def test_all_of_the_isr_must_have_it() -> None:
    followers = leader([LEADER, FIRST, SECOND])
    assert committed(followers, 10) == UNKNOWN_OFFSET  # nobody has fetched
    fetch(followers, FIRST, 10, 10)
    assert committed(followers, 10) == UNKNOWN_OFFSET
    fetch(followers, SECOND, 7, 10)
    assert committed(followers, 10) == 7


def test_commits_do_not_wait_for_a_lagging_non_isr_replica() -> None:
    followers = leader([LEADER, FIRST])
    fetch(followers, FIRST, 10, 10)
    fetch(followers, SECOND, 2, 10)
    assert committed(followers, 10, START_MS + LAG_MS + 1) == 10


def test_commits_wait_for_a_replica_that_is_about_to_join() -> None:
    """Otherwise a busy leader's high watermark would stay ahead of the replica for ever."""
    followers = leader([LEADER, FIRST])
    fetch(followers, FIRST, 10, 10)
    fetch(followers, SECOND, 10, 10)
    fetch(followers, FIRST, 12, 12)
    assert committed(followers, 12) == 10
    ineligible = leader([LEADER, FIRST], is_eligible=lambda replica, _: replica != SECOND)
    fetch(ineligible, SECOND, 10, 10)
    fetch(ineligible, FIRST, 12, 12)
    assert committed(ineligible, 12) == 12


def test_nothing_is_committed_below_min_insync_replicas() -> None:
    followers = leader([LEADER])
    assert committed(followers, 10, START_MS + LAG_MS + 1, minimum=2) == UNKNOWN_OFFSET
    assert committed(followers, 10, START_MS + LAG_MS + 1, minimum=1) == 10
    everyone = leader([LEADER, FIRST, SECOND])
    for replica in (FIRST, SECOND):
        fetch(everyone, replica, 10, 10)
    assert committed(everyone, 10, minimum=5) == 10  # never more than there are replicas


def test_a_member_that_is_to_leave_counts_until_it_has_left() -> None:
    followers = leader([LEADER, FIRST])
    fetch(followers, FIRST, 4, 10)
    late_ms = START_MS + LAG_MS + 1
    proposal = followers.shrinking(10, late_ms, LAG_MS)
    assert proposal == Proposal((LEADER,), 5, 9)
    assert committed(followers, 10, late_ms) == 4
    assert followers.shrinking(10, late_ms, LAG_MS) is None, "one proposal at a time"
    assert followers.stored(proposal, [LEADER], 5, 10)
    assert committed(followers, 10, late_ms) == 10


def test_a_member_that_is_to_join_counts_at_once() -> None:
    followers = leader([LEADER, FIRST])
    for replica in (FIRST, SECOND):
        fetch(followers, replica, 10, 10)
    assert followers.expansion(SECOND, 10, START_MS) == Proposal((LEADER, FIRST, SECOND), 5, 9)
    assert followers.isr == {LEADER, FIRST}
    late_ms = START_MS + 2 * LAG_MS
    fetch(followers, FIRST, 12, 12, late_ms)
    assert committed(followers, 12, late_ms) == 10, "the controller may have stored it by now"


@pytest.mark.parametrize(
    ("offset", "high_watermark", "start_offset", "joins"),
    [(10, 10, 0, True), (9, 10, 0, False), (10, 4, 10, True), (9, 4, 10, False)],
)
def test_a_replica_joins_at_high_watermark_and_epoch_start(
    offset: int, high_watermark: int, start_offset: int, *, joins: bool
) -> None:
    followers = leader([LEADER], start_offset=start_offset)
    fetch(followers, FIRST, offset, 12)
    assert (followers.expansion(FIRST, high_watermark, START_MS) is not None) is joins


def test_a_replica_joins_only_in_its_live_broker_epoch() -> None:
    asked: list[tuple[int, int]] = []
    followers = leader([LEADER], is_eligible=lambda *one: asked.append(one) or False)  # type: ignore[func-returns-value]
    fetch(followers, FIRST, 10, 10, epoch=71)
    assert followers.expansion(FIRST, 10, START_MS) is None
    assert asked == [(FIRST, 71)]
    assert followers.expansion(99, 0, START_MS) is None, "no replica of this partition"


def test_a_follower_has_caught_up_with_an_earlier_log_end() -> None:
    """Also if it never reaches the present log end."""
    followers = leader([LEADER, FIRST])
    now_ms, end = START_MS, 10
    for _ in range(20):
        fetch(followers, FIRST, end, end + 10, now_ms)  # what was the end at its fetch before
        now_ms, end = now_ms + LAG_MS // 2, end + 10
        assert followers.shrinking(end + 5, now_ms, LAG_MS) is None
    fetch(followers, FIRST, end - 9, end + 10, now_ms)
    assert followers.shrinking(end + 10, now_ms + LAG_MS // 2 + 1, LAG_MS) is not None


def test_a_caught_up_follower_stays_however_long_no_record_comes() -> None:
    followers = leader([LEADER, FIRST])
    fetch(followers, FIRST, 10, 10)
    assert followers.shrinking(10, START_MS + 100 * LAG_MS, LAG_MS) is None


@pytest.mark.parametrize(
    ("error", "is_asked_again", "stays"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.FENCED_LEADER_EPOCH, False, True),
        (ErrorCode.INVALID_UPDATE_VERSION, False, True),
        (ErrorCode.NOT_CONTROLLER, True, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, True),
    ],
)
def test_refusals(error: ErrorCode, *, is_asked_again: bool, stays: bool) -> None:
    """A state that may have been stored counts until the leader knows the stored one."""
    followers = leader([LEADER])
    fetch(followers, FIRST, 10, 10)
    proposal = followers.expansion(FIRST, 10, START_MS)
    assert proposal is not None
    assert followers.refused(proposal, error, START_MS) is is_asked_again
    assert (followers.proposal is proposal) is stays
    assert followers.maximal_isr == ({LEADER, FIRST} if stays else {LEADER})
    if not stays:
        assert followers.expansion(FIRST, 10, START_MS + REST_MS - 1) is None
        assert followers.expansion(FIRST, 10, START_MS + REST_MS) is not None


def test_a_state_of_the_controller_is_older_newer_or_known() -> None:
    followers = leader([LEADER, FIRST])
    replicas: list[Any] = [LEADER, FIRST, SECOND]
    assert not followers.told(replicas, [LEADER], 9)
    assert not followers.told(replicas, [LEADER], 8), "that would undo what AlterPartition answered"
    assert followers.isr == {LEADER, FIRST}
    fetch(followers, SECOND, 10, 10)
    proposal = followers.expansion(SECOND, 10, START_MS)
    assert proposal is not None
    assert followers.told([LEADER, FIRST], [LEADER], 10)
    assert followers.proposal is None
    assert followers.follower(SECOND) is None
    assert not followers.stored(proposal, [LEADER, FIRST, SECOND], 5, 9), "a late answer"
    assert not followers.stored(proposal, [LEADER, FIRST, SECOND], 5, 10)
    assert not followers.stored(proposal, [LEADER], 6, 12), "another leader epoch"
    assert followers.isr == {LEADER}


@pytest.mark.parametrize(
    ("error", "is_withdrawn"),
    [
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True),
        (ErrorCode.INVALID_REQUEST, True),
        (ErrorCode.INVALID_UPDATE_VERSION, False),  # there is a later state: what names this one was on its way
        (ErrorCode.FENCED_LEADER_EPOCH, False),
        (ErrorCode.NOT_CONTROLLER, False),  # it is being asked again
    ],
)
def test_a_state_sent_again_withdraws_a_refused_proposal(error: ErrorCode, *, is_withdrawn: bool) -> None:
    """The controller did not know the topic, whose znode was damaged, and knows it again as it was."""
    followers = leader([LEADER, FIRST])
    proposal = followers.shrinking(10, START_MS + LAG_MS + 1, LAG_MS)
    assert proposal is not None
    assert not followers.told([LEADER, FIRST], [LEADER, FIRST], 9), "it may be stored at any moment"
    followers.refused(proposal, error, START_MS + LAG_MS + 1)
    assert followers.proposal is proposal
    assert followers.told([LEADER, FIRST], [LEADER, FIRST], 9) is is_withdrawn
    again = followers.shrinking(10, START_MS + LAG_MS + 1, LAG_MS)
    assert again == (proposal if is_withdrawn else None)
    assert not followers.told([LEADER, FIRST], [LEADER, FIRST], 9), "the refusal was of another proposal"


def test_a_response_with_an_unchanged_epoch_settles_its_proposal() -> None:
    """The controller had stored the proposal already, as the request came twice: the epoch is the same, and no request
    is in flight."""
    followers = leader([LEADER])
    fetch(followers, FIRST, 10, 10)
    proposal = followers.expansion(FIRST, 10, START_MS)
    assert proposal is not None
    assert followers.stored(proposal, [LEADER], 5, 9)
    assert followers.proposal is None


def test_the_low_watermark_is_that_of_live_replicas() -> None:
    followers = leader([LEADER, FIRST, SECOND])
    for replica, start in ((FIRST, 4), (SECOND, 2)):
        follower = followers.follower(replica)
        assert follower is not None
        follower.fetched(10, start, 70, 10, START_MS)
    assert followers.low_watermark(6, lambda _: True) == 2
    assert followers.low_watermark(6, lambda replica: replica != SECOND) == 4
    assert followers.low_watermark(6, lambda _: False) == 6


def test_a_proposal_names_the_registrations_of_its_members() -> None:
    followers = leader([LEADER])
    fetch(followers, FIRST, 10, 10, epoch=81)
    proposal = followers.expansion(FIRST, 10, START_MS)
    assert proposal is not None
    assert followers.broker_epochs(proposal.isr) == {LEADER: UNKNOWN_BROKER_EPOCH, FIRST: 81}
    assert followers.broker_epochs([SECOND]) == {SECOND: UNKNOWN_BROKER_EPOCH}, "it has not fetched yet"


def test_a_fetch_of_an_earlier_life_tells_nothing() -> None:
    followers = leader([LEADER])
    fetch(followers, FIRST, 10, 10, epoch=81)
    assert followers.is_outdated(FIRST, 80)
    assert not followers.is_outdated(FIRST, 81)
    assert not followers.is_outdated(FIRST, UNKNOWN_BROKER_EPOCH)
    assert not followers.is_outdated(SECOND, 1)


def test_a_leader_counts_itself_up_to_its_flushed_offset() -> None:
    """A replica that has all records of the leader is in sync, whether the leader has flushed them or not."""
    followers = leader([LEADER])
    late_ms = START_MS + LAG_MS + 1
    fetch(followers, FIRST, 10, 10)
    assert followers.high_watermark(4, 10, late_ms, min_insync_replicas=1, lag_ms_max=LAG_MS) == 4
