"""Elections as tables, row by row what Kafka's Election.scala does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.operations import leadership as election
from barnabas.controller.partition_fsm import (
    VALID_PREVIOUS,
    IllegalTransition,
    PartitionStateMachine,
    PartitionStatus,
)
from barnabas.controller.state import (
    NO_LEADER,
    NOBODY,
    BrokerRegistration,
    ClusterState,
    EndPoint,
    LogEnd,
    PartitionState,
    RecoveryState,
    ReplicaAssignment,
    TopicState,
)
from barnabas.controller.znodes import lost_partition_state

EPOCH = 7
RECOVERED, RECOVERING = RecoveryState.RECOVERED, RecoveryState.RECOVERING


def state(leader: int, isr: tuple[int, ...], recovery: RecoveryState = RecoveryState.RECOVERED) -> PartitionState:
    return PartitionState(leader, 3, isr, 5, 11, recovery)


def summary(elected: PartitionState | None) -> tuple[int, tuple[int, ...]] | None:
    """Leader and ISR, after checking that epochs moved as they must."""
    if elected is None:
        return None
    assert (elected.leader_epoch, elected.controller_epoch, elected.partition_epoch) == (4, EPOCH, 12)
    return elected.leader, elected.isr


@pytest.mark.parametrize(
    ("assignment", "live", "expected"),
    [
        ((1, 2, 3), {1, 2, 3}, (1, (1, 2, 3))),
        ((3, 1, 2), {1, 2}, (1, (1, 2))),
        ((1, 2), {2}, (2, (2,))),
        ((1, 2), {3}, None),
        ((1,), set(), None),
    ],
)
def test_first_leader(assignment: tuple[int, ...], live: set[int], expected: object) -> None:
    elected = election.first_leader(assignment, live, EPOCH)
    if elected is not None:
        assert (elected.leader_epoch, elected.partition_epoch, elected.controller_epoch) == (0, 0, EPOCH)
    assert (elected and (elected.leader, elected.isr)) == expected


@pytest.mark.parametrize(
    ("assignment", "isr", "live", "unclean", "expected"),
    [
        # the first replica in assignment order that is live and in sync
        ((1, 2, 3), (1, 2, 3), {1, 2, 3}, False, (1, (1, 2, 3))),
        ((1, 2, 3), (3, 2), {2, 3}, False, (2, (3, 2))),
        ((1, 2, 3), (1, 3), {2, 3}, False, (3, (3,))),
        # nobody in sync is live
        ((1, 2, 3), (1,), {2, 3}, False, None),
        ((1, 2, 3), (1,), {2, 3}, True, (2, (2,))),
        ((1, 2, 3), (1,), set(), True, None),
        # unclean does not matter while somebody in sync lives
        ((1, 2, 3), (3,), {1, 2, 3}, True, (3, (3,))),
        # the restarted only replica
        ((1,), (1,), {1}, False, (1, (1,))),
    ],
)
def test_leader_for_offline(
    assignment: tuple[int, ...], isr: tuple[int, ...], live: set[int], unclean: bool, expected: object
) -> None:
    elected = election.leader_for_offline(assignment, state(NO_LEADER, isr), live, EPOCH, unclean=unclean)
    assert summary(elected) == expected
    if elected is not None:
        unclean_result = elected.leader not in isr
        assert elected.recovery_state is (RecoveryState.RECOVERING if unclean_result else RecoveryState.RECOVERED)


@pytest.mark.parametrize(
    ("log_ends", "live", "unclean", "expected"),
    [
        # all have told: a later epoch goes before more records, and who ends there, too, is in sync
        ({1: (5, 90), 2: (6, 70), 3: (6, 70)}, {1, 2, 3}, False, (2, (2, 3), RECOVERED)),
        ({1: (6, 70), 2: (6, 71), 3: (5, 90)}, {1, 2, 3}, True, (2, (2,), RECOVERED)),
        ({1: (-1, 0), 2: (-1, 0), 3: (-1, 0)}, {1, 2, 3}, False, (1, (1, 2, 3), RECOVERED)),
        # one is away, or has gone since it told
        ({1: (5, 90), 2: (5, 91)}, {1, 2}, False, None),
        ({1: (5, 90), 2: (5, 91), 3: (5, 91)}, {1, 2}, False, None),
        ({1: (5, 90), 2: (5, 91)}, {1, 2}, True, (2, (2,), RECOVERING)),
        # a live one has not told yet
        ({1: (5, 90), 2: (5, 91)}, {1, 2, 3}, True, None),
        ({}, {1, 2, 3}, True, None),
        ({}, set(), True, None),
    ],
)
def test_leader_for_lost(
    log_ends: dict[int, tuple[int, int]], live: set[int], unclean: bool, expected: tuple[object, ...] | None
) -> None:
    lost = lost_partition_state(7)
    told = {replica: LogEnd(*end) for replica, end in log_ends.items()}
    elected = election.leader_for_lost((1, 2, 3), lost, told, live, EPOCH, unclean=unclean)
    if expected is None:
        assert elected is None
    else:
        assert elected is not None
        assert (elected.leader, elected.isr, elected.recovery_state) == expected
        assert (elected.leader_epoch, elected.partition_epoch, elected.controller_epoch) == (8, 8, EPOCH)


def test_a_doubted_replica_makes_the_others_wait() -> None:
    told = {1: LogEnd(6, 70), 2: LogEnd(6, 70, is_certain=False)}
    lost = lost_partition_state()
    assert election.leader_for_lost((1, 2), lost, told, {1, 2}, EPOCH, unclean=False) is None
    elected = election.leader_for_lost((1, 2), lost, told, {1, 2}, EPOCH, unclean=True)
    assert elected is not None
    assert (elected.leader, elected.isr, elected.partition_epoch) == (1, (1,), 0)
    elected = election.leader_for_lost((2,), lost, told, {2}, EPOCH, unclean=False)
    assert elected is not None
    assert elected.leader == 2, "nobody else has what it may have lost"


def test_the_last_replica_to_leave_is_elected_uncleanly() -> None:
    """The others lack records that were acknowledged after they had left."""
    seen = state(1, (1, 2, 3))
    for shut, live in ((2, {1, 3}), (3, {1})):
        seen = election.without_replica(seen, shut, EPOCH) or seen
        assert set(seen.isr) == live
    assert (seen.isr, seen.left_isr) == ((1,), (2, 3))
    gone = election.leaderless(seen, EPOCH)
    assert gone is not None
    for live, leader in (({2, 3}, 3), ({2}, 2), ({2, 3, 4}, 3), ({4}, 4)):
        elected = election.leader_for_offline((1, 2, 3, 4), gone, live, EPOCH, unclean=True)
        assert elected is not None
        assert (elected.leader, elected.isr) == (leader, (leader,))
        left = {3: (2, NOBODY), 2: (3,), 4: (2, 3)}[leader]
        assert elected.left_isr == left, "not who is gone with its log, nor is 2 the last to leave where 3 was"
    elected = election.leader_for_offline((1, 4), gone, {3, 4}, EPOCH, unclean=True)
    assert elected is not None
    assert elected.leader == 4, "one that has no replica any more is none to be elected"


def test_a_removed_replica_has_not_left_the_isr() -> None:
    """Its log is deleted. If it is added again its log is empty, and it must not be elected before others."""
    joined = state(1, (1, 2)).with_isr((1,)).with_isr((1, 3))
    assert joined.left_isr == (2,)
    cancelled = election.state_among((1, 2), joined, {1, 3}, EPOCH)
    assert (cancelled.isr, cancelled.left_isr) == ((1,), (2, NOBODY)), "3 was there after 2"
    gone = election.leaderless(cancelled, EPOCH)
    assert gone is not None
    elected = election.leader_for_offline((1, 2, 3), gone, {2, 3}, EPOCH, unclean=True)
    assert elected is not None
    assert elected.leader == 2


def test_a_replica_that_joins_again_has_not_left_the_isr() -> None:
    left = state(1, (1, 2, 3)).with_isr((1,))
    assert left.left_isr == (2, 3)
    assert left.with_isr((1, 2)).left_isr == (3,)
    assert left.with_isr((1, 2)).with_isr((1,)).left_isr == (3, 2)
    assert left.with_isr((1,)) is left


def test_a_clean_election_keeps_the_recovery_state() -> None:
    elected = election.leader_for_offline((1,), state(1, (1,), RecoveryState.RECOVERING), {1}, EPOCH, unclean=False)
    assert elected is not None
    assert elected.recovery_state is RecoveryState.RECOVERING


@pytest.mark.parametrize(
    ("leader", "isr", "gone", "expected"),
    [
        (1, (1, 2), 1, (NO_LEADER, (2,))),
        (1, (1, 2), 2, (1, (1,))),
        (1, (1,), 1, (NO_LEADER, (1,))),  # the ISR never becomes empty
        (NO_LEADER, (1,), 2, None),
    ],
)
def test_without_replica(leader: int, isr: tuple[int, ...], gone: int, expected: object) -> None:
    assert summary(election.without_replica(state(leader, isr), gone, EPOCH)) == expected


@given(
    assignment=st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True),
    isr=st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True),
    live=st.sets(st.integers(1, 5)),
    unclean=st.booleans(),
)
def test_no_election_loses_the_isr(assignment: list[int], isr: list[int], live: set[int], unclean: bool) -> None:
    elected = election.leader_for_offline(assignment, state(NO_LEADER, tuple(isr)), live, EPOCH, unclean=unclean)
    if elected is None:
        assert not live & set(assignment) & set(isr)
        return
    assert elected.leader in live
    assert elected.leader in elected.isr
    assert set(elected.isr) <= live
    assert unclean or elected.leader in isr


# -- states of partitions

A, B = ("a", 0), ("b", 1)


def test_the_life_of_a_partition() -> None:
    machine = PartitionStateMachine()
    assert machine.status(A) is PartitionStatus.NON_EXISTENT
    for status in (
        PartitionStatus.NEW,
        PartitionStatus.ONLINE,
        PartitionStatus.OFFLINE,
        PartitionStatus.ONLINE,
        PartitionStatus.OFFLINE,
        PartitionStatus.NON_EXISTENT,
    ):
        machine.move([A], status)
        assert machine.status(A) is status
    assert machine.in_status(*PartitionStatus) == []


@pytest.mark.parametrize("current", PartitionStatus)
@pytest.mark.parametrize("target", PartitionStatus)
def test_illegal_moves_change_nothing(current: PartitionStatus, target: PartitionStatus) -> None:
    if current in VALID_PREVIOUS[target]:
        return
    machine = PartitionStateMachine()
    machine._statuses = {B: current} if current is not PartitionStatus.NON_EXISTENT else {}
    legal = [p for p in (A, B) if machine.status(p) in VALID_PREVIOUS[target]]
    before = dict(machine._statuses)
    with pytest.raises(IllegalTransition, match=f"from {current.value} to {target.value}"):
        machine.move([*legal, B], target)
    assert machine._statuses == before


def test_states_of_a_loaded_cluster() -> None:
    led_by_one, leaderless = state(1, (1,)), state(NO_LEADER, (1,))
    assignments = dict.fromkeys(range(4), ReplicaAssignment((1,)))
    partitions = {0: led_by_one, 1: leaderless, 2: state(2, (2,))}
    cluster = ClusterState(
        brokers={1: BrokerRegistration(1, (EndPoint("PLAINTEXT", "h", 1),))},
        topics={"t": TopicState("t", bytes(16), assignments, partitions)},
    )
    machine = PartitionStateMachine()
    machine.load(cluster, outlived=[])
    assert [machine.status(("t", p)) for p in range(4)] == [
        PartitionStatus.ONLINE,
        PartitionStatus.OFFLINE,
        PartitionStatus.OFFLINE,
        PartitionStatus.NEW,
    ]
    machine.load(cluster, outlived=[("t", 0)])
    assert machine.status(("t", 0)) is PartitionStatus.OFFLINE
    machine.load(cluster.with_offline_replicas(1, [("t", 0)]), outlived=[])
    assert machine.status(("t", 0)) is PartitionStatus.OFFLINE
