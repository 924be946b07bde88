"""ElectLeaders: the leader after an administrator's request, and Kafka's error for each refusal."""

import pytest

from barnabas.controller.admin_request import ElectionType
from barnabas.controller.operations.elect_leaders import elected
from barnabas.controller.state import NO_LEADER, ClusterState, PartitionState, RecoveryState
from barnabas.wire.errors import ApiError, ErrorCode
from tests.controller.operations.clusters import EPOCH, REPLICAS, cluster, every_state, state, subsets


def outcome(before: ClusterState, election_type: ElectionType, index: int = 0) -> PartitionState | ErrorCode:
    try:
        return elected(before, ("t", index), election_type, EPOCH)
    except ApiError as error:
        return error.error


@pytest.mark.parametrize("live", subsets(REPLICAS))
def test_the_first_replica_leads_if_it_is_live_and_in_sync(live: tuple[int, ...]) -> None:
    for old in every_state(live):
        new = outcome(cluster({0: old}, live), ElectionType.PREFERRED)
        if old.leader == 1:
            assert new is ErrorCode.ELECTION_NOT_NEEDED
        elif 1 in live and 1 in old.isr:
            assert new == old._replace(leader=1, leader_epoch=4, partition_epoch=12, controller_epoch=EPOCH)
        else:
            assert new is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("live", subsets(REPLICAS))
def test_any_live_replica_leads_a_leaderless_partition(live: tuple[int, ...]) -> None:
    for old in every_state(live):
        new = outcome(cluster({0: old}, live), ElectionType.UNCLEAN)
        if old.leader != NO_LEADER:
            assert new is ErrorCode.ELECTION_NOT_NEEDED
        elif not live:
            assert new is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        else:
            assert isinstance(new, PartitionState)
            assert new.leader in live
            in_sync = set(old.isr) & set(live)
            assert set(new.isr) == (in_sync or {new.leader})
            assert (new.recovery_state is RecoveryState.RECOVERING) == (not in_sync)


def test_elections_of_missing_partitions_are_unknown() -> None:
    before = cluster({0: state(2, REPLICAS)})
    for election_type in ElectionType:
        assert outcome(before, election_type, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert outcome(before.with_deleting(["t"]), election_type) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert outcome(before.without_topics(["t"]), election_type) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_never_had_a_leader_has_none_to_elect() -> None:
    before = cluster({0: state(2, REPLICAS)}, live=())
    topic = before.topics["t"]._replace(partitions={})
    before = before.with_topics([topic])
    assert outcome(before, ElectionType.PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert outcome(before, ElectionType.UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
