"""The decisions about a hosted partition: its leader, the allowed requests, the committed records. No log, no event
loop."""

import pytest

from barnabas.broker.replication.isr import PartitionState, RoleChange
from barnabas.wire.errors import ApiError, ErrorCode
from tests.broker.replication.conftest import NODE_ID, OTHER_ID, told


def test_no_replica_leads_before_the_controllers_first_state() -> None:
    state = PartitionState(NODE_ID)
    assert not state.is_leader
    assert refusal(state) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not state.commits_alone
    assert state.resign() is RoleChange.NONE


def test_a_leader_is_elected_once_per_epoch() -> None:
    state = PartitionState(NODE_ID)
    assert state.is_elected_by(told(leader_epoch=3))
    assert state.become_leader_or_follower(told(leader_epoch=3), 10) is RoleChange.ELECTED
    assert (state.is_leader, state.leader_epoch, state.leader_epoch_start_offset) == (True, 3, 10)
    assert state.become_leader_or_follower(told(leader_epoch=3, partition_epoch=7), 20) is RoleChange.NONE
    assert (state.partition_epoch, state.leader_epoch_start_offset) == (7, 10)
    assert state.become_leader_or_follower(told(leader_epoch=4), 20) is RoleChange.ELECTED
    assert state.leader_epoch_start_offset == 20


def test_a_leader_resigns_after_an_election_or_a_deletion() -> None:
    state = PartitionState(NODE_ID)
    another = told(leader=OTHER_ID, leader_epoch=1, isr=[OTHER_ID])
    assert state.become_leader_or_follower(another, 0) is RoleChange.NONE
    state.become_leader_or_follower(told(leader_epoch=2), 0)
    assert state.become_leader_or_follower(told(leader=OTHER_ID, leader_epoch=3), 0) is RoleChange.RESIGNED
    assert refusal(state) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    state.become_leader_or_follower(told(leader_epoch=4), 0)
    assert state.resign() is RoleChange.RESIGNED
    assert state.leader == -1


def test_adding_replicas_do_not_count_for_the_replication_factor() -> None:
    state = PartitionState(NODE_ID)
    state.become_leader_or_follower(told(replicas=[3, 4, NODE_ID, OTHER_ID], adding_replicas=[3, 4]), 0)
    assert state.replication_factor == 2
    state.become_leader_or_follower(told(partition_epoch=9, replicas=[3, 4]), 0)
    assert state.replication_factor == 2


def test_an_earlier_leader_epoch_is_outdated() -> None:
    state = PartitionState(NODE_ID)
    state.become_leader_or_follower(told(leader_epoch=5), 0)
    assert [state.is_outdated(told(leader_epoch=epoch)) for epoch in (4, 5, 6)] == [True, False, False]


def test_a_lost_state_ends_a_leadership_only_in_a_later_epoch() -> None:
    """Its partition epoch does not count. Sent again, it has the same response."""
    state = PartitionState(NODE_ID)
    assert not state.knew_isr
    state.become_leader_or_follower(told(leader_epoch=5, partition_epoch=9), 0)
    lost = [told(leader=-1, leader_epoch=epoch, partition_epoch=-1, isr=[]) for epoch in (4, 5, 6)]
    assert [state.is_outdated(each) for each in lost] == [True, True, False]
    assert state.become_leader_or_follower(lost[2], 0) is RoleChange.RESIGNED
    assert not state.is_outdated(lost[2])
    assert state.knew_isr


@pytest.mark.parametrize(
    ("current_leader_epoch", "error"),
    [
        (-1, None),
        (5, None),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_are_fenced_by_their_clients_leader_epoch(current_leader_epoch: int, error: ErrorCode | None) -> None:
    """Before the leader is compared: a client with another epoch has to fetch metadata in any case (KIP-320)."""
    state = PartitionState(NODE_ID)
    state.become_leader_or_follower(told(leader_epoch=5), 0)
    assert refusal(state, current_leader_epoch) is error
    state.become_leader_or_follower(told(leader=OTHER_ID, leader_epoch=5), 0)
    assert refusal(state, current_leader_epoch) is (error or ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize(
    ("replicas", "isr", "min_insync_replicas", "enough"),
    [
        ([1], [1], 1, True),
        ([1], [1], 2, True),  # never more than there are replicas
        ([1, 2, 3], [1], 1, True),
        ([1, 2, 3], [1], 2, False),
        ([1, 2, 3], [1, 2], 2, True),
        ([1, 2], [1, 2], 3, True),
    ],
)
def test_acks_all_wants_enough_in_sync_replicas(
    replicas: list[int], isr: list[int], min_insync_replicas: int, *, enough: bool
) -> None:
    state = PartitionState(NODE_ID)
    state.become_leader_or_follower(told(replicas=replicas, isr=isr), 0)
    if enough:
        state.check_enough_replicas(min_insync_replicas)
        return
    with pytest.raises(ApiError) as refused:
        state.check_enough_replicas(min_insync_replicas)
    assert refused.value.error is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize(
    ("leader", "replicas", "isr", "alone"),
    [
        (NODE_ID, [NODE_ID], [NODE_ID], True),
        (NODE_ID, [NODE_ID, OTHER_ID], [NODE_ID], False),  # the other one may be about to join
        (NODE_ID, [NODE_ID, OTHER_ID], [NODE_ID, OTHER_ID], False),
        (OTHER_ID, [NODE_ID, OTHER_ID], [NODE_ID], False),
    ],
)
def test_only_a_leader_without_other_replicas_commits_alone(
    leader: int, replicas: list[int], isr: list[int], *, alone: bool
) -> None:
    state = PartitionState(NODE_ID)
    state.become_leader_or_follower(told(leader=leader, replicas=replicas, isr=isr), 0)
    assert state.commits_alone is alone
    state.resign()
    assert not state.commits_alone


def test_an_earlier_partition_epoch_does_not_undo_a_stored_state() -> None:
    state = PartitionState(NODE_ID)
    replicas = [NODE_ID, OTHER_ID]
    state.become_leader_or_follower(told(leader_epoch=5, partition_epoch=7, replicas=replicas), 0)
    state.isr_stored({OTHER_ID, NODE_ID}, 8)
    state.become_leader_or_follower(told(leader_epoch=5, partition_epoch=7, replicas=replicas), 0)
    assert (state.isr, state.partition_epoch) == ((NODE_ID, OTHER_ID), 8)
    state.become_leader_or_follower(told(leader_epoch=6, partition_epoch=9, replicas=replicas), 0)
    assert (state.isr, state.partition_epoch) == ((NODE_ID,), 9)


def refusal(state: PartitionState, current_leader_epoch: int = -1) -> ErrorCode | None:
    try:
        state.check_leader(current_leader_epoch)
    except ApiError as error:
        return error.error
    return None
